"""Which of a node's actions a simulation follows: PUCT, or sequential halving and deterministic choices (Gumbel).

Ties go to the lowest index. Scores that are nan never win, so that the choice is always a possible one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.ops.kernels import inlined
from rl_training.ops.kernels.tree import (
    ALLOWED,
    GUMBEL,
    HIGH,
    LEGAL,
    LOGIT,
    LOW,
    LOWEST,
    MEAN,
    PRIOR,
    RAW,
    TRIED,
    VISITS,
    Q,
    Tree,
    exponentials,
)
from rl_training.types import Array

# A range of q that is smaller than this counts as this, so that equal values stay equal.
SMALLEST_RANGE = 1e-8
# The least probability of a visited action: a mean weighted by probabilities that are all 0 would be nan.
TINY = float(np.finfo(np.float32).tiny)

# Entries of a rule's `numbers`; flags are 0 or 1.
C_INIT, C_BASE, FLOOR, BY_TREE, BY_MEAN, C_VISIT, C_SCALE, RESCALE = 0, 1, 2, 3, 4, 5, 6, 7


class Rule(NamedTuple):
    """A rule as the kernels read it. Everything is there for both rules; each reads its own part."""

    gumbel: bool
    interior: int  # how many actions nodes other than the root have
    numbers: Array  # float64 [8]
    considered: Array  # int32 [1 + considered actions, simulations]: visits of the actions that may be chosen


@inlined
def puct_choice(tree: Tree, b: int, numbers: Array, node: int, count: int) -> int:
    """The action with the highest q + prior * sqrt(N) / (1 + n) * (c_init + log((N + c_base + 1) / c_base))."""
    links, edges, visits, value = tree.links, tree.edges, tree.nodes[b, node, VISITS], tree.values[b, node, MEAN]
    low = high = total = value
    known = 1
    for a in range(count):
        if links[b, node, TRIED, a] > 0:
            q = np.float64(edges[b, node, Q, a])
            total, known = total + q, known + 1
            if q < low:
                low = q
            if q > high:
                high = q
    if numbers[BY_TREE] > 0.0:
        low, high = tree.spans[b, LOW], tree.spans[b, HIGH]
    if high - low < numbers[FLOOR]:
        high = low + numbers[FLOOR]
    missing = total / known if numbers[BY_MEAN] > 0.0 else low
    weight = math.sqrt(visits) * (numbers[C_INIT] + math.log((visits + numbers[C_BASE] + 1.0) / numbers[C_BASE]))
    best, choice = -np.inf, -1
    for a in range(count):
        # Below the root, a model forbids actions by the lowest logit.
        if edges[b, node, LOGIT, a] > LOWEST if node > 0 else tree.roots[b, ALLOWED, a] > 0.0:
            q = np.float64(edges[b, node, Q, a]) if links[b, node, TRIED, a] > 0 else missing
            # The mean may lie outside of the range of the tree.
            q = min(max((q - low) / (high - low), 0.0), 1.0)
            score = q + weight * edges[b, node, PRIOR, a] / (1.0 + links[b, node, TRIED, a])
            if score > best or choice < 0:
                best, choice = score, a
    return max(choice, 0)


@inlined
def complete(tree: Tree, b: int, numbers: Array, node: int, count: int) -> int:
    """Write logits + sigma(q) of a node's actions to `tree.row`; returns the number of their visits.

    The q of an unvisited action is the mixed value: the model's value of the node, and the mean of the visited q
    weighted by the prior, in proportion 1 to the number of visits. Then sigma(q) = (c_visit + max n) c_scale q. With
    RESCALE, q is first brought to the range from 0 to 1.
    """
    links, edges, row, mixed = tree.links, tree.edges, tree.row, tree.values[b, node, RAW]
    total, most, missing, weight, weighted = 0, 0, 0, 0.0, 0.0
    low, high = np.inf, -np.inf
    # What is chosen between instead of branched on here is hard to predict.
    for a in range(count):
        visits, q = np.int64(links[b, node, TRIED, a]), np.float64(edges[b, node, Q, a])
        total, most, missing = total + visits, max(most, visits), missing + (visits == 0)
        probability = max(np.float64(edges[b, node, PRIOR, a]), TINY) if visits > 0 else 0.0
        weight, weighted = weight + probability, weighted + probability * q
        low = q if visits > 0 and q < low else low
        high = q if visits > 0 and q > high else high
    if missing > 0:
        if total > 0:
            mixed = (mixed * weight + total * weighted) / (weight * (total + 1))
        low, high = mixed if mixed < low else low, mixed if mixed > high else high
    scale = (numbers[C_VISIT] + most) * numbers[C_SCALE]
    if numbers[RESCALE] > 0.0:
        scale /= max(high - low, SMALLEST_RANGE)
    else:
        low = 0.0
    for a in range(count):
        q = np.float64(edges[b, node, Q, a]) if links[b, node, TRIED, a] > 0 else mixed
        row[a] = edges[b, node, LOGIT, a] + scale * (q - low)
    return total


@inlined
def halving_choice(tree: Tree, b: int, considered: Array, visits: int) -> int:
    """The root's action: of those with as many visits as are considered now, the highest gumbel + logits + sigma(q).

    `tree.row` is logits + sigma(q). As long as actions without a visit are considered, sigma(q) is the same for all of
    them. So the actions with the highest gumbel + logits are visited at all.
    """
    wanted = considered[min(int(tree.spans[b, LEGAL]), considered.shape[0] - 1), visits]
    best, choice, possible = -np.inf, -1, 0
    for a in range(tree.row.size):
        if tree.roots[b, ALLOWED, a] > 0.0:
            possible = a
            if tree.links[b, 0, TRIED, a] == wanted:
                score = np.float64(tree.roots[b, GUMBEL, a]) + tree.row[a]
                if score > best or choice < 0:
                    best, choice = score, a
    return choice if choice >= 0 else possible


@inlined
def steady_choice(tree: Tree, b: int, numbers: Array, node: int, count: int) -> int:
    """The action that is furthest behind its share of the visits, where shares are softmax(logits + sigma(q)).

    Differences share - n / (1 + visits) are compared after multiplication by what is divided by there, the sum of
    exponentials and 1 + visits.
    """
    best, choice = -np.inf, 0
    if tree.nodes[b, node, VISITS] == 1:
        # Without any visit of an action all have the same q, so shares are the prior.
        for a in range(count):
            prior = np.float64(tree.edges[b, node, PRIOR, a])
            choice, best = a if prior > best else choice, prior if prior > best else best
        return choice
    if count == 2:
        return steady_choice_of_two(tree, b, numbers, node)
    visits = complete(tree, b, numbers, node, count)
    total = np.float64(exponentials(tree.row, count))
    for a in range(count):
        score = tree.row[a] * (1.0 + visits) - total * tree.links[b, node, TRIED, a]
        choice, best = a if score > best else choice, score if score > best else best
    return choice


@inlined
def steady_choice_of_two(tree: Tree, b: int, numbers: Array, node: int) -> int:
    """`steady_choice` between two actions of which one at least has been visited, without loops: twice as fast."""
    links, edges, raw = tree.links, tree.edges, tree.values[b, node, RAW]
    n0, n1 = np.int64(links[b, node, TRIED, 0]), np.int64(links[b, node, TRIED, 1])
    q0, q1 = np.float64(edges[b, node, Q, 0]), np.float64(edges[b, node, Q, 1])
    visits, most = n0 + n1, max(n0, n1)
    # If one has no visits, the mean of the visited q is the other's.
    mixed = (raw + visits * (q0 if n0 > 0 else q1)) / (visits + 1)
    q0, q1 = q0 if n0 > 0 else mixed, q1 if n1 > 0 else mixed
    scale, low = (numbers[C_VISIT] + most) * numbers[C_SCALE], 0.0
    if numbers[RESCALE] > 0.0:
        scale, low = scale / max(abs(q1 - q0), SMALLEST_RANGE), min(q0, q1)
    first = np.float32(edges[b, node, LOGIT, 0] + scale * (q0 - low))
    second = np.float32(edges[b, node, LOGIT, 1] + scale * (q1 - low))
    # exp of the difference to the higher one, which itself has 1.
    less, ahead = np.float64(np.float32(math.exp(-abs(second - first)))), first >= second
    share0, share1 = 1.0 if ahead else less, less if ahead else 1.0
    total = share0 + share1
    return 1 if share1 * (1.0 + visits) - total * n1 > share0 * (1.0 + visits) - total * n0 else 0
