"""Numbers as distributions over fixed points, for rewards and values that are learned by cross-entropy.

A number is compressed by h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x (Pohlen et al. 2018), then split between the two
nearest points of a support. A distribution turns back into a number by its mean, which the inverse of h expands.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rl_training.ops.kernels.unroll import expectations
from rl_training.types import Array

_EPS = 0.001


@dataclass(frozen=True)
class Support:
    """`bins` points, evenly spaced from `-limit` to `limit` on the compressed scale."""

    limit: float
    bins: int

    def __post_init__(self) -> None:
        if self.bins < 2 or not 0.0 < self.limit < np.inf:
            raise ValueError(f"a support needs at least 2 bins and a positive limit, got {self}")

    @property
    def gap(self) -> float:
        """The distance between neighbouring points."""
        return 2.0 * self.limit / (self.bins - 1)

    @cached_property
    def points(self) -> Array:
        """The points, float32 `[bins]`; exactly symmetric about 0."""
        half = (self.bins - 1) / 2.0
        return ((np.arange(self.bins) - half) * (self.limit / half)).astype(np.float32)


def h_transform(x: Array) -> Array:
    """Compress numbers: about linear near 0, about the square root of large ones."""
    size = np.abs(x)
    # size / (sqrt(size + 1) + 1) is sqrt(size + 1) - 1 without the loss of digits near 0.
    h: Array = np.sign(x) * (size / (np.sqrt(size + 1.0) + 1.0)) + _EPS * x
    return h


def inverse_h(y: Array) -> Array:
    """Expand numbers: the inverse of `h_transform`, computed and returned in float64."""
    size = np.abs(np.asarray(y, np.float64))
    # With u = sqrt(|x| + 1) - 1, the equation h(x) = y is u (1 + 2 eps + eps u) = |y|, and |x| = u (u + 2).
    slope = 1.0 + 2.0 * _EPS
    u = 2.0 * size / (slope + np.sqrt(slope * slope + 4.0 * _EPS * size))
    x: Array = np.sign(y) * (u * (u + 2.0))
    return x


def support_up_to(limit: float, bins: int) -> Support:
    """The support that can represent numbers up to `limit` either way."""
    return Support(float(h_transform(np.asarray(limit))), bins)


def largest_return(support: Support) -> float:
    """The largest number that a support can represent."""
    return float(inverse_h(np.float64(support.limit)))


def two_hot(x: Array, support: Support) -> Array:
    """Numbers `[...]` as distributions `[..., bins]`, float32; numbers beyond the range count as its ends."""
    h = h_transform(np.asarray(x, np.float64))
    place = np.clip((h + support.limit) / support.gap, 0.0, support.bins - 1.0)
    lower = np.minimum(place.astype(np.int64), support.bins - 2)
    upper_share = place - lower
    probabilities = np.zeros((*place.shape, support.bins), np.float32)
    np.put_along_axis(probabilities, lower[..., None], (1.0 - upper_share)[..., None], axis=-1)
    np.put_along_axis(probabilities, lower[..., None] + 1, upper_share[..., None], axis=-1)
    return probabilities


def expectation(logits: Array, support: Support) -> Array:
    """The numbers `[...]`, float32, that distributions with these logits `[..., bins]` stand for."""
    rows = np.ascontiguousarray(logits, np.float32).reshape(-1, support.bins)
    numbers = np.empty(len(rows), np.float32)
    expectations(rows, support.limit, _EPS, numbers)
    return numbers.reshape(logits.shape[:-1])


def expected(logits: Tensor, support: Support) -> Tensor:
    """`expectation` of tensors, on their device; a gradient passes through it."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and not logits.requires_grad:
        return torch.from_numpy(expectation(logits.numpy(), support))
    points = torch.from_numpy(support.points).to(logits)
    mean = (logits.softmax(dim=-1) @ points).double()
    slope = 1.0 + 2.0 * _EPS
    u = 2.0 * mean.abs() / (slope + (slope * slope + 4.0 * _EPS * mean.abs()).sqrt())
    return (mean.sign() * (u * (u + 2.0))).to(logits.dtype)
