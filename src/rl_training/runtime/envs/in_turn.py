"""Environments in this process, stepped one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate

from rl_training.runtime.envs.rules import BrokenRule, Rules, space_complaints
from rl_training.types import Array


class InTurn(SyncVectorEnv):
    """Gymnasium's synchronous vector environment, which names the environment, the step and the fault if one has any.

    The arrays of observations are used again at the next step. Episodes are reset by the caller, each with its seed.
    """

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], num_envs: int) -> None:
        made = [make() for _ in range(num_envs)]
        first = made[0].observation_space, made[0].action_space
        for index, env in enumerate(made):
            for words in space_complaints(first, (env.observation_space, env.action_space)):
                raise BrokenRule(f"environment {index}: {words}")
        super().__init__(
            [lambda env=env: env for env in made],  # type: ignore[misc]
            copy=False,
            autoreset_mode=AutoresetMode.DISABLED,
        )
        self._rules = Rules(*first)
        self._steps = 0

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of a `reset_mask`; seeds are those of all environments, by position."""
        options = None if options is None else dict(options)
        mask = (options or {}).pop("reset_mask", None)
        chosen: Array = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        infos: dict[str, Any] = {}
        for index in chosen.tolist():
            own = seed + index if isinstance(seed, int) else None if seed is None else seed[index]
            obs, info = self._rules.reset(self.envs[index], index, self._steps, seed=own, options=options)
            self._env_obs[index] = obs
            infos = self._add_info(infos, info, index)
        return self._observed(), infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every environment with its action."""
        return self._step(self.envs, actions)

    def step_some(self, actions: Any, mask: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step the masked environments; the others stay as they are."""
        return self._step([env if moves else None for env, moves in zip(self.envs, mask, strict=True)], actions)

    def _step(self, envs: Sequence[Any], actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        self._steps += 1
        infos: dict[str, Any] = {}
        rewards, terminations, truncations = [], [], []
        take, number = self._rules.step, self._steps
        for index, (env, action) in enumerate(zip(envs, actions, strict=True)):
            if env is None:
                obs, reward, terminated, truncated, info = self._env_obs[index], 0.0, False, False, None
            else:
                obs, reward, terminated, truncated, info = take(env, action, index, number)
            self._env_obs[index] = obs
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
            if info:
                infos = self._add_info(infos, info, index)
        flags = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        return self._observed(), np.array(rewards, np.float64), *flags, infos

    def _observed(self) -> Any:
        self._observations = concatenate(self.single_observation_space, self._env_obs, self._observations)
        return self._observations
