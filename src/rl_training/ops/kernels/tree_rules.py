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
    MEAN,
    PRIOR,
    RAW,
    TRIED,
    VISITS,
    One,
    Q,
    softmax,
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
def puct_choice(one: One, numbers: Array, node: int, count: int) -> int:
    """The action with the highest q + prior * sqrt(N) / (1 + n) * (c_init + log((N + c_base + 1) / c_base))."""
    links, edges, visits, value = one.links, one.edges, one.nodes[node, VISITS], one.values[node, MEAN]
    low = high = total = value
    known = 1
    for a in range(count):
        if links[node, TRIED, a] > 0:
            q = np.float64(edges[node, Q, a])
            total, known = total + q, known + 1
            if q < low:
                low = q
            if q > high:
                high = q
    if numbers[BY_TREE] > 0.0:
        low, high = one.span[LOW], one.span[HIGH]
    if high - low < numbers[FLOOR]:
        high = low + numbers[FLOOR]
    missing = total / known if numbers[BY_MEAN] > 0.0 else low
    weight = math.sqrt(visits) * (numbers[C_INIT] + math.log((visits + numbers[C_BASE] + 1.0) / numbers[C_BASE]))
    best, choice = -np.inf, -1
    for a in range(count):
        if node > 0 or one.root[ALLOWED, a] > 0.0:
            q = np.float64(edges[node, Q, a]) if links[node, TRIED, a] > 0 else missing
            # The mean may lie outside of the range of the tree.
            q = min(max((q - low) / (high - low), 0.0), 1.0)
            score = q + weight * edges[node, PRIOR, a] / (1.0 + links[node, TRIED, a])
            if score > best or choice < 0:
                best, choice = score, a
    return choice


@inlined
def complete(one: One, numbers: Array, node: int, count: int) -> int:
    """Write logits + sigma(q) of a node's actions to `one.row`; returns the number of their visits.

    The q of an unvisited action is the mixed value: the model's value of the node, and the mean of the visited q
    weighted by the prior, in proportion 1 to the number of visits. Then sigma(q) = (c_visit + max n) c_scale q. With
    RESCALE, q is first brought to the range from 0 to 1.
    """
    links, edges, mixed = one.links, one.edges, one.values[node, RAW]
    total, most, weight, weighted = 0, 0, 0.0, 0.0
    for a in range(count):
        visits = np.int64(links[node, TRIED, a])
        if visits > 0:
            total += visits
            if visits > most:
                most = visits
            probability = np.float64(edges[node, PRIOR, a])
            if probability < TINY:
                probability = TINY
            weight += probability
            weighted += probability * edges[node, Q, a]
    if total > 0:
        mixed = (mixed + total * (weighted / weight)) / (total + 1)
    low, high = np.inf, -np.inf
    for a in range(count):
        q = np.float64(edges[node, Q, a]) if links[node, TRIED, a] > 0 else mixed
        if q < low:
            low = q
        if q > high:
            high = q
    scale = (numbers[C_VISIT] + most) * numbers[C_SCALE]
    if numbers[RESCALE] > 0.0:
        scale /= max(high - low, SMALLEST_RANGE)
    else:
        low = 0.0
    for a in range(count):
        q = np.float64(edges[node, Q, a]) if links[node, TRIED, a] > 0 else mixed
        one.row[a] = edges[node, LOGIT, a] + scale * (q - low)
    return total


@inlined
def halving_choice(one: One, considered: Array, visits: int) -> int:
    """The root's action: of those with as many visits as are considered now, the highest gumbel + logits + sigma(q).

    `one.row` is logits + sigma(q). As long as actions without a visit are considered, sigma(q) is the same for all of
    them. So the actions with the highest gumbel + logits are visited at all.
    """
    wanted = considered[min(int(one.span[LEGAL]), considered.shape[0] - 1), visits]
    best, choice, possible = -np.inf, -1, 0
    for a in range(one.row.size):
        if one.root[ALLOWED, a] > 0.0:
            possible = a
            if one.links[0, TRIED, a] == wanted:
                score = np.float64(one.root[GUMBEL, a]) + one.row[a]
                if score > best or choice < 0:
                    best, choice = score, a
    return choice if choice >= 0 else possible


@inlined
def steady_choice(one: One, node: int, count: int, visits: int) -> int:
    """The action that is furthest behind its share of the visits, where shares are softmax(logits + sigma(q)).

    `one.row` is logits + sigma(q).
    """
    best, choice = -np.inf, 0
    softmax(one.row, count)
    for a in range(count):
        score = one.row[a] - one.links[node, TRIED, a] / (1.0 + visits)
        if score > best:
            best, choice = score, a
    return choice
