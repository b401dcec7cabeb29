"""Windows of consecutive steps against plain lists of what happened."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_model import KINDS, World
from replay_feed import EVENTS, assert_uniform, event_rows, info_of
from rl_training.data.batches import TERMINATED, TRUNCATED, UNKNOWN, WITHIN
from rl_training.data.memory import ReplayMemory
from rl_training.data.replay import replay_of
from rl_training.data.samplers import PrioritizedSampler
from rl_training.types import UserError


def played(kind: str, events: str, positions: int = 50) -> World:
    """One environment; each letter is a step: go, terminated, truncated (o for out of time), cut."""
    world = World(kind, 1, positions)
    for letter in events:
        world.play([{"g": "go", "t": "terminated", "o": "truncated", "c": "cut"}[letter]])
    return world


def random_world(kind: str, positions: int = 12, steps: int = 40) -> World:
    world, rng = World(kind, 2, positions), np.random.default_rng(0)
    for _ in range(steps):
        world.play([EVENTS[k] for k in rng.integers(0, len(EVENTS), 2)])
    return world


@given(event_rows(), st.sampled_from(sorted(KINDS)), st.integers(1, 14), st.integers(1, 7), st.integers(0, 40))
def test_windows_hold_what_happened(
    rows: list[list[str]], kind: str, positions: int, length: int, restart: int
) -> None:
    world = World(kind, len(rows[0]), positions)
    for number, events in enumerate(rows):
        world.play(events)
        if number == restart:
            world.restart()
    replay, rng = world.memory.replay, np.random.default_rng(0)
    for across, starts in ((False, world.slots()), (True, world.starts(length))):
        if starts:
            slots = rng.permutation(sorted(starts))
            windows = replay.gather_windows(slots, length, across_episodes=across)
            assert world.check_windows(windows, across=across) == [starts[slot] for slot in slots]
            assert windows.real.all() or not across
            drawn = world.memory.windows(20, rng, length=length, across_episodes=across)
            assert set(world.check_windows(drawn, across=across)) <= set(starts.values())
        else:
            with pytest.raises((ValueError, UserError), match=f"length={length}: "):
                world.memory.windows(1, rng, length=length, across_episodes=across)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_why_a_row_is_past_the_end_worked_by_hand(kind: str) -> None:
    world = played(kind, "gtgogcgg")
    starts = [slot for slot, (_, number) in sorted(world.slots().items(), key=lambda item: item[1]) if number % 2 == 0]
    windows = world.memory.replay.gather_windows(np.array(starts), 4, across_episodes=False)
    ends = [TERMINATED, TRUNCATED, UNKNOWN, UNKNOWN]  # the third episode was lost, the fourth goes on
    assert windows.past.T.tolist() == [[WITHIN, WITHIN, reason, reason] for reason in ends]
    assert windows.first[0].all()
    assert not windows.first[1:].any()
    for name in ("obs", "next_obs", "action", "reward", "terminated", "truncated"):
        column = getattr(windows, name)
        np.testing.assert_array_equal(column[2:], np.stack([column[1]] * 2))
    across = world.memory.replay.gather_windows(np.array(starts[:1]), 8, across_episodes=True)
    assert across.real.all()
    assert across.first[:, 0].tolist() == [True, False] * 4
    assert across.terminated[:, 0].tolist() == [number == 1 for number in range(8)]
    assert across.truncated[:, 0].tolist() == [number in (3, 5) for number in range(8)], "a cut is stored as truncated"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_start_of_a_window_is_equally_likely(kind: str) -> None:
    world = random_world(kind)
    for across, expected in ((True, world.starts(4)), (False, world.slots())):
        draws = [
            world.memory.windows(200, np.random.default_rng(seed), length=4, across_episodes=across).index[0].copy()
            for seed in range(40)
        ]
        assert_uniform(np.concatenate(draws) % world.memory.replay.capacity, sorted(expected))


def test_frames_of_a_window_are_the_stacks_that_were_seen_after_the_ring_has_wrapped() -> None:
    world = played("frames", "ggggtggggggogggg", positions=12)
    starts = world.starts(5)
    windows = world.memory.replay.gather_windows(np.array(sorted(starts)), 5, across_episodes=True)
    world.check_windows(windows, across=True)
    assert windows.obs.shape == (5, len(starts), *world.info.obs_shape)
    inside = ~windows.first[1:]
    np.testing.assert_array_equal(windows.next_obs[:-1][inside], windows.obs[1:][inside])


@pytest.mark.parametrize("across", [True, False])
def test_a_window_of_a_dataset_never_runs_on_from_its_last_row_to_its_first(across: bool) -> None:
    rows, ends = np.arange(10), np.zeros(10, bool)
    ends[[3, 6]] = True
    obs = np.stack([rows, rows], 1).astype(np.float32)
    flags = {"terminated": ends & (rows == 3), "truncated": ends & (rows == 6)}
    replay = replay_of(info_of((2,)), obs=obs, action=rows, reward=rows, next_obs=obs + 1, **flags)
    windows = ReplayMemory(replay).windows(300, np.random.default_rng(0), length=4, across_episodes=across)
    np.testing.assert_array_equal(windows.index[0], windows.action[0])
    assert set(windows.action[0].tolist()) == set(range(7 if across else 10))
    assert set(windows.action[0][windows.first[0]].tolist()) == ({0, 4} if across else {0, 4, 7})
    for b, start in enumerate(windows.action[0]):
        wanted = [start + t if across else min(start + t, 3 if start < 4 else 6 if start < 7 else 9) for t in range(4)]
        assert windows.action[:, b].tolist() == wanted
    assert windows.past.max() == (WITHIN if across else UNKNOWN)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_windows_that_are_not_there_yet_are_said_with_what_is_missing(kind: str) -> None:
    world, rng = played(kind, "gg", positions=6), np.random.default_rng(0)
    with pytest.raises(ValueError, match="length=3: no environment has stored so many steps yet, only 2"):
        world.memory.windows(1, rng, length=3, across_episodes=True)
    with pytest.raises(UserError, match="length=7: the replay buffer holds at most 6 steps of each environment; make"):
        world.memory.windows(1, rng, length=7, across_episodes=True)
    with pytest.raises(ValueError, match="length=0: must be at least 1"):
        world.memory.windows(1, rng, length=0, across_episodes=True)
    assert len(world.memory.windows(2, rng, length=2, across_episodes=True)) == 2
    assert len(world.memory.windows(2, rng, length=7, across_episodes=False)) == 2
    with pytest.raises(ValueError, match="no transition to draw"):
        World(kind, 1, 6).memory.windows(1, rng, length=1, across_episodes=False)


def test_windows_of_changing_size_do_not_mix() -> None:
    world, rng = random_world("vector"), np.random.default_rng(1)
    for count, length in ((3, 2), (2, 3), (3, 2), (6, 1), (1, 6)):
        windows = world.memory.windows(count, rng, length=length, across_episodes=False)
        assert windows.obs.shape == (length, count, 2)
        world.check_windows(windows, across=False)


def test_what_a_window_holds_is_a_copy() -> None:
    world = played("vector", "ggg")
    windows = world.memory.windows(1, np.random.default_rng(0), length=3, across_episodes=True)
    for array in (windows.obs, windows.reward, windows.records["latent"], windows.index):
        array[:] = 99
    world.check_windows(world.memory.windows(1, np.random.default_rng(0), length=3, across_episodes=True), across=True)


@pytest.mark.parametrize("kind", ["vector", "frames"])
def test_prioritised_windows_start_in_proportion_to_the_priority_of_their_first_row(kind: str) -> None:
    world = World(kind, 2, 10, PrioritizedSampler)
    for number in range(14):
        world.play(["terminated" if number == 8 else "go", "go"])
    rng, priorities = np.random.default_rng(0), world.memory.sampler.arrays["priorities"].data
    slots = sorted(world.slots())
    names = world.memory.replay.numbers_of(np.array(slots))
    world.memory.note(names, errors=rng.random(len(slots)).astype(np.float32) + 0.1)
    before = world.memory.sampler._tree.copy()
    for across, starts in ((True, sorted(world.starts(3))), (False, slots)):
        assert len(starts) == len(slots) - (4 if across else 0)
        shares = priorities[starts] / priorities[starts].sum()
        windows = world.memory.windows(3000, rng, length=3, across_episodes=across, beta=0.4)
        drawn = windows.index[0] % world.memory.replay.capacity
        np.testing.assert_allclose([(drawn == slot).mean() for slot in starts], shares, atol=2 / 3000)
        expected = priorities[drawn] ** -0.4
        np.testing.assert_allclose(windows.weight, expected / expected.max(), rtol=1e-6)
        world.check_windows(world.memory.windows(20, rng, length=3, across_episodes=across), across=across)
        np.testing.assert_array_equal(world.memory.sampler._tree, before)  # a draw leaves the priorities as they are


def test_prioritised_windows_that_are_not_there_yet_are_refused() -> None:
    world = World("vector", 1, 10, PrioritizedSampler)
    world.play(["go"])
    with pytest.raises(ValueError, match="length=2: no environment has stored so many steps yet, only 1"):
        world.memory.windows(1, np.random.default_rng(0), length=2, across_episodes=True)
    assert world.memory.sampler.arrays["priorities"].data[0] == 1.0
