"""The memory of the off-policy loop: a ring of transitions per environment, all in one array."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.data import replay_files
from rl_training.data.chunks import ChunkedArray
from rl_training.data.columns import Columns
from rl_training.data.ram import available_memory, readable
from rl_training.ops.kernels.n_step import n_step_chains
from rl_training.types import Array, SpaceInfo, Step, UserError

_LOG = logging.getLogger("rl_training")
_NONE = np.zeros(0, np.int64)


class Change(NamedTuple):
    """Which slots can be drawn from now on (if they could before, then with other content), and which no longer can."""

    ready: Array
    gone: Array


class Replay:
    """The latest transitions of every environment; position p of environment e is slot p * num_envs + e.

    Rows that are not real are never stored, so every environment has its own place to write next.
    """

    frame_stack = 1

    def __init__(self, info: SpaceInfo, num_envs: int, buffer_size: int) -> None:
        self.info, self.num_envs = info, num_envs
        self._positions = self.positions_of(info, num_envs, buffer_size)
        self.capacity = self._positions * num_envs
        self._columns = self.columns_of(info)
        self._rows = ChunkedArray(self.capacity, (self._columns.row_bytes,), "uint8")
        self._store = self._columns.views(self._rows.data)
        self._by_position = self._columns.views(self._rows.data.reshape(self._positions, num_envs, -1))
        self.memory: Mapping[str, ChunkedArray] = {"rows": self._rows}
        self._heads = np.zeros(num_envs, np.int64)  # the position that is written next
        self._counts = np.zeros(num_envs, np.int64)  # how many transitions can be drawn
        self._even = True  # whether these are the same for all environments: then a step is one block of rows
        self._batch_kind = (-1, False)

    @staticmethod
    def positions_of(info: SpaceInfo, num_envs: int, buffer_size: int) -> int:
        """How long the ring of each environment is."""
        return max(1, buffer_size // num_envs)

    @staticmethod
    def columns_of(info: SpaceInfo) -> Columns:
        """What a slot holds."""
        obs = (info.obs_shape, info.obs_dtype)
        return Columns(
            {
                "action": info.stored_action,
                "obs": obs,
                "next_obs": obs,
                "reward": ((), "float32"),
                "terminated": ((), "bool"),
                "truncated": ((), "bool"),
            }
        )

    def __len__(self) -> int:
        return int(self._counts.sum())

    def add(self, step: Step) -> Change:
        """Store the real rows of a step; where an environment's ring is full, in place of its oldest ones."""
        if not self._even or np.count_nonzero(step.real) < self.num_envs:
            return self._add_rows(step, np.flatnonzero(step.real))
        head = int(self._heads[0])
        for name, column in self._by_position.items():
            column[head] = getattr(step, name)
        start, stop = head * self.num_envs, (head + 1) * self.num_envs
        self._rows.touch(start, stop)
        self._heads.fill(head + 1 if head + 1 < self._positions else 0)
        if self._counts[0] < self._positions:
            self._counts += 1
        return Change(np.arange(start, stop), _NONE)

    def fill(self, columns: Mapping[str, Array]) -> None:
        """Take transitions in time order, as many as there is room for, in place of all that there were."""
        for name, column in self._store.items():
            column[:] = columns[name]
        self._rows.touch(0, self.capacity)
        self._heads[:], self._counts[:], self._even = 0, self._positions, True

    def _add_rows(self, step: Step, envs: Array) -> Change:
        slots = self._slots_at(self._heads[envs], envs)
        for name, column in self._store.items():
            column[slots] = getattr(step, name)[envs]
        self._rows.touch_rows(slots)
        self._heads[envs] = (self._heads[envs] + 1) % self._positions
        self._counts[envs] = np.minimum(self._counts[envs] + 1, self._positions)
        self._even = self._is_even()
        return Change(slots, _NONE)

    def _is_even(self) -> bool:
        return bool((self._heads == self._heads[0]).all() and (self._counts == self._counts[0]).all())

    def _slots_at(self, positions: Array, envs: Array) -> Array:
        return positions % self._positions * self.num_envs + envs

    def cut(self, mask: Array) -> None:
        """End the episodes of the masked environments with what they last did: nothing that comes follows from it."""
        self._end_episodes(np.flatnonzero(mask & (self._counts > 0)))

    def _end_episodes(self, envs: Array) -> None:
        newest = self._slots_at(self._heads[envs] - 1, envs)
        self._store["truncated"][newest] |= ~self._store["terminated"][newest]
        self._rows.touch_rows(newest)

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
        return int(self._counts.max()) * self.num_envs

    def _refused(self, index: Array) -> Array:
        """Where `index` names slots that cannot be drawn."""
        if self._even:
            return _NONE
        return np.flatnonzero(index // self.num_envs >= self._counts[index % self.num_envs])

    def histories(self) -> list[Array]:
        """For every environment the slots that can be drawn, from the oldest to the newest."""
        positions = np.arange(self._positions)
        found = []
        for env, head in enumerate(self._heads):
            slots = self._slots_at(head + positions, np.asarray(env))
            slots = slots[slots < self._draw_bound()]
            found.append(np.delete(slots, self._refused(slots)))
        return found

    def gather(self, index: Array, *, n_step: int = 1, gamma: float) -> Step:
        """The transitions of some slots, `[N, ...]`, valid until the next call.

        With `n_step` each is the first of a chain: its reward is their discounted sum, its successor and its flags
        are those of the last one. A chain that ends early bootstraps from there: `extras["discount"]` is gamma to the
        power of its real length.
        """
        chained = n_step > 1
        if self._batch_kind != (index.size, chained):
            self._make_batch(index.size, chained)
        batch, store = self._batch, self._store
        discount = batch.extras["discount"]
        if chained:
            flags = store["terminated"], store["truncated"]
            n_step_chains(
                index, store["reward"], *flags, self._heads, n_step, gamma, self._last, batch.reward, discount
            )
            self._take(self._last, self._last_rows)
        else:
            discount.fill(gamma)
        self._take(index, self._first_rows)
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
        flags = view(last, "terminated"), view(last, "truncated"), np.ones(size, np.bool_)
        extras = {"discount": np.zeros(size, np.float32)}
        self._batch = Step(obs, view(first, "action"), reward, next_obs, *flags, extras)

    def _new_rows(self, size: int) -> Array:
        return np.zeros((size, self._columns.row_bytes), np.uint8)

    def _read(self, rows: Array) -> tuple[Array, Array, Array]:
        """Observations, successors, and the rows of the transitions themselves, of what `_take` copied."""
        return self._columns.view(rows, "obs"), self._columns.view(rows, "next_obs"), rows

    def _take(self, index: Array, rows: Array) -> None:
        np.take(self._rows.data, index, axis=0, out=rows, mode="clip")

    def state_dict(self) -> dict[str, Any]:
        """Everything but `memory`."""
        return self._shape() | {name: array.tolist() for name, (array, _) in self._progress().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of the same shape; `memory` is loaded by whoever saved it."""
        for name, mine in self._shape().items():
            if state.get(name) != mine:
                there = state.get(name)
                raise UserError(f"the saved replay does not fit: {name} is {there!r} there and {mine!r} here")
        for name, (array, most) in self._progress().items():
            saved = np.asarray(state.get(name))
            if saved.shape != array.shape or saved.dtype.kind != "i" or saved.min() < 0 or saved.max() > most:
                raise UserError(f"the saved replay is damaged: {name} is {state.get(name)!r}")
            array[:] = saved
        self._even = self._is_even()

    def _shape(self) -> dict[str, Any]:
        return {"num_envs": self.num_envs, "buffer_size": self.capacity, "columns": self._columns.describe()}

    def _progress(self) -> dict[str, tuple[Array, int]]:
        """What each environment's ring has come to, and how large these numbers can be."""
        return {"heads": (self._heads, self._positions - 1), "counts": (self._counts, self._positions)}

    def save(self, folder: str | Path) -> Path:
        """Write all of it into a folder of its own, which must not be there yet."""
        description = {
            "info": self.info.to_dict(),
            "frame_stack": self.frame_stack,
            "state": self.state_dict(),
        }
        return replay_files.write_folder(folder, description, self.memory)

    @staticmethod
    def load(folder: str | Path) -> Replay:
        """What `save` wrote; nothing in the folder is executed."""
        folder = Path(folder)
        try:
            saved = replay_files.read_description(folder)
            info, state = replay_files.read_info(saved["info"]), saved["state"]
            replay = make_replay(info, state["num_envs"], state["buffer_size"], saved["frame_stack"])
            replay_files.read_memory(folder, saved, replay.memory)
            replay.load_state_dict(state)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{str(folder)!r}: is not a saved replay, or is damaged ({error})") from None
        return replay


class FrameReplay(Replay):
    """A replay of stacks of frames, uint8 `[frame_stack, *frame]`, that keeps every frame once.

    A slot holds the newest frame of an observation and what was done then; its `age` is how many steps its episode is
    old, at most frame_stack - 1. The stack of slot i is made of the frames i - min(j, age) for j = frame_stack - 1,
    ..., 0, since the first frame of an episode stands for those before it. The successor of slot i ends with the
    frame of slot i + 1, which is written together with slot i: as long as the episode goes on, the next step takes
    that slot over; when it is over, the slot stays for its frame alone and is never drawn.
    """

    def __init__(self, info: SpaceInfo, num_envs: int, buffer_size: int, frame_stack: int) -> None:
        if info.obs_shape[0] != frame_stack:
            raise ValueError(f"observations {info.obs_shape} are not stacks of {frame_stack} frames")
        super().__init__(info, num_envs, buffer_size)
        self.frame_stack = frame_stack
        self._ages = np.zeros(num_envs, np.int64)  # the age of what is written next

    @staticmethod
    def positions_of(info: SpaceInfo, num_envs: int, buffer_size: int) -> int:
        """At least as many as the newest transition has frames, so that there is always one that can be drawn."""
        return max(info.obs_shape[0] + 1, buffer_size // num_envs)

    @staticmethod
    def columns_of(info: SpaceInfo) -> Columns:
        """What a slot holds; `ready` says whether it can be drawn."""
        return Columns(
            {
                "action": info.stored_action,
                "frame": (info.obs_shape[1:], "uint8"),
                "reward": ((), "float32"),
                "age": ((), "int32"),
                "terminated": ((), "bool"),
                "truncated": ((), "bool"),
                "ready": ((), "bool"),
            }
        )

    def add(self, step: Step) -> Change:
        """Store the real rows of a step, and the newest frames of their successors in the slots after them."""
        envs = np.flatnonzero(step.real)
        store, heads = self._store, self._heads[envs]
        slots, after = self._slots_at(heads, envs), self._slots_at(heads + 1, envs)
        replaced = store["ready"][slots]
        store["frame"][slots], store["frame"][after] = step.obs[envs, -1], step.next_obs[envs, -1]
        for name in ("action", "reward", "terminated", "truncated"):
            store[name][slots] = getattr(step, name)[envs]
        store["age"][slots], store["ready"][slots] = self._ages[envs], True
        lost = self._lose_frames(heads + 1, envs)
        self._rows.touch_rows(np.concatenate([slots, after, lost]))
        self._counts[envs] += ~replaced
        self._counts -= np.bincount(lost % self.num_envs, minlength=self.num_envs)
        done = step.terminated[envs] | step.truncated[envs]
        self._heads[envs] = (heads + 1 + done) % self._positions
        self._ages[envs] = np.where(done, 0, np.minimum(self._ages[envs] + 1, self.frame_stack - 1))
        return Change(slots, lost)

    def _lose_frames(self, newest: Array, envs: Array) -> Array:
        """The slots that can no longer be drawn, since the newest position of each environment took their frames."""
        distance = np.arange(self.frame_stack)
        slots = self._slots_at(newest[:, None] + distance, envs[:, None])
        slots = slots[self._store["ready"][slots] & (self._store["age"][slots] >= distance)]
        self._store["ready"][slots] = False
        return slots

    def cut(self, mask: Array) -> None:
        """End the episodes of the masked environments with what they last did: nothing that comes follows from it."""
        envs = np.flatnonzero(mask & (self._ages > 0))
        self._end_episodes(envs)
        self._heads[envs] = (self._heads[envs] + 1) % self._positions
        self._ages[envs] = 0

    def _draw_bound(self) -> int:
        return self._rows.used

    def _refused(self, index: Array) -> Array:
        return np.flatnonzero(~self._store["ready"][index])

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

    def _progress(self) -> dict[str, tuple[Array, int]]:
        return super()._progress() | {"ages": (self._ages, self.frame_stack - 1)}


def replay_of(info: SpaceInfo, **columns: Array) -> Replay:
    """A replay that is full of given transitions, in time order: a column `[N, ...]` for each field of a `Step`."""
    replay = Replay(info, 1, len(columns["reward"]))
    replay.fill(columns)
    return replay


def _kind(info: SpaceInfo, frame_stack: int) -> type[Replay]:
    frames = frame_stack > 1 and info.obs_dtype == "uint8" and not info.packed
    return FrameReplay if frames else Replay


def bytes_needed(info: SpaceInfo, num_envs: int, buffer_size: int, frame_stack: int) -> int:
    """How much memory a replay takes when it is full."""
    kind = _kind(info, frame_stack)
    return kind.columns_of(info).row_bytes * kind.positions_of(info, num_envs, buffer_size) * num_envs


def make_replay(info: SpaceInfo, num_envs: int, buffer_size: int, frame_stack: int) -> Replay:
    """The replay that suits the observations; its size is said before it is made, and refused if it does not fit."""
    needed, available = bytes_needed(info, num_envs, buffer_size, frame_stack), available_memory()
    if available is not None and needed > available:
        per_slot = _kind(info, frame_stack).columns_of(info).row_bytes
        raise UserError(
            f"buffer_size={buffer_size}: needs {readable(needed)} of memory, and {readable(available)} are available; "
            f"at most {available // per_slot // num_envs * num_envs} fit"
        )
    _LOG.info("the replay of %d transitions takes up to %s of memory", buffer_size, readable(needed))
    if _kind(info, frame_stack) is FrameReplay:
        return FrameReplay(info, num_envs, buffer_size, frame_stack)
    return Replay(info, num_envs, buffer_size)
