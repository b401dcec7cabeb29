"""Running sums of what environments return: one compiled call per step, over all environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.ops.kernels import inlined, jit
from rl_training.types import Array

# An odd constant with well-mixed bits, so that a product keeps every bit of what it multiplies.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_OFFSET = np.uint64(0xD1B54A32D192ED03)  # so that zeros count, too
_SHIFT = np.uint64(29)


@inlined
def _mixed(total: Any, word: Any) -> Any:
    """A sum that a word is added to. No two words lead from one sum to the same one, and their order matters."""
    total = (total ^ word) * _FACTOR + _OFFSET
    return total ^ (total >> _SHIFT)


@jit
def add_step(sums: Array, obs: Array, reward: Array, terminated: Array, truncated: Array) -> None:
    """Add a step to the sums `[B, 3]` (uint64) of observations, rewards and ends.

    `obs` `[B, N]` and `reward` `[B]` are the bytes of the numbers, as unsigned integers. Four chains run side by side
    over a row: a single one would wait for the last product at every word.
    """
    for b in range(obs.shape[0]):
        first = second = third = fourth = sums[b, 0]
        j = 0
        while j + 4 <= obs.shape[1]:
            first = _mixed(first, np.uint64(obs[b, j]))
            second = _mixed(second, np.uint64(obs[b, j + 1]))
            third = _mixed(third, np.uint64(obs[b, j + 2]))
            fourth = _mixed(fourth, np.uint64(obs[b, j + 3]))
            j += 4
        while j < obs.shape[1]:
            first = _mixed(first, np.uint64(obs[b, j]))
            j += 1
        sums[b, 0] = _mixed(_mixed(_mixed(first, second), third), fourth)
        sums[b, 1] = _mixed(sums[b, 1], np.uint64(reward[b]))
        sums[b, 2] = _mixed(sums[b, 2], np.uint64(terminated[b]) + np.uint64(2) * np.uint64(truncated[b]))
