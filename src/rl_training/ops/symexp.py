"""Symmetric logarithms, and numbers as distributions over points that grow exponentially away from 0.

DreamerV3 (Hafner et al. 2025) learns rewards and values of any size by cross-entropy. A number is split between the
two nearest points, in proportion to its distance from each, so that the mean of a distribution is the number itself.
The points of `two_hot.py` are compressed by another function, and its means are taken on the compressed scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rl_training.types import Array


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(|x| + 1): about linear near 0, the logarithm of large numbers on both sides."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """sign(x) (exp(|x|) - 1), the inverse of `symlog`."""
    return x.sign() * x.abs().expm1()


@dataclass(frozen=True)
class SymexpPoints:
    """`bins` points: `symexp` of even steps from `-limit` to `limit`."""

    bins: int = 255
    limit: float = 20.0

    def __post_init__(self) -> None:
        # Beyond 80 the ends are no float32.
        if self.bins < 2 or not 0.0 < self.limit <= 80.0:
            raise ValueError(f"symexp points need at least 2 bins and a limit between 0 and 80, got {self}")

    @cached_property
    def points(self) -> Array:
        """The points, float32 `[bins]`; exactly symmetric about 0."""
        half = (self.bins - 1) / 2.0
        steps = (np.arange(self.bins) - half) * (self.limit / half)
        points: Array = np.sign(steps) * np.expm1(np.abs(steps))
        return points.astype(np.float32)


def symexp_mean(logits: Tensor, support: SymexpPoints) -> Tensor:
    """The numbers `[...]` that distributions with these logits `[..., bins]` stand for.

    A point and its mirror image are taken together before the sum, so that equal logits give exactly 0. Summed in any
    other order, the largest points (5e8) would leave the rounding errors of their products behind.
    """
    pairs = support.bins // 2
    probabilities = logits.softmax(dim=-1)
    positive = torch.from_numpy(support.points[-pairs:]).to(logits)
    surplus = probabilities[..., -pairs:] - probabilities[..., :pairs].flip(-1)
    return (surplus * positive).sum(dim=-1)


def symexp_places(x: Tensor, support: SymexpPoints) -> tuple[Tensor, Tensor]:
    """Between which points numbers `[...]` are: the index of the lower one, and the share of the upper one.

    Numbers beyond the range count as its ends. Shares have no gradient.
    """
    points = torch.from_numpy(support.points).to(x)
    x = x.detach().clamp(points[0], points[-1])
    lower = (torch.bucketize(x, points, right=True) - 1).clamp(max=support.bins - 2)
    below, above = points[lower], points[lower + 1]
    return lower, (x - below) / (above - below)


def symexp_two_hot(x: Tensor, support: SymexpPoints) -> Tensor:
    """Numbers `[...]` as distributions `[..., bins]`."""
    lower, share = symexp_places(x, support)
    probabilities = torch.zeros(*x.shape, support.bins, dtype=x.dtype, device=x.device)
    probabilities.scatter_(-1, lower.unsqueeze(-1), (1.0 - share).unsqueeze(-1))
    return probabilities.scatter_(-1, lower.unsqueeze(-1) + 1, share.unsqueeze(-1))


def symexp_loss(logits: Tensor, target: Tensor, support: SymexpPoints) -> Tensor:
    """The cross-entropies `[...]` of logits `[..., bins]` with target numbers `[...]`."""
    lower, share = symexp_places(target, support)
    neighbours = torch.stack([lower, lower + 1], dim=-1)
    log_probs = logits.log_softmax(dim=-1).gather(-1, neighbours)
    return -((1.0 - share) * log_probs[..., 0] + share * log_probs[..., 1])


def symexp_target_entropy(target: Tensor, support: SymexpPoints) -> Tensor:
    """The entropy `[...]` of what `symexp_loss` aims at: the loss cannot fall below it, and less it is a divergence."""
    _, share = symexp_places(target, support)
    return -(torch.xlogy(share, share) + torch.xlogy(1.0 - share, 1.0 - share))
