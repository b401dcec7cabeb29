"""Steps within a trust region: conjugate gradients for the direction, a line search for the length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rl_training.types import Array


def conjugate_gradient(
    product: Callable[[Array], Array], goal: Array, max_steps: int, tolerance: float = 1e-10
) -> tuple[Array, Array]:
    """Solve A x = goal for a symmetric positive definite A, given as a product function; returns x and the residual.

    Ends when the squared residual is below `tolerance`, or after `max_steps` products (Hestenes and Stiefel 1952).
    """
    x = np.zeros_like(goal)
    residual, direction = goal.copy(), goal.copy()
    squared = float(residual @ residual)
    for _ in range(max_steps):
        if squared < tolerance:
            break
        changed = product(direction)
        curvature = float(direction @ changed)
        if not curvature > 0.0:  # rounding errors dominate: no further progress is possible
            break
        length = squared / curvature
        x += length * direction
        residual -= length * changed
        before, squared = squared, float(residual @ residual)
        direction = residual + (squared / before) * direction
    return x, residual


def line_search(accepts: Callable[[float], bool], shrink: float, max_steps: int) -> float:
    """The largest of 1, shrink, shrink^2, ... that is accepted; 0 if none of `max_steps` is."""
    for exponent in range(max_steps):
        fraction: float = shrink**exponent
        if accepts(fraction):
            return fraction
    return 0.0
