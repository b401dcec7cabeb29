"""Small networks on a few rows: acting by one compiled call instead of about thirty dispatched operations."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import jit
from rl_training.types import Array

TANH, RELU, SILU = 0, 1, 2


@jit
def rational_tanh(x: Array) -> None:
    """tanh, in place on a vector: a rational function within 5e-7 of it (fitted on [-7.8, 7.8]), which vectorises."""
    one = np.float32(1.0)
    for i in range(x.size):
        v = min(max(x[i], np.float32(-7.8)), np.float32(7.8))
        z = v * v
        above = np.float32(1.56275948e-08) * z + np.float32(2.21519677e-05)
        above = (above * z + np.float32(3.58635844e-03)) * z + np.float32(0.134567117)
        below = np.float32(8.67550965e-07) * z + np.float32(3.43598616e-04)
        below = (below * z + np.float32(2.62199011e-02)) * z + np.float32(0.467900403)
        x[i] = v * (above * z + one) / (below * z + one)


@jit
def activate(x: Array, kind: int) -> None:
    """Apply an activation in place, on a vector."""
    if kind == TANH:
        rational_tanh(x)
    elif kind == RELU:
        for i in range(x.size):
            x[i] = max(x[i], np.float32(0.0))
    else:
        for i in range(x.size):
            x[i] = x[i] / (np.float32(1.0) + np.float32(math.exp(-x[i])))


@jit
def _dense(weights: Array, biases: Array, x: Array, out: Array, columns: Array) -> None:
    """`out = x @ weights.T + biases` for a multiple of four rows; `columns` is scratch for the transposed weights.

    `weights` is a vector, output by output. Four rows share every weight that is loaded, and the inner loop runs along
    memory, so that it vectorises.
    """
    inputs, outputs = x.shape[1], out.shape[1]
    for i in range(inputs):
        for o in range(outputs):
            columns[i * outputs + o] = weights[o * inputs + i]
    for row in range(x.shape[0]):
        for o in range(outputs):
            out[row, o] = biases[o]
    for row in range(0, x.shape[0], 4):
        h0, h1, h2, h3 = out[row], out[row + 1], out[row + 2], out[row + 3]
        for i in range(inputs):
            column = columns[i * outputs : (i + 1) * outputs]
            x0, x1, x2, x3 = x[row, i], x[row + 1, i], x[row + 2, i], x[row + 3, i]
            for o in range(outputs):
                w = column[o]
                h0[o] += x0 * w
                h1[o] += x1 * w
                h2[o] += x2 * w
                h3[o] += x3 * w


@jit
def mlp_rows(flat: Array, offsets: Array, sizes: Array, kind: int, x: Array) -> Array:
    """The outputs `[B, sizes[-1]]` of an MLP for rows `x`, with the current weights in the flat buffer.

    Layer l has its weights `[out, in]` at `offsets[l, 0]` and its biases at `offsets[l, 1]`; the last layer has no
    activation.
    """
    rows, layers = x.shape[0], sizes.size - 1
    if x.shape[1] != sizes[0]:
        raise ValueError("the rows are not as wide as the inputs of the first layer")
    padded = (rows + 3) // 4 * 4
    here = np.empty((padded, sizes[0]), np.float32)
    for b in range(padded):
        for i in range(sizes[0]):
            here[b, i] = x[b, i] if b < rows else np.float32(0.0)
    for layer in range(layers):
        outputs = sizes[layer + 1]
        there, columns = np.empty((padded, outputs), np.float32), np.empty(sizes[layer] * outputs, np.float32)
        _dense(flat[offsets[layer, 0] :], flat[offsets[layer, 1] :], here, there, columns)
        if layer < layers - 1:
            activate(there.reshape(-1), kind)
        here = there
    return here[:rows]


@jit
def highest(row: Array) -> float:
    """The largest number of a vector, or nan if it holds one: `row.max()` takes much longer to compile."""
    largest: float = row[0]
    for a in range(1, row.size):
        if row[a] > largest or math.isnan(row[a]):
            largest = row[a]
    return largest


@jit
def sample_categorical(logits: Array, counts: Array, uniform: Array) -> tuple[Array, Array]:
    """Independent choices `[B, K]` and their log-probabilities `[B]`.

    The cumulative distribution of every choice is inverted at `uniform` `[B, K]`.
    """
    rows = logits.shape[0]
    action = np.empty((rows, counts.size), np.int64)
    log_prob = np.empty(rows, np.float32)
    for b in range(rows):
        log_prob[b] = 0.0
        start = 0
        for k in range(counts.size):
            row = logits[b, start : start + counts[k]]
            shift = highest(row)
            total = 0.0
            for a in range(row.size):
                total += math.exp(row[a] - shift)
            threshold, reached, chosen = uniform[b, k] * total, 0.0, 0
            for a in range(row.size):
                weight = math.exp(row[a] - shift)
                # A choice with probability 0 is never drawn.
                if weight > 0.0:
                    chosen = a
                    reached += weight
                    if reached > threshold:
                        break
            action[b, k] = chosen
            log_prob[b] += row[chosen] - shift - math.log(total)
            start += counts[k]
    return action, log_prob


@jit
def sample_gaussian(mean: Array, log_std: Array, noise: Array) -> tuple[Array, Array]:
    """Actions `[B, D]` and their log-probabilities, from standard normal `noise`; `log_std` is `[D]`."""
    rows, size = mean.shape
    action = np.empty((rows, size), np.float32)
    log_prob = np.empty(rows, np.float32)
    constant = 0.5 * math.log(2.0 * math.pi)
    for b in range(rows):
        total = 0.0
        for d in range(size):
            action[b, d] = mean[b, d] + math.exp(log_std[d]) * noise[b, d]
            total -= 0.5 * noise[b, d] * noise[b, d] + log_std[d] + constant
        log_prob[b] = total
    return action, log_prob
