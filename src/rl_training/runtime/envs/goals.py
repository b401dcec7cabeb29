"""Goal environments: what they would have said of a step, had another goal been desired."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.data.goal_replay import ACHIEVED, DESIRED
from rl_training.ops.kernels.checks import all_finite
from rl_training.runtime.envs.in_turn import InTurn
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.envs.spaces import PackedObservation
from rl_training.runtime.rng import untouched
from rl_training.types import Array, UserError

# Where environments say whether an episode was a success: Gymnasium-Robotics uses either name.
_SUCCESS = ("is_success", "success")
_KEYS = ("observation", ACHIEVED, DESIRED)
# How many steps of the environment are compared with what it says of them afterwards.
_COMPARED = 30


class GoalJudge:
    """Asks one environment, made for this alone, for the rewards and the ends of steps with other goals.

    It is asked for many steps at once, with goals of its spaces' dtype. Nothing is stored of `info`: the environment
    gets an empty one for each step.
    """

    def __init__(self, maker: EnvMaker, reward_clip: float | None) -> None:
        self._env_id, self._clip = maker.env_id, reward_clip
        with untouched():
            env = self._made(maker)
            self._reward = self._asked(env, "compute_reward")
            if self._reward is None:
                raise UserError(
                    f"her: {self._env_id} has no compute_reward(achieved_goal, desired_goal, info), which says what "
                    "the reward for another goal would have been"
                )
            self._end = self._asked(env, "compute_terminated")
            self._compare(env)

    def _made(self, maker: EnvMaker) -> gym.Env[Any, Any]:
        envs = maker.in_turn(1)
        weakref.finalize(self, envs.close)
        made = envs.envs[0] if isinstance(envs, InTurn) else None  # others are vector environments of their own
        env = made.env if isinstance(made, PackedObservation) else made
        self._dtype = _goal_dtype((envs if env is None else env).observation_space, self._env_id)
        if isinstance(made, PackedObservation):
            self._check_stored(made)
        if env is None:
            raise UserError(f"her: {self._env_id} makes vector environments; it needs single ones to ask for rewards")
        return env

    def _check_stored(self, env: PackedObservation) -> None:
        """Refuse goals that are stored in another form than the environment's, since it is asked in the stored one."""
        stored = {part.name: part.shape for part in env.parts}
        space = env.env.observation_space
        shape = space[ACHIEVED].shape if isinstance(space, gym.spaces.Dict) else None
        if not stored.get(ACHIEVED) == stored.get(DESIRED) == shape:
            raise UserError(f"her: goals of {self._env_id} must be plain arrays; {shape} is stored as {stored}")

    @staticmethod
    def _asked(env: gym.Env[Any, Any], name: str) -> Callable[..., Any] | None:
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None

    def rewards(self, achieved: Array, desired: Array) -> Array:
        """The rewards `[N]` of steps that achieved goals `[N, ...]` and were to achieve others."""
        assert self._reward is not None
        found = self._answers("compute_reward", self._reward, achieved, desired)
        if found.shape != (len(achieved),):
            raise UserError(
                f"her: compute_reward of {self._env_id} must return {len(achieved)} rewards for goals of shape "
                f"{achieved.shape}, one for each row (with axis=-1, say); it returned an array of shape {found.shape}"
            )
        rewards: Array = found.astype(np.float32)
        if not all_finite(rewards):
            raise UserError(f"her: compute_reward of {self._env_id} returned a reward that is not finite")
        return rewards if self._clip is None else rewards.clip(-self._clip, self._clip)

    def ends(self, achieved: Array, desired: Array) -> Array | None:
        """Whether such steps terminate their episodes `[N]`; None if the environment does not say.

        Gymnasium-Robotics asks for many rewards at once, but for one end at a time; so an answer that is not one for
        each row is none, and every row is asked for by itself.
        """
        if self._end is None:
            return None
        found = self._answers("compute_terminated", self._end, achieved, desired)
        if found.shape != (len(achieved),):
            goals = zip(achieved.astype(self._dtype), desired.astype(self._dtype), strict=True)
            found = np.array([bool(self._end(one, other, {})) for one, other in goals])
        return found.astype(np.bool_)

    def _answers(self, name: str, ask: Callable[..., Any], achieved: Array, desired: Array) -> Array:
        try:
            infos: list[dict[str, Any]] = [{}] * len(achieved)
            return np.asarray(ask(achieved.astype(self._dtype), desired.astype(self._dtype), infos))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise UserError(
                f"her: {name} of {self._env_id} failed on goals of shape {achieved.shape} with an empty info for each "
                f"row: {type(error).__name__}: {error}"
            ) from error

    def _compare(self, env: gym.Env[Any, Any]) -> None:
        """Raise a UserError if the environment's own rewards are not those that it says they are."""
        actions = deepcopy(env.action_space)  # it may be shared with other environments
        actions.seed(0)
        over, seen = True, list[tuple[Array, Array, float]]()
        for number in range(_COMPARED):
            if over:
                _, info = env.reset(seed=number)
            obs, reward, terminated, truncated, info = env.step(actions.sample(info.get("action_mask")))
            # Copies, since an environment may use its arrays again.
            seen.append((np.array(obs[ACHIEVED]), np.array(obs[DESIRED]), float(reward)))
            over = terminated or truncated
        achieved, desired, rewards = (np.stack(column) for column in zip(*seen, strict=True))
        given: Array = rewards.astype(np.float32)
        given = given if self._clip is None else given.clip(-self._clip, self._clip)
        said = self.rewards(achieved, desired)
        differs = np.flatnonzero(~np.isclose(given, said, rtol=1e-3, atol=1e-5))
        if differs.size:
            first = differs[0]
            raise UserError(
                f"her: {self._env_id} gave the reward {given[first]:g} for a step of which compute_reward says "
                f"{said[first]:g}; rewards must depend on the achieved and the desired goal alone (a wrapper that "
                "changes rewards needs a compute_reward of its own)"
            )
        self.ends(achieved, desired)


def _goal_dtype(space: gym.Space[Any], env_id: str) -> Any:
    """The dtype of an environment's goals; raises a UserError if it has none, or such as cannot be exchanged."""
    if not isinstance(space, gym.spaces.Dict) or not set(_KEYS) <= space.keys():
        raise UserError(
            f"her: {env_id} is no goal environment; its observations must be a Dict of {', '.join(_KEYS)}, and are a "
            f"{type(space).__name__}" + (f" of {', '.join(space)}" if isinstance(space, gym.spaces.Dict) else "")
        )
    achieved, desired = space[ACHIEVED], space[DESIRED]
    for name, goal in ((ACHIEVED, achieved), (DESIRED, desired)):
        if not isinstance(goal, gym.spaces.Box):
            raise UserError(f"her: {name} of {env_id} is a {type(goal).__name__}; it must be a Box")
    if achieved.shape != desired.shape or achieved.dtype != desired.dtype:
        raise UserError(
            f"her: {ACHIEVED} of {env_id} is {achieved.dtype} {achieved.shape} and {DESIRED} {desired.dtype} "
            f"{desired.shape}; they must be alike, so that one can take the place of the other"
        )
    return achieved.dtype


def success_of(infos: Mapping[str, Any], env: int) -> bool | None:
    """Whether an environment of several says that its episode, which has just ended, was a success; None if neither."""
    told = infos.get("final_info", infos)  # that of a vector environment which resets itself at once
    for key in _SUCCESS:
        values, given = told.get(key), told.get(f"_{key}")
        numbers = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf"
        if numbers and (given is None or given[env]):
            return bool(values[env])
    return None
