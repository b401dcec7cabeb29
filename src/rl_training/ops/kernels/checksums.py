"""Sums over large blocks of bytes, faster than memory is copied."""

from __future__ import annotations

import numpy as np

from rl_training.ops.kernels import jit
from rl_training.types import Array

LANES = 64
# An odd constant with well-mixed bits, so that a product keeps every bit of what it multiplies.
_FACTOR = np.uint32(0x9E3779B1)
_OFFSET = np.uint32(0x85EBCA6B)  # so that zeros count, too
_SHIFT = np.uint32(15)


@jit
def lane_sums(words: Array, sums: Array) -> None:
    """Add words (uint32) to 64 sums (uint32) in turn; a rest of fewer than 64 words is left out.

    A step leads from no two sums, and by no two words, to the same sum: a change within one word always shows. The sums
    do not depend on each other, so that a processor computes several at once.
    """
    lanes = np.zeros(64, np.uint32)
    for row in range(words.size // 64):
        first = 64 * row
        for k in range(64):
            mixed = np.uint32((lanes[k] ^ words[first + k]) * _FACTOR + _OFFSET)
            lanes[k] = mixed ^ (mixed >> _SHIFT)
    sums[:] = lanes
