"""The last steps of every episode as a carry: what a policy with a window of context reads again before it acts.

Observations and actions are kept, not what a network made of them: so nothing in a carry is older than the weights that
read it. Steps are in order, the newest last; the first ones of a row are zeros until its episode is long enough. The
count is that of all steps of the episode.
"""

from __future__ import annotations

import numpy as np

from rl_training.types import Array, SpaceInfo

History = dict[str, Array]  # obs [B, H, ...] as environments return them, action int64 [B, H], count int64 [B]


def no_history(info: SpaceInfo, count: int, steps: int) -> History:
    """The history of `count` episodes that begin now, with room for `steps` steps."""
    return {
        "obs": np.zeros((count, steps, *info.obs_shape), info.obs_dtype),
        "action": np.zeros((count, steps), np.int64),
        "count": np.zeros(count, np.int64),
    }


def forget(history: History, mask: Array) -> History:
    """Clear the rows `[B]` where an episode begins."""
    return {
        name: np.where(mask.reshape(-1, *[1] * (array.ndim - 1)), np.zeros_like(array), array)
        for name, array in history.items()
    }


def remember(history: History, obs: Array, action: Array) -> History:
    """Add a step of every episode; the oldest one goes."""
    return {
        "obs": np.concatenate([history["obs"], obs[:, None].astype(history["obs"].dtype, copy=False)], axis=1)[:, 1:],
        "action": np.concatenate([history["action"], action[:, None]], axis=1)[:, 1:],
        "count": history["count"] + 1,
    }


def with_present(history: History, obs: Array) -> Array:
    """The remembered observations and the present ones, `[B, H + 1, ...]`."""
    rows: Array = np.concatenate([history["obs"], obs[:, None]], axis=1)
    return rows


def absent_steps(history: History) -> Array:
    """How many of the first steps of each row are not there, `[B]`."""
    missing: Array = np.maximum(history["action"].shape[1] - history["count"], 0)
    return missing
