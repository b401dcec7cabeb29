"""The slots of several environments' rows in one ring, and row numbers that stay unique when slots are reused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.ops.kernels.windows import find_rows, number_rows
from rl_training.types import Array, UserError

NO_ROWS = np.zeros(0, np.int64)
_MOST_TURNS = 1 << 40


class Ring:
    """The place of every environment in its ring; position p of environment e is slot p * num_envs + e.

    A slot is used again and again, but the number of a row never repeats: it is turn * capacity + slot, where `turns`
    counts how often the ring of an environment has been filled.
    """

    def __init__(self, num_envs: int, positions: int) -> None:
        self.num_envs, self.positions, self.capacity = num_envs, positions, positions * num_envs
        self.heads = np.zeros(num_envs, np.int64)  # the position that is written next
        self.counts = np.zeros(num_envs, np.int64)  # how many rows can be drawn
        self.turns = np.zeros(num_envs, np.int64)
        self.begins = np.ones(num_envs, np.bool_)  # whether an episode begins with the oldest row
        self.cuts = NO_ROWS  # the numbers of the rows after which the rest of an episode was lost
        self.even = True  # whether all environments are at the same place: then a step is one block of rows

    def slots_at(self, positions: Array, envs: Array) -> Array:
        """The slots at some positions, which may be beyond either end of the ring."""
        return positions % self.positions * self.num_envs + envs

    def advance(self, envs: Array, heads: Array) -> None:
        """Move the heads of some environments; past the end of the ring they wrap to its beginning."""
        self.turns[envs] += heads >= self.positions
        self.heads[envs] = heads % self.positions

    def compare(self) -> None:
        """Find out whether all environments are at the same place."""
        heads, counts = self.heads, self.counts
        self.even = bool((heads == heads[0]).all() and (counts == counts[0]).all())

    def numbers_of(self, slots: Array) -> Array:
        """The numbers of the rows that are in some slots now."""
        numbers = np.empty(slots.size, np.int64)
        number_rows(slots, self.heads, self.turns, self.capacity, numbers)
        return numbers

    def slots_of(self, numbers: Array) -> Array:
        """The slots of the rows with these numbers; -1 where another row is there now, or the number is negative."""
        slots = np.empty(numbers.size, np.int64)
        find_rows(numbers, self.heads, self.turns, self.capacity, slots)
        return slots

    def ages_of(self, numbers: Array) -> Array:
        """How many positions the head has moved on from the rows with these numbers, times the environments."""
        place, env = np.divmod(numbers, self.num_envs)
        newest = self.turns * self.positions + self.heads - 1
        ages: Array = (newest[env] - place) * self.num_envs
        return ages

    def fill(self) -> None:
        """Mark every slot as holding a row, in time order from slot 0 on."""
        self.heads[:], self.counts[:], self.turns[:], self.begins[:] = 0, self.positions, 1, True
        self.cuts, self.even = NO_ROWS, True

    def state_dict(self) -> dict[str, Any]:
        progress = {name: array.tolist() for name, (array, _) in self._progress().items()}
        return progress | {"begins": self.begins.tolist(), "cuts": self.cuts.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a ring of the same size; that of an older version has fewer entries."""
        state = {"turns": [1] * self.num_envs, "cuts": []} | dict(state)
        for name, (array, most) in self._progress().items():
            array[:] = read_numbers(state, name, array.shape, most)
        older = {"begins": (self.counts < self.positions).tolist()}
        self.begins[:] = read_numbers(older | state, "begins", self.begins.shape, 1)
        self.cuts = read_numbers(state, "cuts", (len(state["cuts"]),), _MOST_TURNS * self.capacity)
        self.compare()

    def _progress(self) -> dict[str, tuple[Array, int]]:
        """The numbers of every environment, and how large they can be."""
        return {
            "heads": (self.heads, self.positions - 1),
            "counts": (self.counts, self.positions),
            "turns": (self.turns, _MOST_TURNS),
        }


def read_numbers(state: Mapping[str, Any], name: str, shape: tuple[int, ...], most: int) -> Array:
    """Integers from 0 to `most` out of a saved state."""
    try:
        saved = np.asarray(state.get(name))
        fits = saved.shape == shape and (saved.dtype.kind in "ib" or saved.size == 0)
    except ValueError:  # lists of different lengths
        fits = False
    if not fits or (saved < 0).any() or (saved > most).any():
        raise UserError(f"the saved replay is damaged: {name} is {state.get(name)!r}")
    return saved.astype(np.int64)
