"""A memory of rows, which turns steps into them and hands out new windows first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rl_training.data.chunks import ChunkedArray
from rl_training.data.memory import ReplayMemory
from rl_training.data.row_replay import RowReplay
from rl_training.data.samplers import FreshFirst
from rl_training.types import Array, Step, UserError


class Arrived:
    """The rewards `[B]` that arrived with what the environments show now: 0 where an episode begins."""

    arrays: Mapping[str, ChunkedArray] = {}

    def __init__(self, num_envs: int) -> None:
        self.reward = np.zeros(num_envs, np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"reward": self.reward.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        reward = np.asarray(state.get("reward"), np.float32)
        if reward.shape != self.reward.shape:
            raise UserError(f"the saved rewards of {reward.size} environments do not fit {self.reward.size}")
        self.reward[:] = reward


class RowMemory(ReplayMemory):
    """Stores steps as rows, and hands out windows of `length` + 1 of them: the first one is context.

    Every row but the first of all is learned from once, soon after it was stored: new windows start every `length`
    rows and are handed out before others are drawn.
    """

    replay: RowReplay

    def __init__(self, replay: RowReplay, length: int) -> None:
        super().__init__(replay, FreshFirst(replay, length + 1, length))
        self._arrived = Arrived(replay.num_envs)
        kinds = replay.records
        self._no_records = {name: np.zeros((replay.num_envs, *kind.shape), kind.dtype) for name, kind in kinds.items()}

    @property
    def parts(self) -> Mapping[str, Any]:
        """What a checkpoint saves, by name."""
        return {**super().parts, "arrived": self._arrived}

    def add(self, step: Step) -> None:
        """Store a row for each real row of a step, and another one for each episode that ends with it."""
        arrived, never = self._arrived.reward, np.zeros_like(step.terminated)
        done = step.real & (step.terminated | step.truncated)
        # The reward that arrived is copied: a step keeps what it was given.
        super().add(replace(step, reward=arrived.copy(), terminated=never, truncated=never))
        if done.any():
            nothing = np.zeros_like(step.action)
            # Where an episode was terminated and truncated at once, it is over for good.
            cut = step.truncated & ~step.terminated
            super().add(
                replace(step, obs=step.next_obs, action=nothing, truncated=cut, real=done, records=self._no_records)
            )
        arrived[step.real] = np.where(done, np.float32(0.0), step.reward)[step.real]

    def cut(self, mask: Array) -> None:
        """End the episodes of the masked environments after their latest rows; later rows do not continue them."""
        super().cut(mask)
        self._arrived.reward[mask] = 0.0
