"""A replay buffer of transitions towards goals, which finds what else was achieved in the episode of a transition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rl_training.data.plain_replay import Change, Replay
from rl_training.ops.kernels.episodes import end_episode, follow_episodes
from rl_training.ops.observations import Unpacker
from rl_training.types import Array, Records, SpaceInfo, Step

Strategy = Literal["future", "final", "episode"]
ACHIEVED, DESIRED = "achieved_goal", "desired_goal"


class GoalReplay(Replay):
    """A replay of observations with an achieved and a desired goal, which knows where episodes begin and end.

    An episode is what is stored of it: it begins with its oldest transition that was not overwritten, and one that is
    still running ends with its newest. All this follows from the stored flags, so it is not saved.
    """

    def __init__(self, info: SpaceInfo, num_envs: int, buffer_size: int, records: Records | None = None) -> None:
        super().__init__(info, num_envs, buffer_size, records)
        self._goals = Unpacker(info)
        self._forget_episodes()

    @classmethod
    def slot_bytes(cls, info: SpaceInfo, records: Records | None = None) -> int:
        """The RAM of one slot, with what is noted of its episode."""
        return super().slot_bytes(info, records) + 8

    def goal(self, rows: Array, name: str) -> Array:
        """One of the two goals in observations `[..., bytes]`, as a view."""
        goal: Array = self._goals.inputs(rows)[name]
        return goal

    def other_goals(self, slots: Array, strategy: Strategy, rng: np.random.Generator) -> Array:
        """For each transition a goal that was achieved in its episode: after it, at the end, or anywhere."""
        ring = self._ring
        positions, envs = np.divmod(slots, self.num_envs)
        newer = (ring.heads[envs] - 1 - positions) % ring.positions
        age, length = self._age[slots], self._length[slots]
        ahead = np.where(length > 0, length - 1 - age, newer)
        if strategy == "final":
            shift = ahead
        else:
            behind = np.minimum(age, ring.counts[envs] - 1 - newer) if strategy == "episode" else 0
            shift = rng.integers(-behind, ahead + 1)
        goals: Array = self.goal(self._store["next_obs"], ACHIEVED)[ring.slots_at(positions + shift, envs)]
        return goals

    def add(self, step: Step) -> Change:
        """Store the real rows of a step; where an environment's ring is full, in place of its oldest ones."""
        change = super().add(step)
        self._follow(change.ready)
        return change

    def fill(self, columns: Mapping[str, Array]) -> None:
        """Replace all contents by transitions in time order, one for each slot."""
        super().fill(columns)
        self._find_episodes()

    def _end_episodes(self, envs: Array) -> None:
        super()._end_episodes(envs)
        for slot in self._ring.slots_at(self._ring.heads[envs] - 1, envs):
            end_episode(slot, self._running, self._length)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same shape; the caller loads `arrays`."""
        super().load_state_dict(state)
        self._find_episodes()

    def _forget_episodes(self) -> None:
        self._running = np.zeros(self.num_envs, np.int64)
        self._age, self._length = np.zeros(self.capacity, np.int32), np.zeros(self.capacity, np.int32)

    def _find_episodes(self) -> None:
        self._forget_episodes()
        self._follow(np.concatenate(self.histories()))

    def _follow(self, slots: Array) -> None:
        flags = self._store["terminated"], self._store["truncated"]
        follow_episodes(slots, *flags, self._running, self._age, self._length)
