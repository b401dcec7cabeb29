"""Lost lives: for learning a lost life ends the episode, while the game and its return continue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.types import Array, UserError

_KEY = "life_lost"


def lives_lost(infos: Mapping[str, Any], num_envs: int) -> Array | None:
    """A mask of the environments that report a lost life at this step; None if they do not report lives."""
    if _KEY not in infos:
        return None
    # If only some environments report it, Gymnasium fills up with None.
    flags = [False if flag is None else flag for flag in np.ravel(infos[_KEY])]
    if len(flags) != num_envs or not all(flag in (0, 1) for flag in flags):
        raise UserError(f"info['life_lost']={infos[_KEY]!r}: must be true or false")
    return np.array(flags, np.bool_)


def life_lost(info: Mapping[str, Any]) -> bool:
    """Whether a single environment reports a lost life."""
    lost = lives_lost(info, 1)
    return lost is not None and bool(lost[0])


class FrameStack(gym.wrappers.FrameStackObservation[Any, Any, Any]):
    """Stacks the latest observations; at the start, and after a lost life, the first one fills the whole stack.

    So a replay buffer that stores every frame once can rebuild a stack from the start of its episode or life.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if life_lost(info) and not terminated:
            self.obs_queue.extend([self.obs_queue[-1]] * self.stack_size)
            obs = np.stack(self.obs_queue)
        return obs, reward, terminated, truncated, info
