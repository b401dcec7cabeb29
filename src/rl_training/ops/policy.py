"""Policy losses and their diagnostics, batched: every argument is `[B]`."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_policy_loss(log_ratio: Tensor, advantage: Tensor, clip_coef: float) -> Tensor:
    """PPO's pessimistic surrogate, to be minimised (Schulman et al. 2017, eq. 7)."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_coef, 1.0 + clip_coef)
    return -torch.min(ratio * advantage, clipped * advantage).mean()


def surrogate_loss(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """The importance-weighted surrogate of TRPO, to be minimised (Schulman et al. 2015, eq. 14)."""
    return -(log_ratio.exp() * advantage).mean()


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """The likelihood-ratio gradient of the return, to be minimised."""
    return -(log_prob * advantage).mean()


def truncated_ratio(log_ratio: Tensor, largest: float) -> Tensor:
    """Truncated importance weights min(largest, pi / mu), as constants (Espeholt et al. 2018, section 4.1)."""
    return log_ratio.detach().exp().clamp(max=largest)


def effective_share(weight: Tensor) -> Tensor:
    """The effective sample size as a share of B: 1 if all weights are equal, 1/B if only one is not 0."""
    largest = weight.max()
    if not largest > 0.0:  # all weights have underflowed to 0
        return torch.zeros_like(largest)
    weight = weight / largest  # the squares of small weights would underflow to 0
    return weight.sum().square() / weight.square().sum() / len(weight)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(old || new) from samples of the old policy: (r - 1) - log r, unbiased and never negative."""
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_coef: float) -> Tensor:
    """The share of samples whose ratio is outside the clipping interval."""
    return ((log_ratio.exp() - 1.0).abs() > clip_coef).float().mean()


def standardize(advantage: Tensor) -> Tensor:
    """Scale to zero mean and unit deviation; a single sample has no deviation and is not changed."""
    if advantage.numel() < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)
