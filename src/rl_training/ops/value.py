"""Values, their targets and losses; every argument is `[B]` unless stated otherwise."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rl_training.types import Array


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """The mean squared error."""
    return (value - target).square().mean()


def clipped_value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """PPO's value loss: the larger of the plain error and that of the value clipped to within `clip` of the old one."""
    kept = old_value + (value - old_value).clamp(-clip, clip)
    return torch.max((value - target).square(), (kept - target).square()).mean()


def td_target(reward: Array, discount: Array, terminated: Array, next_value: Array) -> Array:
    """reward + discount * next_value; no bootstrap where the episode terminated (truncation does bootstrap)."""
    return reward + discount * (1.0 - terminated) * next_value


def ensemble_value_loss(value: Tensor, target: Tensor) -> Tensor:
    """Half the mean squared error of every critic `[critics, B]`, summed over critics."""
    return 0.5 * (value - target).square().mean(dim=-1).sum()


def expectile_loss(value: Tensor, target: Tensor, expectile: float) -> Tensor:
    """|expectile - 1(u < 0)| u^2 of u = target - value, averaged (Kostrikov et al. 2022, eq. 5)."""
    error = target - value
    weight = torch.where(error < 0.0, 1.0 - expectile, expectile)
    return (weight * error.square()).mean()


def conservative_gap(value: Tensor, sampled: Tensor, log_density: Tensor) -> Tensor:
    """CQL's penalty: log integral of exp Q over actions, minus Q of the data's action (Kumar et al. 2020, eq. 4).

    `value` is `[critics, B]`; `sampled` `[critics, B, S]` are the Q-values of actions drawn with densities
    `exp(log_density)` `[B, S]`, which estimate the integral by importance sampling. Returns `[critics]`.
    """
    estimate = (sampled - log_density).logsumexp(dim=-1) - math.log(sampled.shape[-1])
    return (estimate - value).mean(dim=-1)


def weighted_huber_loss(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean of Huber losses: half the squared error up to 1, linear beyond."""
    return (weight * torch.nn.functional.huber_loss(value, target, reduction="none")).mean()


def quantile_huber_loss(quantiles: Tensor, target: Tensor) -> Tensor:
    """The quantile Huber loss of `[critics, B, N]` against target samples `[B, M]` (Dabney et al. 2018, eq. 10).

    Summed over critics, averaged over the rest; the n-th quantile is that of the fraction (n + 1/2) / N.
    """
    count = quantiles.shape[-1]
    fraction = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    error = target[:, None, :] - quantiles[..., None]
    huber = torch.where(error.abs() <= 1.0, 0.5 * error.square(), error.abs() - 0.5)
    below = (error.detach() < 0.0).to(huber.dtype)
    return ((fraction[:, None] - below).abs() * huber).mean(dim=(1, 2, 3)).sum()


def dueling_values(outputs: Tensor) -> Tensor:
    """Action values from a state's value and the advantages `[B, 1 + A]` (Wang et al. 2016, eq. 9)."""
    value, advantage = outputs[..., :1], outputs[..., 1:]
    return value + advantage - advantage.mean(dim=-1, keepdim=True)


def explained_variance(value: Array, target: Array) -> float:
    """1 - Var[target - value] / Var[target]; 0 if the target does not vary."""
    variance = float(np.var(target))
    return 0.0 if variance == 0.0 else 1.0 - float(np.var(target - value)) / variance
