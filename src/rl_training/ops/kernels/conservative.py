"""The loss of CQL's critics with its closed-form gradient; `rl_training.ops.value` has the torch form."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import jit
from rl_training.types import Array


@jit
def conservative_gradient(
    values: Array, target: Array, log_density: Array, weight: float, batch: int, d_values: Array
) -> tuple[float, float, float]:
    """Write the gradient of `ensemble_value_loss` plus `weight` times the `conservative_gap` of every critic.

    `values` `[critics, n, 1 + S]` are those of the data's actions and of the sampled ones, for some `n` of the `batch`
    states. Returns their share of the squared errors, of the mean value and of the mean gap.
    """
    members, count, width = values.shape
    share = 1.0 / batch
    loss = total = gaps = 0.0
    for e in range(members):
        for b in range(count):
            row, d_row = values[e, b], d_values[e, b]
            highest = -np.inf
            for s in range(1, width):
                highest = max(highest, np.float64(row[s]) - log_density[b, s - 1])
            norm = 0.0
            for s in range(1, width):
                power = math.exp(np.float64(row[s]) - log_density[b, s - 1] - highest)
                d_row[s] = power
                norm += power
            scale = weight * share / norm
            for s in range(1, width):
                d_row[s] *= scale
            error = np.float64(row[0]) - target[b]
            d_row[0] = (error - weight) * share
            loss += 0.5 * error * error
            total += row[0]
            gaps += highest + math.log(norm / (width - 1)) - row[0]
    return loss * share, total * share / members, gaps * share / members
