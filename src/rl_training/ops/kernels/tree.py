"""Search trees of many roots as plain arrays: how nodes are made and how their values are carried to the root.

Node 0 is a root, and node k is made by simulation k, so nothing is ever moved or freed. An edge is a pair of a node and
the index of one of its actions. There are few arrays with several columns each, since every array that a kernel gets
costs compilation time, and kernels get all trees and indices, since every slice costs time in the innermost loops. An
index that is a constant is written `np.int64(0)`: numba compiles a function once more for a literal.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.ops.kernels import inlined, lean
from rl_training.types import Array

# The logit of an action that is not allowed. Finite, so that no difference of logits is nan.
LOWEST = float(np.finfo(np.float32).min)

# Columns of `nodes`: the parent and which of its actions leads here; visits count the node's own evaluation, too; the
# action that Gumbel MuZero's next simulation follows, for all nodes but the root.
PARENT, ACTION, DEPTH, VISITS, NEXT = 0, 1, 2, 3, 4
# Columns of `values`: the mean over the visits, what the model says, and the edge that leads here.
MEAN, RAW, REWARD, DISCOUNT = 0, 1, 2, 3
# Columns of `links`: the node that an edge leads to, or -1, and its visits.
CHILD, TRIED = 0, 1
# Columns of `edges`: q = reward + discount * mean of the child, 0 where unvisited; prior = softmax of the logits.
Q, LOGIT, PRIOR = 0, 1, 2
# Columns of `roots`: the noise of the logits, and 1 where an action is allowed, else 0.
GUMBEL, ALLOWED = 0, 1
# Columns of `spans`: the lowest and the highest q of the whole tree, and how many actions are allowed at the root.
LOW, HIGH, LEGAL = 0, 1, 2


class Tree(NamedTuple):
    """The trees of B roots, for at most N nodes and A actions."""

    nodes: Array  # int32 [B, N, 5]
    values: Array  # float64 [B, N, 4]
    links: Array  # int32 [B, N, 2, A]
    edges: Array  # float32 [B, N, 3, A]
    roots: Array  # float32 [B, 2, A]
    spans: Array  # float64 [B, 3]
    row: Array  # float32 [A]: scratch
    embedding: Array  # float32 [B, N, D]
    actions: Array  # float32 [B, N, A, d]: the sampled actions of every node; d is 0 if an action is its index


class Start(NamedTuple):
    """Roots as the kernels read them: float32, contiguous."""

    embedding: Array  # [B, D]
    logits: Array  # [B, A]
    value: Array  # [B]
    actions: Array  # [B, A, d]


def new_tree(roots: int, nodes: int, actions: int, embedding: int, action_size: int) -> Tree:
    """Memory for the trees of `roots` roots."""
    return Tree(
        nodes=np.zeros((roots, nodes, 5), np.int32),
        values=np.zeros((roots, nodes, 4), np.float64),
        links=np.zeros((roots, nodes, 2, actions), np.int32),
        edges=np.zeros((roots, nodes, 3, actions), np.float32),
        roots=np.zeros((roots, 2, actions), np.float32),
        spans=np.zeros((roots, 3), np.float64),
        row=np.zeros(actions, np.float32),
        embedding=np.zeros((roots, nodes, embedding), np.float32),
        actions=np.zeros((roots, nodes, actions, action_size), np.float32),
    )


@inlined
def exponentials(row: Array, count: int) -> float:
    """Turn the first `count` numbers into exp(number - the highest), in place, and return their sum.

    The highest itself becomes 1. The others follow it in a circle, so that nothing must be asked about each of them.
    """
    highest, top = row[0], 0
    for a in range(1, count):
        top = a if row[a] > highest else top
        highest = row[a] if row[a] > highest else highest
    # Not simply 1: nan stays nan.
    total: float = highest - highest + np.float32(1.0)
    row[top] = total
    for k in range(top + 1, top + count):
        a = k if k < count else k - count
        row[a] = math.exp(row[a] - highest)
        total += row[a]
    return total


@inlined
def softmax(row: Array, count: int) -> None:
    """Turn the first `count` numbers into their softmax, in place."""
    total = exponentials(row, count)
    for a in range(count):
        row[a] /= total


@inlined
def open_node(tree: Tree, b: int, node: int, count: int) -> None:
    """Begin the edges of a node whose first `count` logits are set."""
    links, edges, row = tree.links, tree.edges, tree.row
    for a in range(row.size):
        links[b, node, CHILD, a] = -1
        links[b, node, TRIED, a] = 0
        edges[b, node, Q, a] = 0.0
        row[a] = edges[b, node, LOGIT, a]
    softmax(row, count)
    for a in range(row.size):
        edges[b, node, PRIOR, a] = row[a] if a < count else np.float32(0.0)


@lean
def plant(tree: Tree, start: Start) -> None:
    """Make the roots. What is allowed there and the noise of the logits are already set."""
    nodes, values, edges, roots = tree.nodes, tree.values, tree.edges, tree.roots
    for b in range(start.value.size):
        legal = 0
        for i in range(start.embedding.shape[1]):
            tree.embedding[b, 0, i] = start.embedding[b, i]
        for a in range(tree.row.size):
            edges[b, 0, LOGIT, a] = LOWEST
            if roots[b, ALLOWED, a] > 0.0:
                legal += 1
                # Written so that -inf becomes the lowest number.
                if start.logits[b, a] > edges[b, 0, LOGIT, a]:
                    edges[b, 0, LOGIT, a] = start.logits[b, a]
            for i in range(start.actions.shape[2]):
                tree.actions[b, 0, a, i] = start.actions[b, a, i]
        open_node(tree, b, np.int64(0), tree.row.size)
        for a in range(tree.row.size):
            edges[b, 0, PRIOR, a] *= roots[b, ALLOWED, a]
        nodes[b, 0, PARENT] = nodes[b, 0, ACTION] = -1
        nodes[b, 0, DEPTH] = 0
        nodes[b, 0, VISITS] = 1
        values[b, 0, MEAN] = values[b, 0, RAW] = start.value[b]
        values[b, 0, REWARD] = values[b, 0, DISCOUNT] = 0.0
        tree.spans[b, LOW] = tree.spans[b, HIGH] = 0.0
        tree.spans[b, LEGAL] = legal


@inlined
def measure(tree: Tree, b: int, newest: int) -> None:
    """Find the lowest and the highest q of a tree whose last node is `newest`."""
    low, high, values = np.inf, -np.inf, tree.values
    for k in range(1, newest + 1):
        q = values[b, k, REWARD] + values[b, k, DISCOUNT] * values[b, k, MEAN]
        if q < low:
            low = q
        if q > high:
            high = q
    tree.spans[b, LOW], tree.spans[b, HIGH] = low, high
