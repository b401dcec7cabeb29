"""A lost life: an end to learn from and to forget at, though the game and its return go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.types import Array, UserError

_KEY = "life_lost"


def lives_lost(infos: Mapping[str, Any], num_envs: int) -> Array | None:
    """Which environments say that they lost a life at this step; None if they do not speak of lives."""
    if _KEY not in infos:
        return None
    # Where only some environments say something, Gymnasium fills up with None.
    said = [False if one is None else one for one in np.ravel(infos[_KEY])]
    if len(said) != num_envs or not all(one in (0, 1) for one in said):
        raise UserError(f"info['life_lost']={infos[_KEY]!r}: must be true or false")
    return np.array(said, np.bool_)


def life_lost(info: Mapping[str, Any]) -> bool:
    """The same of one environment."""
    lost = lives_lost(info, 1)
    return lost is not None and bool(lost[0])


class FrameStack(gym.wrappers.FrameStackObservation[Any, Any, Any]):
    """The latest observations; at first, and after a lost life, the first one as often as there is room.

    So a memory that keeps every frame once can tell a stack by how long ago its episode, or its life, began.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if life_lost(info) and not terminated:
            self.obs_queue.extend([self.obs_queue[-1]] * self.stack_size)
            obs = np.stack(self.obs_queue)
        return obs, reward, terminated, truncated, info
