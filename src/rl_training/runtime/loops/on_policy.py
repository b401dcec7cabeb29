"""Collect a rollout, update, forget it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl_training.algorithms.on_policy import OnPolicyAlgorithm, OnPolicyLoopConfig
from rl_training.data.rollout import Rollout
from rl_training.experiment.config import Config
from rl_training.runtime.collect import Collector
from rl_training.types import Metrics


class OnPolicyLoop:
    """PPO, A2C and their like. Its clock counts environment steps."""

    def __init__(self, algorithm: OnPolicyAlgorithm, collector: Collector, config: OnPolicyLoopConfig) -> None:
        self.algorithm = algorithm
        self.collector = collector
        self.rollout = Rollout(config.n_steps, collector.num_envs, collector.info)
        self._n_steps = config.n_steps

    @property
    def steps(self) -> int:
        return self.collector.steps

    @property
    def parts(self) -> Mapping[str, Any]:
        return {"collector": self.collector}

    def step(self, refresh: Callable[[int], None]) -> Metrics:
        """From one safe point to the next: nothing but `parts` and the algorithm remembers it."""
        refresh(self.steps)
        collector, algorithm, rollout = self.collector, self.algorithm, self.rollout
        rollout.clear()
        carry = None
        for _ in range(self._n_steps):
            act = algorithm.act(collector.obs, carry, explore=True)
            carry = act.carry
            rollout.add(collector.step(act.action), act)
        refresh(self.steps)
        # Under NEXT_STEP autoreset a very short rollout may hold nothing but resets.
        with np.errstate(over="ignore", invalid="ignore"):  # the driver refuses metrics that are no numbers
            learned = algorithm.update(rollout) if rollout.real.any() else {}
        return learned | collector.metrics()


def make(algorithm: OnPolicyAlgorithm, collector: Collector, config: Config) -> OnPolicyLoop:
    """The loop of a config."""
    assert isinstance(config.loop, OnPolicyLoopConfig)
    return OnPolicyLoop(algorithm, collector, config.loop)
