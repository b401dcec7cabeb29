"""The dataset of the offline loop: recorded transitions, grouped into episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rl_training.types import Array


@dataclass(frozen=True)
class OfflineDataset:
    """Transitions `[N, ...]`, episode after episode; every array is contiguous.

    `next_obs` is the true successor. Only `terminated` stops the bootstrap; `truncated` says that an episode was cut
    off after a row (by a time limit, or because the data ends there). `starts` are the first rows of the episodes,
    `partial` the numbers of the incomplete episodes. `source` is plain data: `format`, `path`, `env_id`,
    `action_units` (`environment`, or `normalized`: the policy's own units, in [-1, 1] or counted from 0),
    `ref_min_score`, `ref_max_score`, as far as they are known, and `notes`, the decisions of the reader.
    """

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    truncated: Array
    starts: Array
    source: Mapping[str, Any] = field(default_factory=dict)
    partial: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def n_episodes(self) -> int:
        return len(self.starts)

    @cached_property
    def lengths(self) -> Array:
        """The lengths of the episodes, `[episodes]`."""
        return np.diff(self.starts, append=len(self))

    @cached_property
    def returns(self) -> Array:
        """The undiscounted return of every episode, `[episodes]`."""
        return np.add.reduceat(self.reward.astype(np.float64), self.starts)

    @cached_property
    def whole(self) -> Array:
        """The numbers of the complete episodes; of all episodes, if none is complete."""
        numbers = np.setdiff1d(np.arange(self.n_episodes), self.partial)
        return numbers if numbers.size else np.arange(self.n_episodes)

    @property
    def rewarded(self) -> bool:
        """Whether it has rewards; without rewards its returns mean nothing."""
        return bool(self.source.get("rewarded", True))

    @property
    def return_mean(self) -> float:
        """The mean return of complete episodes; incomplete ones would distort it."""
        return float(self.returns[self.whole].mean())

    def episodes(self, chosen: Array) -> OfflineDataset:
        """Only the episodes with these numbers, in this order."""
        chosen = np.asarray(chosen, np.int64)
        lengths = self.lengths[chosen]
        starts = np.cumsum(lengths) - lengths
        rows = np.repeat(self.starts[chosen] - starts, lengths) + np.arange(lengths.sum())
        columns = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        source = {**self.source}
        if "episode_seeds" in source:
            source["episode_seeds"] = [source["episode_seeds"][number] for number in chosen]
        partial = tuple(place for place, number in enumerate(chosen) if number in self.partial)
        return replace(
            self, starts=starts, source=source, partial=partial, **{name: getattr(self, name)[rows] for name in columns}
        )

    def best(self, fraction: float) -> OfflineDataset:
        """This share of the complete episodes with the highest returns, at least one."""
        count = max(1, round(fraction * self.whole.size))
        chosen = np.argsort(-self.returns[self.whole], kind="stable")[:count]
        return self.episodes(np.sort(self.whole[chosen]))

    def split(self, fraction: float, rng: np.random.Generator) -> tuple[OfflineDataset, OfflineDataset]:
        """A training set, and this share of the episodes held out; at least one episode in each."""
        order = rng.permutation(self.n_episodes)
        held_out = min(max(1, round(fraction * self.n_episodes)), self.n_episodes - 1)
        return self.episodes(np.sort(order[held_out:])), self.episodes(np.sort(order[:held_out]))
