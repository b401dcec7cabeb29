"""Occupancies, which adversarial imitation compares: observations, actions, and how often episodes terminate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.rollout import Rollout
from rl_training.types import Array


@dataclass(frozen=True)
class Occupancy:
    """Observations and actions `[N, ...]`; a terminated episode adds one step in an absorbing state.

    The absorbing steps are all the same, so they have no rows: `over` is their share of all steps.
    """

    obs: Array
    action: Array
    over: float

    def __len__(self) -> int:
        return len(self.obs)

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Observations, actions and whether the episode is over `[size]`; where it is over, the others are ignored."""
        index = rng.integers(len(self), size=size)
        return self.obs[index], self.action[index], rng.random(size) < self.over


def of_rollout(rollout: Rollout) -> Occupancy:
    """The policy's occupancy in a rollout."""
    real = rollout.real
    return Occupancy(rollout.obs[real], rollout.action[real], _share(int(rollout.terminated[real].sum()), real.sum()))


def of_dataset(dataset: OfflineDataset, every: int, rng: np.random.Generator) -> Occupancy:
    """The occupancy of demonstrations: every `every`-th step of each episode, from a random first one on.

    `over` is computed from all steps, so that leaving steps out does not make ends more frequent.
    """
    lengths = dataset.lengths
    first = rng.integers(np.minimum(lengths, every))
    since_first = np.arange(len(dataset)) - np.repeat(dataset.starts + first, lengths)
    kept = (since_first >= 0) & (since_first % every == 0)
    return Occupancy(dataset.obs[kept], dataset.action[kept], _share(int(dataset.terminated.sum()), len(dataset)))


def _share(terminations: int, steps: int) -> float:
    return terminations / (terminations + steps)
