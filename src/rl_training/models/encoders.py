"""Encoders that turn images and Dict observations into features."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rl_training.models.torso import linear
from rl_training.types import ObsPart, SpaceInfo, UserError

Observations = Tensor | Mapping[str, Tensor]  # one array, or those of a Dict by their names

_SMALLEST_IMAGE = 36
_IMAGE_FEATURES = 512


def _channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) >= 3 and shape[-1] < shape[-3]


class NatureCNN(nn.Module):
    """The convolutions of Mnih et al. 2015 on uint8 images, which are scaled to [0, 1] here, once per batch.

    Images are `[C, H, W]`, `[H, W, C]` or `[H, W]`, and may be stacked: frames become channels.
    """

    def __init__(self, shape: tuple[int, ...], *, orthogonal: bool, features: int = _IMAGE_FEATURES) -> None:
        super().__init__()
        self._last = _channels_last(shape)
        height, width = shape[-3:-1] if self._last else shape[-2:]
        if min(height, width) < _SMALLEST_IMAGE:
            raise UserError(
                f"observations of shape {shape}: the image network needs at least {_SMALLEST_IMAGE} pixels each way; "
                "resize them, or give a network of your own as model: module:Name"
            )
        channels = math.prod(shape) // (height * width)
        gain = math.sqrt(2.0) if orthogonal else None
        convolutions = [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        if gain is not None:
            for convolution in convolutions:
                nn.init.orthogonal_(convolution.weight, gain)
                nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        self.layers = nn.Sequential(*(layer for conv in convolutions for layer in (conv, nn.ReLU())), nn.Flatten())
        with torch.no_grad():
            size = self.layers(torch.zeros(1, channels, height, width)).shape[1]
        self.head = nn.Sequential(linear(size, features, gain=gain), nn.ReLU())
        self.features = features

    def forward(self, images: Tensor) -> Tensor:
        if self._last:
            images = images.movedim(-1, -3)
        pixels = images.flatten(1, -3) if images.dim() > 3 else images.unsqueeze(1)
        # With a pixel's channels side by side, the convolutions take two thirds of the time on a CPU.
        scaled = pixels.to(torch.float32, memory_format=torch.channels_last).mul_(1.0 / 255.0)
        return self.head(self.layers(scaled))  # type: ignore[no-any-return]


class DictEncoder(nn.Module):
    """Encodes each image with its own CNN and concatenates the results with the vectors."""

    def __init__(self, parts: tuple[ObsPart, ...], *, orthogonal: bool) -> None:
        super().__init__()
        self._parts = parts
        images = [part for part in parts if part.kind == "image"]
        # Module names may not hold dots, keys of a Dict space may.
        self.images = nn.ModuleList([NatureCNN(part.shape, orthogonal=orthogonal, features=256) for part in images])
        vectors = sum(math.prod(part.shape) for part in parts if part.kind == "vector")
        self.features = vectors + 256 * len(images)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        networks = iter(self.images)
        columns = []
        for part in self._parts:
            value = obs[part.name]
            columns.append(next(networks)(value) if part.kind == "image" else value.reshape(len(value), -1).float())
        return torch.cat(columns, dim=-1)


def encoder_for(info: SpaceInfo, *, orthogonal: bool) -> NatureCNN | DictEncoder | None:
    """The encoder that these observations need before an MLP, or None for vectors."""
    if info.obs_kind == "dict":
        return DictEncoder(info.parts, orthogonal=orthogonal)
    if info.obs_kind == "image":
        return NatureCNN(info.input_shape, orthogonal=orthogonal)
    return None
