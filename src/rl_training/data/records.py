"""The records of a policy in a replay buffer: separate columns, which can be rewritten after a draw."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rl_training.data.chunks import ChunkedArray
from rl_training.data.columns import Columns
from rl_training.types import Array, ArrayKind, Records


class RecordColumns:
    """The records of every slot, apart from the transitions.

    Writing records again changes only this array: the files of the transitions in a checkpoint stay as they are.
    """

    def __init__(self, kinds: Records, num_envs: int, capacity: int) -> None:
        self.kinds: Records = {name: ArrayKind(tuple(shape), dtype) for name, (shape, dtype) in kinds.items()}
        self.columns = Columns(self.kinds)
        self.rows = ChunkedArray(capacity, (self.columns.row_bytes,), "uint8")
        self._num_envs = num_envs
        self._store = self.columns.views(self.rows.data)
        self._by_position = self.columns.views(self.rows.data.reshape(-1, num_envs, self.columns.row_bytes))

    def check(self, records: Mapping[str, Array]) -> None:
        """Raise a ValueError if some records of a step are missing."""
        if not records.keys() >= self.kinds.keys():
            missing = sorted(self.kinds.keys() - records.keys())
            raise ValueError(f"the step lacks the records {missing}; it has {sorted(records)}")

    def add_block(self, records: Mapping[str, Array], position: int) -> None:
        """Store the records of one step of all environments."""
        self.check(records)
        for name, column in self._by_position.items():
            column[position] = records[name]
        self.rows.touch(position * self._num_envs, (position + 1) * self._num_envs)

    def add_rows(self, records: Mapping[str, Array], slots: Array, envs: Array) -> None:
        """Store the records of one step of some environments."""
        self.check(records)
        for name, column in self._store.items():
            column[slots] = records[name][envs]
        self.rows.touch_rows(slots)

    def write(self, slots: Array, name: str, values: Array) -> None:
        """Write one column of some slots again; of several values for one slot, the last one is kept."""
        self._store[name][slots] = values
        self.rows.touch_rows(slots)

    def new_rows(self, count: int) -> tuple[Array, dict[str, Array]]:
        """Rows for `take` to fill, and their columns."""
        rows = np.zeros((count, self.columns.row_bytes), np.uint8)
        return rows, self.columns.views(rows)

    def take(self, slots: Array, rows: Array) -> None:
        """Copy the records of some slots."""
        np.take(self.rows.data, slots, axis=0, out=rows, mode="clip")
