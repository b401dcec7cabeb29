"""Strips: consecutive steps as arrays `[T, B]`, which move from one process to another without being pickled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.types import Array, ArrayKind, Records, SpaceInfo, Step

_RECORD = "records."


def strip_layout(n_steps: int, num_envs: int, info: SpaceInfo, records: Records) -> dict[str, ArrayKind]:
    """The arrays that a strip of at most this many steps is written to."""
    rows, action, obs_dtype = (n_steps, num_envs), info.stored_action, info.obs_dtype
    return {
        "obs": ArrayKind((*rows, *info.obs_shape), obs_dtype),
        "action": ArrayKind((*rows, *action.shape), action.dtype),
        "reward": ArrayKind(rows, "float32"),
        "terminated": ArrayKind(rows, "bool"),
        "truncated": ArrayKind(rows, "bool"),
        "real": ArrayKind(rows, "bool"),
        "last_obs": ArrayKind((num_envs, *info.obs_shape), obs_dtype),
        # At most one for every step; pages of memory that are never written take no room.
        "ends": ArrayKind((n_steps * num_envs, *info.obs_shape), obs_dtype),
    } | {f"{_RECORD}{name}": ArrayKind((*rows, *kind.shape), kind.dtype) for name, kind in records.items()}


@dataclass(frozen=True)
class Strip:
    """Steps of every environment, in order.

    Observations are stored once: a step's successor is the next row's observation, or `last_obs` after the last row.
    Where an episode ended, `ends` has the true successor, in the order of the rows. `envs` `[B]` are the numbers of the
    environments among all of the run.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    real: Array
    last_obs: Array
    ends: Array
    envs: Array
    records: Mapping[str, Array]

    @staticmethod
    def on(arrays: Mapping[str, Array], n_steps: int, ends: int, envs: Array) -> Strip:
        """The first `n_steps` rows of arrays that a `StripWriter` has written to."""
        plain = {name: array[:n_steps] for name, array in arrays.items() if not name.startswith(_RECORD)}
        plain |= {"last_obs": arrays["last_obs"], "ends": arrays["ends"][:ends]}
        records = {name.removeprefix(_RECORD): a[:n_steps] for name, a in arrays.items() if name.startswith(_RECORD)}
        return Strip(**plain, envs=envs, records=records)

    def arrays(self) -> dict[str, Array]:
        """All arrays, by name; `on` makes a strip of them again."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("envs", "records")}
        return plain | {f"{_RECORD}{name}": array for name, array in self.records.items()}

    def copy(self) -> Strip:
        """The same steps in memory of their own: that of a strip may be written to again once it was taken."""
        own = {name: array.copy() for name, array in self.arrays().items()}
        return Strip.on(own, len(self), len(self.ends), self.envs)

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def done(self) -> Array:
        done: Array = self.terminated | self.truncated
        return done

    def steps(self) -> Iterator[Step]:
        """The steps, one after the other."""
        following = np.concatenate([self.obs[1:], self.last_obs[None]])
        following[self.done] = self.ends
        for t in range(len(self)):
            records = {name: column[t] for name, column in self.records.items()}
            flags = self.terminated[t], self.truncated[t], self.real[t]
            yield Step(self.obs[t], self.action[t], self.reward[t], following[t], *flags, records)


def joined(strips: Sequence[Strip]) -> Strip:
    """Strips of different environments, side by side along the axis of environments."""
    if len(strips) == 1:
        return strips[0]
    side_by_side = {
        name: np.concatenate([strip.arrays()[name] for strip in strips], axis=0 if name == "last_obs" else 1)
        for name in strips[0].arrays()
        if name != "ends"
    }
    shape = side_by_side["obs"].shape
    ends = np.zeros(shape, side_by_side["obs"].dtype)
    first = 0
    for strip in strips:
        ends[:, first : first + strip.done.shape[1]][strip.done] = strip.ends
        first += strip.done.shape[1]
    done = side_by_side["terminated"] | side_by_side["truncated"]
    envs = np.concatenate([strip.envs for strip in strips])
    return Strip.on(side_by_side | {"ends": ends[done]}, shape[0], int(done.sum()), envs)


class StripWriter:
    """Writes the steps of an actor to the arrays of a layout."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self._records = {name.removeprefix(_RECORD): a for name, a in arrays.items() if name.startswith(_RECORD)}
        self._row = self._ends = 0

    def add(self, step: Step) -> None:
        arrays, row = self._arrays, self._row
        arrays["obs"][row] = step.obs
        arrays["action"][row] = step.action
        arrays["reward"][row] = step.reward
        arrays["terminated"][row] = step.terminated
        arrays["truncated"][row] = step.truncated
        arrays["real"][row] = step.real
        for name, column in self._records.items():
            column[row] = step.records[name]
        for b in np.flatnonzero(step.terminated | step.truncated):
            arrays["ends"][self._ends] = step.next_obs[b]
            self._ends += 1
        arrays["last_obs"][...] = step.next_obs
        self._row = row + 1

    @property
    def written(self) -> tuple[int, int]:
        """The number of steps, and of ends of episodes."""
        return self._row, self._ends


class Layout:
    """Arrays of known kinds in one block of bytes, each on a boundary of 64 bytes."""

    def __init__(self, kinds: Mapping[str, ArrayKind]) -> None:
        self._kinds = {name: (kind.shape, np.dtype(kind.dtype)) for name, kind in kinds.items()}
        self._starts: dict[str, int] = {}
        self.size = 0
        for name, (shape, dtype) in self._kinds.items():
            self._starts[name] = self.size
            self.size += -(-math.prod(shape) * dtype.itemsize // 64) * 64

    def views(self, block: memoryview | bytearray, start: int = 0) -> dict[str, Array]:
        """The arrays, as views of a block of bytes."""
        return {
            name: np.frombuffer(block, dtype, math.prod(shape), start + self._starts[name]).reshape(shape)
            for name, (shape, dtype) in self._kinds.items()
        }
