"""Samplers: they decide which transitions or windows of a replay buffer an update learns from."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rl_training.data.chunks import ChunkedArray
from rl_training.data.replay import Change, Replay
from rl_training.ops.kernels.sum_tree import find_leaves, new_tree, set_leaves, sum_up
from rl_training.types import Array, UserError

Draw = tuple[Array, Array | None]  # slots to learn from, and the weight of each in the loss (None: all the same)


class Sampler(Protocol):
    """Decides which slots of a replay are drawn."""

    arrays: Mapping[str, ChunkedArray]
    uses_errors: bool  # whether the errors of one minibatch affect which slots the next one draws

    def changed(self, change: Change) -> None:
        """Take note of what `Replay.add` changed."""

    def draw(self, rng: np.random.Generator, count: int, beta: float) -> Draw:
        """The slots of transitions."""

    def draw_windows(self, rng: np.random.Generator, count: int, length: int, *, across: bool, beta: float) -> Draw:
        """The slots where windows of `length` steps start.

        A window that runs `across` episodes starts where at least `length` steps are stored from there on; any other
        one starts at any transition.
        """

    def update(self, index: Array, td_error: Array, alpha: float) -> None:
        """Take note of how wrong the predictions for some slots were."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class UniformSampler:
    """Every transition is equally likely; it has no state."""

    uses_errors = False

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.arrays: Mapping[str, ChunkedArray] = {}

    def changed(self, change: Change) -> None:
        """There is nothing to note."""

    def draw(self, rng: np.random.Generator, count: int, beta: float = 0.0) -> Draw:
        """The slots of transitions; they have no weights."""
        return self._replay.draw(rng, count), None

    def draw_windows(
        self, rng: np.random.Generator, count: int, length: int, *, across: bool, beta: float = 0.0
    ) -> Draw:
        """The slots where windows start; they have no weights."""
        return self._replay.draw_starts(rng, count, length) if across else self._replay.draw(rng, count), None

    def update(self, index: Array, td_error: Array, alpha: float) -> None:
        """There is nothing to note."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to load."""


class PrioritizedSampler:
    """Transitions with large TD errors are drawn more often (Schaul et al. 2016, proportional).

    A transition is drawn in proportion to its priority, (|td_error| + 1e-6)**alpha; a new one has the largest priority
    so far, so that it is drawn soon. The weights correct the bias, fully at beta = 1. The priority of a
    window is that of the transition it starts with.
    """

    uses_errors = True

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._tree = new_tree(replay.capacity)
        self._leaves = ChunkedArray(replay.capacity, (), "float64")
        start = self._tree.size // 2
        self._leaves.data = self._tree[start : start + replay.capacity]  # a view: the tree's own leaves are saved
        self.arrays: Mapping[str, ChunkedArray] = {"priorities": self._leaves}
        self._largest = 1.0

    def changed(self, change: Change) -> None:
        """Take note of what `Replay.add` changed."""
        self._set(change.ready, np.full(change.ready.size, self._largest))
        if change.gone.size:
            self._set(change.gone, np.zeros(change.gone.size))

    def draw(self, rng: np.random.Generator, count: int, beta: float) -> Draw:
        """Slots to learn from, one from each of `count` equal parts of the total priority, and their weights.

        The weights are (N P)**-beta, divided by the largest of them. The slots are in ascending order, so a batch must
        not be split into smaller ones.
        """
        total = self._tree[1]
        if total <= 0.0:
            raise ValueError("there is no transition to draw")
        index = find_leaves(self._tree, (np.arange(count) + rng.random(count)) * (total / count))
        priority = self._leaves.data[index]
        # N and the total cancel out, and the largest weight is that of the smallest priority.
        return index, ((priority / priority.min()) ** -beta).astype(np.float32)

    def draw_windows(self, rng: np.random.Generator, count: int, length: int, *, across: bool, beta: float) -> Draw:
        """The slots where windows start, drawn as those of transitions, and their weights."""
        if not across:
            return self.draw(rng, count, beta)
        too_new = self._replay.too_new(length)
        kept = self._leaves.data[too_new]
        set_leaves(self._tree, too_new, np.zeros(too_new.size))
        try:
            if self._tree[1] <= 0.0:
                raise self._replay.no_window(length)
            return self.draw(rng, count, beta)
        finally:
            set_leaves(self._tree, too_new, kept)  # the sums above are as they were, to the bit

    def update(self, index: Array, td_error: Array, alpha: float) -> None:
        """Take note of how wrong the predictions for these slots were."""
        priority = (np.abs(td_error).astype(np.float64) + 1e-6) ** alpha
        priority[self._leaves.data[index] == 0.0] = 0.0  # no longer there
        self._largest = max(self._largest, float(priority.max()))
        self._set(index, priority)

    def _set(self, index: Array, priority: Array) -> None:
        set_leaves(self._tree, index, priority)
        self._leaves.touch_rows(index)

    def state_dict(self) -> dict[str, Any]:
        return {"largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Rebuild the tree from its leaves: `arrays` have to be loaded before."""
        self._largest = state["largest"]
        sum_up(self._tree)


class FreshFirst:
    """An online queue: every new window is handed out once, as soon as it is complete; otherwise draws are uniform.

    The new windows of an environment start every `every` steps: by default every `length`, so that they follow each
    other without an overlap. The oldest is handed out first. Windows whose rows were overwritten while they waited are
    dropped. Transitions are drawn uniformly.
    """

    uses_errors = False

    def __init__(self, replay: Replay, length: int, every: int | None = None) -> None:
        self.length, self.every = length, length if every is None else every
        if self.every < 1:
            raise ValueError(f"every={every}: must be at least 1")
        self._replay = replay
        self._uniform = UniformSampler(replay)
        self.arrays: Mapping[str, ChunkedArray] = {}
        self._seen = np.zeros(replay.num_envs, np.int64)  # how many steps of each environment were ever stored
        self._queue: deque[int] = deque()  # the numbers of the rows where windows start
        self._most = 2 * (replay.capacity // self.every + replay.num_envs)

    def changed(self, change: Change) -> None:
        """Queue the windows that are complete now."""
        envs = change.ready % self._replay.num_envs
        self._seen[envs] += 1
        beyond = self._seen[envs] - self.length
        envs = envs[(beyond >= 0) & (beyond % self.every == 0)]
        if envs.size == 0:
            return
        envs = envs[self._replay.newest_starts(self.length)[envs] > 0]  # a short ring never holds a whole window
        self._queue.extend(self._replay.numbers_of(self._replay.window_starts(envs, self.length)).tolist())
        if len(self._queue) > self._most:
            numbers = np.array(self._queue, np.int64)
            self._queue = deque(numbers[self._replay.slots_of(numbers) >= 0].tolist())

    def draw(self, rng: np.random.Generator, count: int, beta: float = 0.0) -> Draw:
        """The slots of transitions; they have no weights."""
        return self._uniform.draw(rng, count)

    def draw_windows(
        self, rng: np.random.Generator, count: int, length: int, *, across: bool, beta: float = 0.0
    ) -> Draw:
        """The slots where windows start, first those of the queue; they have no weights."""
        if length != self.length:
            raise ValueError(f"length={length}: the online queue hands out windows of {self.length} steps")
        fresh = np.zeros(0, np.int64)
        while self._queue and fresh.size < count:
            taken = min(count - fresh.size, len(self._queue))
            slots = self._replay.slots_of(np.array([self._queue.popleft() for _ in range(taken)], np.int64))
            fresh = np.concatenate([fresh, slots[slots >= 0]])
        if fresh.size == count:
            return fresh, None
        others, _ = self._uniform.draw_windows(rng, count - fresh.size, length, across=across)
        return np.concatenate([fresh, others]), None

    def update(self, index: Array, td_error: Array, alpha: float) -> None:
        """There is nothing to note."""

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen.tolist(), "queue": list(self._queue), "length": self.length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the queue of a sampler of the same replay; windows of another length are not waited for any more."""
        seen, queue = np.asarray(state.get("seen")), np.asarray(state.get("queue"))
        if seen.shape != self._seen.shape or seen.dtype.kind != "i" or (queue.size and queue.dtype.kind != "i"):
            raise UserError(f"the saved online queue does not fit {self._seen.size} environments, or is damaged")
        waiting = queue.tolist() if state.get("length", self.length) == self.length else []
        self._seen[:], self._queue = seen, deque(waiting)
