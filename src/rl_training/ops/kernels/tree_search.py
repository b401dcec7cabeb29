"""One simulation of many trees, before and after the call of the model, and what a whole search has found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.ops.kernels import inlined, lean
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
    NEXT,
    PARENT,
    RAW,
    REWARD,
    TRIED,
    VISITS,
    Q,
    Tree,
    measure,
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
def descend(tree: Tree, b: int, rule: Rule, node: int) -> None:
    """Walk from the root to an edge without a child; `nodes` of the new `node` say which."""
    here = action = child = np.int64(0)
    nodes, links, actions = tree.nodes, tree.links, tree.row.size
    # A root without an allowed action is not searched: what the model says of it is ignored.
    while child >= 0 and tree.spans[b, LEGAL] > 0.0:
        here = child
        if not rule.gumbel:
            action = puct_choice(tree, b, rule.numbers, here, rule.interior if here > 0 else actions)
        elif here > 0:
            action = np.int64(nodes[b, here, NEXT])
        else:
            action = halving_choice(tree, b, rule.considered, complete(tree, b, rule.numbers, here, actions))
        child = np.int64(links[b, here, CHILD, action])
    nodes[b, node, PARENT] = here
    nodes[b, node, ACTION] = action


@inlined
def backup(tree: Tree, b: int, rule: Rule, node: int) -> None:
    """Join a new node of a tree to its parent, and add its value to the means above it.

    Its parent and action, its raw value and the reward and discount of its edge are already set. Choices of Gumbel
    MuZero below the root depend on nothing but the node, so the next one of every node that has changed is made here:
    none needs another one's result, and the processor works on several at once. On the way down, each would have to
    wait for the one above it.
    """
    nodes, values, links, edges = tree.nodes, tree.values, tree.links, tree.edges
    value = mean = values[b, node, RAW]
    values[b, node, MEAN] = value
    nodes[b, node, VISITS] = 1
    nodes[b, node, DEPTH] = nodes[b, nodes[b, node, PARENT], DEPTH] + 1
    links[b, nodes[b, node, PARENT], CHILD, nodes[b, node, ACTION]] = node
    while node > 0:
        if rule.gumbel:
            nodes[b, node, NEXT] = steady_choice(tree, b, rule.numbers, node, rule.interior)
        parent, action = np.int64(nodes[b, node, PARENT]), np.int64(nodes[b, node, ACTION])
        reward, discount = values[b, node, REWARD], values[b, node, DISCOUNT]
        edges[b, parent, Q, action] = reward + discount * mean
        links[b, parent, TRIED, action] += 1
        value = reward + discount * value
        visits = nodes[b, parent, VISITS]
        mean = (values[b, parent, MEAN] * visits + value) / (visits + 1)
        values[b, parent, MEAN] = mean
        nodes[b, parent, VISITS] = visits + 1
        node = parent


@inlined
def tree_logit(logit: float) -> float:
    """A logit as trees hold it: -inf and nan become the lowest number."""
    return logit if logit > LOWEST else LOWEST


@inlined
def finish(tree: Tree, b: int, rule: Rule, node: int, reward: float, discount: float, value: float) -> None:
    """Complete a simulation whose new node has its logits: reward and discount are of the edge that leads there."""
    values = tree.values
    values[b, node, REWARD] = reward
    values[b, node, DISCOUNT] = discount
    values[b, node, RAW] = value
    open_node(tree, b, node, rule.interior)
    backup(tree, b, rule, node)
    if rule.numbers[BY_TREE] > 0.0:
        measure(tree, b, node)


@inlined
def roots_to_search(tree: Tree, first: int, end: int, searched: Array) -> int:
    """Write which roots from `first` to before `end` have an allowed action, and return how many."""
    count: int = np.int64(0)
    for b in range(first, end):
        if tree.spans[b, LEGAL] > 0.0:
            searched[count] = b
            count += 1
    return count


@lean
def select_leaves(tree: Tree, rule: Rule, node: int, embedding: Array, index: Array, action: Array) -> None:
    """Walk down every tree once; write what the model is asked: embeddings, and the indices and vectors of actions."""
    for b in range(embedding.shape[0]):
        descend(tree, b, rule, node)
        parent, chosen = tree.nodes[b, node, PARENT], tree.nodes[b, node, ACTION]
        index[b] = chosen
        for i in range(embedding.shape[1]):
            embedding[b, i] = tree.embedding[b, parent, i]
        for i in range(action.shape[1]):
            action[b, i] = tree.actions[b, parent, chosen, i]


@lean
def grow(tree: Tree, rule: Rule, node: int, answers: Answers) -> None:
    """Make node `node` of every tree of what the model answered."""
    for b in range(answers.value.size):
        if tree.spans[b, LEGAL] == 0.0:
            continue
        for i in range(answers.embedding.shape[1]):
            tree.embedding[b, node, i] = answers.embedding[b, i]
        for a in range(rule.interior):
            tree.edges[b, node, LOGIT, a] = tree_logit(answers.logits[b, a])
            for i in range(answers.actions.shape[2]):
                tree.actions[b, node, a, i] = answers.actions[b, a, i]
        finish(tree, b, rule, node, answers.reward[b], answers.discount[b], answers.value[b])


@lean
def summarize(tree: Tree, rule: Rule, found: Found) -> None:
    """Write what the search found of every root."""
    for b in range(found.value.size):
        actions, depth, row, root = tree.row.size, 0.0, tree.row, np.int64(0)
        visits = complete(tree, b, rule.numbers, root, actions)
        for node in range(1, 1 + visits):
            depth += tree.nodes[b, node, DEPTH]
        found.depth[b] = depth / max(visits, 1)
        found.value[b] = tree.values[b, 0, MEAN]
        for a in range(actions):
            found.visits[b, a] = tree.links[b, 0, TRIED, a]
            found.q[b, a] = tree.edges[b, 0, Q, a]
            found.logits[b, a] = tree.edges[b, 0, LOGIT, a]
            found.improved[b, a] = row[a] if rule.gumbel else tree.edges[b, 0, LOGIT, a]
        softmax(row, actions)
        for a in range(actions):
            target = row[a] if rule.gumbel else np.float32(tree.links[b, 0, TRIED, a] / max(visits, 1))
            found.policy[b, a] = target * tree.roots[b, ALLOWED, a]


@lean
def play(
    visits: Array, q: Array, logits: Array, improved: Array, gumbel: Array, heat: Array, filtered: bool, action: Array
) -> None:
    """Write Gumbel MuZero's action of every root: see `gumbel_action` of ops/search.py. `heat` is `[B]`."""
    for b in range(action.size):
        most, sample, likely = 0, -1, -np.inf
        for a in range(visits.shape[1]):
            most = max(most, visits[b, a])
            score = gumbel[b, a] + logits[b, a]
            if visits[b, a] > 0 and (score > likely or sample < 0):
                likely, sample = score, a
        usual = not filtered or heat[b] == 1.0
        factor, fewest = heat[b] if filtered else 1.0, 1 if most > 1 else 0
        best, choice = -np.inf, -1
        for a in range(visits.shape[1]):
            good = visits[b, a] == most if usual else visits[b, a] > fewest and q[b, a] >= q[b, sample]
            score = factor * gumbel[b, a] + improved[b, a]
            allowed = visits[b, a] > 0 and (good or (a == sample and not usual))
            if allowed and (score > best or choice < 0):
                best, choice = score, a
        action[b] = max(choice, 0)
