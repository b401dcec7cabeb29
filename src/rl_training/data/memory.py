"""Memories, which algorithms learn from: they draw transitions or windows from replay buffers and store notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol, TypeVar

import numpy as np

from rl_training.data.batches import Transitions, Windows
from rl_training.data.replay import Replay
from rl_training.data.samplers import Sampler, UniformSampler
from rl_training.types import Array, Step

Batch = TypeVar("Batch", Transitions, Windows)
_AT_ONCE = 32  # minibatches that are drawn together at most: this bounds the RAM that they take


class Memory(Protocol):
    """What an algorithm learns from: a replay buffer, a dataset, or both; it returns transitions or windows."""

    @property
    def at_once(self) -> int:
        """How many minibatches may be drawn together."""

    def transitions(
        self, count: int, rng: np.random.Generator, *, n_step: int = 1, gamma: float, beta: float = 0.0
    ) -> Transitions:
        """`count` transitions, or chains of `n_step`; `beta` says how far weights correct for priorities."""

    def windows(
        self, count: int, rng: np.random.Generator, *, length: int, across_episodes: bool, beta: float = 0.0
    ) -> Windows:
        """`count` windows of `length` consecutive steps, which end with their episodes or run across them."""

    def note(
        self,
        index: Array,
        *,
        errors: Array | None = None,
        alpha: float = 1.0,
        columns: Mapping[str, Array] | None = None,
    ) -> None:
        """Note errors, which set priorities, and write columns of records back into the rows of a batch."""

    def ages(self, index: Array) -> Array:
        """How many steps of all environments were stored since the rows with these numbers, about."""

    def __len__(self) -> int:
        """How many transitions it holds."""


class ReplayMemory:
    """A replay buffer and the sampler that decides what is drawn from it.

    The arrays of a batch are reused by the next call. `index` of a batch names its rows for `note`; transitions have
    one only if priorities or records are kept.
    """

    def __init__(self, replay: Replay, sampler: Sampler | None = None) -> None:
        self.replay = replay
        self.sampler: Sampler = UniformSampler(replay) if sampler is None else sampler
        self._noted = self.sampler.uses_errors or bool(replay.records)
        # Notes about one minibatch can change the next draw, so these are drawn one at a time.
        self.at_once = 1 if self._noted else _AT_ONCE

    @property
    def parts(self) -> Mapping[str, Any]:
        """What a checkpoint saves, by name."""
        return {"replay": self.replay, "sampler": self.sampler}

    def __len__(self) -> int:
        return len(self.replay)

    def add(self, step: Step) -> None:
        """Store the real rows of a step."""
        self.sampler.changed(self.replay.add(step))

    def cut(self, mask: Array) -> None:
        """End the episodes of the masked environments after their latest steps; later steps do not continue them."""
        self.replay.cut(mask)

    def transitions(
        self, count: int, rng: np.random.Generator, *, n_step: int = 1, gamma: float, beta: float = 0.0
    ) -> Transitions:
        """`count` transitions or, with `n_step`, chains of transitions."""
        slots, weight = self.sampler.draw(rng, count, beta)
        batch = self.replay.gather(slots, n_step=n_step, gamma=gamma)
        batch.weight = weight
        if self._noted:
            batch.index = self.replay.numbers_of(slots)
        return batch

    def windows(
        self, count: int, rng: np.random.Generator, *, length: int, across_episodes: bool, beta: float = 0.0
    ) -> Windows:
        """`count` windows of `length` consecutive steps.

        Windows that run on `across_episodes` consist of stored transitions alone and start wherever enough of them
        follow. Other windows start at any transition and end with its episode: the rows after that are not real.
        """
        if length < 1:
            raise ValueError(f"length={length}: must be at least 1")
        starts, weight = self.sampler.draw_windows(rng, count, length, across=across_episodes, beta=beta)
        windows = self.replay.gather_windows(starts, length, across_episodes=across_episodes)
        windows.weight = weight
        return windows

    def note(
        self,
        index: Array,
        *,
        errors: Array | None = None,
        alpha: float = 1.0,
        columns: Mapping[str, Array] | None = None,
    ) -> None:
        """Note how wrong the predictions for some rows were, and write columns of their records again.

        `errors` has the shape of `index`, a column that shape and the record's. Rows that were overwritten since they
        were drawn, and those with a negative index, are skipped. Of several values for one row, the last one counts.
        """
        columns = columns or {}
        self._check(index, errors, columns)
        slots = self.replay.slots_of(index.reshape(-1))
        there = slots >= 0
        slots = slots[there]
        if slots.size and errors is not None:
            self.sampler.update(slots, errors.reshape(-1)[there], alpha)
        for name, values in columns.items():
            rows = values.reshape(there.size, *values.shape[index.ndim :])
            self.replay.write_records(slots, name, rows[there])

    def ages(self, index: Array) -> Array:
        """How many steps of all environments were stored since the rows with these numbers.

        The steps of the same environment are counted, times the number of environments.
        """
        return self.replay.ages_of(index)

    def _check(self, index: Array, errors: Array | None, columns: Mapping[str, Array]) -> None:
        if errors is not None and errors.shape != index.shape:
            raise ValueError(f"errors of shape {errors.shape} do not fit an index of shape {index.shape}")
        for name, values in columns.items():
            kind = self.replay.records.get(name)
            if kind is None:
                known = sorted(self.replay.records)
                raise ValueError(f"{name!r} is not a record of this memory; its records are {known}")
            if values.shape != (*index.shape, *kind.shape) or not np.can_cast(values.dtype, kind.dtype, "same_kind"):
                raise ValueError(
                    f"{name}: an array {values.shape} of {values.dtype} does not fit the record, which is "
                    f"{(*index.shape, *kind.shape)} of {kind.dtype}"
                )


class Mixture:
    """Two memories as one: `fraction` of a minibatch comes from the first, the rest from the second.

    New steps and notes go to the second; the first, a dataset, does not change.
    """

    at_once = 1

    def __init__(self, first: Callable[[], ReplayMemory], second: ReplayMemory, fraction: float) -> None:
        """`first` is called at every draw, so that the memory of a dataset is not made before it is needed."""
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"fraction={fraction}: must be from 0 to 1")
        self.first, self.second, self.fraction = first, second, fraction

    @property
    def parts(self) -> Mapping[str, Any]:
        """What a checkpoint saves, by name."""
        return self.second.parts

    def __len__(self) -> int:
        return len(self.second)

    def add(self, step: Step) -> None:
        """Store the real rows of a step."""
        self.second.add(step)

    def cut(self, mask: Array) -> None:
        """End the episodes of the masked environments after their latest steps; later steps do not continue them."""
        self.second.cut(mask)

    def transitions(
        self, count: int, rng: np.random.Generator, *, n_step: int = 1, gamma: float, beta: float = 0.0
    ) -> Transitions:
        """`count` transitions or chains: those of the first memory, then those of the second."""
        return self._drawn(
            count, lambda memory, part: memory.transitions(part, rng, n_step=n_step, gamma=gamma, beta=beta), axis=0
        )

    def windows(
        self, count: int, rng: np.random.Generator, *, length: int, across_episodes: bool, beta: float = 0.0
    ) -> Windows:
        """`count` windows: those of the first memory, then those of the second."""
        return self._drawn(
            count,
            lambda memory, part: memory.windows(part, rng, length=length, across_episodes=across_episodes, beta=beta),
            axis=1,
        )

    def note(
        self,
        index: Array,
        *,
        errors: Array | None = None,
        alpha: float = 1.0,
        columns: Mapping[str, Array] | None = None,
    ) -> None:
        """Note something about the rows that came from the second memory."""
        self.second.note(index, errors=errors, alpha=alpha, columns=columns)

    def ages(self, index: Array) -> Array:
        """The ages of rows of the second memory."""
        return self.second.ages(index)

    def _drawn(self, count: int, draw: Callable[[ReplayMemory, int], Batch], axis: int) -> Batch:
        old = round(count * self.fraction)
        if old == 0:
            return draw(self.second, count)
        first = draw(self.first(), old)
        if first.index is not None:
            first.index.fill(-1)  # nothing is noted about these
        return first if old == count else _joined(first, draw(self.second, count - old), axis)


def _joined(first: Batch, second: Batch, axis: int) -> Batch:
    """Two batches of one kind as one, in new arrays."""
    joined: dict[str, Any] = {}
    for name in (field.name for field in fields(first)):
        ours, theirs = getattr(first, name), getattr(second, name)
        if name == "records":
            if ours.keys() != theirs.keys():
                raise ValueError(
                    f"the memories have different records, {sorted(ours)} and {sorted(theirs)}: they cannot be mixed"
                )
            joined[name] = {key: np.concatenate([ours[key], theirs[key]], axis) for key in ours}
        elif ours is None and theirs is None:
            joined[name] = None
        elif name == "weight":
            weights = [
                np.ones(len(batch), np.float32) if batch.weight is None else batch.weight for batch in (first, second)
            ]
            joined[name] = np.concatenate(weights)
        elif name == "index":
            index = [
                np.full(batch.reward.shape, -1) if batch.index is None else batch.index for batch in (first, second)
            ]
            joined[name] = np.concatenate(index, axis)
        else:
            joined[name] = np.concatenate([ours, theirs], axis)
    return type(first)(**joined)
