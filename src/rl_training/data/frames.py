"""Stacks of frames in which every frame is kept once, for the way from one machine to another."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rl_training.types import Array

_WHOLE, _FOLLOWS = "frames.whole", "frames.follows"


def thinned(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a strip whose `obs` `[T, B, stack, ...]` has only the newest frame of every stack.

    A stack that does not follow from the row before, as where an episode begins, is kept as a whole. Nothing is lost:
    what follows is found by comparing the frames, not from the flags.
    """
    obs = arrays["obs"]
    follows = np.zeros(obs.shape[:2], np.bool_)
    for t in range(1, len(obs)):
        same = obs[t, :, :-1] == obs[t - 1, :, 1:]
        follows[t] = same.reshape(len(same), -1).all(axis=1)
    return {**arrays, "obs": np.ascontiguousarray(obs[:, :, -1]), _WHOLE: obs[~follows], _FOLLOWS: follows}


def restacked(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What `thinned` was given."""
    if _FOLLOWS not in arrays:
        return dict(arrays)
    rest = {name: array for name, array in arrays.items() if name not in (_WHOLE, _FOLLOWS)}
    newest, whole, follows = arrays["obs"], arrays[_WHOLE], arrays[_FOLLOWS]
    obs = np.empty((*follows.shape, *whole.shape[1:]), newest.dtype)
    obs[~follows] = whole
    for t in range(1, len(obs)):
        own = follows[t]
        obs[t, own, :-1] = obs[t - 1, own, 1:]
        obs[t, own, -1] = newest[t, own]
    return rest | {"obs": obs}
