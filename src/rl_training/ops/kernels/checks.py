"""Checks of all numbers of an array in one compiled call."""

from __future__ import annotations

import math

from rl_training.ops.kernels import jit
from rl_training.types import Array


@jit
def all_finite(x: Array) -> bool:
    """Whether no number is NaN or infinite."""
    for value in x.flat:  # noqa: SIM110 - a generator would not compile
        if not math.isfinite(value):
            return False
    return True
