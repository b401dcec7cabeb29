"""What environments and policies remember, as a checkpoint holds it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from rl_training.runtime.trees import to_arrays, to_tensors


class Place(NamedTuple):
    row: np.int64
    seen: np.ndarray


def test_arrays_become_tensors_and_come_back() -> None:
    tree = {"a": np.arange(3), "b": [np.float32(0.5), (None, "x", np.ones((2, 1), np.bool_))]}
    stored = to_tensors(tree)
    assert isinstance(stored["a"], torch.Tensor)
    assert stored["b"][0] == 0.5
    assert type(stored["b"][0]) is float
    restored = to_arrays(stored)
    np.testing.assert_array_equal(restored["a"], tree["a"])
    assert restored["b"][1][:2] == (None, "x")
    np.testing.assert_array_equal(restored["b"][1][2], np.ones((2, 1), np.bool_))
    tree["a"][0] = 7
    assert int(stored["a"][0]) == 0, "a copy"


def test_a_named_tuple_comes_back_as_a_plain_one() -> None:
    row, seen = to_arrays(to_tensors(Place(np.int64(4), np.arange(2))))
    assert (row, seen.tolist()) == (4, [0, 1])
