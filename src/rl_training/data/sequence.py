"""A rollout as sequences of consecutive steps, for recurrent networks.

A sequence is cut wherever an episode begins, into parts that each have a state to start from. So no state has to be
reset within a part, and no gradient can pass from one episode to another. The parts of a minibatch run side by side,
the longest first: their first steps, then their second ones, and so on, as in torch's `PackedSequence`. There is no
padding, and rows that are not real steps are left out, so a plain mean is the mean over real steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_training.types import Array


@dataclass(frozen=True)
class Packed:
    """Steps of several parts, side by side: the first `sizes[t]` parts have a step t.

    `rows` `[N, ...]` are their observations: `sizes[0]` first ones, `sizes[1]` second ones, and so on. `state`
    `[sizes[0], S]` is the initial state of each part.
    """

    rows: Array
    sizes: Array
    state: Array


class Sequences:
    """The real steps of a rollout `[T, B]`, cut into sequences of `length` rows of one environment.

    `rows` are their observations and `state` the policy's recurrent states, both `[N, ...]`: steps are numbered in the
    order of `column[real]`, row by row of the rollout. `starts` marks the steps at which the state is reset to 0.
    """

    def __init__(self, rows: Array, state: Array, real: Array, starts: Array, length: int) -> None:
        self.rows = rows
        self.state = state
        self.length = length
        steps, envs = real.shape
        number = (np.cumsum(real) - 1).reshape(steps, envs)
        # Environment after environment: then sequences and parts are both contiguous.
        real, starts = real.T, starts.T
        sequence = np.arange(envs)[:, None] * steps + np.arange(steps) // length
        sequence, starts = sequence[real], starts[real]
        changes = np.flatnonzero(np.diff(sequence, prepend=-1))
        begins = np.union1d(changes, np.flatnonzero(starts))
        self._number = number.T[real]
        self._begin = begins
        self._length = np.diff(begins, append=sequence.size)
        # Sequence k consists of the parts from _first_part[k] up to _first_part[k + 1].
        self._first_part = np.append(np.searchsorted(begins, changes), begins.size)

    def __len__(self) -> int:
        return self._first_part.size - 1

    def pack(self, chosen: Array) -> tuple[Array, Array]:
        """The numbers of all steps of some sequences in packed order, and their `sizes`."""
        parts = np.concatenate([np.arange(self._first_part[k], self._first_part[k + 1]) for k in chosen])
        parts = parts[np.argsort(-self._length[parts], kind="stable")]
        length = self._length[parts]
        step = np.arange(length[0])[:, None]
        there = step < length
        return self._number[(self._begin[parts] + step)[there]], there.sum(axis=1)
