"""Strips: steps as arrays that move between processes, and are the same steps again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data.rollout import Rollout
from rl_training.data.strips import Layout, Strip, StripWriter, joined, strip_layout
from rl_training.runtime.actors.actor import Steps
from rl_training.types import Array, ArrayKind, SpaceInfo, Step

INFO = SpaceInfo((3,), "float32", "discrete", (), 2, (2,))
RECORDS = {"log_prob": ArrayKind((), "float32"), "state": ArrayKind((2,), "float32")}
NAMES = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "real")


def steps_of(rng: np.random.Generator, count: int, envs: int) -> list[Step]:
    """Consecutive steps as a collector returns them: an observation follows from the last, or from a reset."""
    obs, steps = rng.random((envs, 3), np.float32), []
    for _ in range(count):
        successor = rng.random((envs, 3), np.float32)
        terminated, truncated = rng.random((2, envs)) < 0.3
        records = {"log_prob": rng.random(envs, np.float32), "state": rng.random((envs, 2), np.float32)}
        action, reward, real = rng.integers(0, 2, envs), rng.random(envs, np.float32), rng.random(envs) < 0.8
        steps.append(Step(obs, action, reward, successor, terminated, truncated, real, records))
        obs = np.where((terminated | truncated)[:, None], rng.random((envs, 3), np.float32), successor)
    return steps


def strip_of(steps: list[Step], most: int, envs: Array) -> Strip:
    layout = Layout(strip_layout(most, len(envs), INFO, RECORDS))
    arrays = layout.views(bytearray(layout.size))
    writer = StripWriter(arrays)
    for step in steps:
        writer.add(step)
    return Strip.on(arrays, *writer.written, envs)


def assert_same(found: list[Step], wanted: list[Step]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for name in NAMES:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        for name in RECORDS:
            np.testing.assert_array_equal(one.records[name], other.records[name], err_msg=name)


def side_by_side(pairs: list[tuple[Step, ...]]) -> list[Step]:
    def both(name: str, steps: tuple[Step, ...]) -> Any:
        return np.concatenate([getattr(step, name) for step in steps])

    return [
        Step(
            **{name: both(name, steps) for name in NAMES},
            records={name: np.concatenate([step.records[name] for step in steps]) for name in RECORDS},
        )
        for steps in pairs
    ]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 7), envs=st.integers(1, 4), room=st.integers(0, 3))
def test_the_steps_of_a_strip_are_those_that_were_written(seed: int, count: int, envs: int, room: int) -> None:
    steps = steps_of(np.random.default_rng(seed), count, envs)
    strip = strip_of(steps, count + room, np.arange(envs))
    assert len(strip) == count
    found = Steps()
    found.take(strip)
    assert_same(found, steps)
    again = Strip.on(strip.arrays(), count, len(strip.ends), strip.envs)
    assert_same(list(again.steps()), steps)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), count=st.integers(1, 7), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3)
)
def test_strips_side_by_side_are_the_steps_of_all_environments(seed: int, count: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [steps_of(rng, count, size) for size in sizes]
    strips = [
        strip_of(steps, count, np.arange(size) + 10 * n)
        for n, (steps, size) in enumerate(zip(parts, sizes, strict=True))
    ]
    strip = joined(strips)
    assert_same(list(strip.steps()), side_by_side(list(zip(*parts, strict=True))))
    assert strip.envs.tolist() == [10 * n + b for n, size in enumerate(sizes) for b in range(size)]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 7), envs=st.integers(1, 4))
def test_a_rollout_that_takes_a_strip_is_one_that_was_filled_step_by_step(seed: int, count: int, envs: int) -> None:
    steps = steps_of(np.random.default_rng(seed), count, envs)
    filled, taken = (Rollout(count, envs, INFO, RECORDS) for _ in range(2))
    for step in steps:
        filled.add(step)
    strip = strip_of(steps, count, np.arange(envs))
    taken.take(strip)
    strip.ends[...] = strip.obs[...] = -1.0  # a copy was taken
    for name in ("obs", "action", "reward", "terminated", "truncated", "real", "last_obs"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(filled, name))
    np.testing.assert_array_equal(taken.bootstrap_obs(), filled.bootstrap_obs())
    for one, other in zip(taken.bootstrap_places(), filled.bootstrap_places(), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in RECORDS:
        np.testing.assert_array_equal(taken.records[name], filled.records[name])


def test_arrays_of_a_layout_do_not_overlap() -> None:
    layout = Layout(
        {"flags": ArrayKind((3,), "bool"), "number": ArrayKind((), "float64"), "none": ArrayKind((0, 4), "int64")}
    )
    assert layout.size == 128
    block = bytearray(64 + layout.size)
    views = layout.views(block, 64)
    views["flags"][...] = True
    views["number"][...] = 0.5
    assert (views["flags"].tolist(), float(views["number"]), views["none"].shape) == ([True] * 3, 0.5, (0, 4))
    assert block[:64] == bytes(64)
    with pytest.raises(ValueError, match="buffer"):
        layout.views(bytearray(8))
