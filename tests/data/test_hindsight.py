"""Hindsight experience replay against plain lists of what happened, searched one transition at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_model import Row, World
from replay_feed import EVENTS, GAMMA, Feed, Transition, assert_uniform, check_chains, event_rows
from rl_training.data.batches import TERMINATED, UNKNOWN, WITHIN, Windows
from rl_training.data.goal_replay import GoalReplay, Strategy
from rl_training.data.hindsight import HindsightMemory
from rl_training.data.memory import ReplayMemory
from rl_training.data.plain_replay import Replay
from rl_training.ops.observations import pack, row_bytes
from rl_training.types import ObsPart, SpaceInfo

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
# An image stands after the numbers in a row, wherever its name is.
PARTS = (
    ObsPart("achieved_goal", (2,), "float32"),
    ObsPart("desired_goal", (2,), "float32"),
    ObsPart("observation", (1, 3), "uint8"),
)
INFO = SpaceInfo((row_bytes(PARTS, 4),), "uint8", "discrete", (), 4, (4,), (0,), parts=PARTS, mask_size=4)


def show(episode: list[int]) -> np.ndarray:
    """Every state achieves a goal of its own; the desired one belongs to the episode."""
    newest = episode[-1]
    parts = {
        "achieved_goal": np.array([newest, -newest], np.float32),
        "desired_goal": np.array([-episode[0], 0.5], np.float32),
        "observation": np.array([[newest % 256, newest // 256, 7]], np.uint8),
    }
    return pack(parts, np.array([1, 0, newest % 2, 1]), PARTS, 4)


def goals_of(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    numbers = row[:16].view(np.float32)
    return numbers[:2], numbers[2:4]


def with_goal(row: np.ndarray, goal: np.ndarray) -> np.ndarray:
    row = row.copy()
    row[8:16].view(np.float32)[:] = goal
    return row


class Judge:
    """Says something of every pair of goals; in some runs it says nothing of ends."""

    def __init__(self, *, says_ends: bool = True) -> None:
        self.says_ends = says_ends

    def rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return np.asarray(-np.abs(achieved - desired).sum(axis=-1), np.float32)

    def ends(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray | None:
        return np.abs(achieved + desired)[:, 0].astype(int) % 3 == 0 if self.says_ends else None

    def seen(self, transition: Transition, goal: np.ndarray) -> Transition:
        """A transition as it would have been with another goal."""
        achieved, wanted = goals_of(transition.next_obs)
        terminated = transition.terminated
        ends, by_goal = self.ends(achieved[None], goal[None]), self.ends(achieved[None], wanted[None])
        if ends is not None and by_goal is not None:
            terminated = bool(ends[0]) or (terminated and not by_goal[0])
        obs, next_obs = with_goal(transition.obs, goal), with_goal(transition.next_obs, goal)
        reward, truncated = float(self.rewards(achieved[None], goal[None])[0]), transition.truncated or transition.lost
        # `last` would be taken for a cut where it no longer terminates.
        changed = {"obs": obs, "next_obs": next_obs, "reward": reward, "terminated": terminated, "truncated": truncated}
        return replace(transition, **changed, last=False)


class EndsAtGoal(Judge):
    """An episode ends where its goal is achieved."""

    def ends(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return np.asarray((achieved == desired).all(axis=-1))


JUDGE = Judge()


class GoalWorld(World):
    """A world whose memory gives other goals."""

    def __init__(self, num_envs: int, positions: int, strategy: Strategy = "future", judge: Judge = JUDGE) -> None:
        self.strategy, self.judge, self.per_real = strategy, judge, 2
        super().__init__("dict", num_envs, positions)
        self.info, self.feed = INFO, Feed(num_envs, show)
        self.memory = self.new_memory()

    def new_memory(self) -> ReplayMemory:
        replay = GoalReplay(INFO, self.num_envs, self.positions * self.num_envs, self.records)
        return HindsightMemory(replay, self.judge, self.strategy, self.per_real)

    def possible_goals(self, row: Row) -> list[np.ndarray]:
        """What was achieved in the episode of a transition, by walking the list of all that is still stored."""
        env, number = row
        stored = self.feed.stored[env]
        first = last = number
        while not stored[last].last and last + 1 < len(stored):
            last += 1
        while first > max(0, len(stored) - self.positions) and not stored[first - 1].last:
            first -= 1
        chosen = {"future": range(number, last + 1), "final": [last], "episode": range(first, last + 1)}[self.strategy]
        return [goals_of(stored[number].next_obs)[0] for number in chosen]

    def chain_of(self, row: Row, obs: np.ndarray, place: int, n_step: int) -> list[Transition]:
        """The chain that a drawn observation begins, with the goal that is found there, after a look at that goal."""
        chain = self.feed.chain(*row, n_step)
        if place % (self.per_real + 1) == 0:
            return chain
        goal = goals_of(obs)[1]
        assert any(np.array_equal(goal, other) for other in self.possible_goals(row))
        seen = [self.judge.seen(transition, goal) for transition in chain]
        ended = next((k for k, transition in enumerate(seen) if transition.terminated), len(seen) - 1)
        return seen[: ended + 1]


@settings(max_examples=60)
@given(
    event_rows(),
    st.sampled_from(STRATEGIES),
    st.integers(1, 14),
    st.integers(1, 4),
    st.integers(0, 40),
    st.booleans(),
)
def test_other_goals_are_those_that_a_search_finds(
    rows: list[list[str]], strategy: Strategy, positions: int, n_step: int, restart: int, says_ends: bool
) -> None:
    world = GoalWorld(len(rows[0]), positions, strategy, Judge(says_ends=says_ends))
    for number, events in enumerate(rows):
        world.play(events)
        if number == restart:
            world.restart()
    held = world.memory.replay.arrays["rows"].data.copy()
    batch = world.memory.transitions(60, np.random.default_rng(0), n_step=n_step, gamma=GAMMA)
    assert batch.index is not None
    drawn = [world.named(name) for name in batch.index.tolist()]
    check_chains(batch, [world.chain_of(row, batch.obs[b], b, n_step) for b, row in enumerate(drawn)])
    np.testing.assert_array_equal(world.memory.replay.arrays["rows"].data, held, "what is stored stays as it is")


@given(event_rows(), st.sampled_from(STRATEGIES), st.integers(1, 14), st.integers(0, 40))
def test_a_restored_memory_draws_the_same(
    rows: list[list[str]], strategy: Strategy, positions: int, restart: int
) -> None:
    straight, restored = (GoalWorld(len(rows[0]), positions, strategy) for _ in range(2))
    for number, events in enumerate(rows):
        straight.play(events)
        restored.play(events)
        if number == restart:
            restored.restart()
    batches = [
        world.memory.transitions(40, np.random.default_rng(1), n_step=2, gamma=GAMMA) for world in (straight, restored)
    ]
    for name in ("obs", "next_obs", "reward", "terminated", "discount"):
        np.testing.assert_array_equal(*(getattr(batch, name) for batch in batches))


def played(events: str, strategy: Strategy, positions: int = 50, judge: Judge = JUDGE) -> GoalWorld:
    """One environment; each letter is a step: go, terminated, truncated (o for out of time), cut."""
    world = GoalWorld(1, positions, strategy, judge)
    for letter in events:
        world.play([{"g": "go", "t": "terminated", "o": "truncated", "c": "cut"}[letter]])
    return world


def chosen_steps(world: GoalWorld, number: int, draws: int = 4_000) -> np.ndarray:
    """Which steps achieved the goals that are drawn for one transition."""
    replay = world.memory.replay
    assert isinstance(replay, GoalReplay)
    slots = np.full(draws, number % world.positions)
    goals = replay.other_goals(slots, world.strategy, np.random.default_rng(0))
    numbers = {float(goals_of(step.next_obs)[0][0]): place for place, step in enumerate(world.feed.stored[0])}
    return np.array([numbers[float(goal)] for goal in goals[:, 0]])


@pytest.mark.parametrize(
    ("strategy", "number", "expected"),
    [
        ("future", 3, [3, 4, 5]),
        ("future", 5, [5]),
        ("final", 3, [5]),
        ("episode", 3, [2, 3, 4, 5]),
        ("episode", 0, [0, 1]),
        ("future", 6, [6, 7]),  # cut after step 7
        ("future", 8, [8, 9]),  # still running
        ("final", 8, [9]),
    ],
)
def test_goals_of_an_episode_are_equally_likely(strategy: Strategy, number: int, expected: list[int]) -> None:
    assert_uniform(chosen_steps(played("gtggg" + "o" + "gcgg", strategy), number), expected)


@pytest.mark.parametrize(("strategy", "expected"), [("episode", [3, 4, 5, 6]), ("future", [4, 5, 6]), ("final", [6])])
def test_of_an_episode_that_is_half_overwritten_what_is_left_is_used(strategy: Strategy, expected: list[int]) -> None:
    world = played("ggggggogg", strategy, positions=6)
    assert_uniform(chosen_steps(world, 4), expected)
    world.restart()
    assert_uniform(chosen_steps(world, 4), expected)


def test_episodes_longer_than_the_ring_are_followed() -> None:
    world = played("g" * 25 + "t", "episode", positions=4)
    assert_uniform(chosen_steps(world, 23), [22, 23, 24, 25])


@pytest.mark.parametrize(("per_real", "share"), [(1, 1 / 2), (4, 4 / 5), (8, 8 / 9)])
def test_a_fixed_share_of_every_stretch_gets_another_goal(per_real: int, share: float) -> None:
    world = played("gggo" * 10, "final")
    replay = world.memory.replay
    assert isinstance(replay, GoalReplay)
    memory = HindsightMemory(replay, world.judge, "final", per_real)
    count = 90 * (per_real + 1)
    batch = memory.transitions(count, np.random.default_rng(0), gamma=GAMMA)
    other = np.array([goals_of(row)[1][1] != 0.5 for row in batch.obs])
    assert other.mean() == share
    assert set(Counter(np.add.reduceat(other, np.arange(0, count, per_real + 1)).tolist())) == {per_real}
    assert memory.at_once == ReplayMemory(replay).at_once


def windows_of(world: GoalWorld, starts: list[int], length: int, goal: np.ndarray) -> Windows:
    """Windows from some steps on; all but the first have another goal, the given one."""
    memory = world.memory
    assert isinstance(memory, HindsightMemory)
    memory._period = 10**6
    memory.sampler.draw_windows = lambda *_, **options: (np.array(starts), None)  # type: ignore[method-assign]
    memory.replay.other_goals = lambda slots, *_: np.stack([goal] * len(slots))  # type: ignore[method-assign]
    return memory.windows(len(starts), np.random.default_rng(0), length=length, across_episodes=False)


def test_a_chain_ends_where_its_new_goal_is_reached_worked_by_hand() -> None:
    world = played("gggt" + "ggg", "future", judge=EndsAtGoal())
    windows = windows_of(world, [0, 0, 2], 4, goals_of(world.feed.stored[0][1].next_obs)[0])
    # From step 0 the goal of step 1 is reached with the second row. From step 2 on it is not reached: the episode was
    # terminated for another reason than its goal, and that would have been so with any goal.
    assert windows.real.T.tolist() == [[True] * 4, *[[True, True, False, False]] * 2]
    assert windows.terminated.T.tolist() == [[False, False, False, True], *[[False, True, True, True]] * 2]
    assert windows.past.T.tolist() == [[WITHIN] * 4, *[[WITHIN, WITHIN, TERMINATED, TERMINATED]] * 2]
    assert windows.reward[1, 1] == 0.0
    assert (windows.index[2:, 1] == -1).all()
    columns = [windows.obs, windows.next_obs, windows.action, windows.reward, *windows.records.values()]
    for column in columns:
        np.testing.assert_array_equal(column[2:, 1], np.stack([column[1, 1]] * 2))


def test_an_end_at_the_own_goal_is_none_for_another_goal() -> None:
    """The episode ended because its goal was reached; with another goal it would have gone on, nobody knows how."""
    world = GoalWorld(1, 20, judge=EndsAtGoal())
    world.feed = Feed(1, lambda episode: with_goal(show(episode), np.array([2.0, -2.0])))
    world.play(["terminated"])
    assert goals_of(world.feed.stored[0][0].next_obs)[0].tolist() == [2.0, -2.0]
    windows = windows_of(world, [0, 0], 3, np.array([9.0, 9.0], np.float32))
    assert windows.terminated[:, 0].all(), "with its own goal it ends"
    assert not windows.terminated[:, 1].any()
    assert windows.past[:, 1].tolist() == [WITHIN, UNKNOWN, UNKNOWN]


def test_windows_across_episodes_have_no_goal() -> None:
    with pytest.raises(ValueError, match="no goal in common"):
        played("ggt", "future").memory.windows(1, np.random.default_rng(0), length=2, across_episodes=True)


def test_a_saved_goal_replay_is_a_replay_like_any_other(tmp_path: Path) -> None:
    world, rng = GoalWorld(2, 9), np.random.default_rng(3)
    for _ in range(30):
        world.play([EVENTS[k] for k in rng.integers(0, len(EVENTS), 2)])
    loaded = Replay.load(world.memory.replay.save(tmp_path / "replay"))
    assert loaded.state_dict() == world.memory.replay.state_dict()
