"""What imitation compares: where somebody was, what they did there, and how often their episodes ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.rollout import Rollout
from rl_training.types import Array


@dataclass(frozen=True)
class Occupancy:
    """Observations and actions `[N, ...]`; a terminated episode adds one step in a state where it is over.

    These further steps are all the same, so there are no rows of them: `over` is their share of all steps.
    """

    obs: Array
    action: Array
    over: float

    def __len__(self) -> int:
        return len(self.obs)

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Observations, actions and whether the episode is over `[size]`; rows of those that are over mean nothing."""
        index = rng.integers(len(self), size=size)
        return self.obs[index], self.action[index], rng.random(size) < self.over


def of_rollout(rollout: Rollout) -> Occupancy:
    """What the policy did in a rollout."""
    real = rollout.real
    return Occupancy(rollout.obs[real], rollout.action[real], _share(int(rollout.terminated[real].sum()), real.sum()))


def of_dataset(dataset: OfflineDataset, every: int, rng: np.random.Generator) -> Occupancy:
    """What was demonstrated: every so many steps of each episode, from one of its first on, which is drawn.

    How often episodes end is a fact of all steps: left-out ones do not make an end more frequent.
    """
    lengths = dataset.lengths
    first = rng.integers(np.minimum(lengths, every))
    since_first = np.arange(len(dataset)) - np.repeat(dataset.starts + first, lengths)
    kept = (since_first >= 0) & (since_first % every == 0)
    return Occupancy(dataset.obs[kept], dataset.action[kept], _share(int(dataset.terminated.sum()), len(dataset)))


def _share(terminations: int, steps: int) -> float:
    return terminations / (terminations + steps)
