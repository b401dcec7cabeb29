"""Encoders that turn images and Dict observations into features."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.models.torso import linear
from rl_training.types import ObsPart, SpaceInfo, UserError

Observations = Tensor | Mapping[str, Tensor]  # one array, or those of a Dict by their names

_GAIN = math.sqrt(2.0)  # of orthogonal weights after a ReLU
_DICT_FEATURES = 256  # of every image of a Dict observation
# Of the residual network: the channels of its blocks, and the residual units in each.
_BLOCKS = (16, 32, 32)
_UNITS = 2


def _channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) >= 3 and shape[-1] < shape[-3]


class ImageEncoder(nn.Module, ABC):
    """Convolutions and a layer of features on uint8 images, which are scaled to [0, 1] here, once per batch.

    Images are `[C, H, W]`, `[H, W, C]` or `[H, W]`, and may be stacked: frames become channels.
    """

    smallest: ClassVar[int]  # height and width of the smallest images
    own_features: ClassVar[int]
    instead: ClassVar[str] = ""  # what else to do about smaller ones

    def __init__(self, shape: tuple[int, ...], *, orthogonal: bool, features: int | None = None) -> None:
        super().__init__()
        self._last = _channels_last(shape)
        height, width = shape[-3:-1] if self._last else shape[-2:]
        if min(height, width) < self.smallest:
            raise UserError(
                f"observations of shape {shape}: the image network needs at least {self.smallest} pixels each way; "
                f"resize them, {self.instead}or give a network of your own as model: module:Name"
            )
        channels = math.prod(shape) // (height * width)
        self.layers = self.convolutions(channels, orthogonal=orthogonal)
        with torch.no_grad():
            size = self.layers(torch.zeros(1, channels, height, width)).shape[1]
        self.features = self.own_features if features is None else features
        self.head = nn.Sequential(linear(size, self.features, gain=_GAIN if orthogonal else None), nn.ReLU())

    @abstractmethod
    def convolutions(self, channels: int, *, orthogonal: bool) -> nn.Sequential:
        """The layers from an image of so many channels to a vector."""

    def forward(self, images: Tensor) -> Tensor:
        if self._last:
            images = images.movedim(-1, -3)
        pixels = images.flatten(1, -3) if images.dim() > 3 else images.unsqueeze(1)
        # With a pixel's channels side by side, the convolutions take two thirds of the time on a CPU.
        scaled = pixels.to(torch.float32, memory_format=torch.channels_last).mul_(1.0 / 255.0)
        return self.head(self.layers(scaled))  # type: ignore[no-any-return]


class NatureCNN(ImageEncoder):
    """The convolutions of Mnih et al. 2015."""

    smallest = 36
    own_features = 512
    instead = "set image_encoder: impala if the algorithm has it (from 8 pixels on), "

    def convolutions(self, channels: int, *, orthogonal: bool) -> nn.Sequential:
        made = [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        if orthogonal:
            for convolution in made:
                _make_orthogonal(convolution, _GAIN)
        return nn.Sequential(*(layer for conv in made for layer in (conv, nn.ReLU())), nn.Flatten())


class ResidualUnit(nn.Module):
    """Two convolutions, each after a ReLU, whose result is added to their input."""

    def __init__(self, channels: int, *, gain: float | None) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        if gain is not None:
            _make_orthogonal(self.first, _GAIN)
            _make_orthogonal(self.second, gain)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.second(self.first(x.relu()).relu())
        return x + moved


class ImpalaCNN(ImageEncoder):
    """The residual network of Espeholt et al. 2018 (figure 3, right): each of three blocks halves height and width."""

    smallest = 8
    own_features = 256

    def convolutions(self, channels: int, *, orthogonal: bool) -> nn.Sequential:
        layers: list[nn.Module] = []
        for outputs in _BLOCKS:
            entry = nn.Conv2d(channels, outputs, 3, padding=1)
            if orthogonal:
                _make_orthogonal(entry, 1.0)  # no ReLU before it halves the variance
            # What the units add must not double the variance six times over.
            gain = _GAIN / math.sqrt(_UNITS * len(_BLOCKS)) if orthogonal else None
            units = [ResidualUnit(outputs, gain=gain) for _ in range(_UNITS)]
            layers += [entry, nn.MaxPool2d(3, 2, padding=1), *units]
            channels = outputs
        return nn.Sequential(*layers, nn.ReLU(), nn.Flatten())


IMAGE_ENCODERS: dict[str, type[ImageEncoder]] = {"nature": NatureCNN, "impala": ImpalaCNN}


def _make_orthogonal(convolution: nn.Conv2d, gain: float) -> None:
    nn.init.orthogonal_(convolution.weight, gain)
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]


class DictEncoder(nn.Module):
    """Encodes each image with its own network and concatenates the results with the vectors."""

    def __init__(self, parts: tuple[ObsPart, ...], *, orthogonal: bool, image_encoder: str = "nature") -> None:
        super().__init__()
        self._parts = parts
        images = [part for part in parts if part.kind == "image"]
        encoder = IMAGE_ENCODERS[image_encoder]
        # Module names may not hold dots, keys of a Dict space may.
        self.images = nn.ModuleList(
            [encoder(part.shape, orthogonal=orthogonal, features=_DICT_FEATURES) for part in images]
        )
        vectors = sum(math.prod(part.shape) for part in parts if part.kind == "vector")
        self.features = vectors + _DICT_FEATURES * len(images)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        networks = iter(self.images)
        columns = []
        for part in self._parts:
            value = obs[part.name]
            columns.append(next(networks)(value) if part.kind == "image" else value.reshape(len(value), -1).float())
        return torch.cat(columns, dim=-1)


def encoder_for(
    info: SpaceInfo, *, orthogonal: bool, image_encoder: str = "nature"
) -> ImageEncoder | DictEncoder | None:
    """The encoder that these observations need before an MLP, or None for vectors."""
    if info.obs_kind == "dict":
        return DictEncoder(info.parts, orthogonal=orthogonal, image_encoder=image_encoder)
    if info.obs_kind == "image":
        return IMAGE_ENCODERS[image_encoder](info.input_shape, orthogonal=orthogonal)
    return None
