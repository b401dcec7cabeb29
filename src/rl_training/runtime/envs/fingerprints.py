"""Fingerprints of what environments returned, by which a replay is compared with what really happened."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.ops.kernels.fingerprints import add_step
from rl_training.types import Array

# What the three sums of an environment are of.
PARTS = ("observations", "rewards", "ends")


class Fingerprints:
    """Running sums over the bytes of every observation, reward and end, for each environment.

    `sums` `[2, B, 3]` holds those of the part before and of the present part. What a part is, an episode or some steps,
    is the caller's choice.
    """

    def __init__(self, num_envs: int) -> None:
        self.sums = np.zeros((2, num_envs, len(PARTS)), np.int64)
        self._nothing = np.zeros(num_envs, np.bool_)

    def turn(self) -> None:
        """Begin the next part of all environments."""
        self.sums[0] = self.sums[1]
        self.sums[1] = 0

    def begin(self, mask: Array, obs: Any) -> None:
        """Begin the next part of the masked environments with their present observations."""
        self.sums[0, mask] = self.sums[1, mask]
        self.sums[1, mask] = 0
        self.look(mask, obs)

    def look(self, mask: Array, obs: Any) -> None:
        """Add the observations of the masked environments, which a reset returned."""
        sums = self.sums[1].copy()
        self._add(sums, obs, self._nothing, self._nothing, self._nothing)
        self.sums[1, mask] = sums[mask]

    def add(self, obs: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        """Add a step of all environments."""
        self._add(self.sums[1], obs, reward, terminated, truncated)

    @staticmethod
    def _add(sums: Array, obs: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        rewards = np.ascontiguousarray(reward, np.float64).view(np.uint64)
        flags = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        add_step(sums.view(np.uint64), _words(np.ascontiguousarray(obs)), rewards, *flags)


def _words(obs: Array) -> Array:
    """The bytes of observations `[B, ...]` as unsigned integers `[B, N]`, the largest ones that fit."""
    rows = obs.reshape(len(obs), -1)
    length: int = rows.shape[1] * rows.itemsize
    return rows.view(np.uint64 if length % 8 == 0 else np.uint32 if length % 4 == 0 else np.uint8)
