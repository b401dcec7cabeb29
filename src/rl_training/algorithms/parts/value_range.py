"""Whether the rewards and returns of an environment fit into the ranges of a model's heads."""

from __future__ import annotations

import logging

import numpy as np

from rl_training.ops.two_hot import Support, largest_return
from rl_training.types import Array

_LOG = logging.getLogger("rl_training")


class RangeWatch:
    """Warns once if a reward, or what rewards like those seen add up to, is beyond what the heads can represent."""

    def __init__(self, reward: Support, value: Support, *, two_player: bool, task: str = "") -> None:
        """In a game for two players the rewards of both sides do not add up. `task` is named in the warning."""
        self._where = f"task {task!r}: " if task else ""
        self._limits = {"reward_limit": largest_return(reward), "value_limit": largest_return(value)}
        self._count, self._sum = 0, 0.0
        self._two_player = two_player
        self.time_limit: int | None = None  # the longest episode, if it is known

    def see(self, rewards: Array, gamma: float) -> None:
        """Take note of new rewards `[N]`."""
        if not (self._limits and rewards.size):
            return
        self._count += rewards.size
        self._sum += float(rewards.sum(dtype=np.float64))
        largest, mean = float(np.abs(rewards).max()), abs(self._sum / self._count)
        if self._beyond("reward_limit", largest):
            self._warn("reward_limit", largest, "there was a reward of")
        steps = 1.0 if self._two_player else steps_in_sum(gamma, self.time_limit)
        earned = max(largest, mean * steps)
        if self._beyond("value_limit", earned):
            words = "" if self.time_limit is None else f" over {self.time_limit} steps"
            self._warn("value_limit", earned, f"at gamma={gamma:g}{words}, rewards as those so far add up to")

    def _beyond(self, name: str, number: float) -> bool:
        # A number at the limit itself is represented; rounding must not make it seem beyond.
        return name in self._limits and number > self._limits[name] * 1.001

    def _warn(self, name: str, number: float, reason: str) -> None:
        limit = self._limits.pop(name)
        given = f"{self._where}{name}={limit:g}: {reason} {number:.4g}"
        _LOG.warning("%s, which the model cannot represent; set it higher", given)


def steps_in_sum(gamma: float, time_limit: int | None) -> float:
    """The discounted number of steps in the longest episode, the sum of gamma^t; 1 if it is not known to be finite."""
    if gamma == 1.0:
        return 1.0 if time_limit is None else float(time_limit)
    return (1.0 - (0.0 if time_limit is None else gamma**time_limit)) / (1.0 - gamma)
