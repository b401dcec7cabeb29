"""Functions of one number for the innermost loops of kernels, written so that these loops are still vectorised.

A compiled loop has no vector `exp` of its own: with `math.exp` in it, it goes number by number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rl_training.ops.kernels import inlined, lean
from rl_training.types import Array

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
# Adding this to a small number rounds it to an integer, which is then in the lowest bits.
_ROUNDING = np.float32(12582912.0)


@intrinsic  # type: ignore[untyped-decorator]
def _power_of_two(_: Any, rounded: Any) -> Any:
    """2^n of an integer n to which `_ROUNDING` was added: n is moved into the exponent bits."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        whole = ir.IntType(32)
        moved = builder.shl(builder.bitcast(given[0], whole), ir.Constant(whole, 23))
        return builder.bitcast(builder.add(moved, ir.Constant(whole, 127 << 23)), ir.FloatType())

    return types.float32(types.float32), generate


@inlined
def exp32(x: float) -> float:
    """exp of a float32, within 2e-7 relative from -87 to 88; beyond these it stays what it is there.

    x = n ln 2 + r: a polynomial gives exp(r). Comparisons with nan are false, so nan stays nan.
    """
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    x = np.float32(88.0) if x > np.float32(88.0) else x
    rounded = x * np.float32(1.44269504) + _ROUNDING
    n = rounded - _ROUNDING
    # The first part of ln 2 has 12 bits, so its product with n is exact.
    r = (x - n * np.float32(0.693115234375)) - n * np.float32(3.194618329871446e-05)
    p = np.float32(0.001393368816934526) * r + np.float32(0.008363205008208752)
    p = (p * r + np.float32(0.041666463017463684)) * r + np.float32(0.16666576266288757)
    power: float = (((p * r + _HALF) * r * r + r) + _ONE) * _power_of_two(rounded)
    return power


@inlined
def logistic32(x: float) -> float:
    """1 / (1 + exp(-x)) of a float32."""
    share: float = _ONE / (_ONE + exp32(-x))
    return share


@inlined
def tanh32(x: float) -> float:
    """tanh of a float32, within 2e-7."""
    squashed: float = _ONE - np.float32(2.0) / (exp32(np.float32(2.0) * x) + _ONE)
    return squashed


@lean
def dot(x: Array, y: Array) -> float:
    """The sum of products of two vectors; eight chains of sums do not wait for each other."""
    a = b = c = d = e = f = g = h = np.float32(0.0)
    eights = x.size // 8 * 8
    for i in range(0, eights, 8):
        a += x[i] * y[i]
        b += x[i + 1] * y[i + 1]
        c += x[i + 2] * y[i + 2]
        d += x[i + 3] * y[i + 3]
        e += x[i + 4] * y[i + 4]
        f += x[i + 5] * y[i + 5]
        g += x[i + 6] * y[i + 6]
        h += x[i + 7] * y[i + 7]
    for i in range(eights, x.size):
        a += x[i] * y[i]
    added: float = ((a + b) + (c + d)) + ((e + f) + (g + h))
    return added


@lean
def total(x: Array) -> float:
    """The sum of a vector, in eight chains."""
    a = b = c = d = e = f = g = h = np.float32(0.0)
    eights = x.size // 8 * 8
    for i in range(0, eights, 8):
        a += x[i]
        b += x[i + 1]
        c += x[i + 2]
        d += x[i + 3]
        e += x[i + 4]
        f += x[i + 5]
        g += x[i + 6]
        h += x[i + 7]
    for i in range(eights, x.size):
        a += x[i]
    added: float = ((a + b) + (c + d)) + ((e + f) + (g + h))
    return added


@lean
def largest(x: Array) -> float:
    """The largest number of a vector, in eight chains."""
    a = b = c = d = e = f = g = h = x[0]
    eights = x.size // 8 * 8
    for i in range(0, eights, 8):
        a, b, c, d = max(a, x[i]), max(b, x[i + 1]), max(c, x[i + 2]), max(d, x[i + 3])
        e, f, g, h = max(e, x[i + 4]), max(f, x[i + 5]), max(g, x[i + 6]), max(h, x[i + 7])
    for i in range(eights, x.size):
        a = max(a, x[i])
    high: float = max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)))
    return high
