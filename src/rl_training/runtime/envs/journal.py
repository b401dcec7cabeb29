"""Saves and restores the exact state of environments: by their own methods if they have them, else by replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.runtime.envs.make import find_time_limit, reset_each
from rl_training.runtime.trees import to_arrays, to_tensors
from rl_training.types import Array

_TRIM_EVERY = 4096


class StateKeeper(Protocol):
    """Keeps what is needed to restore the environments."""

    def begin(self, mask: Array, seeds: Array) -> None:
        """Record that episodes of the masked environments start from these seeds."""

    def record(self, action: Array) -> None:
        """Record the actions that the environments are about to take."""

    def state_dict(self) -> dict[str, Any]:
        """The state as plain data and tensors."""

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Array:
        """Restore the environments; returns a mask of those whose observation differs from `shown`."""


class Journal:
    """Keeps the seeds of the running episodes and the actions since, and restores by reset and replay.

    It needs environments that are reset explicitly, one by one (Gymnasium's DISABLED autoreset).
    """

    def __init__(self, num_envs: int) -> None:
        self._seeds = np.zeros(num_envs, np.int64)
        self._starts = np.zeros(num_envs, np.int64)
        self._actions: list[Array] = []

    def begin(self, mask: Array, seeds: Array) -> None:
        self._seeds[mask] = seeds[mask]
        self._starts[mask] = len(self._actions)

    def record(self, action: Array) -> None:
        self._actions.append(action)
        if len(self._actions) % _TRIM_EVERY == 0:
            self._trim()

    def _trim(self) -> None:
        oldest = int(self._starts.min())
        del self._actions[:oldest]
        self._starts -= oldest

    def state_dict(self) -> dict[str, Any]:
        self._trim()
        actions = np.stack(self._actions) if self._actions else np.zeros((0,))
        return {
            "seeds": torch.from_numpy(self._seeds.copy()),
            "starts": torch.from_numpy(self._starts.copy()),
            "actions": torch.from_numpy(actions),
        }

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Array:
        self._seeds, self._starts = state["seeds"].numpy().copy(), state["starts"].numpy().copy()
        self._actions = list(state["actions"].numpy().copy())
        seeds = [int(seed) for seed in self._seeds]
        obs = reset_each(envs, seeds)
        differs = np.zeros(len(seeds), np.bool_)
        for t, action in enumerate(self._actions):
            self._begin_late(envs, (self._starts == t) & (t > 0), seeds)
            obs, _, terminated, truncated, _ = envs.step(action)
            # An environment whose episode starts later is only kept running until then. If an episode ends now that
            # was still running when it was saved, the environment differs.
            over = (terminated | truncated) & (self._starts != t + 1)
            differs |= over & (self._starts <= t)
            self._begin_late(envs, over, seeds)
        late = self._starts == len(self._actions)
        obs = np.asarray(reset_each(envs, seeds, late) if self._actions and late.any() else obs)
        if obs.shape != shown.shape:
            return np.ones_like(differs)
        differs |= (obs != shown).any(axis=tuple(range(1, obs.ndim)))
        return differs

    @staticmethod
    def _begin_late(envs: VectorEnv[Any, Any, Any], mask: Array, seeds: list[int]) -> None:
        if mask.any():
            reset_each(envs, seeds, mask)


class OwnVectorState:
    """Uses the `get_state` and `set_state` of a vector environment."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        self._envs: Any = envs

    def begin(self, mask: Array, seeds: Array) -> None:
        pass

    def record(self, action: Array) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"own": to_tensors(self._envs.get_state())}

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Array:
        envs.reset(seed=0)
        self._envs.set_state(to_arrays(state["own"]))
        return np.zeros(len(shown), np.bool_)


class OwnStates(OwnVectorState):
    """Uses the `get_state` and `set_state` of every environment, and saves their time limits and generators."""

    def state_dict(self) -> dict[str, Any]:
        envs = self._envs.envs
        return {
            "own": [to_tensors(env.unwrapped.get_state()) for env in envs],
            "elapsed": [_elapsed(env) for env in envs],
            "rng": [to_tensors(_generator_state(env)) for env in envs],
        }

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Array:
        envs.reset(seed=0)
        kept = (state["own"], state["elapsed"], state["rng"])
        for env, own, elapsed, rng in zip(self._envs.envs, *kept, strict=True):
            env.unwrapped.set_state(to_arrays(own))
            if rng is not None:
                env.unwrapped.np_random.bit_generator.state = to_arrays(rng)
            limit = find_time_limit(env)
            if limit is not None:
                limit._elapsed_steps = elapsed
        return np.zeros(len(shown), np.bool_)


class Forgetful(OwnVectorState):
    """For environments that reset themselves and have no `get_state`: their episodes restart after a resume."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Array:
        return np.ones(len(shown), np.bool_)


def keep_state_of(envs: VectorEnv[Any, Any, Any]) -> StateKeeper:
    """The most exact keeper that these environments allow."""
    if _has_state(envs):
        return OwnVectorState(envs)
    if isinstance(envs, SyncVectorEnv) and all(_has_state(env.unwrapped) and _plain(env) for env in envs.envs):
        return OwnStates(envs)
    if envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED:
        return Journal(envs.num_envs)
    return Forgetful(envs)


def _has_state(env: Any) -> bool:
    return callable(getattr(env, "get_state", None)) and callable(getattr(env, "set_state", None))


def _plain(env: gym.Env[Any, Any]) -> bool:
    """Whether no wrapper has state other than the elapsed time."""
    plain_wrappers = (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker)
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, plain_wrappers):
            return False
        env = env.env
    return True


def _elapsed(env: gym.Env[Any, Any]) -> int | None:
    limit = find_time_limit(env)
    return None if limit is None else limit._elapsed_steps


def _generator_state(env: gym.Env[Any, Any]) -> Any:
    """The state of Gymnasium's own generator; None if the environment does not use it."""
    generator = env.unwrapped._np_random
    return None if generator is None else generator.bit_generator.state
