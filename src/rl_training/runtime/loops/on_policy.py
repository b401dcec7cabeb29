"""The on-policy loop: collect a rollout, update, discard it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rl_training.algorithms.on_policy import OnPolicyAlgorithm, OnPolicyLoopConfig
from rl_training.data.chunks import Part
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.rollout import Rollout
from rl_training.experiment.config import Config
from rl_training.runtime.actors.actor import Steps
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.loops.base import Refresh
from rl_training.types import Metrics

# How many random steps the first statistics of observations are taken from, at most.
_MOST_RANDOM_STEPS = 1_000


class OnPolicyLoop:
    """The loop of PPO, A2C and other on-policy algorithms; it counts environment steps."""

    def __init__(
        self,
        algorithm: OnPolicyAlgorithm,
        source: Source,
        config: OnPolicyLoopConfig,
        *,
        dataset: OfflineDataset | None = None,
        parts: Mapping[str, Part] | None = None,
    ) -> None:
        policy = algorithm.policy
        self.algorithm = algorithm
        self.source = source
        self.dataset = dataset
        self.rollout = Rollout(config.n_steps, source.width, policy.info, policy.records(policy.info))
        self.parts: dict[str, Part] = {**(parts or {}), **algorithm.memories(config.n_steps * source.width)}
        self._n_steps = config.n_steps

    def _gather_first_statistics(self, refresh: Refresh) -> None:
        """Take random steps for the first statistics of observations, if these are scaled.

        Without them, the policy would see the first rollout unscaled. Nothing else is learned from these steps.
        """
        observer = self.algorithm.observer
        if not observer.has_no_statistics:
            return
        steps = self.source.gather(self._random_steps, Steps(), randomly=True)
        observer.observe(steps)
        refresh(self.steps)

    @property
    def _random_steps(self) -> int:
        """The random steps of each environment: those of one rollout, but not more than needed."""
        return min(self._n_steps, math.ceil(_MOST_RANDOM_STEPS / self.source.num_envs))

    def warnings(self, total_steps: int) -> list[str]:
        if self.steps == 0 and self.algorithm.observer.has_no_statistics:
            total_steps -= self._random_steps * self.source.num_envs
        rows = self._n_steps * self.source.width
        return self.algorithm.warnings(math.ceil(max(0, total_steps - self.steps) / rows))

    @property
    def steps(self) -> int:
        return self.source.steps

    def step(self, refresh: Refresh) -> Metrics:
        algorithm, source = self.algorithm, self.source
        refresh(self.steps)
        if self.steps == 0:
            algorithm.begin()
            self._gather_first_statistics(refresh)
        source.take_lost()  # discarded: a new rollout does not follow from earlier steps
        self.rollout.clear()
        rollout = source.gather(self._n_steps, self.rollout)
        refresh(self.steps)
        # Under NEXT_STEP autoreset a very short rollout may contain only resets.
        with np.errstate(over="ignore", invalid="ignore"):  # the driver refuses metrics that are not finite
            learned = algorithm.update(rollout) if rollout.real.any() else {}
        source.publish(algorithm.policy.policy_state, algorithm.policy.values, algorithm.n_updates)
        return learned | source.metrics()


def make(algorithm: OnPolicyAlgorithm, source: Source, config: Config, maker: EnvMaker) -> OnPolicyLoop:
    """The loop of a config."""
    assert isinstance(config.loop, OnPolicyLoopConfig)
    return OnPolicyLoop(algorithm, source, config.loop)
