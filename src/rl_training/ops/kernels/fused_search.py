"""The whole search of a small MLP model as one compiled call: no allocation and no Python per simulation.

The trees of a block of roots grow side by side: one simulation of each, then the next. So every weight that is read
serves all of them. What a root finds does not depend on the others, to the bit. Before a search, the weights are copied
to panels (see dense.py), and the last two layers of a network, which read the same input, lie side by side in one
matrix.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.ops.kernels import inlined, lean
from rl_training.ops.kernels.acting import RELU, TANH, rational_tanh
from rl_training.ops.kernels.dense import LANES, dense
from rl_training.ops.kernels.exponentials import FEW, exponentiate
from rl_training.ops.kernels.tree import ACTION, LOGIT, PARENT, Tree
from rl_training.ops.kernels.tree_rules import Rule
from rl_training.ops.kernels.tree_search import descend, finish, roots_to_search, tree_logit
from rl_training.types import Array

EPS = 0.001  # of the transform of values
LOG_STD_RANGE = (-5.0, 2.0)

# Roots that are searched side by side.
BLOCK = 16
# Scratch: of each, a row for every root of a block. Two take turns as the output of a layer.
FIRST, SECOND, SPARE, MORE, LATENTS, LOGITS = 0, 1, 2, 3, 4, 5
BUFFERS = 6


class Model(NamedTuple):
    """An MLP model as the kernel reads it, with its scratch memory."""

    weights: Array  # float32: the weights of all layers, copied by `pack`
    # int64 [layers to run, 5]: inputs, panels, offsets of the panels and of the rows of actions, how many are added
    plan: Array
    dynamics: int  # hidden layers
    kind: int  # activation
    latent: int
    points: Array  # float32 [bins of rewards + bins of values]: both supports
    rewards: int  # bins of rewards
    discount: float
    spread: Array  # float32 [interior]
    noise: Array  # float32 [B, N, interior, d]
    prior: Array  # float32 [B, N, interior]: logits of sampled actions
    rows: Array  # float32 [BUFFERS, BLOCK * width]: scratch
    bits: Array  # the memory of `rows` as int32
    searched: Array  # int64 [BLOCK]: which roots of the block are searched


@lean
def _activate(kind: int, size: int, at: int, rows: Array, bits: Array) -> None:
    """Apply the activation in place to the first numbers of a buffer."""
    x = rows[at, :size]
    if kind == TANH:
        rational_tanh(x)
    elif kind == RELU:
        for i in range(x.size):
            # A comparison would keep this from being vectorised.
            x[i] = (x[i] + abs(x[i])) * np.float32(0.5)
    else:
        negative = rows[SPARE, :size]
        for i in range(x.size):
            negative[i] = -x[i]
        exponentiate(negative, bits[SPARE, :size], rows[MORE], bits[MORE])
        for i in range(x.size):
            x[i] /= np.float32(1.0) + negative[i]


@lean
def _add_actions(model: Model, tree: Tree, node: int, count: int, out: Array) -> None:
    """Add to each row of the first layer's output what its action contributes.

    An index adds its row of the weights, and a vector adds rows times its entries.
    """
    width = np.uint64(model.plan[0, 1] * LANES)
    weights, actions, nodes = model.weights, tree.actions, tree.nodes
    for k in range(count):
        b, to = model.searched[k], np.uint64(k) * width
        parent, index = np.int64(nodes[b, node, PARENT]), np.int64(nodes[b, node, ACTION])
        for i in range(model.plan[0, 4]):
            vector = actions.shape[3] > 0
            factor = actions[b, parent, index, i] if vector else np.float32(1.0)
            start = np.uint64(model.plan[0, 3]) + np.uint64(i if vector else index) * width
            for o in range(width):
                out[to + o] += factor * weights[start + o]


@lean
def _network(model: Model, tree: Tree, node: int, first: int, last: int, count: int) -> int:
    """Run lines of the plan on the block's latents, and return which buffer holds the result.

    The activation follows all but the last line. Actions come in at the first line of the whole plan.
    """
    rows, plan, at, stride = model.rows, model.plan, LATENTS, model.latent
    for layer in range(first, last):
        inputs, panels, start = plan[layer, 0], plan[layer, 1], plan[layer, 2]
        to = SECOND if at == FIRST else FIRST
        dense(model.weights, start, inputs, panels, rows[at], stride, count, rows[to])
        if layer == 0:
            _add_actions(model, tree, node, count, rows[to])
        at, stride = to, panels * LANES
        if layer < last - 1:
            _activate(model.kind, count * stride, at, rows, model.bits)
    return at


@inlined
def scale_latent(x: Array, start: int, out: Array, to: int, size: int) -> None:
    """Bring the `size` numbers from `x[start]` on to the range from 0 to 1, and write them from `out[to]` on.

    Two chains of comparisons, which do not wait for each other.
    """
    low = high = low2 = high2 = x[start + size - 1]
    for i in range(start, start + size - 1, 2):
        v, w = x[i], x[i + 1]
        low, high = v if v < low else low, v if v > high else high
        low2, high2 = w if w < low2 else low2, w if w > high2 else high2
    low, high = low if low < low2 else low2, high if high > high2 else high2
    scale = high - low
    if scale < np.float32(1e-5):
        scale += np.float32(1e-5)
    for i in range(np.uint64(size)):
        out[np.uint64(to) + i] = (x[np.uint64(start) + i] - low) / scale


@inlined
def shifted(x: Array, start: int, out: Array, to: int, size: int) -> None:
    """Copy logits from `x[start]` on to `out[to]` on, so that the highest is 0."""
    highest = x[start]
    for i in range(start, start + size):
        if x[i] > highest:
            highest = x[i]
    for i in range(np.uint64(size)):
        out[np.uint64(to) + i] = x[np.uint64(start) + i] - highest


@inlined
def mean_number(weights: Array, start: int, points: Array, first: int, last: int) -> float:
    """The number that unnormalised probabilities `weights[start:]` of the points stand for, after the inverse of h.

    Points and their negatives are taken together: equal probabilities are exactly 0, whatever the rounding.
    """
    total = mean = np.float32(0.0)
    for i in range((last - first) // 2):
        upper, lower = weights[start + last - 1 - i], weights[start + first + i]
        total += upper + lower
        mean += (upper - lower) * points[last - 1 - i]
    if (last - first) % 2 == 1:
        total += weights[start + (first + last) // 2]
    y = np.float64(mean) / total
    # With u = sqrt(|x| + 1) - 1, the equation h(x) = y is u (1 + 2 eps + eps u) = |y|, and |x| = u (u + 2).
    slope = 1.0 + 2.0 * EPS
    u = 2.0 * abs(y) / (slope + math.sqrt(slope * slope + 4.0 * EPS * abs(y)))
    # As precise as what a model that is called once per simulation answers.
    number: float = np.float32(math.copysign(u * (u + 2.0), y))
    return number


@lean
def _sample(tree: Tree, model: Model, node: int, count: int, policies: Array, width: int, start: int) -> None:
    """Draw the actions of node `node` of every tree of a block from its policy, with the noise of the caller.

    Policies are `width` apart, the first is at `policies[start:]`.
    """
    actions, noise, size = tree.actions, model.noise, tree.actions.shape[3]
    for k in range(count):
        b, policy = model.searched[k], k * width + start
        for i in range(size):
            log_std = policies[policy + size + i]
            if log_std < LOG_STD_RANGE[0]:
                log_std = LOG_STD_RANGE[0]
            if log_std > LOG_STD_RANGE[1]:
                log_std = LOG_STD_RANGE[1]
            for a in range(noise.shape[2]):
                deviation = model.spread[a] * math.exp(log_std) * noise[b, node, a, i]
                actions[b, node, a, i] = math.tanh(policies[policy + i] + deviation)


@lean
def _walk(tree: Tree, rule: Rule, model: Model, node: int, count: int) -> None:
    """Walk down every tree of a block, and fetch the latents from which the model goes on."""
    latents, size, embedding = model.rows[LATENTS], np.uint64(model.latent), tree.embedding
    for k in range(count):
        b, to = model.searched[k], np.uint64(k) * size
        descend(tree, b, rule, node)
        parent = np.int64(tree.nodes[b, node, PARENT])
        for i in range(size):
            latents[to + i] = embedding[b, parent, i]


@lean
def _ask(tree: Tree, model: Model, node: int, count: int) -> int:
    """Ask the model, and return which buffer holds the policies; weights of rewards and values are in LOGITS."""
    rows, latent, rewards, bins, hidden = model.rows, model.latent, model.rewards, model.points.size, model.dynamics
    layers, each, logits, latents = model.plan.shape[0], max(bins, FEW), rows[LOGITS], rows[LATENTS]
    at, width = _network(model, tree, node, np.int64(0), hidden + 1, count), model.plan[hidden, 1] * LANES
    answer = rows[at]
    for k in range(count):
        shifted(answer, k * width + latent, logits, k * each, rewards)
        scale_latent(answer, k * width, latents, k * latent, latent)
    at, width = _network(model, tree, node, hidden + 1, layers, count), model.plan[layers - 1, 1] * LANES
    answer = rows[at]
    for k in range(count):
        shifted(answer, k * width, logits, k * each + rewards, bins - rewards)
    # Rewards and values share one exp, which is long enough to be the same function for one root as for many.
    exponentiate(rows[LOGITS, : count * each], model.bits[LOGITS], rows[SPARE], model.bits[SPARE])
    return at


@lean
def _grow(tree: Tree, rule: Rule, model: Model, node: int, count: int, at: int) -> None:
    """Make node `node` of every tree of a block of what the model answered."""
    rows, latent, rewards, bins, embedding = model.rows, model.latent, model.rewards, model.points.size, tree.embedding
    width, each = model.plan[model.plan.shape[0] - 1, 1] * LANES, max(bins, FEW)
    logits, latents, policies = rows[LOGITS], rows[LATENTS], rows[at]
    sampled = tree.actions.shape[3] > 0
    if sampled:
        _sample(tree, model, node, count, policies, width, bins - rewards)
    for k in range(count):
        b, policy = model.searched[k], k * width + bins - rewards
        for i in range(np.uint64(latent)):
            embedding[b, node, i] = latents[np.uint64(k * latent) + i]
        for a in range(rule.interior):
            logit = model.prior[b, node, a] if sampled else policies[policy + a]
            tree.edges[b, node, LOGIT, a] = tree_logit(logit)
        reward = mean_number(logits, k * each, model.points, np.int64(0), rewards)
        value = mean_number(logits, k * each, model.points, rewards, bins)
        finish(tree, b, rule, node, reward, np.float32(model.discount), value)


@lean
def fused_search(tree: Tree, rule: Rule, model: Model, roots: int) -> None:
    """All simulations of the first `roots` trees, which are planted."""
    for first in range(0, roots, BLOCK):
        count = roots_to_search(tree, first, min(first + BLOCK, roots), model.searched)
        for node in range(1, tree.nodes.shape[1] if count > 0 else 0):
            _walk(tree, rule, model, node, count)
            at = _ask(tree, model, node, count)
            _grow(tree, rule, model, node, count, at)
