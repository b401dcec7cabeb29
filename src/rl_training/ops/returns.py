"""Returns and advantages over rollouts `[T, B]`."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.ops.kernels.returns import gae_kernel, vtrace_kernel
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


def vtrace(
    log_ratio: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float,
    vtrace_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Array, Array]:
    """V-trace targets and advantages, all arguments `[T, B]` (Espeholt et al. 2018, eq. 1 and section 4.2).

    `log_ratio` is log pi(a|s) - log mu(a|s), where mu is the policy that acted; values are the learner's. With
    rho = min(rho_bar, pi/mu) and c = lambda min(c_bar, pi/mu):

        delta_t = rho_t (reward_t + gamma V(s'_t) - V(s_t))
        v_t = V(s_t) + delta_t + gamma c_t (v_{t+1} - V(s_{t+1}))
        advantage_t = reward_t + gamma v_{t+1} - V(s_t)

    As in `gae`, `next_value` is that of the true successor s', and a terminated step does not bootstrap. Where an
    episode ends, and after the last row, there is no v_{t+1}: V(s'_t) stands in for it in the advantage, and the
    correction is 0. Advantages are not weighted by pi/mu; that is left to the policy's loss.
    """
    target, advantage = vtrace_kernel(
        log_ratio, reward, value, next_value, terminated, truncated, gamma, vtrace_lambda, rho_bar, c_bar
    )
    return target, advantage


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
