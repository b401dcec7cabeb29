"""Products of a few rows and a matrix in panels equal those of NumPy, and no row depends on the others."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.ops.kernels.dense import FEWEST, LANES, dense, pack
from rl_training.types import Array


def packed(weights: Array, bias: Array) -> tuple[Array, int]:
    """A matrix in panels, and how many there are."""
    inputs, outputs = weights.shape
    panels, size = max(-(-outputs // LANES), FEWEST), (inputs + 1) * LANES
    memory = np.zeros(panels * size, np.float32)
    source = np.concatenate([weights.ravel(), bias])
    pack(source, np.array([(0, inputs + 1, outputs, 0, 0, LANES, size)]), memory)
    return memory, panels


def product(rows: Array, memory: Array, panels: int) -> Array:
    """All outputs of all rows, padding included; what is beyond them must stay as it is."""
    out = np.full(rows.shape[0] * panels * LANES + 1, 7.0, np.float32)
    dense(memory, 0, rows.shape[1], panels, rows.ravel(), rows.shape[1], rows.shape[0], out)
    assert out[-1] == 7.0
    return out[:-1].reshape(len(rows), -1)


@pytest.mark.parametrize("inputs", [0, 1, 3, 64])
@pytest.mark.parametrize("outputs", [1, 8, 31, 32, 33, 47, 85])
def test_products_equal_those_of_numpy(inputs: int, outputs: int) -> None:
    rng = np.random.default_rng(inputs + outputs)
    weights, bias = rng.normal(size=(inputs, outputs)).astype(np.float32), rng.normal(size=outputs).astype(np.float32)
    memory, panels = packed(weights, bias)
    for count in range(1, 12):
        rows = rng.normal(size=(count, inputs)).astype(np.float32)
        found, wanted = product(rows, memory, panels), rows.astype(np.float64) @ weights + bias
        np.testing.assert_allclose(found[:, :outputs], wanted, atol=2e-5)
        assert (found[:, outputs:] == 0.0).all()


def test_a_row_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(0)
    memory, panels = packed(rng.normal(size=(64, 85)).astype(np.float32), np.zeros(85, np.float32))
    rows = rng.normal(size=(23, 64)).astype(np.float32)
    alone = np.concatenate([product(rows[i : i + 1], memory, panels) for i in range(len(rows))])
    for count in range(2, 24):
        np.testing.assert_array_equal(product(rows[:count], memory, panels), alone[:count])


def test_matrices_side_by_side_in_panels() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(5, 11)).astype(np.float32), rng.normal(size=(5, 27)).astype(np.float32)
    memory = np.zeros(5 * 5 * LANES, np.float32)
    moves = np.array([(0, 5, 11, 0, 0, LANES, 5 * LANES), (55, 5, 27, 0, 11, LANES, 5 * LANES)])
    pack(np.concatenate([one.ravel(), two.ravel()]), moves, memory)
    found = memory.reshape(5, 5, LANES).swapaxes(0, 1).reshape(5, 40)
    np.testing.assert_array_equal(found[:, :38], np.concatenate([one, two], axis=1))
    assert (found[:, 38:] == 0.0).all()


def test_rows_without_panels() -> None:
    rows = np.arange(6, dtype=np.float32)
    memory = np.zeros(16, np.float32)
    pack(rows, np.array([(0, 2, 3, 0, 0, 8, 0)]), memory)
    np.testing.assert_array_equal(memory.reshape(2, 8)[:, :3], rows.reshape(2, 3))
