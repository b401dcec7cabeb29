"""Search trees of many roots as plain arrays: how nodes are made and how their values are carried to the root.

Node 0 is a root, and node k is made by simulation k, so nothing is ever moved or freed. An edge is a pair of a node and
the index of one of its actions. There are few arrays with several columns each, since every array that a kernel gets
costs compilation time, and kernels get whole arrays and indices, since every slice costs time in the innermost loops.
An index that is a constant is written `np.int64(0)`: numba compiles a function once more for a literal.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.ops.kernels import inlined, jit
from rl_training.types import Array

# The logit of an action that is not allowed. Finite, so that no difference of logits is nan.
LOWEST = float(np.finfo(np.float32).min)

# Columns of `nodes`: the parent and which of its actions leads here; visits count the node's own evaluation, too.
PARENT, ACTION, DEPTH, VISITS = 0, 1, 2, 3
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

    nodes: Array  # int32 [B, N, 4]
    values: Array  # float64 [B, N, 4]
    links: Array  # int32 [B, N, 2, A]
    edges: Array  # float32 [B, N, 3, A]
    roots: Array  # float32 [B, 2, A]
    spans: Array  # float64 [B, 3]
    row: Array  # float32 [A]: scratch
    embedding: Array  # float32 [B, N, D]
    actions: Array  # float32 [B, N, A, d]: the sampled actions of every node; d is 0 if an action is its index


class One(NamedTuple):
    """The tree of one root: the arrays of `Tree` without their first axis."""

    nodes: Array  # int32 [N, 4]
    values: Array  # float64 [N, 4]
    links: Array  # int32 [N, 2, A]
    edges: Array  # float32 [N, 3, A]
    root: Array  # float32 [2, A]
    span: Array  # float64 [3]
    row: Array  # float32 [A]


class Start(NamedTuple):
    """Roots as the kernels read them: float32, contiguous."""

    embedding: Array  # [B, D]
    logits: Array  # [B, A]
    value: Array  # [B]
    actions: Array  # [B, A, d]


def new_tree(roots: int, nodes: int, actions: int, embedding: int, action_size: int) -> Tree:
    """Memory for the trees of `roots` roots."""
    return Tree(
        nodes=np.zeros((roots, nodes, 4), np.int32),
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
def one_of(tree: Tree, b: int) -> One:
    """The tree of root `b`, as views."""
    return One(tree.nodes[b], tree.values[b], tree.links[b], tree.edges[b], tree.roots[b], tree.spans[b], tree.row)


@inlined
def softmax(row: Array, count: int) -> None:
    """Turn the first `count` numbers into their softmax, in place."""
    highest, total = row[0], np.float32(0.0)
    for a in range(count):
        if row[a] > highest:
            highest = row[a]
    for a in range(count):
        row[a] = math.exp(row[a] - highest)
        total += row[a]
    for a in range(count):
        row[a] /= total


@inlined
def open_node(links: Array, edges: Array, node: int, count: int, row: Array) -> None:
    """Begin the edges of a node whose first `count` logits are set; `row` is scratch."""
    for a in range(row.size):
        links[node, CHILD, a] = -1
        links[node, TRIED, a] = 0
        edges[node, Q, a] = 0.0
        row[a] = edges[node, LOGIT, a]
    softmax(row, count)
    for a in range(row.size):
        edges[node, PRIOR, a] = row[a] if a < count else np.float32(0.0)


@jit
def plant(tree: Tree, start: Start) -> None:
    """Make the roots. What is allowed there and the noise of the logits are already set."""
    for b in range(start.value.size):
        one, legal = one_of(tree, b), 0
        for i in range(start.embedding.shape[1]):
            tree.embedding[b, 0, i] = start.embedding[b, i]
        for a in range(one.row.size):
            one.edges[0, LOGIT, a] = LOWEST
            if one.root[ALLOWED, a] > 0.0:
                legal += 1
                # Written so that -inf becomes the lowest number.
                if start.logits[b, a] > one.edges[0, LOGIT, a]:
                    one.edges[0, LOGIT, a] = start.logits[b, a]
            for i in range(start.actions.shape[2]):
                tree.actions[b, 0, a, i] = start.actions[b, a, i]
        open_node(one.links, one.edges, np.int64(0), one.row.size, one.row)
        for a in range(one.row.size):
            one.edges[0, PRIOR, a] *= one.root[ALLOWED, a]
        one.nodes[0, PARENT] = one.nodes[0, ACTION] = -1
        one.nodes[0, DEPTH] = 0
        one.nodes[0, VISITS] = 1
        one.values[0, MEAN] = one.values[0, RAW] = start.value[b]
        one.values[0, REWARD] = one.values[0, DISCOUNT] = 0.0
        one.span[LOW] = one.span[HIGH] = 0.0
        one.span[LEGAL] = legal


@inlined
def backup(nodes: Array, values: Array, links: Array, edges: Array, node: int) -> None:
    """Join a new node of a tree to its parent, and add its value to the means above it.

    Its parent and action, its raw value and the reward and discount of its edge are already set.
    """
    value = values[node, MEAN] = values[node, RAW]
    nodes[node, VISITS] = 1
    nodes[node, DEPTH] = nodes[nodes[node, PARENT], DEPTH] + 1
    links[nodes[node, PARENT], CHILD, nodes[node, ACTION]] = node
    while node > 0:
        parent, action = np.int64(nodes[node, PARENT]), np.int64(nodes[node, ACTION])
        reward, discount = values[node, REWARD], values[node, DISCOUNT]
        value = reward + discount * value
        visits = nodes[parent, VISITS]
        values[parent, MEAN] = (values[parent, MEAN] * visits + value) / (visits + 1)
        nodes[parent, VISITS] = visits + 1
        links[parent, TRIED, action] += 1
        edges[parent, Q, action] = reward + discount * values[node, MEAN]
        node = parent


@inlined
def measure(values: Array, newest: int, span: Array) -> None:
    """Find the lowest and the highest q of a tree whose last node is `newest`."""
    low, high = np.inf, -np.inf
    for k in range(1, newest + 1):
        q = values[k, REWARD] + values[k, DISCOUNT] * values[k, MEAN]
        if q < low:
            low = q
        if q > high:
            high = q
    span[LOW], span[HIGH] = low, high
