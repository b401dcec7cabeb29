"""Policy losses and their diagnostics, batched: every argument is `[B]`."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def clipped_policy_loss(log_ratio: Tensor, advantage: Tensor, clip_coef: float) -> Tensor:
    """PPO's pessimistic surrogate, to be minimised (Schulman et al. 2017, eq. 7)."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_coef, 1.0 + clip_coef)
    return -torch.min(ratio * advantage, clipped * advantage).mean()


def surrogate_loss(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """How a policy would do on the actions of another, to be minimised (Schulman et al. 2015, eq. 14)."""
    return -(log_ratio.exp() * advantage).mean()


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """The likelihood-ratio gradient of the return, to be minimised."""
    return -(log_prob * advantage).mean()


def imitation_loss(log_prob: Tensor, weight: Tensor) -> Tensor:
    """How unlikely the actions of others are under a policy, each as important as its weight."""
    return -(weight * log_prob).mean()


def squared_imitation_loss(action: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
    """How far actions `[B, A]` are from the wanted ones: the weighted mean of squares, over samples and dimensions."""
    return (weight * (action - wanted).square().mean(dim=-1)).mean()


def advantage_weights(advantage: Tensor, temperature: float, max_weight: float) -> Tensor:
    """exp(advantage / temperature), at most `max_weight`: how much an action deserves to be repeated."""
    # The limit is on the exponent, so that nothing overflows on the way.
    return (advantage / temperature).clamp(max=math.log(max_weight)).exp()


def softmax_weights(advantage: Tensor, temperature: float) -> Tensor:
    """The same, in proportion to the other samples of the batch: the mean weight is 1."""
    return (advantage / temperature).softmax(dim=0) * len(advantage)


def effective_share(weight: Tensor) -> Tensor:
    """The share of samples that would do the work of weighted ones: 1 where all weights are equal, 1/B for one."""
    largest = weight.max()
    if not largest > 0.0:  # all of them are too small to be numbers: nothing does any work
        return torch.zeros_like(largest)
    weight = weight / largest  # squares of small numbers would be 0
    return weight.sum().square() / weight.square().sum() / len(weight)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(old || new) from samples of the old policy: (r - 1) - log r, unbiased and never negative."""
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_coef: float) -> Tensor:
    """The share of samples whose ratio left the trust interval."""
    return ((log_ratio.exp() - 1.0).abs() > clip_coef).float().mean()


def standardize(advantage: Tensor) -> Tensor:
    """Zero mean and unit deviation; a single sample has no deviation and is left as it is."""
    if advantage.numel() < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)
