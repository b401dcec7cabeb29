"""Fingerprints of steps: every byte counts, in its place and its time, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.runtime.envs.fingerprints import Fingerprints

FLAGS = np.zeros(2, np.bool_)


def step(obs: Any, reward: Any = (1.0, 2.0), terminated: Any = FLAGS, truncated: Any = FLAGS) -> tuple[Any, ...]:
    return obs, reward, terminated, truncated


def sums(*steps: tuple[Any, ...]) -> Any:
    prints = Fingerprints(2)
    for each in steps:
        prints.add(*each)
    return prints.sums[1].copy()


OBSERVATIONS = [
    np.arange(8, dtype=np.float32).reshape(2, 4),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(10, dtype=np.float64).reshape(2, 5),
    np.arange(2 * 7 * 5, dtype=np.uint8).reshape(2, 7, 5),
    np.arange(2 * 4 * 8, dtype=np.uint8).reshape(2, 4, 8),
    np.arange(6, dtype=np.int16).reshape(2, 3),
]


@pytest.mark.parametrize("obs", OBSERVATIONS, ids=lambda obs: f"{obs.dtype}{obs.shape}")
def test_every_bit_of_an_observation_counts_for_its_environment(obs: Any) -> None:
    plain = sums(step(obs))
    flat = obs.view(np.uint8).reshape(2, -1)
    for place in range(flat.shape[1]):
        for bit in (1, 128):
            other = flat.copy()
            other[1, place] ^= bit
            changed = sums(step(other.view(obs.dtype).reshape(obs.shape)))
            assert (changed != plain).tolist() == [[False] * 3, [True, False, False]]


@pytest.mark.parametrize("obs", OBSERVATIONS, ids=lambda obs: f"{obs.dtype}{obs.shape}")
def test_the_order_in_memory_does_not_count(obs: Any) -> None:
    np.testing.assert_array_equal(sums(step(obs)), sums(step(np.asfortranarray(obs))))


def test_rewards_and_ends_have_sums_of_their_own() -> None:
    obs, yes = OBSERVATIONS[0], np.array([True, False])
    plain = sums(step(obs))
    assert (sums(step(obs, (1.0, 2.0 + 1e-15))) != plain).tolist() == [[False] * 3, [False, True, False]]
    ends = [sums(step(obs, (1.0, 2.0), *flags)) for flags in ((yes, FLAGS), (FLAGS, yes), (yes, yes))]
    for other in ends:
        assert (other != plain).tolist() == [[False, False, True], [False] * 3]
    assert len({int(other[0, 2]) for other in ends}) == 3


def test_the_order_of_steps_and_of_numbers_counts() -> None:
    obs = np.arange(24, dtype=np.float32).reshape(2, 12)
    first, second = step(obs, (1.0, 1.0)), step(obs + 1, (2.0, 2.0))
    assert (sums(first, second) != sums(second, first)).tolist() == [[True, True, False]] * 2
    for lag in (1, 4, 8):
        rolled = np.roll(obs, lag, axis=1)
        assert (sums(step(obs)) != sums(step(rolled)))[:, 0].all()


def test_sums_are_the_same_everywhere() -> None:
    """These numbers are in checkpoints: they may not depend on the machine, nor change with a version."""
    assert sums(step(OBSERVATIONS[0]), step(OBSERVATIONS[0], (0.5, -0.0))).tolist() == EXPECTED


EXPECTED = [
    [-8866043598950925276, -8846464017779339304, 3642919289160560486],
    [-2430531147083329387, -866582671437943754, 3642919289160560486],
]


def test_a_part_is_kept_when_the_next_one_begins() -> None:
    prints, obs = Fingerprints(2), OBSERVATIONS[0]
    prints.add(*step(obs))
    before = prints.sums[1].copy()
    prints.begin(np.array([False, True]), obs)
    np.testing.assert_array_equal(prints.sums[0], [[0, 0, 0], before[1]])
    np.testing.assert_array_equal(prints.sums[1, 0], before[0])
    assert (prints.sums[1, 1] != before[1]).any()
