"""Observations as world models see them: encoders into tokens, and decoders back.

Vectors are compressed by `symlog` and go through one MLP, all together; every image has convolutions of its own. A
decoder's vectors are on the compressed scale, its images `[..., channels, height, width]` in [0, 1]. Observations
have any leading axes `[..., *shape]`, and are a tensor, or a mapping of tensors where the space is a Dict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rl_training.models.encoders import Observations
from rl_training.models.rssm import WorldSize, WorldState
from rl_training.models.rssm_layers import (
    NORM_EPS,
    BlockLinear,
    NormedLinear,
    NormedMLP,
    OutputMLP,
    plain_linear,
    truncated_normal_,
)
from rl_training.ops.images import ImageLayout
from rl_training.ops.symexp import symexp, symlog
from rl_training.types import ObsPart, SpaceInfo

_LAYERS = 3
_KERNEL = 5
# The channels of the convolutions, as multiples of the depth; each halves the image.
_MULTIPLES = (2, 3, 4, 4)
_SHRINKS = 2 ** len(_MULTIPLES)
# Which of 5 weights in a row fall on the same of 3 pixels, where pixels are doubled: for the first and the second of a
# pair.
_SUMS = torch.tensor(
    [[[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]], [[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1]]]
)


def _part_of(obs: Observations, part: ObsPart) -> Tensor:
    return obs[part.name] if isinstance(obs, Mapping) else obs


def _joined(obs: Observations, vectors: Sequence[ObsPart]) -> Tensor:
    """All vectors as one row `[..., numbers]`, on the compressed scale."""
    rows = []
    for part in vectors:
        value = _part_of(obs, part)
        lead = value.shape[: value.dim() - len(part.shape)]
        rows.append(value.reshape(*lead, math.prod(part.shape)).float())
    return symlog(torch.cat(rows, dim=-1))


def _grid(layout: ImageLayout) -> tuple[int, int]:
    """The height and the width of the smallest image; sides that are no multiples of 16 are filled up to one."""
    return -(-layout.height // _SHRINKS), -(-layout.width // _SHRINKS)


def _planes(obs: Observations, part: ObsPart, layout: ImageLayout) -> Tensor:
    """Images `[..., *shape]` as float planes `[N, channels, height, width]` in [0, 1]."""
    planes = layout.planes(_part_of(obs, part).reshape(-1, *part.shape))
    # With a pixel's channels side by side, convolutions and norms are faster on a CPU.
    return planes.to(torch.float32, memory_format=torch.channels_last) * (1.0 / 255.0)


class NormedConv(nn.Module):
    """A convolution over 5 x 5 pixels with a norm of every pixel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = plain_conv(inputs, outputs)
        self.norm = ChannelNorm(outputs)

    def forward(self, x: Tensor, convolved: Callable[[nn.Conv2d, Tensor], Tensor]) -> Tensor:
        """silu(norm(conv(x))) of `[N, C, H, W]`; `convolved` is `halved_conv` or `doubled_conv`."""
        return nn.functional.silu(self.norm(convolved(self.conv, x)))


class ChannelNorm(nn.RMSNorm):
    """The root-mean-square norm over the channels of every pixel of `[N, C, H, W]`."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def plain_conv(inputs: int, outputs: int) -> nn.Conv2d:
    """A convolution over 5 x 5 pixels that keeps height and width."""
    layer = nn.Conv2d(inputs, outputs, _KERNEL, padding=_KERNEL // 2)
    truncated_normal_(layer.weight, inputs * _KERNEL * _KERNEL)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def halved_conv(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolution of `[N, C, H, W]`, and the largest of every 2 x 2 pixels."""
    return nn.functional.max_pool2d(conv(x), 2)


def doubled_conv(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolution of `[N, C, H, W]` whose pixels are doubled in both directions.

    The 5 x 5 pixels around one of the large image are only 3 x 3 of the small one. So the small image is convolved,
    with the sums of the weights that fall on the same pixel, for each of the four places in a pair of rows and columns:
    9 products in place of 25.
    """
    sums = _SUMS.to(conv.weight)
    kernels = torch.einsum("pia,qjb,ocab->opqcij", sums, sums, conv.weight).flatten(0, 2)
    bias = None if conv.bias is None else conv.bias.repeat_interleave(4)
    return nn.functional.pixel_shuffle(nn.functional.conv2d(x, kernels, bias, padding=1), 2)


class ImageEncoder(nn.Module):
    """Images `[N, C, H, W]` as tokens `[N, tokens]`: convolutions, each followed by a pool of 2 x 2 pixels.

    Images whose sides are no multiples of 16 have a grey border below and to the right.
    """

    def __init__(self, layout: ImageLayout, depth: int) -> None:
        super().__init__()
        channels = [layout.channels, *(depth * multiple for multiple in _MULTIPLES)]
        self.layers = nn.ModuleList([NormedConv(*pair) for pair in pairwise(channels)])
        height, width = _grid(layout)
        self.tokens = channels[-1] * height * width
        self._border = (0, width * _SHRINKS - layout.width, 0, height * _SHRINKS - layout.height)

    def forward(self, planes: Tensor) -> Tensor:
        x = planes - 0.5
        if any(self._border):
            x = nn.functional.pad(x, self._border)
        for layer in self.layers:
            x = layer(x, halved_conv)
        return x.flatten(1)


class ImageDecoder(nn.Module):
    """Images `[N, C, H, W]` in [0, 1] of states: convolutions, before each of which pixels are doubled.

    What is remembered reaches the first, smallest image by a block-diagonal layer, a group of channels per block: a
    dense one would be most of a large model.
    """

    def __init__(self, layout: ImageLayout, size: WorldSize) -> None:
        super().__init__()
        channels = [size.depth * multiple for multiple in _MULTIPLES]
        self._shape = (channels[-1], *_grid(layout))
        self._sides = layout.height, layout.width
        pixels = math.prod(self._shape)
        self.from_deter = BlockLinear(size.deter, pixels, size.blocks)
        self.stoch_in = NormedLinear(size.stoch * size.classes, 2 * size.units)
        self.from_stoch = plain_linear(2 * size.units, pixels)
        self.norm = ChannelNorm(channels[-1])
        widths = channels[::-1]
        self.layers = nn.ModuleList([NormedConv(*pair) for pair in pairwise(widths)])
        self.out = plain_conv(widths[-1], layout.channels)

    def forward(self, state: WorldState) -> Tensor:
        rows = self.from_deter(state.deter) + self.from_stoch(self.stoch_in(state.stoch.flatten(-2)))
        x = rows.reshape(-1, *self._shape).contiguous(memory_format=torch.channels_last)
        x = nn.functional.silu(self.norm(x))
        for layer in self.layers:
            x = layer(x, doubled_conv)
        height, width = self._sides
        return torch.sigmoid(doubled_conv(self.out, x)[..., :height, :width])


class ObservationEncoder(nn.Module):
    """Observations as tokens `[..., tokens]`: those of the vectors, then those of each image."""

    def __init__(self, info: SpaceInfo, size: WorldSize) -> None:
        super().__init__()
        self._vectors = [part for part in info.arrays if part.kind == "vector"]
        self._images = [(part, ImageLayout(part.shape)) for part in info.arrays if part.kind == "image"]
        numbers = sum(math.prod(part.shape) for part in self._vectors)
        self.vector = NormedMLP(numbers, _LAYERS, size.units) if self._vectors else None
        images = [ImageEncoder(layout, size.depth) for _, layout in self._images]
        # Module names may not hold dots, keys of a Dict space may.
        self.images = nn.ModuleList(images)
        self.tokens = (size.units if self._vectors else 0) + sum(image.tokens for image in images)

    def forward(self, obs: Observations) -> Tensor:
        tokens = [] if self.vector is None else [self.vector(_joined(obs, self._vectors))]
        for (part, layout), network in zip(self._images, self.images, strict=True):
            value = _part_of(obs, part)
            lead = value.shape[: value.dim() - len(part.shape)]
            tokens.append(network(_planes(obs, part, layout)).reshape(*lead, -1))
        return torch.cat(tokens, dim=-1)


class ObservationDecoder(nn.Module):
    """Observations of states, by the names of their parts."""

    def __init__(self, info: SpaceInfo, size: WorldSize) -> None:
        super().__init__()
        self._vectors = [part for part in info.arrays if part.kind == "vector"]
        self._images = [(part, ImageLayout(part.shape)) for part in info.arrays if part.kind == "image"]
        self._numbers = [math.prod(part.shape) for part in self._vectors]
        self.vector = OutputMLP(size.features, _LAYERS, size.units, sum(self._numbers)) if self._vectors else None
        self.images = nn.ModuleList([ImageDecoder(layout, size) for _, layout in self._images])

    def forward(self, state: WorldState) -> dict[str, Tensor]:
        """Vectors `[..., numbers]` on the compressed scale, images `[..., channels, height, width]` in [0, 1]."""
        decoded = {}
        if self.vector is not None:
            columns = self.vector(state.features).split_with_sizes(self._numbers, dim=-1)
            decoded = {part.name: column for part, column in zip(self._vectors, columns, strict=True)}
        for (part, _), network in zip(self._images, self.images, strict=True):
            planes = network(state)
            decoded[part.name] = planes.reshape(*state.deter.shape[:-1], *planes.shape[1:])
        return decoded

    def losses(self, decoded: Mapping[str, Tensor], obs: Observations) -> dict[str, Tensor]:
        """Squared errors `[...]` of every part, summed over its numbers or pixels."""
        losses = {}
        for part in self._vectors:
            losses[part.name] = (decoded[part.name] - _joined(obs, [part])).square().sum(dim=-1)
        for part, layout in self._images:
            planes = decoded[part.name]
            target = _planes(obs, part, layout).reshape(planes.shape)
            losses[part.name] = (planes - target).square().sum(dim=(-3, -2, -1))
        return losses

    def observations(self, decoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What was decoded as observations `[..., *shape]`: numbers on their own scale, images of bytes."""
        shown = {}
        for part in self._vectors:
            column = decoded[part.name]
            shown[part.name] = symexp(column).reshape(*column.shape[:-1], *part.shape)
        for part, layout in self._images:
            planes = decoded[part.name]
            pixels = (planes * 255.0).round().to(torch.uint8).flatten(0, -4)
            shown[part.name] = layout.images(pixels).reshape(*planes.shape[:-3], *part.shape)
        return shown
