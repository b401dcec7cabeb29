"""A binary tree whose nodes hold the sums of their children, for drawing in proportion to changing priorities.

A tree is one float64 array: node n has the children 2n and 2n + 1, node 1 is the total, and the leaves are the second
half. A parent is always computed as the sum of its children, never updated by a difference, so a tree depends on its
leaves only, to the bit. All queries go from level to level together: their memory accesses then overlap.
"""

from __future__ import annotations

import numpy as np

from rl_training.ops.kernels import jit
from rl_training.types import Array


def new_tree(capacity: int) -> Array:
    """A tree with at least `capacity` leaves, all 0."""
    return np.zeros(2 << max(0, capacity - 1).bit_length())


@jit
def set_leaves(tree: Array, index: Array, priority: Array) -> None:
    """Set some leaves (if a leaf occurs twice, the last value is used), then the sums above them."""
    size = tree.size // 2
    nodes = np.empty(index.size, np.int64)
    for i in range(nodes.size):
        nodes[i] = index[i] + size
        tree[nodes[i]] = priority[i]
    while size > 1:
        for i in range(nodes.size):
            node = nodes[i] // 2
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            nodes[i] = node
        size //= 2


@jit
def sum_up(tree: Array) -> None:
    """Recompute all sums from the leaves."""
    for node in range(tree.size // 2 - 1, 0, -1):
        tree[node] = tree[2 * node] + tree[2 * node + 1]


@jit
def find_leaves(tree: Array, value: Array) -> Array:
    """The leaves at which the running sum of the priorities passes the values, each from 0 to the total.

    Rounding can move a value past the sum of a subtree. The descent therefore turns right only if that sum is not 0,
    and ends at a leaf that is not 0, provided that the total is not.
    """
    left_of, nodes = np.empty(value.size), np.empty(value.size, np.int64)
    for i in range(nodes.size):
        left_of[i], nodes[i] = value[i], 1
    size = tree.size // 2
    while size > 1:
        for i in range(nodes.size):
            left = 2 * nodes[i]
            if left_of[i] < tree[left] or tree[left + 1] == 0.0:
                nodes[i] = left
            else:
                left_of[i] -= tree[left]
                nodes[i] = left + 1
        size //= 2
    for i in range(nodes.size):
        nodes[i] -= tree.size // 2
    return nodes
