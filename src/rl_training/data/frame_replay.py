"""A replay buffer of stacked images that keeps every frame once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.data.columns import Columns
from rl_training.data.plain_replay import Change, Replay
from rl_training.data.ring import read_numbers
from rl_training.ops.kernels.windows import newest_starts
from rl_training.types import Array, ArrayKind, Records, SpaceInfo, Step


class FrameReplay(Replay):
    """A replay of stacks of frames, uint8 `[frame_stack, *frame]`, that keeps every frame once.

    A slot holds the newest frame of an observation and the rest of its transition; its `age` is the number of steps
    since the episode began, at most frame_stack - 1. The stack of slot i consists of the frames i - min(j, age) for
    j = frame_stack - 1, ..., 0, since the first frame of an episode stands for those before it. The successor of slot i
    ends with the frame of slot i + 1, which is written together with slot i. While the episode goes on, the next step
    takes that slot over; at its end, the slot is kept for its frame only and is never drawn.
    """

    _gap = 1

    def __init__(
        self, info: SpaceInfo, num_envs: int, buffer_size: int, frame_stack: int, records: Records | None = None
    ) -> None:
        if info.obs_shape[0] != frame_stack:
            raise ValueError(f"observations {info.obs_shape} are not stacks of {frame_stack} frames")
        super().__init__(info, num_envs, buffer_size, records)
        self.frame_stack = frame_stack
        self._ages = np.zeros(num_envs, np.int64)  # the age of what is written next

    @staticmethod
    def positions_of(info: SpaceInfo, num_envs: int, buffer_size: int) -> int:
        """The length of each ring: at least frame_stack + 1, so that a transition can always be drawn."""
        return max(info.obs_shape[0] + 1, buffer_size // num_envs)

    @staticmethod
    def columns_of(info: SpaceInfo) -> Columns:
        """What a slot holds; `ready` says whether it can be drawn."""
        return Columns(
            {
                "action": info.stored_action,
                "frame": ArrayKind(info.obs_shape[1:], "uint8"),
                "reward": ArrayKind((), "float32"),
                "age": ArrayKind((), "int32"),
                "terminated": ArrayKind((), "bool"),
                "truncated": ArrayKind((), "bool"),
                "ready": ArrayKind((), "bool"),
            }
        )

    def add(self, step: Step) -> Change:
        """Store the real rows of a step, and the newest frames of their successors in the slots after them."""
        envs, ring, store = np.flatnonzero(step.real), self._ring, self._store
        heads = ring.heads[envs]
        slots, after = ring.slots_at(heads, envs), ring.slots_at(heads + 1, envs)
        replaced = store["ready"][slots]
        store["frame"][slots], store["frame"][after] = step.obs[envs, -1], step.next_obs[envs, -1]
        for name in ("action", "reward", "terminated", "truncated"):
            store[name][slots] = getattr(step, name)[envs]
        store["age"][slots], store["ready"][slots] = self._ages[envs], True
        if self._records is not None:
            self._records.add_rows(step.records, slots, envs)
        lost = self._lose_frames(heads + 1, envs)
        self._rows.touch_rows(np.concatenate([slots, after, lost]))
        ring.counts[envs] += ~replaced
        ring.counts -= np.bincount(lost % self.num_envs, minlength=self.num_envs)
        done = step.terminated[envs] | step.truncated[envs]
        ring.advance(envs, heads + 1 + done)
        self._ages[envs] = np.where(done, 0, np.minimum(self._ages[envs] + 1, self.frame_stack - 1))
        return Change(slots, lost)

    def _lose_frames(self, newest: Array, envs: Array) -> Array:
        """The slots that can no longer be drawn, since the newest position of each environment took their frames."""
        distance = np.arange(self.frame_stack)
        slots = self._ring.slots_at(newest[:, None] + distance, envs[:, None])
        slots = slots[self._store["ready"][slots] & (self._store["age"][slots] >= distance)]
        self._store["ready"][slots] = False
        return slots

    def cut(self, mask: Array) -> None:
        """End the episodes of the masked environments after their latest steps; later steps do not continue them."""
        envs = np.flatnonzero(mask & (self._ages > 0))
        self._end_episodes(envs)
        self._ring.advance(envs, self._ring.heads[envs] + 1)
        self._ages[envs] = 0

    def _draw_bound(self) -> int:
        return self._rows.used

    def _refused(self, index: Array) -> Array:
        return np.flatnonzero(~self._store["ready"][index])

    def newest_starts(self, length: int) -> Array:
        """For every environment: how far behind its head the newest window of `length` starts, 0 if there is none."""
        behind = np.zeros(self.num_envs, np.int64)
        newest_starts(self._store["ready"], self._ring.heads, length, behind)
        return behind

    def _reach(self) -> Array:
        """At least how far behind the heads the oldest transitions are."""
        ring = self._ring
        reach: Array = np.minimum(ring.turns * ring.positions + ring.heads, ring.positions)
        return reach

    def _begin_episodes(self, slots: Array) -> Array:
        begins: Array = self._store["age"][slots] == 0
        return begins

    def _new_rows(self, size: int) -> Array:
        return np.zeros((size, self.frame_stack + 1, self._columns.row_bytes), np.uint8)

    def _read(self, rows: Array) -> tuple[Array, Array, Array]:
        frames = self._columns.view(rows, "frame")
        return frames[:, :-1], frames[:, 1:], rows[:, -2]

    def _take(self, index: Array, rows: Array) -> None:
        """Copy the rows of a transition's stack, oldest first, and after them the one of its successor's frame."""
        age = self._store["age"][index][:, None]
        shift = np.maximum(np.arange(1 - self.frame_stack, 2), -age)
        super()._take((index[:, None] + shift * self.num_envs) % self.capacity, rows)

    def state_dict(self) -> dict[str, Any]:
        """Everything but `arrays`."""
        return super().state_dict() | {"ages": self._ages.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same shape; the caller loads `arrays`."""
        super().load_state_dict(state)
        self._ages[:] = read_numbers(state, "ages", self._ages.shape, self.frame_stack - 1)
