"""Log-densities of given actions with closed-form gradients; `rl_training.ops.distributions` has the torch forms."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.distributions import LOG_SQRT_2PI, LOG_STD_MAX, LOG_STD_MIN
from rl_training.ops.kernels import jit
from rl_training.types import Array

_LOG_2 = math.log(2.0)


@jit
def squashed_likelihood(params: Array, raw: Array, log_prob: Array) -> None:
    """Write the log-densities `[B]` of the actions tanh(`raw`) `[B, A]` under `params` `[B, 2A]`."""
    count, size = raw.shape
    for b in range(count):
        total = 0.0
        for a in range(size):
            log_std = min(max(np.float64(params[b, size + a]), LOG_STD_MIN), LOG_STD_MAX)
            before = np.float64(raw[b, a])
            z = (before - params[b, a]) * math.exp(-log_std)
            slope = 2.0 * (_LOG_2 - abs(before) - math.log1p(math.exp(-2.0 * abs(before))))
            total -= 0.5 * z * z + log_std + LOG_SQRT_2PI + slope
        log_prob[b] = total


@jit
def squashed_likelihood_backward(params: Array, raw: Array, d_log_prob: Array, d_params: Array) -> None:
    """Write the gradient of `params`, given that of the log-densities `[B]`."""
    count, size = raw.shape
    for b in range(count):
        for a in range(size):
            given = np.float64(params[b, size + a])
            inside = LOG_STD_MIN <= given <= LOG_STD_MAX
            precision = math.exp(-min(max(given, LOG_STD_MIN), LOG_STD_MAX))
            z = (np.float64(raw[b, a]) - params[b, a]) * precision
            d_params[b, a] = d_log_prob[b] * z * precision
            d_params[b, size + a] = d_log_prob[b] * (z * z - 1.0) if inside else 0.0


@jit
def gaussian_likelihood(mean: Array, log_std: Array, action: Array, log_prob: Array) -> None:
    """Write the log-densities `[B]` of actions `[B, A]` of a Gaussian whose deviations are the same everywhere."""
    count, size = mean.shape
    for b in range(count):
        total = 0.0
        for a in range(size):
            z = (np.float64(action[b, a]) - mean[b, a]) * math.exp(-log_std[a])
            total -= 0.5 * z * z + log_std[a] + LOG_SQRT_2PI
        log_prob[b] = total


@jit
def gaussian_likelihood_backward(
    mean: Array, log_std: Array, action: Array, d_log_prob: Array, d_mean: Array, d_log_std: Array
) -> None:
    """Write the gradients of the means and of the log deviations `[A]`, given that of the log-densities `[B]`."""
    count, size = mean.shape
    for a in range(size):
        precision = math.exp(-log_std[a])
        total = 0.0
        for b in range(count):
            z = (np.float64(action[b, a]) - mean[b, a]) * precision
            d_mean[b, a] = d_log_prob[b] * z * precision
            total += d_log_prob[b] * (z * z - 1.0)
        d_log_std[a] = total
