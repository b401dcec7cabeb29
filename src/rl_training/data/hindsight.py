"""Hindsight experience replay (Andrychowicz et al. 2017): what was achieved becomes what was wanted."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rl_training.data.batches import TERMINATED, UNKNOWN, WITHIN, Transitions, Windows, chains_of
from rl_training.data.goal_replay import ACHIEVED, DESIRED, GoalReplay, Strategy
from rl_training.data.memory import ReplayMemory
from rl_training.types import Array


class GoalOutcome(Protocol):
    """What the environment says of a step that achieved something, had something else been wanted."""

    def rewards(self, achieved: Array, desired: Array) -> Array:
        """The rewards `[N]` of steps that achieved goals `[N, ...]` and were to achieve others."""

    def ends(self, achieved: Array, desired: Array) -> Array | None:
        """Whether such steps terminate their episodes `[N]`; None if the environment does not say."""


class HindsightMemory(ReplayMemory):
    """A memory that gives most of what it draws another goal: one that was achieved in the same episode.

    Of every `goals_per_real` + 1 drawn transitions or windows, the first keeps its own goal. The goal of a window is
    chosen for its first transition and holds for all of it. What is stored stays as it is.
    """

    replay: GoalReplay

    def __init__(self, replay: GoalReplay, outcome: GoalOutcome, strategy: Strategy, goals_per_real: int) -> None:
        super().__init__(replay)
        self._outcome, self._strategy, self._period = outcome, strategy, goals_per_real + 1

    def transitions(
        self, count: int, rng: np.random.Generator, *, n_step: int = 1, gamma: float, beta: float = 0.0
    ) -> Transitions:
        """`count` transitions or, with `n_step`, chains of transitions."""
        batch = chains_of(self.windows(count, rng, length=n_step, across_episodes=False, beta=beta), gamma)
        batch.between = None
        return batch

    def windows(
        self, count: int, rng: np.random.Generator, *, length: int, across_episodes: bool, beta: float = 0.0
    ) -> Windows:
        """`count` windows of `length` consecutive steps, which end with their episodes."""
        if across_episodes:
            raise ValueError("windows that run across episodes have no goal in common")
        windows = super().windows(count, rng, length=length, across_episodes=False, beta=beta)
        chosen = np.flatnonzero(np.arange(count) % self._period)
        if chosen.size:
            slots = self.replay.slots_of(windows.index[0, chosen])
            self._relabel(windows, chosen, self.replay.other_goals(slots, self._strategy, rng))
        return windows

    def _relabel(self, windows: Windows, chosen: Array, goals: Array) -> None:
        """Give some windows other goals `[N, ...]`, and the rewards and ends that follow from them."""
        goal, length = self.replay.goal, len(windows.reward)
        achieved, wanted = (_joined(goal(windows.next_obs, name)[:, chosen]) for name in (ACHIEVED, DESIRED))
        for rows in (windows.obs, windows.next_obs):
            goal(rows, DESIRED)[:, chosen] = goals
        desired = _joined(np.broadcast_to(goals, (length, *goals.shape)))
        rewards = self._outcome.rewards(achieved, desired)
        windows.reward[:, chosen] = rewards.reshape(length, -1)
        ends = self._outcome.ends(achieved, desired)
        if ends is None:  # then what is stored stands
            return
        stored = windows.terminated[:, chosen].reshape(-1)
        if stored.any():  # what ended for another reason than its goal would have ended with any
            by_goal = self._outcome.ends(achieved[stored], wanted[stored])
            ends[stored] |= ~np.asarray(by_goal)
        windows.terminated[:, chosen] = ends.reshape(length, -1)
        _end_windows(windows, chosen)


def _joined(rows: Array) -> Array:
    """Rows `[T, N, ...]` as `[T * N, ...]`."""
    return rows.reshape(-1, *rows.shape[2:])


def _end_windows(windows: Windows, chosen: Array) -> None:
    """End windows where they terminate now: from there on they repeat their last transition.

    A window that no longer terminates ends where it did; what would have followed is not known.
    """
    past = windows.past[:, chosen]
    windows.past[:, chosen] = np.where((past == TERMINATED) & ~windows.terminated[:, chosen], UNKNOWN, past)
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    columns = [*(getattr(windows, name) for name in names), *windows.records.values()]
    for t in range(1, len(windows.reward)):
        over = chosen[windows.terminated[t - 1, chosen] & (windows.past[t, chosen] == WITHIN)]
        for rows in columns:
            rows[t:, over] = rows[t - 1, over]
        windows.first[t:, over] = windows.real[t:, over] = False
        windows.past[t:, over], windows.index[t:, over] = TERMINATED, -1
