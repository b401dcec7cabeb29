"""Returns and advantages over rollouts `[T, B]`."""

from __future__ import annotations

import torch
from torch import Tensor

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


def lambda_return(reward: Tensor, value: Tensor, discount: Tensor, trace: Tensor | float) -> Tensor:
    """Returns `[T, B]` of the first T of T + 1 states; every argument is `[T + 1, B]`, by the state that it belongs to.

    R_t = reward_{t+1} + discount_{t+1} ((1 - trace_{t+1}) value_{t+1} + trace_{t+1} R_{t+1}), and R_T = value_T.
    `reward` arrived with its state, and `discount` is 0 where the state is terminal: the first of each is not looked
    at. `trace` is lambda, a number or one per state: 0 where a return must stop at the value, as at the last step of
    an episode that was truncated. Differentiable in all of them.
    """
    trace = torch.as_tensor(trace, dtype=value.dtype, device=value.device).expand_as(value)
    following = value[-1]
    returns = []
    for t in range(len(value) - 1, 0, -1):
        following = reward[t] + discount[t] * torch.lerp(value[t], following, trace[t])
        returns.append(following)
    return torch.stack(returns[::-1])
