"""The sum tree: sums that depend on the leaves alone, and descents that always arrive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.ops.kernels.sum_tree import find_leaves, new_tree, set_leaves, sum_up

PRIORITIES = st.floats(0, 1e6) | st.sampled_from([0.0, 1e-300, 1e-12, 0.1, 1.0, 1e300])


def grown(leaves: list[float] | np.ndarray) -> np.ndarray:
    tree = new_tree(len(leaves))
    set_leaves(tree, np.arange(len(leaves)), np.asarray(leaves, np.float64))
    return tree


@pytest.mark.parametrize(("capacity", "nodes"), [(1, 2), (2, 4), (3, 8), (4, 8), (5, 16), (1000, 2048)])
def test_the_number_of_leaves_is_the_next_power_of_two(capacity: int, nodes: int) -> None:
    tree = new_tree(capacity)
    assert (tree.size, tree.dtype) == (nodes, np.float64)
    assert not tree.any()


def test_sums_worked_by_hand() -> None:
    tree = grown([1.0, 2.0, 3.0])
    assert tree.tolist() == [0.0, 6.0, 3.0, 3.0, 1.0, 2.0, 3.0, 0.0]
    set_leaves(tree, np.array([0, 3]), np.array([5.0, 4.0]))
    assert tree.tolist() == [0.0, 14.0, 7.0, 7.0, 5.0, 2.0, 3.0, 4.0]


def test_the_last_one_counts_where_a_leaf_is_named_twice() -> None:
    tree = new_tree(4)
    set_leaves(tree, np.array([2, 1, 2]), np.array([9.0, 1.0, 4.0]))
    assert tree.tolist() == [0.0, 5.0, 1.0, 4.0, 0.0, 1.0, 4.0, 0.0]


def test_descents_worked_by_hand() -> None:
    tree = grown([1.0, 0.0, 2.0, 3.0])
    values = np.array([0.0, 0.5, 1.0, 2.9, 3.0, 5.9])
    assert find_leaves(tree, values).tolist() == [0, 0, 2, 2, 3, 3]
    assert values.tolist() == [0.0, 0.5, 1.0, 2.9, 3.0, 5.9]
    assert find_leaves(grown([7.0]), np.array([0.0, 6.9])).tolist() == [0, 0]


@given(st.integers(1, 40), st.lists(st.lists(st.tuples(st.integers(0, 39), PRIORITIES), min_size=1), max_size=6))
def test_a_tree_that_is_summed_up_again_is_the_same_to_the_bit(
    capacity: int, changes: list[list[tuple[int, float]]]
) -> None:
    tree, leaves = new_tree(capacity), np.zeros(capacity)
    for change in changes:
        index = np.array([leaf % capacity for leaf, _ in change])
        priority = np.array([value for _, value in change])
        set_leaves(tree, index, priority)
        for leaf, value in zip(index, priority, strict=True):
            leaves[leaf] = value
    size = tree.size // 2
    np.testing.assert_array_equal(tree[size : size + capacity], leaves)
    again = np.zeros_like(tree)
    again[size:] = tree[size:]
    sum_up(again)
    assert again.tobytes() == tree.tobytes()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(any), st.data())
def test_descents_find_where_the_running_sum_passes_the_value(leaves: list[int], data: st.DataObject) -> None:
    total = sum(leaves)
    values = np.array(data.draw(st.lists(st.integers(0, 4 * total - 1), min_size=1, max_size=20))) / 4
    found = find_leaves(grown(leaves), values)
    np.testing.assert_array_equal(found, np.searchsorted(np.cumsum(leaves), values, side="right"))


@given(st.lists(PRIORITIES, min_size=1, max_size=40).filter(any), st.lists(st.floats(0, 1), max_size=10))
def test_no_rounding_leads_to_a_leaf_of_nothing(leaves: list[float], shares: list[float]) -> None:
    tree = grown(leaves)
    total = tree[1]
    values = np.array([*shares, 0.0, 1.0]) * total
    values = np.concatenate([values, np.nextafter(values, np.inf), np.cumsum(leaves)])
    found = find_leaves(tree, values)
    assert (found < len(leaves)).all()
    assert (np.asarray(leaves)[found] > 0).all()
