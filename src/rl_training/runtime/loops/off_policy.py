"""Some steps into the replay, then the updates that are due for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rl_training.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyLoopConfig
from rl_training.data.replay import make_replay
from rl_training.experiment.config import Config
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.loops.latest import Latest
from rl_training.types import Array, Metrics, Step


class OffPolicyLoop:
    """DQN, SAC and their like. Its clock counts environment steps."""

    def __init__(self, algorithm: OffPolicyAlgorithm, collector: Collector, config: OffPolicyLoopConfig) -> None:
        self.algorithm = algorithm
        self.collector = collector
        self.config = config
        self.replay = make_replay(collector.info, collector.num_envs, config.buffer_size, config.frame_stack)
        self.sampler = algorithm.make_sampler(self.replay)
        self.latest = Latest()

    @property
    def steps(self) -> int:
        return self.collector.steps

    @property
    def parts(self) -> Mapping[str, Any]:
        return {"collector": self.collector, "replay": self.replay, "sampler": self.sampler, "latest": self.latest}

    def step(self, refresh: Callable[[int], None]) -> Metrics:
        """From one safe point to the next: nothing but `parts` and the algorithm remembers it."""
        refresh(self.steps)
        before = self.steps
        self._forget_broken_episodes()
        gathered = []
        while self.steps - before < self.config.train_every:
            gathered.append(self._gather())
        self._observe(gathered)
        refresh(self.steps)
        with np.errstate(over="ignore", invalid="ignore"):  # the driver refuses metrics that are no numbers
            self.latest.metrics |= self._learn(self._due(self.steps) - self._due(before))
        counts = {"n_updates": float(self.algorithm.n_updates), "replay_size": float(len(self.replay))}
        return self.latest.metrics | counts | self.collector.metrics()

    def _due(self, steps: int) -> int:
        """How many updates belong to so many steps, however they were made."""
        return int(max(0, steps - self.config.learning_starts) * self.config.updates_per_step)

    def _gather(self) -> Step:
        step = self.collector.step(self._choose())
        self._remember(step)
        return step

    def _choose(self) -> Array:
        collector, algorithm = self.collector, self.algorithm
        if self.steps < self.config.learning_starts:
            return algorithm.random_actions(collector.obs)
        return algorithm.act(collector.obs, explore=True).action

    def _remember(self, step: Step) -> None:
        self.sampler.changed(self.replay.add(step))

    def _observe(self, steps: Sequence[Step]) -> None:
        self.algorithm.observe(steps)

    def _learn(self, updates: int) -> Metrics:
        """Make so many updates; gives the metrics of the last ones."""
        algorithm, cfg, metrics = self.algorithm, self.algorithm.cfg, {}
        # Minibatches of one phase are drawn together, in parts: that bounds the memory that they take.
        for start in range(0, updates, algorithm.drawn_together):
            count = min(algorithm.drawn_together, updates - start)
            index, weight = algorithm.draw(self.sampler, count * cfg.batch_size)
            batch = algorithm.gather(self.replay, index)
            if weight is not None:
                batch = replace(batch, extras={**batch.extras, "weight": weight})
            metrics = algorithm.update(batch)
            algorithm.judge_draw(self.sampler, index)
        return metrics

    def _forget_broken_episodes(self) -> None:
        if self.collector.broken.any():
            self.replay.cut(self.collector.broken)
            self.collector.broken[:] = False


def make(algorithm: OffPolicyAlgorithm, collector: Collector, config: Config) -> OffPolicyLoop:
    """The loop of a config."""
    assert isinstance(config.loop, OffPolicyLoopConfig)
    return OffPolicyLoop(algorithm, collector, config.loop)
