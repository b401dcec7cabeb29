"""Returns and advantages over rollouts `[T, B]`."""

from __future__ import annotations

from rl_training.ops.kernels.returns import gae_kernel
from rl_training.types import Array


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Generalised advantage estimation, all arguments `[T, B]` (Schulman et al. 2016, eq. 16).

    `next_value` is the value of the true successor: of the final observation where an episode was truncated. A
    terminated step does not bootstrap, a truncated one does; the trace is cut at both.
    """
    advantage: Array = gae_kernel(reward, value, next_value, terminated, truncated, gamma, gae_lambda)
    return advantage
