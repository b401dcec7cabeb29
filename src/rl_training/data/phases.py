"""What an auxiliary phase learns from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.data.chunks import ChunkedArray
from rl_training.types import Array, SpaceInfo


class PhaseMemory:
    """The observations and value targets of several rollouts, kept until they have been learned from once more."""

    def __init__(self, info: SpaceInfo, capacity: int) -> None:
        self.memory = {
            "obs": ChunkedArray(capacity, info.obs_shape, info.obs_dtype),
            "target": ChunkedArray(capacity, (), "float32"),
        }
        self.rollouts = 0
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def obs(self) -> Array:
        return self.memory["obs"].data[: self._rows]

    @property
    def target(self) -> Array:
        return self.memory["target"].data[: self._rows]

    def add(self, obs: Array, target: Array) -> None:
        """Keep another rollout's `[N, ...]`."""
        start, stop = self._rows, self._rows + len(target)
        for name, rows in (("obs", obs), ("target", target)):
            self.memory[name].data[start:stop] = rows
            self.memory[name].touch(start, stop)
        self._rows = stop
        self.rollouts += 1

    def clear(self) -> None:
        """Forget them: a checkpoint holds no rows that nothing is learned from any more."""
        self._rows = self.rollouts = 0
        for array in self.memory.values():
            array.used = 0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows, "rollouts": self.rollouts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rows, self.rollouts = state["rows"], state["rollouts"]
