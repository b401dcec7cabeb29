"""The time limits of environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

# Where an environment that counts its own steps usually says how many an episode has.
_OWN_LIMITS = ("max_episode_steps", "_max_episode_steps", "max_steps", "time_limit")


def limited(env: gym.Env[Any, Any], steps: int) -> gym.Env[Any, Any]:
    """The environment with this time limit, which replaces its own if it has one."""
    limit = find_time_limit(env)
    if limit is None:
        return gym.wrappers.TimeLimit(env, steps)
    limit._max_episode_steps = steps
    return env


def find_time_limit(env: gym.Env[Any, Any]) -> Any:
    """The wrapper that ends episodes after some steps, if there is one."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return env
        env = env.env
    return None


def shown_limit(env: gym.Env[Any, Any]) -> Any:
    """What an environment shows of a time limit: that of a wrapper, or of its own."""
    wrapper = find_time_limit(env)
    if wrapper is not None:
        return wrapper._max_episode_steps
    return next((limit for name in _OWN_LIMITS if (limit := getattr(env.unwrapped, name, None)) is not None), None)
