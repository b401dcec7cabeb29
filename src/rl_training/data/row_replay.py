"""A replay buffer of rows: an observation, what arrived with it, and what was done there; for models of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.data.batches import Transitions
from rl_training.data.columns import Columns
from rl_training.data.plain_replay import Replay
from rl_training.types import Array, ArrayKind, SpaceInfo


class RowReplay(Replay):
    """The latest rows of every environment, each in a slot of a ring.

    The reward of a row arrived with its observation. The last observation of an episode has a row of its own, where
    nothing is done: that row is `terminated` or `truncated`, and no other. In windows, `next_obs` is `obs`: what
    follows a row is the next one.
    """

    @staticmethod
    def columns_of(info: SpaceInfo) -> Columns:
        """What a slot holds."""
        return Columns(
            {
                "action": info.stored_action,
                "obs": ArrayKind(info.obs_shape, info.obs_dtype),
                "reward": ArrayKind((), "float32"),
                "terminated": ArrayKind((), "bool"),
                "truncated": ArrayKind((), "bool"),
            }
        )

    def _read(self, rows: Array) -> tuple[Array, Array, Array]:
        obs = self._columns.view(rows, "obs")
        return obs, obs, rows

    def histories(self) -> list[Array]:
        """For every environment the slots of rows that another row of the same episode follows, oldest first."""
        return [slots[:-1][~self._ended(slots[:-1])] for slots in super().histories()]

    def gather(self, index: Array, *, n_step: int = 1, gamma: float) -> Transitions:
        """The transitions from some rows to the next ones, `[N, ...]`.

        Rows hold the samples of a Gaussian as they were drawn, and transitions what environments were sent of them.
        """
        if n_step != 1:
            raise ValueError(f"n_step={n_step}: rows are no chains; draw windows")
        after, store = (index + self.num_envs) % self.capacity, self._store
        names = ("reward", "obs", "terminated", "truncated")
        reward, next_obs, terminated, truncated = (store[name][after] for name in names)
        discount, action = np.full(index.size, gamma, np.float32), store["action"][index]
        if self.info.continuous:
            action = action.clip(-1.0, 1.0)
        return Transitions(store["obs"][index], action, reward, next_obs, terminated, truncated, discount)

    def _shape(self) -> dict[str, Any]:
        return super()._shape() | {"rows": True}
