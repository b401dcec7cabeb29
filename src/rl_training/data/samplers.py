"""Which transitions of a replay an update learns from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.data.chunks import ChunkedArray
from rl_training.data.replay import Change, Replay
from rl_training.ops.kernels.sum_tree import find_leaves, new_tree, set_leaves, sum_up
from rl_training.types import Array


class UniformSampler:
    """Every transition is as likely as any other; nothing has to be remembered for that."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.memory: Mapping[str, ChunkedArray] = {}

    def changed(self, change: Change) -> None:
        """Take note of what `Replay.add` gave."""

    def draw(self, rng: np.random.Generator, count: int, beta: float = 0.0) -> tuple[Array, Array | None]:
        """Slots to learn from, and the weight of each in the loss (None: all the same)."""
        return self._replay.draw(rng, count), None

    def update(self, index: Array, td_error: Array, alpha: float) -> None:
        """Take note of how wrong the predictions for these slots were."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to load."""


class PrioritizedSampler:
    """Transitions whose value was predicted badly are drawn more often (Schaul et al. 2016, proportional).

    A transition is drawn in proportion to its priority, (|td_error| + 1e-6)**alpha; a new one has the largest priority
    that there has been, so that it is seen soon. The weights undo the bias: fully at beta = 1.
    """

    def __init__(self, replay: Replay) -> None:
        self._tree = new_tree(replay.capacity)
        self._leaves = ChunkedArray(replay.capacity, (), "float64")
        start = self._tree.size // 2
        self._leaves.data = self._tree[start : start + replay.capacity]  # what is saved are the tree's own leaves
        self.memory: Mapping[str, ChunkedArray] = {"priorities": self._leaves}
        self._largest = 1.0

    def changed(self, change: Change) -> None:
        """Take note of what `Replay.add` gave."""
        self._set(change.ready, np.full(change.ready.size, self._largest))
        if change.gone.size:
            self._set(change.gone, np.zeros(change.gone.size))

    def draw(self, rng: np.random.Generator, count: int, beta: float) -> tuple[Array, Array | None]:
        """Slots to learn from, one from each of `count` equal parts of the total priority, and their weights.

        The weights are (N P)**-beta, divided by the largest of them. The slots come in the order of the memory, so a
        batch must not be split into smaller ones.
        """
        total = self._tree[1]
        if total <= 0.0:
            raise ValueError("there is no transition to draw")
        index = find_leaves(self._tree, (np.arange(count) + rng.random(count)) * (total / count))
        priority = self._leaves.data[index]
        # N and the total cancel out, and the largest weight is that of the smallest priority.
        return index, ((priority / priority.min()) ** -beta).astype(np.float32)

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
        """Bring the tree back from its leaves: `memory` has to be loaded before."""
        self._largest = state["largest"]
        sum_up(self._tree)
