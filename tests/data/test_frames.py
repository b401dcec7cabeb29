"""Stacks of frames in which every frame is kept once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_training.data.frames import restacked, thinned


def stacks(rng: np.random.Generator, rows: int, envs: int, stack: int, begins: float) -> np.ndarray:
    """Stacks `[T, B, stack, 3, 2]` as an environment shows them; a new episode begins with one frame repeated."""
    obs = np.zeros((rows, envs, stack, 3, 2), np.uint8)
    for t in range(rows):
        frame = rng.integers(0, 256, (envs, 3, 2), dtype=np.uint8)
        new = rng.random(envs) < begins if t else rng.random(envs) < 0.5
        before = obs[t - 1] if t else rng.integers(0, 256, obs.shape[1:], dtype=np.uint8)
        obs[t] = np.concatenate([before[:, 1:], frame[:, None]], axis=1)
        obs[t, new] = frame[new][:, None]
    return obs


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 4), st.integers(2, 4), st.sampled_from([0.0, 0.2, 1.0]))
def test_nothing_is_lost(seed: int, rows: int, envs: int, stack: int, begins: float) -> None:
    obs = stacks(np.random.default_rng(seed), rows, envs, stack, begins)
    arrays = {"obs": obs, "reward": np.zeros((rows, envs), np.float32)}
    back = restacked(thinned(arrays))
    assert back.keys() == arrays.keys()
    np.testing.assert_array_equal(back["obs"], obs)
    assert back["obs"].dtype == obs.dtype


def test_every_frame_is_sent_once() -> None:
    obs = stacks(np.random.default_rng(0), 128, 8, 4, 0.005)
    sent = sum(array.nbytes for array in thinned({"obs": obs}).values())
    assert sent < 0.33 * obs.nbytes
    assert restacked({"obs": obs})["obs"] is obs, "what was not thinned stays as it is"
