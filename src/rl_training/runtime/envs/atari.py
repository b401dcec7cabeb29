"""Atari games with the standard preprocessing: skipped, small, grey frames (Machado et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training.runtime.extras import import_extra
from rl_training.types import Array, UserError


@dataclass(frozen=True)
class _Choice:
    """An option of a game that users may set: its default and its range."""

    default: Any
    least: float = 0
    most: float = math.inf

    def check(self, key: str, value: Any) -> None:
        if isinstance(self.default, bool):
            fits, wanted = isinstance(value, bool), "true or false"
        elif isinstance(self.default, int):
            fits = isinstance(value, int) and not isinstance(value, bool) and value >= self.least
            wanted = f"a whole number from {self.least}"
        else:
            fits = isinstance(value, (int, float)) and self.least <= value <= self.most
            wanted = f"a number from {self.least} to {self.most}"
        if not fits:
            raise UserError(f"env_kwargs.{key}={value!r}: must be {wanted}")


# The id sets its own values for the first three.
_CHOICES = {
    "repeat_action_probability": _Choice(0.0, most=1.0),
    "full_action_space": _Choice(False),
    "max_num_frames_per_episode": _Choice(108_000, least=1),
    "noop_max": _Choice(30),
    "use_fire_reset": _Choice(False),
    "terminal_on_life_loss": _Choice(False),
}
# Arguments that `gymnasium.make` adds and that are not used here.
_IGNORED = ("render_mode",)


def is_atari(env_id: str) -> bool:
    """Whether an id names a game of the Arcade Learning Environment."""
    return env_id.startswith("ALE/")


def register_atari(env_id: str) -> Any:
    """Register the games with Gymnasium, or say which extra is missing; returns the emulator's module."""
    ale = import_extra("ale_py", "atari", asked_by=f"env_id={env_id!r}")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # else every emulator prints a banner
    gym.register_envs(ale)
    return ale


class AtariGames(VectorEnv[Array, Array, Array]):
    """A vector of games with uint8 observations `[B, 84, 84]`, or stacks of frames `[B, frame_stack, 84, 84]`.

    The games are run by the emulator's own vector environment.

    An action lasts four frames, and the last two are max-pooled. An episode begins with up to 30 no-op frames, fills
    the stack with its first frame, and ends with the game. With `terminal_on_life_loss` a lost life also counts as an
    end, but only for learning: `info["life_lost"]` marks it, the stack is filled again, and the game continues.
    Actions are sticky with the id's `repeat_action_probability` (0.25 in v5).
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        env_kwargs: Mapping[str, Any],
        *,
        frame_stack: int = 1,
        time_limit: int | None = None,
        threads: int = 1,
    ) -> None:
        ale = register_atari(env_id)
        registered = dict(gym.spec(env_id).kwargs)
        options = _options(registered, env_kwargs)
        self._lives_count = options.pop("terminal_on_life_loss")
        # The emulator can stack frames too, but pads with black ones, which a replay buffer that stores every frame
        # once does not have. It also resets ended episodes by itself at the next step, unless they were reset before.
        self._games = ale.AtariVectorEnv(
            registered["game"], num_envs, stack_num=1, reward_clipping=False, num_threads=threads, **options
        )
        self._time_limit = time_limit
        self._lives = np.zeros(num_envs, np.int64)
        self._elapsed = np.zeros(num_envs, np.int64)
        self._frames = np.zeros((num_envs, frame_stack, 84, 84), np.uint8)
        # A single frame has no stack dimension.
        self._shown = self._frames if frame_stack > 1 else self._frames[:, 0]
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space = gym.spaces.Box(0, 255, self._shown.shape[1:], np.uint8)
        self.single_action_space = gym.spaces.Discrete(int(self._games.single_action_space.n))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Reset all games, or those of a `reset_mask`; seeds `[B]` are those of all games, by position."""
        mask = np.ones(self.num_envs, np.bool_) if options is None else options["reset_mask"]
        seeds = None if seed is None else np.broadcast_to(seed, self.num_envs)[mask]
        shown, infos = self._games.reset(seed=seeds, options=options)
        self._frames[mask] = shown[mask]
        self._lives[mask], self._elapsed[mask] = infos["lives"][mask], 0
        return self._shown.copy(), infos

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        shown, reward, terminated, truncated, infos = self._games.step(actions)
        self._frames[:, :-1] = self._frames[:, 1:]
        self._frames[:, -1] = shown[:, 0]
        self._elapsed += 1
        if self._time_limit is not None:
            truncated = truncated | (self._elapsed >= self._time_limit)
        if self._lives_count:
            lost = (infos["lives"] < self._lives) & ~terminated
            self._lives = infos["lives"].astype(np.int64)
            self._frames[lost] = shown[lost]
            infos = {**infos, "life_lost": lost}
        return self._shown.copy(), reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        del self._games


class OneAtariGame(gym.Env[Array, int]):
    """One game as a single environment, so that it can run in its own process."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any], time_limit: int | None = None) -> None:
        self._games = AtariGames(env_id, 1, env_kwargs, time_limit=time_limit)
        self.observation_space = self._games.single_observation_space
        self.action_space = self._games.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        obs, infos = self._games.reset(seed=seed)
        return obs[0], _first(infos)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, infos = self._games.step(np.array([action]))
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first(infos)


def _first(infos: Mapping[str, Array]) -> dict[str, Any]:
    return {name: values[0].item() for name, values in infos.items()}


def _options(registered: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The emulator's arguments, from those of the id and of the user."""
    for key, value in given.items():
        # The spec of an environment that `gymnasium.make` made contains all arguments of its id.
        if key in _CHOICES:
            _CHOICES[key].check(key, value)
        elif key not in _IGNORED and value != registered.get(key):
            raise UserError(
                f"env_kwargs.{key}={value!r}: Atari games come preprocessed, and take {', '.join(_CHOICES)}; for "
                "anything else give env_id as module:function of your own"
            )
    merged = {**registered, **given}
    return {key: merged.get(key, choice.default) for key, choice in _CHOICES.items()}
