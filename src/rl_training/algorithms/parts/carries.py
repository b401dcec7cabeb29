"""Checks a carry that comes from outside: `predict` takes from its caller what it returned before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.types import Array, UserError


def like_a_fresh_one(carry: Any, fresh: Mapping[str, Array]) -> dict[str, Array]:
    """The carry, if it has the arrays of the carry of new episodes; else a UserError."""
    if not isinstance(carry, dict) or carry.keys() != fresh.keys():
        raise UserError(f"state: must be what predict returned, with {', '.join(fresh)}")
    for name, wanted in fresh.items():
        given = carry[name]
        if not isinstance(given, np.ndarray) or given.shape != wanted.shape or given.dtype != wanted.dtype:
            raise UserError(f"state: {name} must be an array {wanted.shape} of {wanted.dtype}")
    return carry
