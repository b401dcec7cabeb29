"""Frames that are kept once, against the stacks that were really seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from conformance import MODES
from replay_feed import (
    EVENTS,
    GAMMA,
    Feed,
    Transition,
    assert_same,
    assert_uniform,
    check_chains,
    copy_state,
    event_rows,
    info_of,
    played,
    whole_stacks,
)
from rl_training.data.replay import FrameReplay, Replay
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.envs.make import describe_spaces
from rl_training.types import SpaceInfo, UserError

FRAME = (2, 3)


def spaces(stack: int) -> SpaceInfo:
    return info_of((stack, *FRAME), "uint8")


def frame_of(state: int) -> np.ndarray:
    return np.array([state % 256, state // 256, 0, 3, state % 7, 9], np.uint8).reshape(FRAME)


def stacked(episode: list[int], stack: int) -> np.ndarray:
    """The newest frames of an episode, of which the first stands for those that are not there."""
    return np.stack([frame_of(episode[max(0, len(episode) - 1 - back)]) for back in range(stack - 1, -1, -1)])


def make_feed(envs: int, stack: int) -> Feed:
    return Feed(envs, lambda episode: stacked(episode, stack))


@given(event_rows(), st.integers(2, 4), st.integers(0, 12), st.integers(1, 5))
def test_stacks_are_those_that_were_seen_and_only_whole_ones_can_be_drawn(
    rows: list[list[str]], stack: int, more: int, n_step: int
) -> None:
    envs, positions = len(rows[0]), stack + 1 + more
    feed, replay = make_feed(envs, stack), FrameReplay(spaces(stack), envs, positions * envs, stack)
    ready: set[int] = set()
    for events in rows:
        new, gone = feed.play(events, replay)
        assert gone <= ready
        assert not gone & new
        ready = (ready | new) - gone
        assert ready == whole_stacks(feed, positions, stack).keys()
        assert len(replay) == len(ready)
    expected = whole_stacks(feed, positions, stack)
    slots = np.random.default_rng(0).permutation(sorted(expected))
    batch = replay.gather(slots, n_step=n_step, gamma=GAMMA)
    check_chains(batch, [feed.chain(*expected[slot], n_step) for slot in slots])
    assert set(replay.draw(np.random.default_rng(1), 50).tolist()) <= ready


def test_the_newest_transition_of_an_unfinished_episode_has_its_true_successor() -> None:
    feed, replay = make_feed(1, 3), FrameReplay(spaces(3), 1, 4, 3)
    for _ in range(11):
        new, _ = feed.play(["go"], replay)
        batch = replay.gather(np.array(sorted(new)), gamma=GAMMA)
        np.testing.assert_array_equal(batch.next_obs[0], feed.stored[0][-1].next_obs)
        np.testing.assert_array_equal(batch.obs[0], feed.stored[0][-1].obs)


def test_a_truncated_episode_does_not_continue_into_the_next_one() -> None:
    feed, replay = make_feed(1, 3), FrameReplay(spaces(3), 1, 20, 3)
    for event in ("go", "truncated", "go", "go"):
        feed.play([event], replay)
    # Slot 2 keeps the last frame of the first episode: the second one starts at slot 3.
    batch = replay.gather(np.array([1, 3]), gamma=GAMMA)
    np.testing.assert_array_equal(batch.next_obs[0], feed.stored[0][1].next_obs)
    assert not np.array_equal(batch.next_obs[0, -1], batch.obs[1, -1])
    np.testing.assert_array_equal(batch.obs[1], np.stack([batch.obs[1, -1]] * 3))


def test_episodes_of_one_step_keep_both_their_frames() -> None:
    feed, replay = make_feed(1, 4), FrameReplay(spaces(4), 1, 20, 4)
    for event in ("terminated", "truncated", "both", "cut", "terminated"):
        feed.play([event], replay)
    expected = whole_stacks(feed, 20, 4)
    assert sorted(expected) == [0, 2, 4, 6, 8]
    for n_step in (1, 3):
        batch = replay.gather(np.array(sorted(expected)), n_step=n_step, gamma=GAMMA)
        check_chains(batch, [[transition] for transition in feed.stored[0]])


def test_a_cut_keeps_the_successor_and_ends_the_chain_there() -> None:
    feed, replay = make_feed(1, 3), FrameReplay(spaces(3), 1, 20, 3)
    for event in ("go", "cut", "go", "go"):
        feed.play([event], replay)
    replay.cut(np.zeros(1, bool))
    expected = whole_stacks(feed, 20, 3)
    batch = replay.gather(np.array(sorted(expected)), n_step=3, gamma=GAMMA)
    check_chains(batch, [feed.chain(*expected[slot], 3) for slot in sorted(expected)])
    assert batch.truncated.tolist() == [True, True, False, False]


def test_a_cut_between_episodes_changes_nothing() -> None:
    feed, replay = make_feed(2, 3), FrameReplay(spaces(3), 2, 20, 3)
    replay.cut(np.ones(2, bool))
    feed.play(["terminated", "truncated"], replay)
    before = replay.state_dict(), replay.arrays["rows"].data.copy()
    replay.cut(np.ones(2, bool))
    assert replay.state_dict() == before[0]
    np.testing.assert_array_equal(replay.arrays["rows"].data, before[1])


def test_every_transition_that_can_be_drawn_is_equally_likely() -> None:
    feed, replay = make_feed(2, 3), FrameReplay(spaces(3), 2, 24, 3)
    for number in range(30):
        feed.play(["truncated" if number % 4 == 0 else "go", "terminated" if number % 9 == 0 else "go"], replay)
    slots = sorted(whole_stacks(feed, 12, 3))
    draws = np.concatenate([replay.draw(np.random.default_rng(seed), 200) for seed in range(50)])
    assert_uniform(draws, slots)
    np.testing.assert_array_equal(replay.draw(np.random.default_rng(0), 200), draws[:200])


def test_nothing_can_be_drawn_from_an_empty_replay() -> None:
    with pytest.raises(ValueError, match="no transition to draw"):
        FrameReplay(spaces(3), 2, 24, 3).draw(np.random.default_rng(0), 1)


@pytest.mark.parametrize(("envs", "size", "capacity"), [(1, 100, 100), (3, 100, 99), (2, 1, 8)])
def test_there_is_room_for_one_whole_stack(envs: int, size: int, capacity: int) -> None:
    assert FrameReplay(spaces(3), envs, size, 3).capacity == capacity


@pytest.mark.parametrize("steps", [0, 3, 50])
def test_frames_that_were_brought_back_go_on_as_if_nothing_had_happened(steps: int) -> None:
    feed, twin = make_feed(3, 3), make_feed(3, 3)
    replay, restored, unbroken = (FrameReplay(spaces(3), 3, 30, 3) for _ in range(3))
    played(replay, feed, 0, steps)
    played(unbroken, twin, 0, steps)
    copy_state(replay, restored)
    played(restored, feed, 1, 10)
    played(unbroken, twin, 1, 10)
    assert_same(restored, unbroken)
    np.testing.assert_array_equal(restored.arrays["rows"].data, unbroken.arrays["rows"].data)


def test_frames_are_saved_and_loaded_on_their_own(tmp_path: Path) -> None:
    feed, replay = make_feed(2, 3), FrameReplay(spaces(3), 2, 30, 3)
    played(replay, feed, 0, 40)
    loaded = Replay.load(replay.save(tmp_path / "memory"))
    assert type(loaded) is FrameReplay
    assert_same(replay, loaded)
    played(loaded, feed, 1, 5)
    assert len(loaded) > 0


def test_stacks_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 2, 3\) are not stacks of 4 frames"):
        FrameReplay(spaces(3), 2, 30, 4)


def test_a_state_of_plain_transitions_is_refused() -> None:
    state = Replay(spaces(3), 2, 30).state_dict()
    with pytest.raises(UserError, match="columns is"):
        FrameReplay(spaces(3), 2, 30, 3).load_state_dict(state)


def test_every_change_is_noted_where_it_happened() -> None:
    """A chunk that was not said to have changed has not: a checkpoint would link the old file."""
    feed, replay = make_feed(2, 3), FrameReplay(spaces(3), 2, 40, 3)
    rows = replay.arrays["rows"]
    rows.chunk_rows, rows.versions = 2, np.zeros(20, np.int64)
    rng = np.random.default_rng(0)
    for _ in range(80):
        data, versions = rows.data.copy(), rows.versions.copy()
        feed.play([EVENTS[k] for k in rng.integers(0, len(EVENTS), 2)], replay)
        changed = np.flatnonzero((rows.data != data).any(axis=1)) // 2
        assert (rows.versions[changed] > versions[changed]).all()


class Pictures(gym.Env[np.ndarray, int]):
    """Frames with numbers of their own; episodes of one to five steps, ended in turn by the clock and by the task."""

    def __init__(self, first: int) -> None:
        self.observation_space = gym.spaces.Box(0, 255, FRAME, np.uint8)
        self.action_space = gym.spaces.Discrete(4)
        self.serial, self.episode, self.left = first, -1, 0

    def show(self) -> np.ndarray:
        self.serial += 1
        return frame_of(self.serial)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.left = self.episode % 5 + 1
        return self.show(), {}

    def step(self, action: int) -> Any:
        self.left -= 1
        over, odd = self.left == 0, self.episode % 2 == 1
        return self.show(), float(action) + self.serial, over and odd, over and not odd, {}


def make_pictures(first: int) -> gym.Env[Any, Any]:
    return gym.wrappers.FrameStackObservation(Pictures(first), 3)


def rolled_out(first: int, steps: int) -> list[Transition]:
    """What one environment does on its own when the action is always 1."""
    env, found = make_pictures(first), []
    obs, _ = env.reset()
    for _ in range(steps):
        next_obs, reward, terminated, truncated, _ = env.step(1)
        over = terminated or truncated
        found.append(Transition(obs, 1, float(reward), next_obs, terminated, truncated, over, 0))
        obs = env.reset()[0] if over else next_obs
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [Replay, FrameReplay])
def test_a_replay_holds_what_single_environments_do_in_every_autoreset_mode(
    mode: AutoresetMode, kind: type[Replay]
) -> None:
    firsts = [10, 500]
    envs = SyncVectorEnv([lambda first=first: make_pictures(first) for first in firsts], autoreset_mode=mode)
    info = describe_spaces(envs.single_observation_space, envs.single_action_space, "pictures")
    collector = Collector(envs, info, np.random.default_rng(0))
    collector.start()
    replay = FrameReplay(info, 2, 200, 3) if kind is FrameReplay else Replay(info, 2, 200)
    ready: list[int] = []
    for _ in range(40):
        ready += replay.add(collector.step(np.ones(2, np.int64))).ready.tolist()
    assert len(replay) == len(ready) == collector.steps
    for env, first in enumerate(firsts):
        slots = np.array([slot for slot in ready if slot % 2 == env])
        truth = rolled_out(first, slots.size)
        assert slots.size >= 30
        for n_step in (1, 3):
            chains = []
            for number in range(slots.size):
                chain = truth[number : number + n_step]
                ends = [k for k, transition in enumerate(chain) if transition.last]
                chains.append(chain[: ends[0] + 1] if ends else chain)
            check_chains(replay.gather(slots, n_step=n_step, gamma=GAMMA), chains)
    collector.close()
