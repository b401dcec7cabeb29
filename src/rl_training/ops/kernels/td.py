"""Errors of action values with closed-form gradients. Each has its readable torch form in `rl_training.ops.value`."""

from __future__ import annotations

import numpy as np

from rl_training.ops.kernels import jit
from rl_training.types import Array


@jit
def ensemble_value_gradient(value: Array, target: Array, d_value: Array) -> tuple[float, float]:
    """The gradient of `ensemble_value_loss` for values `[critics, B]`; returns the loss and the mean value."""
    members, count = value.shape
    loss = total = 0.0
    for e in range(members):
        for b in range(count):
            error = np.float64(value[e, b]) - target[b]
            loss += 0.5 * error * error
            total += value[e, b]
            d_value[e, b] = error / count
    return loss / count, total / (members * count)


@jit
def huber_gradient(
    values: Array, action: Array, target: Array, weight: Array, d_values: Array, td_error: Array
) -> tuple[float, float]:
    """The gradient of `weighted_huber_loss` for the chosen ones of `values` `[B, A]`; it is 0 for the others.

    The errors are written to `td_error`; returns the loss and the mean chosen value.
    """
    count = target.size
    loss = total = 0.0
    for b in range(count):
        for a in range(values.shape[1]):
            d_values[b, a] = 0.0
        chosen = np.float64(values[b, action[b]])
        error = chosen - target[b]
        size = abs(error)
        loss += weight[b] * (0.5 * error * error if size <= 1.0 else size - 0.5)
        total += chosen
        td_error[b] = error
        d_values[b, action[b]] = weight[b] * min(max(error, -1.0), 1.0) / count
    return loss / count, total / count


@jit
def quantile_huber_gradient(quantiles: Array, target: Array, d_quantiles: Array) -> tuple[float, float]:
    """The gradient of `quantile_huber_loss` for `quantiles` `[critics, B, N]` and `target` `[B, M]`.

    Returns the loss and the mean quantile.
    """
    members, count, size = quantiles.shape
    samples = target.shape[1]
    one, half, zero = np.float32(1.0), np.float32(0.5), np.float32(0.0)
    share = np.float32(1.0 / (count * size * samples))
    loss, total = np.float64(0.0), np.float64(0.0)
    for e in range(members):
        for b in range(count):
            goals = target[b]
            for n in range(size):
                value = quantiles[e, b, n]
                fraction = np.float32((n + 0.5) / size)
                pull = zero
                cost = zero
                for m in range(samples):
                    error = goals[m] - value
                    kept = min(max(error, -one), one)
                    weight = fraction if error >= zero else one - fraction
                    pull += weight * kept
                    # kept * (error - kept / 2) is the Huber loss on both of its branches.
                    cost += weight * kept * (error - half * kept)
                d_quantiles[e, b, n] = -pull * share
                loss += cost * share
                total += value
    return float(loss), float(total / (members * count * size))
