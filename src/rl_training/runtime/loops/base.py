"""The interface of a loop, and what loops share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium as gym

from rl_training.data.chunks import ChunkedArray, Part
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.experiment.config import Config
from rl_training.types import Metrics

# Sets every scheduled hyperparameter to its value at a step.
Refresh = Callable[[int], None]


class Loop(Protocol):
    """Connects a source of experience, a memory and an algorithm. A step leads from one safe point to the next.

    Only its `parts`, the source and the algorithm have state between two steps.
    """

    @property
    def steps(self) -> int:
        """The steps so far: environment steps or, offline, updates."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts with state, besides the source and the algorithm, by the names under which they are saved."""

    @property
    def dataset(self) -> OfflineDataset | None:
        """The dataset that it learns from, if any."""

    def step(self, refresh: Refresh) -> Metrics:
        """Collect experience, store it, update."""

    def warnings(self, total_steps: int) -> list[str]:
        """What a run that ends at this step will never do, though its settings ask for it; one sentence each."""


def known_time_limit(config: Config) -> int | None:
    """The number of steps after which the environment truncates an episode, if it is known."""
    if config.loop.time_limit is not None:
        return config.loop.time_limit
    try:
        return gym.spec(config.run.env_id).max_episode_steps
    except gym.error.Error:
        return None


class Latest:
    """Keeps the metrics of the latest updates, for steps without updates.

    `memory_since` is the step since when the memory has been filled: not 0 if it could not be taken over.
    """

    arrays: Mapping[str, ChunkedArray] = {}

    def __init__(self) -> None:
        self.metrics: Metrics = {}
        self.memory_since = 0

    def state_dict(self) -> dict[str, Any]:
        return {"metrics": self.metrics} | ({"memory_since": self.memory_since} if self.memory_since else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.metrics = dict(state["metrics"])
        self.memory_since = state.get("memory_since", 0)
        if type(self.memory_since) is not int or self.memory_since < 0:
            raise ValueError(f"memory_since is {self.memory_since!r:.60}")
