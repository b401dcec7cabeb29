"""Encoders that turn images and Dict observations into features."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.models.torso import linear
from rl_training.ops.images import ImageLayout
from rl_training.types import ObsPart, SpaceInfo

Observations = Tensor | Mapping[str, Tensor]  # one array, or those of a Dict by their names

_GAIN = math.sqrt(2.0)  # of orthogonal weights after a ReLU
_DICT_FEATURES = 256  # of every image of a Dict observation
# Of the residual network: the channels of its blocks, and the residual units in each.
_BLOCKS = (16, 32, 32)
_UNITS = 2
# Of the network of Mnih et al.: channels, kernels with their strides, and the smallest side that leaves a pixel.
_NATURE_CHANNELS = (32, 64, 64)
_NATURE_KERNELS = ((8, 4), (4, 2), (3, 1))
_NATURE_SMALLEST = 36
# Sides that are not halved any more.
_FEW_PIXELS = 4


def halvings(height: int, width: int, count: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """The strides of `count` padded convolutions that halve what is larger than 4 pixels, and what is left of it."""
    strides = []
    for _ in range(count):
        strides.append((1 + (height > _FEW_PIXELS), 1 + (width > _FEW_PIXELS)))
        height, width = -(-height // strides[-1][0]), -(-width // strides[-1][1])
    return strides, (height, width)


class ImageEncoder(nn.Module, ABC):
    """Convolutions and a layer of features on images of bytes, which are scaled to [0, 1] here, once per batch.

    Images are `[C, H, W]`, `[H, W, C]` or `[H, W]`, and may be stacked: frames become channels.
    """

    own_features: ClassVar[int]

    def __init__(self, shape: tuple[int, ...], *, orthogonal: bool, features: int | None = None) -> None:
        super().__init__()
        self._layout = image = ImageLayout(shape)
        self.layers = self.convolutions(image, orthogonal=orthogonal)
        with torch.no_grad():
            size = self.layers(torch.zeros(1, image.channels, image.height, image.width)).shape[1]
        self.features = self.own_features if features is None else features
        self.head = nn.Sequential(linear(size, self.features, gain=_GAIN if orthogonal else None), nn.ReLU())

    @abstractmethod
    def convolutions(self, image: ImageLayout, *, orthogonal: bool) -> nn.Sequential:
        """The layers from an image to a vector."""

    def forward(self, images: Tensor) -> Tensor:
        pixels = self._layout.planes(images)
        # With a pixel's channels side by side, the convolutions take two thirds of the time on a CPU.
        scaled = pixels.to(torch.float32, memory_format=torch.channels_last, copy=True).mul_(1.0 / 255.0)
        return self.head(self.layers(scaled))  # type: ignore[no-any-return]


class NatureCNN(ImageEncoder):
    """The convolutions of Mnih et al. 2015, which need 36 pixels; in smaller images, as many of 3 x 3 pixels."""

    own_features = 512

    def convolutions(self, image: ImageLayout, *, orthogonal: bool) -> nn.Sequential:
        widths = (image.channels, *_NATURE_CHANNELS)
        if min(image.height, image.width) < _NATURE_SMALLEST:
            strides, _ = halvings(image.height, image.width, len(_NATURE_CHANNELS))
            made = [
                nn.Conv2d(*pair, 3, stride, padding=1) for pair, stride in zip(pairwise(widths), strides, strict=True)
            ]
        else:
            layers = zip(pairwise(widths), _NATURE_KERNELS, strict=True)
            made = [nn.Conv2d(*pair, kernel, stride) for pair, (kernel, stride) in layers]
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

    own_features = 256

    def convolutions(self, image: ImageLayout, *, orthogonal: bool) -> nn.Sequential:
        layers: list[nn.Module] = []
        channels = image.channels
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
