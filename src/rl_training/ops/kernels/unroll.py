"""What a model does between its matrix products: activations, scaling of latents, their gradients, expectations."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import jit
from rl_training.ops.kernels.acting import highest, rational_tanh
from rl_training.types import Array

# A range of latents below this is widened by it.
_SMALLEST_RANGE = np.float32(1e-5)
_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
# Below this, the logistic function counts as 0.
_CLOSED = np.float32(-15.6)


@jit
def add_bias_tanh(x: Array, bias: Array) -> None:
    """Add a vector to every row of `x` `[B, W]`, and apply tanh."""
    for b in range(x.shape[0]):
        row = x[b]
        for i in range(row.size):
            row[i] += bias[i]
        rational_tanh(row)


@jit
def add_bias_relu(x: Array, bias: Array) -> None:
    """`add_bias_tanh` for ReLU."""
    for b in range(x.shape[0]):
        row = x[b]
        for i in range(row.size):
            row[i] = max(row[i] + bias[i], _ZERO)


@jit
def add_bias_silu(x: Array, bias: Array, gates: Array) -> None:
    """`add_bias_tanh` for SiLU; `gates` become the logistic function of its inputs, which its gradient needs."""
    for b in range(x.shape[0]):
        row, opened = x[b], gates[b]
        for i in range(row.size):
            row[i] += bias[i]
            opened[i] = _HALF * row[i]
        rational_tanh(opened)
        for i in range(row.size):
            # That tanh stays 3e-7 away from -1, which would count where it is multiplied by a large number.
            opened[i] = _HALF * opened[i] + _HALF if row[i] > _CLOSED else _ZERO
            row[i] *= opened[i]


@jit
def tanh_backward(h: Array, d: Array) -> None:
    """Turn the gradient `d` `[B, W]` of outputs `h` into that of the inputs of tanh."""
    for b in range(h.shape[0]):
        row, out = h[b], d[b]
        for i in range(row.size):
            out[i] *= _ONE - row[i] * row[i]


@jit
def relu_backward(h: Array, d: Array) -> None:
    """`tanh_backward` for ReLU."""
    for b in range(h.shape[0]):
        row, out = h[b], d[b]
        for i in range(row.size):
            out[i] = out[i] if row[i] > _ZERO else _ZERO


@jit
def silu_backward(h: Array, gates: Array, d: Array) -> None:
    """`tanh_backward` for SiLU, with the logistic function `gates` of its inputs."""
    for b in range(h.shape[0]):
        row, opened, out = h[b], gates[b], d[b]
        for i in range(row.size):
            out[i] *= opened[i] + row[i] * (_ONE - opened[i])


@jit
def scale_latents(raw: Array, bias: Array, latents: Array, first: int, rest: Array, ranges: Array) -> None:
    """Add `bias` to rows `raw` `[B, D + R]`; scale the first D of each to [0, 1], and copy the others to `rest`.

    The scaled ones go to the first D columns of the rows of `latents` from `first` on; `ranges` `[B, 3]` are the
    lowest and the highest of each row, and what it is divided by.
    """
    size = raw.shape[1] - rest.shape[1]
    for b in range(raw.shape[0]):
        row, out = raw[b], latents[first + b]
        for i in range(row.size):
            row[i] += bias[i]
        low, high = _extremes(row, size)
        scale = high - low
        if scale < _SMALLEST_RANGE:
            scale += _SMALLEST_RANGE
        for i in range(size):
            out[i] = (row[i] - low) / scale
        for i in range(rest.shape[1]):
            rest[b, i] = row[size + i]
        ranges[b, 0], ranges[b, 1], ranges[b, 2] = low, high, scale


@jit
def _extremes(row: Array, size: int) -> tuple[float, float]:
    """The lowest and the highest of the first numbers of a row; four chains of each do not wait for each other."""
    l0 = l1 = l2 = l3 = h0 = h1 = h2 = h3 = row[0]
    whole = size // 4 * 4
    for i in range(0, whole, 4):
        l0, h0 = min(l0, row[i]), max(h0, row[i])
        l1, h1 = min(l1, row[i + 1]), max(h1, row[i + 1])
        l2, h2 = min(l2, row[i + 2]), max(h2, row[i + 2])
        l3, h3 = min(l3, row[i + 3]), max(h3, row[i + 3])
    for i in range(whole, size):
        l0, h0 = min(l0, row[i]), max(h0, row[i])
    return min(min(l0, l1), min(l2, l3)), max(max(h0, h1), max(h2, h3))


@jit
def scale_latents_backward(
    raw: Array, ranges: Array, d_latent: Array, d_next: Array, share: float, d_raw: Array
) -> None:
    """Write the gradient of the first D columns of `raw` to those of `d_raw`, both `[B, D + R]`.

    The gradient of the scaled latents is `d_latent` plus `share` times `d_next`, each `[B, D]`. The lowest and the
    highest of a row get what comes through the range; equal ones share it.
    """
    # Small loops, one for each purpose: these are vectorised.
    part = np.float32(share)
    for b in range(d_latent.shape[0]):
        row, out, here, later = raw[b], d_raw[b], d_latent[b], d_next[b]
        low, high, inverse = ranges[b, 0], ranges[b, 1], _ONE / ranges[b, 2]
        lowest = highest = 0
        for i in range(here.size):
            out[i] = (here[i] + part * later[i]) * inverse
        for i in range(here.size):
            lowest += row[i] == low
            highest += row[i] == high
        total, moment = _moments(row, low, out, here.size)
        moment *= inverse
        at_low, at_high = (moment - total) / np.float32(lowest), -moment / np.float32(highest)
        for i in range(here.size):
            out[i] += (at_low if row[i] == low else _ZERO) + (at_high if row[i] == high else _ZERO)


@jit
def _moments(row: Array, low: float, d: Array, size: int) -> tuple[float, float]:
    """The sums of the first numbers of `d`, and of these times `row` above its lowest."""
    t0 = t1 = t2 = t3 = m0 = m1 = m2 = m3 = _ZERO
    whole = size // 4 * 4
    for i in range(0, whole, 4):
        t0, m0 = t0 + d[i], m0 + d[i] * (row[i] - low)
        t1, m1 = t1 + d[i + 1], m1 + d[i + 1] * (row[i + 1] - low)
        t2, m2 = t2 + d[i + 2], m2 + d[i + 2] * (row[i + 2] - low)
        t3, m3 = t3 + d[i + 3], m3 + d[i + 3] * (row[i + 3] - low)
    for i in range(whole, size):
        t0, m0 = t0 + d[i], m0 + d[i] * (row[i] - low)
    return (t0 + t1) + (t2 + t3), (m0 + m1) + (m2 + m3)


@jit
def split_columns(rows: Array, bias: Array, first: Array, second: Array) -> None:
    """Add `bias` to `rows` `[B, P + Q]`, and write the first columns to `first` `[B, P]`, the others to `second`."""
    size = first.shape[1]
    for b in range(rows.shape[0]):
        row = rows[b]
        for i in range(size):
            first[b, i] = row[i] + bias[i]
        for i in range(second.shape[1]):
            second[b, i] = row[size + i] + bias[size + i]


@jit
def expectations(logits: Array, limit: float, eps: float, out: Array) -> None:
    """Means of distributions `[B, bins]` over points from -limit to limit, expanded: see `rl_training.ops.two_hot`."""
    bins = logits.shape[1]
    gap, slope = 2.0 * limit / (bins - 1), 1.0 + 2.0 * eps
    for b in range(logits.shape[0]):
        row = logits[b]
        shift = highest(row)
        total = moment = 0.0
        for i in range(bins):
            weight = math.exp(row[i] - shift)
            total += weight
            moment += weight * i
        # Counted from the middle, so that equal logits mean exactly 0.
        mean = (moment / total - 0.5 * (bins - 1)) * gap
        size = abs(mean)
        u = 2.0 * size / (slope + math.sqrt(slope * slope + 4.0 * eps * size))
        out[b] = u * (u + 2.0) if mean >= 0.0 else -u * (u + 2.0)
