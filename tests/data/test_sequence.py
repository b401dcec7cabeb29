"""Rollouts cut into sequences: which steps run side by side, and from where."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.data.sequence import Sequences


def cut(real: Any, starts: Any, length: int) -> Sequences:
    real = np.array(real, np.bool_)
    steps = np.arange(real.sum())
    return Sequences(steps, steps.astype(np.float32)[:, None], real, np.array(starts, np.bool_), length)


def test_by_hand() -> None:
    # Two environments of five rows; the first begins an episode at row 2, the second has a row that a reset made.
    real = [[1, 1], [1, 1], [1, 0], [1, 1], [1, 1]]
    starts = [[0, 0], [0, 0], [1, 1], [0, 1], [0, 0]]
    # Their steps are numbered, row by row: 0 2 4 5 7 and 1 3 - 6 8.
    sequences = cut(real, starts, 4)
    assert len(sequences) == 4  # rows 0 to 3, and row 4, of each
    packed = [[array.tolist() for array in sequences.pack(np.array([k]))] for k in range(4)]
    assert packed[0] == [[0, 4, 2, 5], [2, 2]]  # 0 2 beside 4 5
    assert packed[1] == [[7], [1]]
    assert packed[2] == [[1, 6, 3], [2, 1]]  # 1 3 beside 6
    assert packed[3] == [[8], [1]]
    together, sizes = sequences.pack(np.array([3, 0, 2]))
    assert together.tolist() == [0, 4, 1, 8, 6, 2, 5, 3]  # the longest first, then as they were asked for
    assert sizes.tolist() == [5, 3]


def test_sequences_of_resets_alone_are_left_out() -> None:
    assert len(cut([[1, 0], [1, 0], [1, 1]], np.zeros((3, 2)), 2)) == 3


@given(st.data())
def test_every_real_step_is_in_one_part_behind_its_predecessor(data: st.DataObject) -> None:
    rows, envs = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    length = data.draw(st.integers(1, rows))
    real, starts = rng.random((rows, envs)) < 0.8, rng.random((rows, envs)) < 0.3
    starts[1:] |= ~real[:-1]
    if not real.any():
        return
    sequences = cut(real, starts, length)
    picked, sizes = sequences.pack(rng.permutation(len(sequences)))
    assert sorted(picked.tolist()) == list(range(real.sum()))
    assert (np.diff(sizes) <= 0).all()
    place = {number: (int(t), int(b)) for number, (t, b) in enumerate(np.argwhere(real))}
    steps = [[place[number] for number in step] for step in np.split(picked, np.cumsum(sizes)[:-1])]
    follows = {
        later: earlier for first, second in pairwise(steps) for earlier, later in zip(first, second, strict=False)
    }
    for t, b in place.values():
        goes_on = t % length != 0 and not starts[t, b]
        assert follows.get((t, b)) == ((t - 1, b) if goes_on else None)


@pytest.mark.parametrize(("length", "count"), [(1, 8), (3, 4), (4, 2), (9, 2)])
def test_how_many_sequences_there_are(length: int, count: int) -> None:
    assert len(cut(np.ones((4, 2)), np.zeros((4, 2)), length)) == count
