"""Recursions over the steps of a rollout."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import jit
from rl_training.types import Array


@jit
def gae_kernel(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Advantages `[T, B]`; see `rl_training.ops.returns.gae`."""
    steps, envs = reward.shape
    advantage = np.empty_like(value)
    for b in range(envs):
        running = 0.0
        for t in range(steps - 1, -1, -1):
            if terminated[t, b] or truncated[t, b]:
                running = 0.0
            bootstrap = 0.0 if terminated[t, b] else next_value[t, b]
            running = reward[t, b] + gamma * bootstrap - value[t, b] + gamma * gae_lambda * running
            advantage[t, b] = running
    return advantage


@jit
def vtrace_kernel(
    log_ratio: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: float,
    trace_decay: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Array, Array]:
    """Targets and advantages, each `[T, B]`; see `rl_training.ops.returns.vtrace`."""
    steps, envs = reward.shape
    target, advantage = np.empty_like(value), np.empty_like(value)
    for b in range(envs):
        correction = 0.0  # of the successor's value: v_{t+1} - V_{t+1}
        for t in range(steps - 1, -1, -1):
            if terminated[t, b] or truncated[t, b]:
                correction = 0.0
            bootstrap = 0.0 if terminated[t, b] else next_value[t, b]
            error = reward[t, b] + gamma * bootstrap - value[t, b]
            advantage[t, b] = error + gamma * correction
            ratio = math.exp(log_ratio[t, b])
            correction = min(rho_bar, ratio) * error + gamma * trace_decay * min(c_bar, ratio) * correction
            target[t, b] = value[t, b] + correction
    return target, advantage


@jit
def running_returns_kernel(reward: Array, done: Array, real: Array, gamma: float, running: Array) -> Array:
    """The discounted sum of past rewards at every step; `running` `[B]` is kept from one rollout to the next."""
    steps, envs = reward.shape
    returns = np.empty((steps, envs))
    for b in range(envs):
        for t in range(steps):
            if real[t, b]:
                running[b] = running[b] * gamma + reward[t, b]
            returns[t, b] = running[b]
            if done[t, b]:
                running[b] = 0.0
    return returns


@jit
def lambda_return_kernel(reward: Array, value: Array, discount: Array, trace: Array) -> Array:
    """Returns `[T, B]` of the first T of T + 1 states; see `rl_training.ops.returns.lambda_return`."""
    steps, envs = value.shape
    returns = np.empty((steps - 1, envs), value.dtype)
    following = value[steps - 1].copy()
    for t in range(steps - 1, 0, -1):
        for b in range(envs):
            mixed = value[t, b] + trace[t, b] * (following[b] - value[t, b])
            following[b] = reward[t, b] + discount[t, b] * mixed
            returns[t - 1, b] = following[b]
    return returns
