"""exp of whole vectors: a polynomial that vectorises, since compiled loops have no vector `exp` of their own."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import lean
from rl_training.types import Array

# Below this length, `math.exp` element by element is faster.
FEW = 16


@lean
def exponentiate(x: Array, bits: Array, spare: Array, spare_bits: Array) -> None:
    """exp, in place on a float32 vector, within 2e-7 relative from -87 to 88; below -87 it stays at exp(-87).

    `bits` is the same memory as int32, `spare` is scratch at least as long, and `spare_bits` is its memory as int32.
    x = n ln 2 + r: a polynomial gives exp(r), and n is added to the exponent bits. Adding 1.5 * 2^23 rounds to the
    integer n and leaves it in the lowest bits. Comparisons with nan are false, so nan stays nan.
    """
    size = x.size
    if size < FEW:
        for i in range(size):
            x[i] = math.exp(x[i])
        return
    shift, spare, spare_bits = np.float32(12582912.0), spare[:size], spare_bits[:size]
    for i in range(size):
        v = x[i]
        if v < np.float32(-87.0):
            v = np.float32(-87.0)
        if v > np.float32(88.0):
            v = np.float32(88.0)
        rounded = v * np.float32(1.44269504) + shift
        spare[i] = rounded
        n = rounded - shift
        # The first part of ln 2 has 12 bits, so its product with n is exact.
        r = (v - n * np.float32(0.693115234375)) - n * np.float32(3.194618329871446e-05)
        p = np.float32(0.001393368816934526) * r + np.float32(0.008363205008208752)
        p = (p * r + np.float32(0.041666463017463684)) * r + np.float32(0.16666576266288757)
        x[i] = ((p * r + np.float32(0.5)) * r * r + r) + np.float32(1.0)
    for i in range(size):
        bits[i] += spare_bits[i] << 23
