"""A memory next to plain lists of all that was ever added to it, from which loops compute what it must return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replay_feed import (
    GAMMA,
    RECORDS,
    Feed,
    Transition,
    check_chains,
    copy_state,
    info_of,
    stored_slots,
    whole_stacks,
)
from rl_training.data.batches import TERMINATED, TRUNCATED, UNKNOWN, WITHIN, Transitions, Windows
from rl_training.data.memory import ReplayMemory
from rl_training.data.replay import FrameReplay, Replay
from rl_training.data.samplers import Sampler
from rl_training.types import ArrayKind, ObsPart, SpaceInfo

STACK = 3
PACKED = SpaceInfo((12,), "uint8", "discrete", (), 4, (4,), (0,), parts=(ObsPart("a", (2,), "float32"),), mask_size=4)
Row = tuple[int, int]  # an environment, and which of its transitions


def _vector(episode: list[int]) -> np.ndarray:
    return np.array([episode[-1], -len(episode)], np.float32)


def _packed(episode: list[int]) -> np.ndarray:
    return np.frombuffer(_vector(episode).tobytes() + bytes([1, 0, len(episode) % 2, 1]), np.uint8)


def _stack(episode: list[int]) -> np.ndarray:
    """The newest frames of an episode, of which the first stands for those that are not there."""
    states = [episode[max(0, len(episode) - 1 - back)] for back in range(STACK - 1, -1, -1)]
    return np.array([[[state % 256, state // 256]] for state in states], np.uint8)


KINDS: dict[str, tuple[SpaceInfo, Callable[[list[int]], np.ndarray]]] = {
    "vector": (info_of((2,)), _vector),
    "dict": (PACKED, _packed),
    "frames": (info_of((STACK, 1, 2), "uint8"), _stack),
}


class World:
    """Environments that play events, the memory that they are added to, and what it should hold."""

    def __init__(
        self,
        kind: str,
        num_envs: int,
        positions: int,
        sampler: Callable[[Replay], Sampler] | None = None,
        records: dict[str, ArrayKind] | None = RECORDS,
    ) -> None:
        self.info, show = KINDS[kind]
        self.frames, self.num_envs = kind == "frames", num_envs
        self.positions = max(positions, STACK + 1) if self.frames else positions
        self.sampler, self.records = sampler, records
        self.feed = Feed(num_envs, show)
        self.memory = self.new_memory()
        self.name_of: dict[Row, int] = {}  # all that were ever given
        self.row_of: dict[int, Row] = {}
        self._slots: dict[int, Row] | None = None  # until the next step

    def new_memory(self) -> ReplayMemory:
        size = self.positions * self.num_envs
        if self.frames:
            replay: Replay = FrameReplay(self.info, self.num_envs, size, STACK, self.records)
        else:
            replay = Replay(self.info, self.num_envs, size, self.records)
        return ReplayMemory(replay, None if self.sampler is None else self.sampler(replay))

    def restart(self) -> None:
        """Go on with a memory that was brought back from what a checkpoint holds."""
        restored = self.new_memory()
        for name, part in self.memory.parts.items():
            copy_state(part, restored.parts[name])
        self.memory = restored

    def play(self, events: Sequence[str]) -> list[Row]:
        """One step of all environments; returns the rows that it added."""
        step, cut = self.feed.step(events)
        self._slots = None
        self.memory.add(step)
        if cut.any():
            self.memory.cut(cut)
        return [(env, len(self.feed.stored[env]) - 1) for env, event in enumerate(events) if event != "unreal"]

    def slots(self) -> dict[int, Row]:
        """What is in every slot that can be drawn."""
        if self._slots is None:
            stacks = self.frames and whole_stacks(self.feed, self.positions, STACK)
            self._slots = stacks or stored_slots(self.feed, self.positions)
        return self._slots

    def starts(self, length: int) -> dict[int, Row]:
        """The slots with enough newer transitions for a window that runs across episodes."""
        stored = self.feed.stored
        return {slot: (env, n) for slot, (env, n) in self.slots().items() if n + length <= len(stored[env])}

    def named(self, name: int) -> Row:
        """Which row a name stands for: it has never stood for another one, and the row has never had another name."""
        row = self.slots()[name % self.memory.replay.capacity]
        assert self.name_of.setdefault(row, name) == name
        assert self.row_of.setdefault(name, row) == row
        return row

    def there(self, name: int) -> Transition | None:
        """The row of a name, if it can still be drawn."""
        row = self.row_of[name] if name in self.row_of else self.named(name)
        return self.feed.stored[row[0]][row[1]] if row in self.slots().values() else None

    def check_transitions(self, batch: Transitions, n_step: int) -> list[Row]:
        assert batch.index is not None
        rows = [self.named(name) for name in batch.index.tolist()]
        check_chains(batch, [self.feed.chain(*row, n_step) for row in rows])
        firsts = [self.feed.stored[env][number] for env, number in rows]
        for name, kind in RECORDS.items():
            assert batch.records[name].dtype == kind.dtype
            np.testing.assert_array_equal(batch.records[name], [first.records[name] for first in firsts])
        return rows

    def check_windows(self, windows: Windows, *, across: bool) -> list[Row]:
        """Compare windows with what follows their first rows in the lists; returns these first rows."""
        rows = [self.named(name) for name in windows.index[0].tolist()]
        for b, row in enumerate(rows):
            self._check_window(windows, b, row, across)
        assert (windows.first.dtype, windows.real.dtype, windows.past.dtype) == (np.bool_, np.bool_, np.uint8)
        assert len(windows) == len(rows)
        return rows

    def _check_window(self, windows: Windows, b: int, row: Row, across: bool) -> None:
        env, number = row
        reason, stored = WITHIN, self.feed.stored[env]
        for t in range(len(windows.reward)):
            if t > 0 and reason == WITHIN:
                ended = stored[number]
                if ended.last and not across:
                    reason = TERMINATED if ended.terminated else UNKNOWN if ended.lost else TRUNCATED
                elif number + 1 == len(stored):
                    reason = UNKNOWN
                else:
                    number += 1
            self._check_row(windows, t, b, stored[number])
            assert windows.past[t, b] == reason
            assert windows.real[t, b] == (reason == WITHIN)
            assert windows.first[t, b] == (reason == WITHIN and stored[number].age == 0)
            if reason == WITHIN:
                assert self.named(int(windows.index[t, b])) == (env, number)
            else:
                assert windows.index[t, b] == -1

    def _check_row(self, windows: Windows, t: int, b: int, expected: Transition) -> None:
        for name in ("obs", "action", "reward", "next_obs", "terminated"):
            assert np.array_equal(getattr(windows, name)[t, b], getattr(expected, name)), name
        assert windows.truncated[t, b] == (expected.truncated or expected.lost)
        for name, values in windows.records.items():
            assert np.array_equal(values[t, b], expected.records[name]), name

    def write_back(self, names: np.ndarray, rng: np.random.Generator) -> None:
        """Write new records for some names, whether their rows are still there or not."""
        columns: dict[str, Any] = {
            "latent": rng.standard_normal((*names.shape, 2)).astype(np.float32),
            "visits": rng.integers(0, 99, names.shape),
        }
        self.memory.note(names, columns=columns)
        for place in np.ndindex(names.shape):
            row = None if names[place] < 0 else self.there(int(names[place]))
            if row is not None:
                row.records = {name: values[place].copy() for name, values in columns.items()}


def draw_transitions(world: World, rng: np.random.Generator, count: int, n_step: int = 1) -> Transitions:
    """Transitions, compared with the lists."""
    batch = world.memory.transitions(count, rng, n_step=n_step, gamma=GAMMA, beta=0.4)
    world.check_transitions(batch, n_step)
    return batch
