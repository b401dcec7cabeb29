"""Gaussian actions squashed by tanh, with closed-form gradients; `rl_training.ops.distributions` has the torch form."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.distributions import LOG_SQRT_2PI, LOG_STD_MAX, LOG_STD_MIN
from rl_training.ops.kernels import jit
from rl_training.types import Array

_LOG_2 = math.log(2.0)


@jit
def squashed_forward(params: Array, noise: Array, action: Array, log_prob: Array) -> None:
    """Write the actions `[B, A]` and log-densities `[B]` for `params` `[B, 2A]` and standard normal `noise`."""
    count, size = noise.shape
    for b in range(count):
        total = 0.0
        for a in range(size):
            log_std = min(max(np.float64(params[b, size + a]), LOG_STD_MIN), LOG_STD_MAX)
            z = np.float64(noise[b, a])
            raw = params[b, a] + math.exp(log_std) * z
            action[b, a] = math.tanh(raw)
            # log(1 - tanh(raw)^2), written with the softplus of -2 |raw|, which cannot overflow.
            slope = 2.0 * (_LOG_2 - abs(raw) - math.log1p(math.exp(-2.0 * abs(raw))))
            total -= 0.5 * z * z + log_std + LOG_SQRT_2PI + slope
        log_prob[b] = total


@jit
def squashed_backward(
    params: Array, noise: Array, action: Array, d_action: Array, d_log_prob: float, d_params: Array
) -> None:
    """Write the gradient of `params`, given those of the actions and of the log-densities (one number for all)."""
    count, size = noise.shape
    for b in range(count):
        for a in range(size):
            given = np.float64(params[b, size + a])
            inside = LOG_STD_MIN <= given <= LOG_STD_MAX
            std = math.exp(min(max(given, LOG_STD_MIN), LOG_STD_MAX))
            squashed = np.float64(action[b, a])
            d_raw = d_action[b, a] * (1.0 - squashed * squashed) + d_log_prob * 2.0 * squashed
            d_params[b, a] = d_raw
            d_params[b, size + a] = d_raw * std * noise[b, a] - d_log_prob if inside else 0.0
