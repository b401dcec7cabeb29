"""Where height, width and channels are in images."""

from __future__ import annotations

import math

from torch import Tensor


def _channels_last(first: int, middle: int, last: int) -> bool:
    if (first == middle) != (middle == last):
        return first == middle
    return last < first


class ImageLayout:
    """Where height, width and channels are in images of a shape: `[C, H, W]`, `[H, W, C]` or `[H, W]`.

    Images may be stacked: frames become channels. Two sides that are equal are height and width; else there are fewer
    channels than rows.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.channels_last = len(shape) >= 3 and _channels_last(*shape[-3:])
        self.height, self.width = shape[-3:-1] if self.channels_last else shape[-2:]
        self.channels = math.prod(shape) // (self.height * self.width)

    def planes(self, images: Tensor) -> Tensor:
        """Images `[B, *shape]` as `[B, channels, height, width]`."""
        ordered = images.movedim(-1, -3) if self.channels_last else images
        return ordered.reshape(len(images), self.channels, self.height, self.width)

    def images(self, planes: Tensor) -> Tensor:
        """The inverse of `planes`."""
        if not self.channels_last:
            return planes.reshape(-1, *self.shape)
        return planes.reshape(-1, *self.shape[:-3], self.shape[-1], *self.shape[-3:-1]).movedim(-3, -1)
