"""Normed layers between their matrix products: silu(scale * x / rms(x)), and its gradient.

Rows `[B, G * W]` have G groups of W numbers side by side, which are normalised apart: layers of equal width on the same
inputs are one product. Loops are many and small: with many arrays in it, a loop would not be vectorised.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import lean
from rl_training.ops.kernels.vectors import dot, logistic32
from rl_training.types import Array

_ONE = np.float32(1.0)
# Rows that go through the activation together: long loops are faster, and these rows are still near.
_TOGETHER = 16


@lean
def norm_silu(x: Array, bias: Array, scale: Array, eps: float, inverse: Array, gates: Array, out: Array) -> None:
    """Turn the products `x` into normalised rows, in place, and write silu(scale * x) to `out`.

    `bias` and `scale` are `[G, W]`. `inverse` `[B, G]` is what rows were multiplied by, and `gates` is the logistic
    function that silu multiplies by: the gradient needs both.
    """
    groups, width = bias.shape
    small = np.float32(eps)
    for start in range(0, x.shape[0], _TOGETHER):
        stop = min(start + _TOGETHER, x.shape[0])
        for b in range(start, stop):
            for k in range(groups):
                first, last = k * width, (k + 1) * width
                row, scaled, own, wide = x[b, first:last], out[b, first:last], bias[k], scale[k]
                for i in range(row.size):
                    row[i] += own[i]
                share = _ONE / np.float32(math.sqrt(dot(row, row) / np.float32(width) + small))
                inverse[b, k] = share
                for i in range(row.size):
                    row[i] *= share
                for i in range(row.size):
                    scaled[i] = row[i] * wide[i]
        gate, result = gates[start:stop].reshape(-1), out[start:stop].reshape(-1)
        for i in range(gate.size):
            gate[i] = logistic32(result[i])
        for i in range(gate.size):
            result[i] *= gate[i]


@lean
def norm_silu_backward(
    x: Array, scale: Array, inverse: Array, gates: Array, d: Array, d_bias: Array, d_scale: Array
) -> None:
    """Turn the gradient `d` of silu's results into that of the products, in place; `x` as `norm_silu` left it.

    The gradients of bias and scale are added to `d_bias` and `d_scale`, `[G, W]` each.
    """
    groups, width = scale.shape
    for b in range(x.shape[0]):
        for k in range(groups):
            first, last = k * width, (k + 1) * width
            row, gate, slope, wide, d_wide = (
                x[b, first:last],
                gates[b, first:last],
                d[b, first:last],
                scale[k],
                d_scale[k],
            )
            for i in range(row.size):
                slope[i] *= gate[i] * (_ONE + row[i] * wide[i] * (_ONE - gate[i]))
            for i in range(row.size):
                d_wide[i] += slope[i] * row[i]
            for i in range(row.size):
                slope[i] *= wide[i]
            mean, share = dot(slope, row) / np.float32(width), inverse[b, k]
            for i in range(row.size):
                slope[i] = share * (slope[i] - row[i] * mean)
            d_own = d_bias[k]
            for i in range(row.size):
                d_own[i] += slope[i]
