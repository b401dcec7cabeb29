"""Two small goal environments with sparse rewards, in which chance hardly ever reaches a goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.types import Array, UserError


def bit_flipping(bits: int = 20, steps: int | None = None) -> gym.Env[Any, Any]:
    """`env_id: rl_training.runtime.goal_worlds:bit_flipping`: make a row of bits equal to another one.

    An action flips one bit. An episode has as many `steps` as there are bits, unless another number is given.
    """
    _check("bits", bits, 1)
    _check("steps", bits if steps is None else steps, 1)
    return gym.wrappers.TimeLimit(BitFlipping(bits), bits if steps is None else steps)


def point_goal(dims: int = 3, steps: int = 50, tolerance: float = 0.1) -> gym.Env[Any, Any]:
    """`env_id: rl_training.runtime.goal_worlds:point_goal`: push a point to a place in a cube, and keep it there.

    The cube has `dims` dimensions, from -1 to 1 each. All episodes have the same number of `steps`.
    """
    _check("dims", dims, 1)
    _check("steps", steps, 1)
    return gym.wrappers.TimeLimit(PointGoal(dims, tolerance), steps)


def _check(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise UserError(f"env_kwargs.{name}={value!r}: must be a whole number of at least {least}")


class GoalWorld(gym.Env[Any, Any]):
    """A world with goals that are vectors of one size: the reward is 0 for an achieved goal, and -1 for any other."""

    def __init__(self, low: float, high: float, obs_size: int, goal_size: int, tolerance: float) -> None:
        goal = gym.spaces.Box(low, high, (goal_size,), np.float32)
        obs = gym.spaces.Box(low, high, (obs_size,), np.float32)
        self.observation_space = gym.spaces.Dict({"observation": obs, "achieved_goal": goal, "desired_goal": goal})
        self._tolerance = tolerance
        self._goal: Array = np.zeros(goal_size, np.float32)

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """The reward of one goal, or of many in rows: it depends on nothing else."""
        rewards: Array = self.reached(achieved_goal, desired_goal).astype(np.float32) - np.float32(1.0)
        return rewards

    def reached(self, achieved_goal: Array, desired_goal: Array) -> Array:
        """Whether goals are as close to each other as is demanded."""
        distance: Array = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return np.asarray(distance <= self._tolerance)

    def _outcome(self, obs: dict[str, Array]) -> tuple[float, bool]:
        reward = self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})
        return float(reward), bool(self.reached(obs["achieved_goal"], obs["desired_goal"]))


class BitFlipping(GoalWorld):
    """Bits of 0 and 1, of which an action flips one; the episode ends when all are as desired."""

    def __init__(self, bits: int) -> None:
        super().__init__(0.0, 1.0, bits, bits, tolerance=0.0)
        self.action_space = gym.spaces.Discrete(bits)
        self._bits: Array = np.zeros(bits, np.float32)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """Whether an episode ends with one goal, or with many in rows."""
        return self.reached(achieved_goal, desired_goal)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        size = self._bits.size
        self._bits, self._goal = self.np_random.integers(0, 2, (2, size)).astype(np.float32)
        while (self._bits == self._goal).all():
            self._goal = self.np_random.integers(0, 2, size).astype(np.float32)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._bits[action] = 1.0 - self._bits[action]
        obs = self._obs()
        reward, reached = self._outcome(obs)
        return obs, reward, reached, False, {"is_success": reached}

    def _obs(self) -> dict[str, Array]:
        return {"observation": self._bits.copy(), "achieved_goal": self._bits.copy(), "desired_goal": self._goal.copy()}

    def get_state(self) -> dict[str, Any]:
        """All that changes in an episode; Gymnasium's generator is saved apart."""
        return {"bits": self._bits.copy(), "goal": self._goal.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` returned."""
        self._bits, self._goal = state["bits"].copy(), state["goal"].copy()


class PointGoal(GoalWorld):
    """A point with inertia in a cube, from -1 to 1 in each of its dimensions; a wall stops it. Actions push it."""

    _PUSH, _FRICTION = 0.03, 0.8

    def __init__(self, dims: int, tolerance: float) -> None:
        super().__init__(-1.0, 1.0, 2 * dims, dims, tolerance)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (dims,), np.float32)
        self._place: Array = np.zeros(dims, np.float32)
        self._speed: Array = np.zeros(dims, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        size = self._place.size
        self._place, self._goal = self.np_random.uniform(-1.0, 1.0, (2, size)).astype(np.float32)
        self._speed = np.zeros(size, np.float32)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push: Array = np.clip(action, -1.0, 1.0).astype(np.float32)
        self._speed = np.float32(self._FRICTION) * self._speed + np.float32(self._PUSH) * push
        place: Array = np.clip(self._place + self._speed, np.float32(-1.0), np.float32(1.0))
        self._speed, self._place = place - self._place, place
        obs = self._obs()
        reward, reached = self._outcome(obs)
        return obs, reward, False, False, {"is_success": reached}

    def _obs(self) -> dict[str, Array]:
        moving: Array = np.concatenate([self._place, self._speed])
        return {"observation": moving, "achieved_goal": self._place.copy(), "desired_goal": self._goal.copy()}

    def get_state(self) -> dict[str, Any]:
        """All that changes in an episode; Gymnasium's generator is saved apart."""
        return {"place": self._place.copy(), "speed": self._speed.copy(), "goal": self._goal.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` returned."""
        self._place, self._speed, self._goal = (state[name].copy() for name in ("place", "speed", "goal"))
