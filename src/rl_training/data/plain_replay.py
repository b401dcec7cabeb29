"""A replay buffer: the latest transitions of every environment, all in one array."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.data import replay_files
from rl_training.data.batches import WITHIN, Transitions, Windows
from rl_training.data.checked_files import DamagedError
from rl_training.data.chunks import ChunkedArray
from rl_training.data.columns import Columns
from rl_training.data.records import RecordColumns
from rl_training.data.ring import NO_ROWS, Ring
from rl_training.ops.kernels.n_step import n_step_chains
from rl_training.ops.kernels.windows import walk_windows
from rl_training.types import Array, ArrayKind, Records, SpaceInfo, Step, UserError


class Change(NamedTuple):
    """Slots that can be drawn from now on (if they could before, with new content), and those that no longer can."""

    ready: Array
    gone: Array


class Replay:
    """The latest transitions of every environment, each in a slot of a ring, with the records of the policy.

    Rows that are not real are never stored, so every environment has its own place to write next.
    """

    frame_stack = 1
    _gap = 0  # positions without a transition after the last one of an episode

    def __init__(self, info: SpaceInfo, num_envs: int, buffer_size: int, records: Records | None = None) -> None:
        self.info, self.num_envs = info, num_envs
        self._ring = Ring(num_envs, self.positions_of(info, num_envs, buffer_size))
        self.capacity = self._ring.capacity
        self._columns = self.columns_of(info)
        self._rows = ChunkedArray(self.capacity, (self._columns.row_bytes,), "uint8")
        self._store = self._columns.views(self._rows.data)
        self._by_position = self._columns.views(self._rows.data.reshape(-1, num_envs, self._columns.row_bytes))
        self._records = RecordColumns(records, num_envs, self.capacity) if records else None
        kept = {} if self._records is None else {"records": self._records.rows}
        self.arrays: Mapping[str, ChunkedArray] = {"rows": self._rows, **kept}
        self._batch_kind = (-1, False)
        self._windows_kind = (-1, -1)

    @staticmethod
    def positions_of(info: SpaceInfo, num_envs: int, buffer_size: int) -> int:
        """How long the ring of each environment is."""
        return max(1, buffer_size // num_envs)

    @classmethod
    def bytes_needed(cls, info: SpaceInfo, num_envs: int, buffer_size: int, records: Records | None = None) -> int:
        """The RAM that a full buffer takes, in bytes."""
        return cls.slot_bytes(info, records) * cls.positions_of(info, num_envs, buffer_size) * num_envs

    @classmethod
    def slot_bytes(cls, info: SpaceInfo, records: Records | None = None) -> int:
        """The RAM of one slot, with what is recorded beside it."""
        return cls.columns_of(info).row_bytes + Columns(records or {}).row_bytes

    @staticmethod
    def columns_of(info: SpaceInfo) -> Columns:
        """What a slot holds."""
        obs = ArrayKind(info.obs_shape, info.obs_dtype)
        return Columns(
            {
                "action": info.stored_action,
                "obs": obs,
                "next_obs": obs,
                "reward": ArrayKind((), "float32"),
                "terminated": ArrayKind((), "bool"),
                "truncated": ArrayKind((), "bool"),
            }
        )

    @property
    def records(self) -> Records:
        """What is stored with every transition because the policy declared it."""
        return {} if self._records is None else self._records.kinds

    def __len__(self) -> int:
        return int(self._ring.counts.sum())

    def add(self, step: Step) -> Change:
        """Store the real rows of a step; where an environment's ring is full, in place of its oldest ones."""
        ring, columns = self._ring, self._by_position
        if not ring.even or np.count_nonzero(step.real) < self.num_envs:
            return self._add_rows(step, np.flatnonzero(step.real))
        head, full = int(ring.heads[0]), ring.counts[0] == ring.positions
        if full:  # the oldest transition goes; the next one begins an episode if it was the last of one
            np.logical_or(columns["terminated"][head], columns["truncated"][head], out=ring.begins)
        for name, column in columns.items():
            column[head] = getattr(step, name)
        start, stop = head * self.num_envs, (head + 1) * self.num_envs
        self._rows.touch(start, stop)
        if self._records is not None:
            self._records.add_block(step.records, head)
        if head + 1 < ring.positions:
            ring.heads.fill(head + 1)
        else:
            ring.heads.fill(0)
            ring.turns += 1
        if not full:
            ring.counts += 1
        return Change(np.arange(start, stop), NO_ROWS)

    def fill(self, columns: Mapping[str, Array]) -> None:
        """Replace all contents by transitions in time order, one for each slot."""
        for name, column in self._store.items():
            column[:] = columns[name]
        self._rows.touch(0, self.capacity)
        self._ring.fill()

    def _add_rows(self, step: Step, envs: Array) -> Change:
        ring = self._ring
        slots, full = ring.slots_at(ring.heads[envs], envs), ring.counts[envs] == ring.positions
        ring.begins[envs[full]] = self._ended(slots[full])
        for name, column in self._store.items():
            column[slots] = getattr(step, name)[envs]
        self._rows.touch_rows(slots)
        if self._records is not None:
            self._records.add_rows(step.records, slots, envs)
        ring.advance(envs, ring.heads[envs] + 1)
        ring.counts[envs] += ~full
        ring.compare()
        return Change(slots, NO_ROWS)

    def _ended(self, slots: Array) -> Array:
        """Whether an episode ends with the transitions of some slots."""
        ended: Array = self._store["terminated"][slots] | self._store["truncated"][slots]
        return ended

    def cut(self, mask: Array) -> None:
        """End the episodes of the masked environments after their latest steps; later steps do not continue them."""
        self._end_episodes(np.flatnonzero(mask & (self._ring.counts > 0)))

    def _end_episodes(self, envs: Array) -> None:
        ring, truncated = self._ring, self._store["truncated"]
        newest = ring.slots_at(ring.heads[envs] - 1, envs)
        lost = newest[~self._ended(newest)]
        truncated[lost] = True
        self._rows.touch_rows(newest)
        ring.cuts = np.concatenate([ring.cuts[self.slots_of(ring.cuts) >= 0], ring.numbers_of(lost)])

    def numbers_of(self, slots: Array) -> Array:
        """The numbers of the rows in some slots: unlike a slot, a number never names another row later on."""
        return self._ring.numbers_of(slots)

    def slots_of(self, numbers: Array) -> Array:
        """The slots of the rows with these numbers; -1 where a row is gone or the number is negative."""
        slots = self._ring.slots_of(numbers)
        slots[self._refused(slots)] = -1
        return slots

    def ages_of(self, numbers: Array) -> Array:
        """How many steps were stored since the rows with these numbers: those of its environment, times all."""
        return self._ring.ages_of(numbers)

    def write_records(self, slots: Array, name: str, values: Array) -> None:
        """Write one column of the records of some slots again."""
        assert self._records is not None
        self._records.write(slots, name, values)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """`count` slots; each transition that can be drawn is equally likely."""
        bound = self._draw_bound()
        if bound == 0:
            raise ValueError("there is no transition to draw")
        index = rng.integers(0, bound, count)
        refused = self._refused(index)
        while refused.size:
            again = rng.integers(0, bound, refused.size)
            index[refused] = again
            refused = refused[self._refused(again)]
        return index

    def _draw_bound(self) -> int:
        """All slots that can be drawn are below this."""
        return int(self._ring.counts.max()) * self.num_envs

    def _refused(self, index: Array) -> Array:
        """Where `index` names slots that cannot be drawn."""
        if self._ring.even:
            return NO_ROWS
        return np.flatnonzero(index // self.num_envs >= self._ring.counts[index % self.num_envs])

    def draw_starts(self, rng: np.random.Generator, count: int, length: int) -> Array:
        """`count` slots with at least `length` - 1 newer transitions of the same environment; all equally likely."""
        ring, newest = self._ring, self.newest_starts(length)
        ends = np.cumsum(np.where(newest > 0, self._reach() - newest + 1, 0))
        if ends[-1] == 0:
            raise self.no_window(length)
        slots, left = np.zeros(count, np.int64), np.arange(count)
        while left.size:
            drawn = rng.integers(0, ends[-1], left.size)
            envs = np.searchsorted(ends, drawn, side="right")
            slots[left] = ring.slots_at(ring.heads[envs] - newest[envs] - (ends[envs] - 1 - drawn), envs)
            left = left[self._refused(slots[left])]
        return slots

    def newest_starts(self, length: int) -> Array:
        """For every environment: how far behind its head the newest window of `length` starts, 0 if there is none."""
        return np.where(self._ring.counts >= length, length, 0)

    def too_new(self, length: int) -> Array:
        """The slots with fewer than `length` - 1 newer transitions of the same environment."""
        ring, newest = self._ring, self.newest_starts(length)
        widths = np.where(newest > 0, newest - 1, self._reach())
        envs = np.repeat(np.arange(self.num_envs), widths)
        behind = np.arange(envs.size) - np.repeat(np.cumsum(widths) - widths, widths) + 1
        return ring.slots_at(ring.heads[envs] - behind, envs)

    def window_starts(self, envs: Array, length: int) -> Array:
        """The slots where the newest windows of `length` of some environments start; all of them have one."""
        return self._ring.slots_at(self._ring.heads[envs] - self.newest_starts(length)[envs], envs)

    def no_window(self, length: int) -> Exception:
        """Why no window of this length can be drawn."""
        if length > self._ring.positions:
            reason = f"the replay buffer holds at most {self._ring.positions} steps of each environment"
            return UserError(f"length={length}: {reason}; make the windows shorter or buffer_size larger")
        return ValueError(
            f"length={length}: no environment has stored so many steps yet, only {self._ring.counts.max()}"
        )

    def _reach(self) -> Array:
        """For every environment: how far behind its head its oldest transition is."""
        return self._ring.counts

    def full_rings(self) -> Array:
        """For every environment: whether its ring is full, so that what came before its oldest slot is gone."""
        full: Array = self._ring.counts == self._ring.positions
        return full

    def histories(self) -> list[Array]:
        """For every environment the slots that can be drawn, from the oldest to the newest."""
        positions = np.arange(self._ring.positions)
        found = []
        for env, head in enumerate(self._ring.heads):
            slots = self._ring.slots_at(head + positions, np.asarray(env))
            slots = slots[slots < self._draw_bound()]
            found.append(np.delete(slots, self._refused(slots)))
        return found

    def gather(self, index: Array, *, n_step: int = 1, gamma: float) -> Transitions:
        """The transitions of some slots, `[N, ...]`, valid until the next call; or the chains that begin there.

        A chain has `n_step` transitions; it ends early with its episode, and with the newest transition.
        """
        chained = n_step > 1
        if self._batch_kind != (index.size, chained):
            self._make_batch(index.size, chained)
        batch, store = self._batch, self._store
        if chained:
            flags = store["terminated"], store["truncated"]
            outcome = self._last, batch.reward, batch.discount
            n_step_chains(index, store["reward"], *flags, self._ring.heads, n_step, gamma, *outcome)
            self._take(self._last, self._last_rows)
        else:
            batch.discount.fill(gamma)
        self._take(index, self._first_rows)
        if self._records is not None:
            self._records.take(index, self._record_rows)
        batch.weight = batch.index = None
        return batch

    def _make_batch(self, size: int, chained: bool) -> None:
        """Make the arrays that `gather` fills: rows of the first and, in chains, the last transitions, and views."""
        self._batch_kind = (size, chained)
        self._last = np.zeros(size, np.int64)
        self._first_rows = self._new_rows(size)
        self._last_rows = self._new_rows(size) if chained else self._first_rows
        obs, _, first = self._read(self._first_rows)
        _, next_obs, last = self._read(self._last_rows)
        view = self._columns.view
        reward = np.zeros(size, np.float32) if chained else view(first, "reward")
        flags = view(last, "terminated"), view(last, "truncated")
        self._batch = Transitions(obs, view(first, "action"), reward, next_obs, *flags, np.zeros(size, np.float32))
        if self._records is not None:
            self._record_rows, self._batch.records = self._records.new_rows(size)

    def _new_rows(self, size: int) -> Array:
        return np.zeros((size, self._columns.row_bytes), np.uint8)

    def _read(self, rows: Array) -> tuple[Array, Array, Array]:
        """Observations, successors, and the rows of the transitions themselves, of what `_take` copied."""
        return self._columns.view(rows, "obs"), self._columns.view(rows, "next_obs"), rows

    def _take(self, index: Array, rows: Array) -> None:
        np.take(self._rows.data, index, axis=0, out=rows, mode="clip")

    def gather_windows(self, starts: Array, length: int, *, across_episodes: bool) -> Windows:
        """The `length` steps from each of some slots on, `[length, N, ...]`, valid until the next call.

        A window ends with the newest transition and, unless it may run on `across_episodes`, with its episode: its
        other rows are not real.
        """
        if self._windows_kind != (length, starts.size):
            self._make_windows(length, starts.size)
        windows, store, ring, slots = self._windows, self._store, self._ring, self._window_slots
        walk_windows(
            starts,
            store["terminated"],
            store["truncated"],
            ring.heads,
            ring.turns,
            ring.cuts,
            self._gap,
            across_episodes,
            slots,
            windows.first,
            windows.past,
            windows.index,
        )
        windows.first[0] = self._begin_episodes(starts)
        np.equal(windows.past, WITHIN, out=windows.real)
        self._take(slots.reshape(-1), self._window_rows)
        if self._records is not None:
            self._records.take(slots.reshape(-1), self._window_records)
        windows.weight = None
        return windows

    def _make_windows(self, length: int, count: int) -> None:
        """Make the arrays that `gather_windows` fills, and views of them with time first."""
        self._windows_kind = shape = (length, count)
        self._window_slots = np.zeros(shape, np.int64)
        self._window_rows = self._new_rows(length * count)
        obs, next_obs, rows = self._read(self._window_rows)
        columns = {"obs": obs, "next_obs": next_obs}
        columns |= {name: self._columns.view(rows, name) for name in ("action", "reward", "terminated", "truncated")}
        records: dict[str, Array] = {}
        if self._records is not None:
            self._window_records, records = self._records.new_rows(length * count)

        def timed(flat: dict[str, Array]) -> dict[str, Array]:
            return {name: array.reshape(*shape, *array.shape[1:]) for name, array in flat.items()}

        self._windows = Windows(
            **timed(columns),
            first=np.zeros(shape, np.bool_),
            real=np.zeros(shape, np.bool_),
            past=np.zeros(shape, np.uint8),
            weight=None,
            index=np.zeros(shape, np.int64),
            records=timed(records),
        )

    def _begin_episodes(self, slots: Array) -> Array:
        """Whether an episode begins with the transitions of some slots."""
        ring = self._ring
        envs, before = slots % self.num_envs, slots - self.num_envs
        oldest = ring.slots_at(ring.heads[envs] - ring.counts[envs], envs) == slots
        return np.where(oldest, ring.begins[envs], self._ended(before % self.capacity))

    def state_dict(self) -> dict[str, Any]:
        """Everything but `arrays`."""
        return self._shape() | self._ring.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same shape; the caller loads `arrays`."""
        for name, mine in ({"records": None} | self._shape()).items():
            there = state.get(name)
            if there != mine:
                raise UserError(f"the saved replay does not fit: {name} is {there!r} there and {mine!r} here")
        self._ring.load_state_dict(state)

    def _shape(self) -> dict[str, Any]:
        shape = {"num_envs": self.num_envs, "buffer_size": self.capacity, "columns": self._columns.describe()}
        return shape if self._records is None else shape | {"records": self._records.columns.describe()}

    def save(self, folder: str | Path) -> Path:
        """Write the replay buffer into a new folder, which must not exist yet."""
        description = {"info": self.info.to_dict(), "frame_stack": self.frame_stack, "state": self.state_dict()}
        return replay_files.write_folder(folder, description, self.arrays)

    @staticmethod
    def load(folder: str | Path) -> Replay:
        """Read what `save` wrote; nothing in the folder is executed."""
        from rl_training.data.replay import replay_like

        folder = Path(folder)
        try:
            saved, files = replay_files.read_description(folder)
            info, state = replay_files.read_info(saved["info"]), saved["state"]
            replay = replay_like(info, state, saved["frame_stack"])
            replay_files.load_arrays(folder, files, replay.arrays)
            replay.load_state_dict(state)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{str(folder)!r}: is not a saved replay, or is damaged ({error!s:.200})") from None
        except UserError as error:  # one of a damaged file names it
            raise error if isinstance(error, DamagedError) else UserError(f"{str(folder)!r}: {error}") from None
        return replay
