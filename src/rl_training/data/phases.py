"""The buffer of PPG's auxiliary phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.data.chunks import ChunkedArray
from rl_training.types import Array, SpaceInfo


class PhaseMemory:
    """Stores the observations and value targets of several rollouts until the auxiliary phase has used them."""

    def __init__(self, info: SpaceInfo, capacity: int) -> None:
        self.arrays = {
            "obs": ChunkedArray(capacity, info.obs_shape, info.obs_dtype),
            "target": ChunkedArray(capacity, (), "float32"),
        }
        self.rollouts = 0
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def obs(self) -> Array:
        return self.arrays["obs"].data[: self._rows]

    @property
    def target(self) -> Array:
        return self.arrays["target"].data[: self._rows]

    def add(self, obs: Array, target: Array) -> None:
        """Add a rollout's observations and targets `[N, ...]`."""
        start, stop = self._rows, self._rows + len(target)
        for name, rows in (("obs", obs), ("target", target)):
            self.arrays[name].data[start:stop] = rows
            self.arrays[name].touch(start, stop)
        self._rows = stop
        self.rollouts += 1

    def clear(self) -> None:
        """Remove all rows, so that a checkpoint does not save rows that are no longer used."""
        self._rows = self.rollouts = 0
        for array in self.arrays.values():
            array.used = 0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows, "rollouts": self.rollouts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rows, self.rollouts = state["rows"], state["rollouts"]
