"""Log-densities of given squashed actions, with closed-form gradients; `ops.distributions` has the torch form."""

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
