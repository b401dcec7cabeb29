"""One token of each of a few trees through a small transformer, with the keys and values of the tokens that it sees.

The layers are those of models/transformer.py. Rows go through a layer together, so that every weight that is read
serves all of them; what a row finds does not depend on the others. Weights are in panels (see dense.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rl_training.ops.kernels import lean
from rl_training.ops.kernels.dense import LANES, dense
from rl_training.ops.kernels.vectors import dot, exp32, logistic32, total
from rl_training.types import Array

# Rows that go through the layers together.
BLOCK = 16
# Scratch: of each, a row for every token. TOKENS are what layers add to; NORMED what a product reads.
TOKENS, NORMED, PRODUCT, HIDDEN, PICKED, LOGITS = 0, 1, 2, 3, 4, 5
BUFFERS = 6
# Lines of the plan for a layer: queries, keys and values; what attention found; the shared expert; the router; then
# the first and then the second matrices of all experts. After all layers: dynamics and prediction, two lines each.
INTO, OUT, SHARED_IN, SHARED_OUT, ROUTER, EXPERTS = 0, 1, 2, 3, 4, 5
FOLLOW, FOLLOWED, PREDICT, PREDICTED = 0, 1, 2, 3
_NORM_EPS = np.float32(1e-5)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class TokenModel(NamedTuple):
    """A world model of one task as the kernels read it, with its scratch memory."""

    weights: Array  # float32: panels of all matrices
    plan: Array  # int64 [lines, 3]: inputs, panels, offset
    norms: Array  # float32 [2 * layers + 1, 2, D]: scale and shift
    distance: Array  # float32 [layers, heads, reach]: learned relative position bias, by distance in tokens
    actions: Array  # float32 [actions of the largest task, D]
    points: Array  # float32 [bins of rewards + bins of values]: both supports
    cache: Array  # float32 [B, slots, layers * 2 * D]: keys and values of each layer
    before: Array  # int64 [B]: how many tokens come before the root's own
    rows: Array  # float32 [BUFFERS, BLOCK * widest]: scratch
    slots: Array  # int64 [BLOCK, reach]: what a row's token sees, the newest first, which is itself
    seen: Array  # int64 [BLOCK]: how many these are
    searched: Array  # int64 [BLOCK]: the tree of each row
    picked: Array  # int64 [2, BLOCK]: each row's expert, and the rows of one expert
    shares: Array  # float32 [max(BLOCK, reach)]: scratch
    experts: int
    group: int  # of SimNorm; 0: latents are layer normed
    rewards: int  # bins
    own: int  # actions of the task
    discount: float


@lean
def lines_of(experts: int) -> int:
    """How many lines of the plan a layer has."""
    return EXPERTS + 2 * experts if experts > 0 else ROUTER


@lean
def multiply(model: TokenModel, line: int, source: int, stride: int, count: int, to: int) -> int:
    """Rows of one buffer, `stride` apart, times a matrix of the plan, into another; returns how far apart these are."""
    inputs, panels, start = model.plan[line, 0], model.plan[line, 1], model.plan[line, 2]
    dense(model.weights, start, inputs, panels, model.rows[source], stride, count, model.rows[to])
    apart: int = panels * LANES
    return apart


@lean
def normalize(model: TokenModel, index: int, count: int) -> None:
    """The layer norm `index` of all tokens."""
    size = model.norms.shape[2]
    scale, shift, width = model.norms[index, 0], model.norms[index, 1], np.float32(size)
    for k in range(count):
        x, out = model.rows[TOKENS, k * size : (k + 1) * size], model.rows[NORMED, k * size : (k + 1) * size]
        mean = total(x) / width
        for i in range(x.size):
            out[i] = x[i] - mean
        share = _ONE / np.float32(math.sqrt(dot(out, out) / width + _NORM_EPS))
        for i in range(x.size):
            out[i] = out[i] * share * scale[i] + shift[i]


@lean
def _attend(model: TokenModel, layer: int, count: int, stride: int) -> None:
    """Replace the normed tokens by what their queries, in PRODUCT, find; their own keys and values go to the cache."""
    size, heads = model.norms.shape[2], model.distance.shape[1]
    each, start = size // heads, layer * 2 * size
    factor, scores = np.float32(1.0 / math.sqrt(each)), model.shares
    for k in range(count):
        product, found = (
            model.rows[PRODUCT, k * stride : (k + 1) * stride],
            model.rows[NORMED, k * size : (k + 1) * size],
        )
        lines, many = model.cache[model.searched[k]], model.seen[k]
        own = lines[model.slots[k, 0], start : start + 2 * size]
        for i in range(own.size):
            own[i] = product[size + i]
        for i in range(found.size):
            found[i] = _ZERO
        for h in range(heads):
            query, near = product[h * each : (h + 1) * each], model.distance[layer, h]
            high = np.float32(-np.inf)
            for j in range(many):
                first = start + h * each
                scores[j] = dot(query, lines[model.slots[k, j], first : first + each]) * factor + near[j]
                high = max(high, scores[j])
            added = _ZERO
            for j in range(many):
                scores[j] = exp32(scores[j] - high)
                added += scores[j]
            part = found[h * each : (h + 1) * each]
            for j in range(many):
                first, share = start + size + h * each, scores[j] / added
                value = lines[model.slots[k, j], first : first + each]
                for i in range(part.size):
                    part[i] += share * value[i]


@lean
def _gated(model: TokenModel, into: int, out: int, source: int, count: int) -> int:
    """The gated expert with these two lines of the plan; the result is in PRODUCT, rows as far apart as returned."""
    size, hidden = model.norms.shape[2], model.plan[out, 0]
    stride = multiply(model, into, source, size, count, PRODUCT)
    for k in range(count):
        gate = model.rows[PRODUCT, k * stride : k * stride + hidden]
        up = model.rows[PRODUCT, k * stride + hidden : k * stride + 2 * hidden]
        done = model.rows[HIDDEN, k * hidden : (k + 1) * hidden]
        for i in range(done.size):
            done[i] = gate[i] * logistic32(gate[i])
        for i in range(done.size):
            done[i] *= up[i]
    return multiply(model, out, HIDDEN, hidden, count, PRODUCT)


@lean
def _add(model: TokenModel, count: int, stride: int) -> None:
    """Add rows of PRODUCT to the tokens."""
    size = model.norms.shape[2]
    for k in range(count):
        x, more = model.rows[TOKENS, k * size : (k + 1) * size], model.rows[PRODUCT, k * stride : k * stride + size]
        for i in range(x.size):
            x[i] += more[i]


@lean
def _route(model: TokenModel, line: int, count: int) -> None:
    """Send the normed tokens to their experts, and add what these say, weighed by their probability."""
    size, experts = model.norms.shape[2], model.experts
    stride = multiply(model, line + ROUTER, NORMED, size, count, PRODUCT)
    for k in range(count):
        best = np.int64(0)
        logits = model.rows[PRODUCT, k * stride : k * stride + experts]
        for e in range(1, experts):
            best = e if logits[e] > logits[best] else best
        added = _ZERO
        for e in range(experts):
            added += exp32(logits[e] - logits[best])
        model.picked[0, k], model.shares[k] = best, _ONE / added
    for e in range(experts):
        many = np.int64(0)
        for k in range(count):
            if model.picked[0, k] == e:
                model.picked[1, many] = k
                x, to = (
                    model.rows[NORMED, k * size : (k + 1) * size],
                    model.rows[PICKED, many * size : (many + 1) * size],
                )
                for i in range(x.size):
                    to[i] = x[i]
                many += 1
        if many > 0:
            stride = _gated(model, line + EXPERTS + e, line + EXPERTS + experts + e, PICKED, many)
            for m in range(many):
                k = model.picked[1, m]
                x, more = (
                    model.rows[TOKENS, k * size : (k + 1) * size],
                    model.rows[PRODUCT, m * stride : m * stride + size],
                )
                for i in range(x.size):
                    x[i] += model.shares[k] * more[i]


@lean
def read_tokens(model: TokenModel, count: int) -> None:
    """Take the tokens of `count` rows through all layers; their features are in NORMED then.

    `searched`, `slots` and `seen` say which trees they are of and what they see.
    """
    size, layers, lines = model.norms.shape[2], model.distance.shape[0], lines_of(model.experts)
    for layer in range(layers):
        line = layer * lines
        normalize(model, 2 * layer, count)
        stride = multiply(model, line + INTO, NORMED, size, count, PRODUCT)
        _attend(model, layer, count, stride)
        stride = multiply(model, line + OUT, NORMED, size, count, PRODUCT)
        _add(model, count, stride)
        normalize(model, 2 * layer + 1, count)
        stride = _gated(model, line + SHARED_IN, line + SHARED_OUT, NORMED, count)
        _add(model, count, stride)
        if model.experts > 0:
            _route(model, line, count)
    normalize(model, 2 * layers, count)


@lean
def ask_heads(model: TokenModel, head: int, count: int) -> int:
    """The outputs of a head, FOLLOW or PREDICT, for the features; in PRODUCT, rows as far apart as returned."""
    size, line = model.norms.shape[2], model.distance.shape[0] * lines_of(model.experts) + head
    stride = multiply(model, line, NORMED, size, count, HIDDEN)
    hidden = model.rows[HIDDEN, : count * stride]
    for i in range(hidden.size):
        hidden[i] *= logistic32(hidden[i])
    return multiply(model, line + 1, HIDDEN, stride, count, PRODUCT)


@lean
def latent_tokens(model: TokenModel, count: int, stride: int) -> None:
    """Make tokens of latents at the start of PRODUCT's rows: softmax within groups, or mean 0 and variance 1."""
    size, group = model.norms.shape[2], model.group
    for k in range(count):
        x, out = model.rows[PRODUCT, k * stride : k * stride + size], model.rows[TOKENS, k * size : (k + 1) * size]
        if group == 0:
            mean = total(x) / np.float32(size)
            for i in range(x.size):
                out[i] = x[i] - mean
            share = _ONE / np.float32(math.sqrt(dot(out, out) / np.float32(size) + _NORM_EPS))
            for i in range(x.size):
                out[i] *= share
            continue
        for first in range(0, size, group):
            high = x[first]
            for i in range(first, first + group):
                high = max(high, x[i])
            for i in range(first, first + group):
                out[i] = x[i] - high
        for i in range(x.size):
            out[i] = exp32(out[i])
        for first in range(0, size, group):
            added = _ZERO
            for i in range(first, first + group):
                added += out[i]
            for i in range(first, first + group):
                out[i] /= added
