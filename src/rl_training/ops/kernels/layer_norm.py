"""Layers with a layer norm between their matrix products, the cosine of two vectors, and the gradients of both.

Loops are many and small: with many arrays in it, a loop would not be vectorised.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import lean
from rl_training.ops.kernels.vectors import dot, total
from rl_training.types import Array

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
# A vector that is shorter than this counts as long as this, as in torch.
_SHORTEST = np.float32(1e-8)


@lean
def layer_norm(
    x: Array, bias: Array, scale: Array, shift: Array, eps: float, lowest: float, inverse: Array, out: Array
) -> None:
    """Add `bias` to the products `x` `[B, W]`, normalise them in place, and write scale * x + shift to `out`.

    What would be below `lowest` becomes it: 0 is a ReLU, and minus infinity is none. `inverse` `[B, 1]` is what rows
    were multiplied by, which the gradient needs.
    """
    width, small, floor = np.float32(x.shape[1]), np.float32(eps), np.float32(lowest)
    for b in range(x.shape[0]):
        row, result = x[b], out[b]
        for i in range(row.size):
            row[i] += bias[i]
        mean = total(row) / width
        for i in range(row.size):
            row[i] -= mean
        share = _ONE / np.float32(math.sqrt(dot(row, row) / width + small))
        inverse[b, 0] = share
        for i in range(row.size):
            row[i] *= share
        for i in range(row.size):
            result[i] = max(row[i] * scale[i] + shift[i], floor)


@lean
def layer_norm_backward(x: Array, scale: Array, inverse: Array, d: Array, d_scale: Array, d_shift: Array) -> None:
    """Turn the gradient `d` of the results into that of the products, in place; `x` as `layer_norm` left it.

    The gradients of scale and shift are added to `d_scale` and `d_shift`.
    """
    width = np.float32(x.shape[1])
    for b in range(d.shape[0]):
        row, slope = x[b], d[b]
        for i in range(row.size):
            d_shift[i] += slope[i]
        for i in range(row.size):
            d_scale[i] += slope[i] * row[i]
        for i in range(row.size):
            slope[i] *= scale[i]
        mean, along, share = total(slope) / width, dot(slope, row) / width, inverse[b, 0]
        for i in range(row.size):
            slope[i] = share * (slope[i] - mean - row[i] * along)


@lean
def cosine_gradient(x: Array, wanted: Array, weight: Array, coef: float, d: Array) -> float:
    """The weighted sum of the negative cosines of the rows of `x` and `wanted`; `d` becomes `coef` times its gradient.

    The gradient is that of `x`. It is 0 where the weight is.
    """
    loss, factor = 0.0, np.float32(coef)
    for b in range(x.shape[0]):
        row, other, slope = x[b], wanted[b], d[b]
        if weight[b] == _ZERO:
            for i in range(row.size):
                slope[i] = _ZERO
            continue
        length = np.float32(math.sqrt(dot(row, row)))
        size = max(length, _SHORTEST)
        scale = _ONE / (size * max(np.float32(math.sqrt(dot(other, other))), _SHORTEST))
        cosine = dot(row, other) * scale
        loss -= np.float64(weight[b]) * np.float64(cosine)
        part = -factor * weight[b]
        along = part * cosine / (size * length) if length > _ZERO else _ZERO
        scale *= part
        for i in range(row.size):
            slope[i] = scale * other[i] - along * row[i]
    return loss
