"""Small worlds in which it can be seen whom a policy imitates, and demonstrations of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.types import Array, SpaceInfo

_STEPS, _EPISODES = 8, 100


class Signs(gym.Env[Array, int]):
    """Eight pairs of numbers come one by one; the right answer is which of both are above 0, one of four.

    All episodes are equally long.
    """

    observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, reward_factor: float = 1.0) -> None:
        self._factor = reward_factor
        self._shown, self._time = np.zeros(2, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return self._next(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        right = int(action) == int(_quadrant(self._shown))
        self._time += 1
        return self._next(), self._factor * right, False, self._time >= _STEPS, {}

    def _next(self) -> Array:
        self._shown = self.np_random.normal(size=2).astype(np.float32)
        return self._shown


def _quadrant(pairs: Array) -> Array:
    above: Array = pairs > 0.0
    return above[..., 0] + 2 * above[..., 1]


def loud_signs() -> Signs:
    """The same, with rewards that would drown everything else."""
    return Signs(reward_factor=-1e6)


class Door(gym.Env[Array, int]):
    """Action 1 goes out of the door, which ends the episode; who stays is sent away after eight steps.

    The reward is 1 for every step inside.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._time += 1
        return np.ones(1, np.float32), 1.0, bool(action), self._time >= _STEPS, {}


def right_answers(info: SpaceInfo) -> dict[str, Array]:
    """An expert in `Signs`."""
    return _answers(lambda shown, rng: _quadrant(shown))


def random_answers(info: SpaceInfo) -> dict[str, Array]:
    """Somebody who knows nothing, in `Signs`."""
    return _answers(lambda shown, rng: rng.integers(0, 4, len(shown)))


def _answers(answer: Any) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shown = rng.normal(size=(_EPISODES, _STEPS + 1, 2)).astype(np.float32)
    action = answer(shown[:, :-1].reshape(-1, 2), rng)
    return _layout(shown[:, :-1], shown[:, 1:], action, timeouts=_last_rows(_EPISODES, _STEPS))


def leaving_at_once(info: SpaceInfo) -> dict[str, Array]:
    """Twenty episodes in `Door` of one step each."""
    shown = np.ones((20, 1), np.float32)
    return _layout(shown, shown, np.ones(20, np.int64), terminals=_last_rows(20, 1))


def staying(info: SpaceInfo) -> dict[str, Array]:
    """Five episodes in `Door` of eight steps each, which the time limit ends."""
    shown = np.ones((5, _STEPS), np.float32)
    return _layout(shown, shown, np.zeros(shown.size, np.int64), timeouts=_last_rows(5, _STEPS))


def _last_rows(episodes: int, steps: int) -> Array:
    return np.tile(np.arange(steps) == steps - 1, episodes)


def _layout(obs: Array, next_obs: Array, action: Array, **ends: Array) -> dict[str, Array]:
    nothing = np.zeros(len(action), np.bool_)
    return {
        "observations": obs.reshape(len(action), -1),
        "next_observations": next_obs.reshape(len(action), -1),
        "actions": action,
        "rewards": np.zeros(len(action), np.float32),
        "terminals": ends.get("terminals", nothing),
        "timeouts": ends.get("timeouts", nothing),
    }
