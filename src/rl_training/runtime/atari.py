"""Atari games as agents are trained on them: few, small, grey frames (Machado et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from rl_training.runtime.extras import import_extra
from rl_training.types import UserError

# What the preprocessing needs of the emulator; it skips, pools and shrinks the frames itself.
_EMULATOR = {"frameskip": 1, "obs_type": "grayscale", "sound_obs": False, "continuous": False}


def is_atari(env_id: str) -> bool:
    """Whether an id names a game of the Arcade Learning Environment."""
    return env_id.startswith("ALE/")


def register_atari(env_id: str) -> None:
    """Make the games known to Gymnasium, or say which extra is missing."""
    ale, cv2 = (import_extra(module, "atari", asked_by=f"env_id={env_id!r}") for module in ("ale_py", "cv2"))
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # else every emulator greets on the terminal
    cv2.setNumThreads(1)  # frames are too small to share
    gym.register_envs(ale)


def make_atari(env_id: str, env_kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """A game that shows uint8 `[84, 84]`: four frames an action, of which the last two are pooled.

    An episode begins with up to 30 idle frames and ends with the game, not with a life. Actions stick as often as the
    id says (`repeat_action_probability`, a quarter of the frames in v5).
    """
    register_atari(env_id)  # here too: a process of its own may know nothing of the games yet
    registered = gym.spec(env_id).kwargs
    for key, needed in _EMULATOR.items():
        given = env_kwargs.get(key, needed)
        if given not in (needed, registered.get(key)):
            raise UserError(
                f"env_kwargs.{key}={given!r}: Atari games are preprocessed, which needs {needed!r}; for anything else "
                "give env_id as module:function of your own"
            )
    return gym.wrappers.AtariPreprocessing(gym.make(env_id, **{**env_kwargs, **_EMULATOR}))
