"""Streams of steps whose every observation is known, and the plain lists that a replay is compared with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rl_training.data.batches import Transitions
from rl_training.data.replay import Replay
from rl_training.types import ArrayKind, SpaceInfo, Step

# What happens to one environment in one step. A row that is not real leaves the environment where it was; a cut comes
# after a step that nothing was special about.
EVENTS = ("go", "go", "terminated", "truncated", "both", "unreal", "cut")
GAMMA = 0.9
RECORDS = {"latent": ArrayKind((2,), "float32"), "visits": ArrayKind((), "int64")}


@st.composite
def event_rows(draw: st.DrawFn) -> list[list[str]]:
    """What happens to one to three environments, step by step."""
    envs = draw(st.integers(1, 3))
    row = st.lists(st.sampled_from(EVENTS), min_size=envs, max_size=envs)
    return [["go"] * envs, *draw(st.lists(row, min_size=draw(st.sampled_from([0, 15])), max_size=40))]


@dataclass
class Transition:
    """One transition as it really was; `last` if nothing that was stored after it follows from it."""

    obs: np.ndarray
    action: int
    reward: float
    next_obs: np.ndarray
    terminated: bool
    truncated: bool
    last: bool
    age: int
    records: dict[str, Any] = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        """Whether the episode goes on in an unknown way: it was cut here."""
        return self.last and not self.terminated and not self.truncated


class Feed:
    """Plays events. Every state has a number of its own, and `show` says how the states of an episode look."""

    def __init__(self, num_envs: int, show: Callable[[list[int]], np.ndarray]) -> None:
        self.num_envs = num_envs
        self.show = show
        self.serial = 0
        self.episodes = [[self._new_state()] for _ in range(num_envs)]
        self.stored: list[list[Transition]] = [[] for _ in range(num_envs)]

    def _new_state(self) -> int:
        self.serial += 1
        return self.serial

    def play(self, events: Sequence[str], replay: Replay) -> tuple[set[int], set[int]]:
        """One step of all environments, added to the replay; returns what can and what no longer can be drawn."""
        step, cut = self.step(events)
        change = replay.add(step)
        if cut.any():
            replay.cut(cut)
        return set(change.ready.tolist()), set(change.gone.tolist())

    def step(self, events: Sequence[str]) -> tuple[Step, np.ndarray]:
        """One step of all environments, and which of them are cut afterwards."""
        rows = [self._row(env, event) for env, event in enumerate(events)]
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        columns = [np.stack([np.asarray(getattr(row, name)) for row in rows]) for name in names]
        records = {name: np.stack([row.records[name] for row in rows]) for name in RECORDS}
        real = np.array([event != "unreal" for event in events])
        for env, event in enumerate(events):
            if event != "unreal":
                self.stored[env].append(rows[env])
            if event not in ("go", "unreal"):
                self.episodes[env] = [self._new_state()]
        return Step(*columns, real, records), np.array([event == "cut" for event in events])

    def _row(self, env: int, event: str) -> Transition:
        episode = self.episodes[env]
        obs = self.show(episode)
        if event == "unreal":
            return Transition(obs * 0 + 77, 77, 77.0, obs * 0 + 78, True, True, True, 0, records_of(77))
        age = len(episode) - 1
        episode.append(self._new_state())
        terminated, truncated = event in ("terminated", "both"), event in ("truncated", "both")
        reward = float(self.serial * 37 % 11 - 5)
        records, last = records_of(self.serial), event != "go"
        return Transition(obs, self.serial, reward, self.show(episode), terminated, truncated, last, age, records)

    def chain(self, env: int, number: int, n_step: int) -> list[Transition]:
        """At most `n_step` transitions that follow each other, by walking the list."""
        found = []
        for transition in self.stored[env][number : number + n_step]:
            found.append(transition)
            if transition.last:
                break
        return found


def records_of(serial: int) -> dict[str, Any]:
    """The records of the step that led to a state."""
    return {"latent": np.array([serial, -serial], np.float32), "visits": np.int64(serial)}


def stored_slots(feed: Feed, positions: int) -> dict[int, tuple[int, int]]:
    """For every slot of a plain replay that can be drawn: the environment, and which of its transitions is there."""
    return {
        number % positions * feed.num_envs + env: (env, number)
        for env, stored in enumerate(feed.stored)
        for number in range(max(0, len(stored) - positions), len(stored))
    }


def whole_stacks(feed: Feed, positions: int, stack: int) -> dict[int, tuple[int, int]]:
    """For every slot whose frames are all still there: the environment, and which of its transitions it holds.

    Each transition takes a place in an endless row of frames, and each end of an episode one more; the last
    `positions` places are there, counting the frame of the newest successor.
    """
    found = {}
    for env, stored in enumerate(feed.stored):
        places, place = [], 0
        for transition in stored:
            places.append(place)
            place += 2 if transition.last else 1
        for number, (transition, place) in enumerate(zip(stored, places, strict=True)):
            oldest_frame = place - min(transition.age, stack - 1)
            if oldest_frame > places[-1] + 1 - positions:
                found[place % positions * feed.num_envs + env] = (env, number)
    return found


def check_chains(batch: Transitions, chains: Sequence[Sequence[Transition]]) -> None:
    """Compare a drawn batch with the chains that it should hold."""
    firsts, lasts = [chain[0] for chain in chains], [chain[-1] for chain in chains]
    np.testing.assert_array_equal(batch.obs, [first.obs for first in firsts])
    np.testing.assert_array_equal(batch.action, [first.action for first in firsts])
    np.testing.assert_array_equal(batch.next_obs, [last.next_obs for last in lasts])
    np.testing.assert_array_equal(batch.terminated, [last.terminated for last in lasts])
    # A cut is stored as a truncation.
    truncated = [last.truncated or (last.last and not last.terminated) for last in lasts]
    np.testing.assert_array_equal(batch.truncated, truncated)
    rewards = [sum(GAMMA**k * transition.reward for k, transition in enumerate(chain)) for chain in chains]
    np.testing.assert_allclose(batch.reward, rewards, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.discount, [GAMMA ** len(chain) for chain in chains], rtol=1e-6)
    assert (batch.reward.dtype, batch.discount.dtype) == (np.float32, np.float32)
    assert (batch.terminated.dtype, batch.truncated.dtype) == (np.bool_, np.bool_)


def assert_uniform(draws: np.ndarray, slots: Sequence[int]) -> None:
    """The draws are of these slots, each as often as chance allows (chi-square, five standard deviations)."""
    names, counts = np.unique(draws, return_counts=True)
    assert set(names.tolist()) <= set(slots)
    expected = draws.size / len(slots)
    statistic = ((counts - expected) ** 2).sum() / expected + (len(slots) - names.size) * expected
    freedom = len(slots) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 5


def info_of(obs_shape: tuple[int, ...], obs_dtype: str = "float32", action: int | None = None) -> SpaceInfo:
    """Spaces with `action` continuous numbers, or with a discrete action."""
    if action is None:
        return SpaceInfo(obs_shape, obs_dtype, "discrete", (), 4, (4,), (0,))
    low, high = (-1.0,) * action, (1.0,) * action
    return SpaceInfo(obs_shape, obs_dtype, "continuous", (action,), action, (), (), low, high)


def played(replay: Replay, feed: Feed, seed: int, steps: int) -> None:
    """Let random events happen, the same for one seed."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        feed.play([EVENTS[k] for k in rng.integers(0, len(EVENTS), replay.num_envs)], replay)


def copy_state(source: Any, target: Any) -> None:
    """Bring a replay or a sampler back as a checkpoint does."""
    for name, array in target.arrays.items():
        array.load([chunk.copy() for chunk in source.arrays[name].chunks()])
    target.load_state_dict(json.loads(json.dumps(source.state_dict())))


def assert_same(one: Replay, other: Replay) -> None:
    """Two replays hold the same and draw the same."""
    assert len(one) == len(other)
    assert one.state_dict() == other.state_dict()
    index = one.draw(np.random.default_rng(5), 64)
    np.testing.assert_array_equal(index, other.draw(np.random.default_rng(5), 64))
    ours, theirs = (replay.gather(index, n_step=3, gamma=GAMMA) for replay in (one, other))
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
