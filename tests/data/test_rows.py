"""The memory of rows next to plain lists of all that was ever added to it: windows, the online queue, states."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_feed import RECORDS, Feed, copy_state, event_rows, info_of
from rl_training.data.batches import Windows
from rl_training.data.datasets.arrays import from_replay
from rl_training.data.replay import Replay, make_replay
from rl_training.data.row_memory import RowMemory
from rl_training.data.row_replay import RowReplay
from rl_training.types import Step, UserError

INFO = info_of((2,))
LENGTH = 3


@dataclass
class Row:
    """What one row should be; the action of a last row is 0, and its records say nothing."""

    obs: np.ndarray
    action: int
    reward: float
    first: bool
    terminated: bool = False
    truncated: bool = False
    records: dict[str, Any] = field(default_factory=dict)


class World:
    """A memory, and lists of the rows of every environment."""

    def __init__(self, num_envs: int = 2, positions: int = 20, length: int = LENGTH) -> None:
        self.feed = Feed(num_envs, lambda episode: np.array([episode[-1], -len(episode)], np.float32))
        self.num_envs, self.positions = num_envs, positions
        self.memory = memory_of(num_envs, positions, length)
        self.rows: list[list[Row]] = [[] for _ in range(num_envs)]
        self.arrived, self.begins = [0.0] * num_envs, [True] * num_envs

    def play(self, events: list[str]) -> None:
        step, cut = self.feed.step(events)
        self.memory.add(step)
        for env in np.flatnonzero(step.real):
            self._add(int(env), step)
        if cut.any():
            self.memory.cut(cut)
            for env in np.flatnonzero(cut):
                self.rows[env][-1].truncated = True
                self.arrived[env], self.begins[env] = 0.0, True

    def _add(self, env: int, step: Step) -> None:
        records = {name: column[env] for name, column in step.records.items()}
        seen = self.rows[env]
        seen.append(Row(step.obs[env], int(step.action[env]), self.arrived[env], self.begins[env], records=records))
        self.arrived[env], self.begins[env] = float(step.reward[env]), False
        if step.terminated[env] or step.truncated[env]:
            over = bool(step.terminated[env])
            seen.append(Row(step.next_obs[env], 0, self.arrived[env], False, over, not over))
            self.arrived[env], self.begins[env] = 0.0, True

    def where(self, number: int) -> tuple[int, int]:
        """The environment and the place in its list of the row with a number."""
        return number % self.num_envs, number // self.num_envs

    def check(self, windows: Windows) -> None:
        for t, b in np.ndindex(*windows.reward.shape):
            env, place = self.where(int(windows.index[t, b]))
            assert place >= len(self.rows[env]) - self.positions
            if t > 0:
                assert (env, place - 1) == self.where(int(windows.index[t - 1, b]))
            row = self.rows[env][place]
            np.testing.assert_array_equal(windows.obs[t, b], row.obs)
            assert windows.action[t, b] == row.action
            assert windows.reward[t, b] == row.reward
            assert (windows.terminated[t, b], windows.truncated[t, b]) == (row.terminated, row.truncated)
            if t > 0 or place > 0:
                assert windows.first[t, b] == row.first
            assert windows.real[t, b]
            for name, value in row.records.items():
                np.testing.assert_array_equal(windows.records[name][t, b], value)


def memory_of(num_envs: int, positions: int, length: int = LENGTH) -> RowMemory:
    replay = make_replay(INFO, num_envs, num_envs * positions, 1, RECORDS, rows=True)
    assert isinstance(replay, RowReplay)
    return RowMemory(replay, length)


def draw(world: World, count: int = 8, seed: int = 0) -> Windows:
    return world.memory.windows(count, np.random.default_rng(seed), length=LENGTH + 1, across_episodes=True)


@settings(max_examples=60, deadline=None)
@given(events=event_rows(), positions=st.integers(LENGTH + 1, 15))
def test_windows_hold_the_rows_as_they_came(events: list[list[str]], positions: int) -> None:
    world = World(len(events[0]), positions)
    for number, row in enumerate(events):
        world.play(row)
        if max(map(len, world.rows)) > LENGTH:
            world.check(draw(world, seed=number))


def test_an_episode_s_end_writes_one_more_row() -> None:
    world = World(num_envs=1)
    for event in ("go", "go", "terminated", "go", "truncated", "go"):
        world.play([event])
    assert len(world.memory) == 8
    windows = world.memory.replay.gather_windows(np.array([0]), 8, across_episodes=True)
    assert windows.first[:, 0].tolist() == [True, False, False, False, True, False, False, True]
    assert windows.terminated[:, 0].tolist() == [False] * 3 + [True] + [False] * 4
    assert windows.truncated[:, 0].tolist() == [False] * 6 + [True, False]
    assert (windows.reward[[0, 4, 7], 0] == 0.0).all()  # nothing has arrived where an episode begins
    assert (windows.action[[3, 6], 0] == 0).all()  # nothing is done where one ends


def test_every_row_is_learned_from_once_before_any_is_drawn_again() -> None:
    """The windows of the queue follow each other, the oldest first; their context is the last row before."""
    world = World(num_envs=2, positions=200)
    learned: Counter[int] = Counter()
    for number in range(60):
        world.play(["terminated" if number % 7 == 3 else "go", "go"])
    waiting = [(len(rows) - 1) // LENGTH for rows in world.rows]
    for number in range(sum(waiting)):
        windows = draw(world, 1, seed=number)
        world.check(windows)
        learned.update(windows.index[1:, 0].tolist())
    expected = {place * 2 + env: 1 for env in (0, 1) for place in range(1, waiting[env] * LENGTH + 1)}
    assert dict(learned) == expected
    later = Counter(int(draw(world, 1, seed=seed).index[0, 0]) for seed in range(50))
    assert len(later) > 20  # now they are drawn at random


def test_a_window_that_was_overwritten_while_it_waited_is_dropped() -> None:
    world = World(num_envs=1, positions=6)
    for _ in range(30):
        world.play(["go"])
    first = draw(world, 1)
    assert int(first.index[0, 0]) >= 24
    world.check(first)


def test_what_is_written_back_is_found_in_the_same_rows() -> None:
    world = World(num_envs=2, positions=12)
    for number in range(30):
        world.play(["truncated" if number == 11 else "go", "go"])
        if number > 4:
            windows = draw(world, 4, seed=number)
            index = windows.index[1:]
            name = next(iter(RECORDS))
            rng = np.random.default_rng(number)
            shape = (*index.shape, *RECORDS[name].shape)
            values = rng.integers(0, 100, shape).astype(RECORDS[name].dtype)
            world.memory.note(index, columns={name: values})
            for t, b in np.ndindex(*index.shape):
                env, place = world.where(int(index[t, b]))
                world.rows[env][place].records[name] = values[t, b]
    for seed in range(10):
        world.check(draw(world, seed=seed))


def test_latents_are_in_an_array_of_their_own() -> None:
    world = World()
    for _ in range(12):
        world.play(["go", "go"])
    before = world.memory.replay.arrays["rows"].versions.copy()
    windows = draw(world, 4)
    columns = {name: column[1:].copy() for name, column in windows.records.items()}
    world.memory.note(windows.index[1:], columns=columns)
    np.testing.assert_array_equal(before, world.memory.replay.arrays["rows"].versions)


def test_a_memory_that_is_brought_back_goes_on_to_the_bit() -> None:
    """In the middle of episodes, with windows waiting and a reward that has arrived."""
    world, again = World(num_envs=2, positions=9), World(num_envs=2, positions=9)
    events = [["go", "go"], ["go", "terminated"], ["truncated", "go"], ["go", "go"], ["unreal", "go"]]
    for number in range(17):
        world.play(events[number % 5])
        again.play(events[number % 5])
    restored = memory_of(2, 9)
    for name, part in again.memory.parts.items():
        copy_state(part, restored.parts[name])
    again.memory = restored
    for number in range(17, 40):
        world.play(events[number % 5])
        again.play(events[number % 5])
        ours, theirs = draw(world, 3, seed=number), draw(again, 3, seed=number)
        again.check(theirs)
        np.testing.assert_array_equal(ours.index, theirs.index)
        for name, column in ours.records.items():
            np.testing.assert_array_equal(column, theirs.records[name])


def test_a_queue_of_other_lengths_is_not_waited_for() -> None:
    world = World(num_envs=1, positions=40)
    for _ in range(30):
        world.play(["go"])
    longer = memory_of(1, 40, length=5)
    for name, part in world.memory.parts.items():
        copy_state(part, longer.parts[name])
    windows = longer.windows(4, np.random.default_rng(0), length=6, across_episodes=True)
    assert windows.real.all()


def test_rewards_of_other_environments_are_refused() -> None:
    with pytest.raises(UserError, match="rewards of 3 environments do not fit 2"):
        memory_of(2, 9).parts["arrived"].load_state_dict({"reward": [0.0, 1.0, 2.0]})


def test_rows_become_a_dataset_of_transitions() -> None:
    world = World(num_envs=2, positions=30)
    for event in ("go", "go", "terminated", "go", "truncated", "go", "go"):
        world.play([event, "go"])
    dataset = from_replay(world.memory.replay, {"path": "here"})
    stored = [transition for rows in world.feed.stored for transition in rows]
    # The newest step of an environment has no successor here yet.
    wanted = [t for k, t in enumerate(stored) if k not in (6, 13)]
    np.testing.assert_array_equal(dataset.obs, np.stack([t.obs for t in wanted]))
    np.testing.assert_array_equal(dataset.next_obs, np.stack([t.next_obs for t in wanted]))
    np.testing.assert_array_equal(dataset.action, [t.action for t in wanted])
    np.testing.assert_array_equal(dataset.reward, [t.reward for t in wanted])
    np.testing.assert_array_equal(dataset.terminated, [t.terminated for t in wanted])
    assert len(dataset.starts) == 4


def test_transitions_have_the_actions_that_environments_were_sent() -> None:
    replay = RowReplay(info_of((2,), action=1), 1, 4)
    zeros, no = np.zeros((1, 2), np.float32), np.zeros(1, np.bool_)
    for action in (1.75, -0.25, 0.0):
        drawn = np.array([[action]], np.float32)
        replay.add(Step(zeros, drawn, np.zeros(1, np.float32), zeros, no, no, ~no))
    assert replay.gather(np.array([0, 1]), gamma=0.9).action.tolist() == [[1.0], [-0.25]]
    assert replay.gather_windows(np.array([0]), 2, across_episodes=True).action.ravel().tolist() == [1.75, -0.25]


def test_saved_rows_are_read_again(tmp_path: Any) -> None:
    world = World(num_envs=1, positions=9)
    for event in ("go", "terminated", "go", "go"):
        world.play([event])
    loaded = Replay.load(world.memory.replay.save(tmp_path / "rows"))
    assert isinstance(loaded, RowReplay)
    np.testing.assert_array_equal(loaded.arrays["rows"].data, world.memory.replay.arrays["rows"].data)


def test_rows_are_no_chains() -> None:
    with pytest.raises(ValueError, match="draw windows"):
        memory_of(1, 9).replay.gather(np.array([0]), n_step=2, gamma=0.9)
