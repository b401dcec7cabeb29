"""A Gaussian policy whose actions are squashed by tanh, and what searches over its samples teach it.

Its parameters `[..., 2D]` are means and log deviations before tanh. The Jacobian of tanh is left out of log-densities:
it does not depend on the parameters.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rl_training.types import Array

LOG_STD_RANGE = (-5.0, 2.0)
# Actions that float32 rounds to +-1 would be infinitely far away before tanh.
_LARGEST = 1.0 - 1e-6
_CONSTANT = 0.5 * math.log(2.0 * math.pi)


def sampled_actions(params: Array, spread: Array, noise: Array) -> Array:
    """Actions `[..., A, D]` from standard normal noise of that shape; `spread` `[A]` widens the deviation of each."""
    size = params.shape[-1] // 2
    deviation = np.exp(np.clip(params[..., None, size:], *LOG_STD_RANGE))
    actions: Array = np.tanh(params[..., None, :size] + spread[:, None] * deviation * noise)
    return actions


def sample_logits(spread: Array, noise: Array) -> Array:
    """log(pi / beta), float32 `[..., A]`: the prior of the actions that `sampled_actions` makes of this noise.

    pi is the policy, beta the mixture of the Gaussians that the A actions come from. With this prior, sums over samples
    stand for expectations under the policy, whatever the spread (Hubert et al. 2021): wide samples look further without
    making the policy that is learned from them wider. Both densities are relative to the deviation of the policy, so
    neither depends on its parameters.
    """
    scales, counts = np.unique(spread.astype(np.float64), return_counts=True)
    if np.array_equal(scales, [1.0]):
        return np.zeros(noise.shape[:-1], np.float32)
    distance = np.square(spread[:, None] * noise.astype(np.float64)).sum(axis=-1)
    # The logs of the parts of beta / pi.
    parts = np.log(counts / spread.size) - noise.shape[-1] * np.log(scales)
    parts = parts + 0.5 * distance[..., None] * (1.0 - 1.0 / np.square(scales))
    highest = parts.max(axis=-1)
    logits: Array = -(highest + np.log(np.exp(parts - highest[..., None]).sum(axis=-1)))
    return logits.astype(np.float32)


def log_density(params: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
    """Log-densities `[..., A]` of sampled actions `[..., A, D]`, and the entropy `[...]` before tanh."""
    mean, raw = params.chunk(2, dim=-1)
    log_std = raw.clamp(*LOG_STD_RANGE)
    before = torch.atanh(sampled.clamp(-_LARGEST, _LARGEST))
    z = (before - mean.unsqueeze(-2)) * (-log_std).exp().unsqueeze(-2)
    density = -(0.5 * z.square() + log_std.unsqueeze(-2) + _CONSTANT).sum(dim=-1)
    return density, (log_std + (_CONSTANT + 0.5)).sum(dim=-1)


def density_gradient(
    params: Array, sampled: Array, target: Array, weight: Array, coef: float, ent_coef: float
) -> tuple[Array, float, float]:
    """The gradient `[..., 2D]` of `coef` times the weighted divergence minus `ent_coef` times the weighted entropy.

    The divergence is sum_j target_j (log target_j - log density of action j). Also returns both weighted sums.
    """
    size = params.shape[-1] // 2
    mean, raw = params[..., :size], params[..., size:]
    log_std = np.clip(raw, *LOG_STD_RANGE)
    before = np.arctanh(np.clip(sampled, -_LARGEST, _LARGEST))
    inverse = np.exp(-log_std)
    z = (before - mean[..., None, :]) * inverse[..., None, :]
    share = target[..., None]
    scale = (np.float32(coef) * weight)[..., None]
    d_mean = -scale * (share * z).sum(axis=-2) * inverse
    d_log_std = scale * (share * (1.0 - z * z)).sum(axis=-2) - np.float32(ent_coef) * weight[..., None]
    d_log_std = np.where((raw < LOG_STD_RANGE[0]) | (raw > LOG_STD_RANGE[1]), np.float32(0.0), d_log_std)
    density = -(0.5 * z * z + log_std[..., None, :] + _CONSTANT).sum(axis=-1)
    own = target * np.log(np.maximum(target, np.float32(1e-30)))
    divergence = (weight * (own - target * density).sum(axis=-1)).sum()
    entropy = (weight * (log_std + (_CONSTANT + 0.5)).sum(axis=-1)).sum()
    return np.concatenate([d_mean, d_log_std], axis=-1), float(divergence), float(entropy)
