"""One simulation of many trees, before and after the call of the model, and what a whole search has found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.ops.kernels import inlined, jit
from rl_training.ops.kernels.tree import (
    ACTION,
    ALLOWED,
    CHILD,
    DEPTH,
    DISCOUNT,
    LEGAL,
    LOGIT,
    LOWEST,
    MEAN,
    PARENT,
    RAW,
    REWARD,
    TRIED,
    One,
    Q,
    Tree,
    backup,
    measure,
    one_of,
    open_node,
    softmax,
)
from rl_training.ops.kernels.tree_rules import (
    BY_TREE,
    Rule,
    complete,
    halving_choice,
    puct_choice,
    steady_choice,
)
from rl_training.types import Array


class Answers(NamedTuple):
    """What the model said of one edge of every tree, as the kernels read it: float32, contiguous."""

    reward: Array  # [B]
    discount: Array  # [B]
    embedding: Array  # [B, D]
    logits: Array  # [B, at least the interior actions]
    value: Array  # [B]
    actions: Array  # [B, the same, d]


class Found(NamedTuple):
    """What a search found of its roots."""

    visits: Array  # int32 [B, A]
    q: Array  # float32 [B, A]
    policy: Array  # float32 [B, A]
    improved: Array  # float32 [B, A]
    logits: Array  # float32 [B, A]
    value: Array  # float32 [B]
    depth: Array  # float32 [B]


@inlined
def descend(one: One, rule: Rule, node: int) -> None:
    """Walk from the root to an edge without a child; `nodes` of the new `node` say which."""
    here = action = child = np.int64(0)
    # A root without an allowed action is not searched: what the model says of it is ignored.
    while child >= 0 and one.span[LEGAL] > 0.0:
        here = child
        count = rule.interior if here > 0 else one.row.size
        if rule.gumbel:
            visits = complete(one, rule.numbers, here, count)
            if here > 0:
                action = steady_choice(one, here, count, visits)
            else:
                action = halving_choice(one, rule.considered, visits)
        else:
            action = puct_choice(one, rule.numbers, here, count)
        child = np.int64(one.links[here, CHILD, action])
    one.nodes[node, PARENT] = here
    one.nodes[node, ACTION] = action


@inlined
def finish(one: One, rule: Rule, node: int) -> None:
    """Complete a simulation whose new node has its logits, its value and its edge's reward and discount."""
    open_node(one.links, one.edges, node, rule.interior, one.row)
    backup(one.nodes, one.values, one.links, one.edges, node)
    if rule.numbers[BY_TREE] > 0.0:
        measure(one.values, node, one.span)


@jit
def select_leaves(tree: Tree, rule: Rule, node: int, embedding: Array, index: Array, action: Array) -> None:
    """Walk down every tree once; write what the model is asked: embeddings, and the indices and vectors of actions."""
    for b in range(embedding.shape[0]):
        descend(one_of(tree, b), rule, node)
        parent, chosen = tree.nodes[b, node, PARENT], tree.nodes[b, node, ACTION]
        index[b] = chosen
        for i in range(embedding.shape[1]):
            embedding[b, i] = tree.embedding[b, parent, i]
        for i in range(action.shape[1]):
            action[b, i] = tree.actions[b, parent, chosen, i]


@jit
def grow(tree: Tree, rule: Rule, node: int, answers: Answers) -> None:
    """Make node `node` of every tree of what the model answered."""
    for b in range(answers.value.size):
        if tree.spans[b, LEGAL] == 0.0:
            continue
        for i in range(answers.embedding.shape[1]):
            tree.embedding[b, node, i] = answers.embedding[b, i]
        for a in range(rule.interior):
            logit = answers.logits[b, a]
            tree.edges[b, node, LOGIT, a] = logit if logit > LOWEST else LOWEST
            for i in range(answers.actions.shape[2]):
                tree.actions[b, node, a, i] = answers.actions[b, a, i]
        tree.values[b, node, REWARD] = answers.reward[b]
        tree.values[b, node, DISCOUNT] = answers.discount[b]
        tree.values[b, node, RAW] = answers.value[b]
        finish(one_of(tree, b), rule, node)


@jit
def summarize(tree: Tree, rule: Rule, found: Found) -> None:
    """Write what the search found of every root."""
    for b in range(found.value.size):
        one, actions, depth = one_of(tree, b), tree.row.size, 0.0
        visits = complete(one, rule.numbers, np.int64(0), actions)
        for node in range(1, 1 + visits):
            depth += one.nodes[node, DEPTH]
        found.depth[b] = depth / max(visits, 1)
        found.value[b] = one.values[0, MEAN]
        for a in range(actions):
            found.visits[b, a] = one.links[0, TRIED, a]
            found.q[b, a] = one.edges[0, Q, a]
            found.logits[b, a] = one.edges[0, LOGIT, a]
            found.improved[b, a] = one.row[a] if rule.gumbel else one.edges[0, LOGIT, a]
        softmax(one.row, actions)
        for a in range(actions):
            target = one.row[a] if rule.gumbel else np.float32(one.links[0, TRIED, a] / max(visits, 1))
            found.policy[b, a] = target * one.root[ALLOWED, a]
