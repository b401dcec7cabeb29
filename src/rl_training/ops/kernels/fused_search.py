"""The whole search of a small MLP model as one compiled call: no allocation and no Python per simulation.

A matrix and a vector are multiplied row by row of the weights `[in, out]`, so that the inner loop runs along memory and
vectorises. Four rows share every sum that is loaded and stored. Before a search, the weights are copied to memory that
suits this: rows begin at multiples of 32 bytes, and the last two layers of a network, which read the same input, lie
side by side in one matrix.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.ops.kernels import jit
from rl_training.ops.kernels.acting import RELU, TANH, rational_tanh
from rl_training.ops.kernels.exponentials import exponentiate
from rl_training.ops.kernels.tree import ACTION, DISCOUNT, LEGAL, LOGIT, LOWEST, PARENT, RAW, REWARD, Tree, one_of
from rl_training.ops.kernels.tree_rules import Rule
from rl_training.ops.kernels.tree_search import descend, finish
from rl_training.types import Array

EPS = 0.001  # of the transform of values
LOG_STD_RANGE = (-5.0, 2.0)


class Model(NamedTuple):
    """An MLP model as the kernel reads it, with its scratch memory."""

    weights: Array  # float32: the weights of all layers, copied by `pack`
    # int64 [layers to run, 5]: outputs, with padding, offsets of the weights and of the bias, rows of actions to add
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
    rows: Array  # float32 [5, width]: scratch
    bits: Array  # the memory of `rows` as int32


@jit
def pack(weights: Array, moves: Array, packed: Array) -> None:
    """Copy matrices; a move is offset and row length of the source, those of the target, and the number of rows."""
    for m in range(moves.shape[0]):
        source, columns, target, width = moves[m, 0], moves[m, 1], moves[m, 2], moves[m, 3]
        for _ in range(moves[m, 4]):
            from_row, to_row = weights[source : source + columns], packed[target : target + columns]
            for o in range(columns):
                to_row[o] = from_row[o]
            source, target = source + columns, target + width


@jit
def _dense(weights: Array, start: int, bias: int, x: Array, row: int, inputs: int, out: Array) -> None:
    """`out = x[row, :inputs] @ weights + bias`, whose offsets in a vector are `start` and `bias`.

    Unsigned indices, since those that may be negative keep loops from being vectorised.
    """
    row0, shift, outputs = np.uint64(start), np.uint64(bias), np.uint64(out.size)
    for o in range(outputs):
        out[o] = weights[shift + o]
    for i in range(0, inputs - 3, 4):
        a, b, c, d = x[row, i], x[row, i + 1], x[row, i + 2], x[row, i + 3]
        row1 = row0 + outputs
        row2 = row1 + outputs
        row3 = row2 + outputs
        for o in range(outputs):
            out[o] += (a * weights[row0 + o] + b * weights[row1 + o]) + (c * weights[row2 + o] + d * weights[row3 + o])
        row0 = row3 + outputs
    for i in range(inputs // 4 * 4, inputs):
        a = x[row, i]
        for o in range(outputs):
            out[o] += a * weights[row0 + o]
        row0 += outputs


@jit
def _add_row(weights: Array, start: int, factor: float, out: Array) -> None:
    """`out += factor * weights[start:]`"""
    row, outputs = np.uint64(start), np.uint64(out.size)
    for o in range(outputs):
        out[o] += factor * weights[row + o]


@jit
def _activate(kind: int, x: Array, rows: Array, bits: Array) -> None:
    """Apply the activation in place; rows 2 and 3 are scratch."""
    if kind == TANH:
        rational_tanh(x)
    elif kind == RELU:
        for i in range(x.size):
            if x[i] < np.float32(0.0):
                x[i] = 0.0
    else:
        negative = rows[2, : x.size]
        for i in range(x.size):
            negative[i] = -x[i]
        exponentiate(negative, bits[2, : x.size], rows[3], bits[3])
        for i in range(x.size):
            x[i] /= np.float32(1.0) + negative[i]


@jit
def _network(model: Model, lines: Array, x: Array, row: int, action: Array, index: int) -> int:
    """Run lines of the plan on `x[row]`, and return which row of `model.rows` holds the result.

    The activation follows all but the last line. Where actions come in, an index adds its row of the weights, and a
    vector adds rows times its entries.
    """
    inputs = model.latent
    for layer in range(lines.shape[0]):
        outputs, width, start, bias = lines[layer, 0], lines[layer, 1], lines[layer, 2], lines[layer, 3]
        out = model.rows[layer % 2, :width]
        _dense(model.weights, start, bias, x, row, inputs, out)
        # Rows of actions follow those of the latent.
        start += (inputs + index) * width
        for i in range(lines[layer, 4]):
            _add_row(model.weights, start + i * width, action[i] if action.size > 0 else np.float32(1.0), out)
        if layer < lines.shape[0] - 1:
            _activate(model.kind, out, model.rows, model.bits)
        x, row, inputs = model.rows, layer % 2, outputs
    return row


@jit
def _rescale(x: Array, row: int, out: Array, to: int) -> None:
    """Bring the beginning of `x[row]` to the range from 0 to 1, in `out[to]`.

    Two chains of comparisons, which do not wait for each other.
    """
    size = out.shape[1]
    low = high = low2 = high2 = x[row, size - 1]
    for i in range(0, size - 1, 2):
        v, w = x[row, i], x[row, i + 1]
        low, high = v if v < low else low, v if v > high else high
        low2, high2 = w if w < low2 else low2, w if w > high2 else high2
    low, high = low if low < low2 else low2, high if high > high2 else high2
    scale = high - low
    if scale < np.float32(1e-5):
        scale += np.float32(1e-5)
    for i in range(size):
        out[to, i] = (x[row, i] - low) / scale


@jit
def _shift(x: Array, row: int, start: int, out: Array, first: int, last: int) -> None:
    """Copy logits from `x[row, start:]` to `out[first:last]`, so that the highest is 0."""
    highest = x[row, start]
    for i in range(last - first):
        if x[row, start + i] > highest:
            highest = x[row, start + i]
    for i in range(last - first):
        out[first + i] = x[row, start + i] - highest


@jit
def _mean(weights: Array, points: Array, first: int, last: int) -> float:
    """The number that unnormalised probabilities of the points stand for, after the inverse of h.

    Points and their negatives are taken together: equal probabilities are exactly 0, whatever the rounding.
    """
    total = mean = np.float32(0.0)
    for i in range((last - first) // 2):
        upper, lower = weights[last - 1 - i], weights[first + i]
        total += upper + lower
        mean += (upper - lower) * points[last - 1 - i]
    if (last - first) % 2 == 1:
        total += weights[(first + last) // 2]
    y = np.float64(mean) / total
    # With u = sqrt(|x| + 1) - 1, the equation h(x) = y is u (1 + 2 eps + eps u) = |y|, and |x| = u (u + 2).
    slope = 1.0 + 2.0 * EPS
    u = 2.0 * abs(y) / (slope + math.sqrt(slope * slope + 4.0 * EPS * abs(y)))
    # As precise as what a model that is called once per simulation answers.
    number: float = np.float32(math.copysign(u * (u + 2.0), y))
    return number


@jit
def _sample(rows: Array, row: int, start: int, spread: Array, noise: Array, actions: Array) -> None:
    """Draw a node's actions `[A, d]` from the policy at `rows[row, start:]`, with the noise `[A, d]` of the caller."""
    size = actions.shape[1]
    for i in range(size):
        log_std = rows[row, start + size + i]
        if log_std < LOG_STD_RANGE[0]:
            log_std = LOG_STD_RANGE[0]
        if log_std > LOG_STD_RANGE[1]:
            log_std = LOG_STD_RANGE[1]
        for a in range(noise.shape[0]):
            actions[a, i] = math.tanh(rows[row, start + i] + spread[a] * math.exp(log_std) * noise[a, i])


@jit
def fused_search(tree: Tree, rule: Rule, model: Model, roots: int) -> None:
    """All simulations of the first `roots` trees, which are planted."""
    latent, rewards, bins, rows = model.latent, model.rewards, model.points.size, model.rows
    # Rewards and values share one exp, so the logits of rewards wait here for those of values.
    logits, bits, spare, spare_bits = rows[4, : (bins + 7) // 8 * 8], model.bits[4], rows[2], model.bits[2]
    dynamics, prediction = model.plan[: model.dynamics + 1], model.plan[model.dynamics + 1 :]
    values, zero = bins - rewards, np.int64(0)
    for b in range(roots):
        one, embedding = one_of(tree, b), tree.embedding[b]
        for node in range(1, one.nodes.shape[0] if one.span[LEGAL] > 0.0 else 0):
            descend(one, rule, node)
            parent, index = np.int64(one.nodes[node, PARENT]), np.int64(one.nodes[node, ACTION])
            action = tree.actions[b, parent, index]
            if action.size > 0:
                index = 0
            row = _network(model, dynamics, embedding, parent, action, index)
            _shift(rows, row, latent, logits, zero, rewards)
            _rescale(rows, row, embedding, node)
            row = _network(model, prediction, embedding, node, action, index)
            _shift(rows, row, zero, logits, rewards, bins)
            exponentiate(logits, bits, spare, spare_bits)
            if action.size > 0:
                _sample(rows, row, values, model.spread, model.noise[b, node], tree.actions[b, node])
            for a in range(rule.interior):
                logit = rows[row, values + a] if action.size == 0 else model.prior[b, node, a]
                one.edges[node, LOGIT, a] = logit if logit > LOWEST else LOWEST
            one.values[node, REWARD] = _mean(logits, model.points, zero, rewards)
            one.values[node, DISCOUNT] = np.float32(model.discount)
            one.values[node, RAW] = _mean(logits, model.points, rewards, bins)
            finish(one, rule, node)
