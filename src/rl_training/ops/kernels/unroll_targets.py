"""Targets of a model that is unrolled along windows of stored steps."""

from __future__ import annotations

from rl_training.ops.kernels import jit
from rl_training.types import Array


@jit
def bootstrap_rows(real: Array, n_step: Array, rows: Array) -> None:
    """Write for each unrolled state `[K + 1, B]` the window's row whose successor its target bootstraps from.

    That is `n_step` `[B]` steps ahead, or the last step of the window's episode if that comes first.
    """
    length, count = real.shape
    for b in range(count):
        last = 0
        while last + 1 < length and real[last + 1, b]:
            last += 1
        for k in range(rows.shape[0]):
            rows[k, b] = min(k + n_step[b] - 1, last)


@jit
def value_targets(
    reward: Array, terminated: Array, real: Array, rows: Array, bootstrap: Array, discount: float, target: Array
) -> None:
    """Write the n-step returns `[K + 1, B]`: discounted rewards up to `rows`, then the `bootstrap` value there.

    Only a terminated episode has no value to bootstrap from. A state past the window's episode gets 0, which is right
    where the episode terminated; elsewhere nobody knows the value, and it must not be learned.
    """
    for b in range(rows.shape[1]):
        for k in range(rows.shape[0]):
            target[k, b] = 0.0
            if real[k, b]:
                end = rows[k, b]
                running = 0.0 if terminated[end, b] else bootstrap[k, b]
                for t in range(end, k - 1, -1):
                    running = reward[t, b] + discount * running
                target[k, b] = running
