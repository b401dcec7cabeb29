"""Attention over short windows and gated units, forward and backward: torch needs many passes over small arrays."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import lean
from rl_training.ops.kernels.vectors import dot, exp32, logistic32
from rl_training.types import Array

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@lean
def gate(x: Array, out: Array) -> None:
    """silu of the first half of each row of `x` `[N, 2 H]` times the second half."""
    hidden = out.shape[1]
    for n in range(out.shape[0]):
        row, up, done = x[n, :hidden], x[n, hidden:], out[n]
        for i in range(done.size):
            done[i] = row[i] * logistic32(row[i]) * up[i]


@lean
def gate_backward(x: Array, d: Array, d_x: Array) -> None:
    """The gradient of `gate`: `d` `[N, H]` is that of its results, `d_x` `[N, 2 H]` becomes that of `x`."""
    hidden = d.shape[1]
    for n in range(d.shape[0]):
        row, up, slope, d_row, d_up = x[n, :hidden], x[n, hidden:], d[n], d_x[n, :hidden], d_x[n, hidden:]
        for i in range(slope.size):
            d_row[i] = logistic32(row[i])
        for i in range(slope.size):
            d_up[i] = slope[i] * row[i] * d_row[i]
        for i in range(slope.size):
            d_row[i] = slope[i] * up[i] * d_row[i] * (_ONE + row[i] * (_ONE - d_row[i]))


@lean
def attend(product: Array, near: Array, absent: Array, every: int, shares: Array, out: Array) -> None:
    """What tokens of `[B, T]` find in their windows, the first and then each that is `every` further, to `[B, S, D]`.

    `shares` `[B, S, H, reach]` are the weights of what they see, by distance.

    `product` `[B, T, 3 D]` are queries, keys and values, `near` `[H, reach]` is added to scores by distance. A token at
    an odd place, an action, sees `reach` tokens, others one less. The first `absent` `[B]` of a row see and are seen by
    themselves alone. Distances that are not seen have a share of 0.
    """
    count, asking, size = out.shape
    heads, reach = near.shape
    each = size // heads
    factor = np.float32(1.0 / math.sqrt(each))
    for b in range(count):
        for s in range(asking):
            t = s * every
            seen = min(reach - 1 + t % 2, t - absent[b] + 1) if t >= absent[b] else 1
            for h in range(heads):
                first, last, share = h * each, (h + 1) * each, shares[b, s, h]
                query, found, high = product[b, t, first:last], out[b, s, first:last], np.float32(-np.inf)
                for j in range(seen):
                    key = product[b, t - j, size + first : size + last]
                    share[j] = dot(query, key) * factor + near[h, j]
                    high = max(high, share[j])
                added = _ZERO
                for j in range(seen):
                    share[j] = exp32(share[j] - high)
                    added += share[j]
                for i in range(found.size):
                    found[i] = _ZERO
                for j in range(reach):
                    share[j] = share[j] / added if j < seen else _ZERO
                for j in range(seen):
                    part, value = share[j], product[b, t - j, 2 * size + first : 2 * size + last]
                    for i in range(found.size):
                        found[i] += part * value[i]


@lean
def attend_backward(product: Array, shares: Array, every: int, d: Array, d_product: Array, d_near: Array) -> None:
    """The gradient of `attend`: `d` `[B, S, D]` is that of its results; the others must be zeros, and get theirs."""
    count, asking, size = d.shape
    heads, reach = d_near.shape
    each = size // heads
    factor = np.float32(1.0 / math.sqrt(each))
    for b in range(count):
        for s in range(asking):
            t = s * every
            for h in range(heads):
                first, last, share = h * each, (h + 1) * each, shares[b, s, h]
                slope, query, d_query = d[b, s, first:last], product[b, t, first:last], d_product[b, t, first:last]
                mean, seen = _ZERO, min(reach, t + 1)
                for j in range(seen):
                    if share[j] > _ZERO:
                        mean += share[j] * dot(slope, product[b, t - j, 2 * size + first : 2 * size + last])
                for j in range(seen):
                    part = share[j]
                    if part == _ZERO:
                        continue
                    value = product[b, t - j, 2 * size + first : 2 * size + last]
                    d_value = d_product[b, t - j, 2 * size + first : 2 * size + last]
                    d_score = part * (dot(slope, value) - mean)
                    d_near[h, j] += d_score
                    for i in range(slope.size):
                        d_value[i] += part * slope[i]
                    d_score *= factor
                    key = product[b, t - j, size + first : size + last]
                    d_key = d_product[b, t - j, size + first : size + last]
                    for i in range(slope.size):
                        d_query[i] += d_score * key[i]
                    for i in range(slope.size):
                        d_key[i] += d_score * query[i]
