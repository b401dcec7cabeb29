"""Collect a rollout, update, forget it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.on_policy import OnPolicyAlgorithm, OnPolicyLoopConfig
from rl_training.data.rollout import Rollout
from rl_training.experiment.config import Config
from rl_training.runtime.actors.collector import Collector
from rl_training.types import Array, Metrics


class EpisodeMemory:
    """What a recurrent policy remembers of the episodes that go on after a rollout."""

    def __init__(self) -> None:
        self.carry: Array | None = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self.carry is None else {"carry": torch.from_numpy(self.carry.copy())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.carry = state["carry"].numpy().copy() if "carry" in state else None


class OnPolicyLoop:
    """PPO, A2C and their like. Its clock counts environment steps."""

    def __init__(self, algorithm: OnPolicyAlgorithm, collector: Collector, config: OnPolicyLoopConfig) -> None:
        self.algorithm = algorithm
        self.collector = collector
        self.rollout = Rollout(config.n_steps, collector.num_envs, collector.info)
        self._n_steps = config.n_steps
        self._episodes = EpisodeMemory()
        self._memories = algorithm.memories(config.n_steps * collector.num_envs)

    @property
    def steps(self) -> int:
        return self.collector.steps

    @property
    def parts(self) -> Mapping[str, Any]:
        remembered = {"episodes": self._episodes} if self.algorithm.recurrent else {}
        return {"collector": self.collector, **remembered, **self._memories}

    def step(self, refresh: Callable[[int], None]) -> Metrics:
        """From one safe point to the next: nothing but `parts` and the algorithm remembers it."""
        refresh(self.steps)
        collector, algorithm, rollout = self.collector, self.algorithm, self.rollout
        rollout.clear()
        carry = self._remembered()
        for _ in range(self._n_steps):
            act = algorithm.act(collector.obs, carry, explore=True)
            step = collector.step(act.action)
            rollout.add(step, act)
            carry = algorithm.begin_episodes(act.carry, step.terminated | step.truncated | ~step.real)
        self._episodes.carry = carry
        refresh(self.steps)
        # Under NEXT_STEP autoreset a very short rollout may hold nothing but resets.
        with np.errstate(over="ignore", invalid="ignore"):  # the driver refuses metrics that are no numbers
            learned = algorithm.update(rollout) if rollout.real.any() else {}
        return learned | collector.metrics()

    def _remembered(self) -> Any:
        """What the policy carries into a rollout: nothing, unless it remembers episodes."""
        if not self.algorithm.recurrent:
            return None
        carry = self.algorithm.begin_episodes(self._episodes.carry, self.collector.broken)
        self.collector.broken[:] = False
        return carry


def make(algorithm: OnPolicyAlgorithm, collector: Collector, config: Config) -> OnPolicyLoop:
    """The loop of a config."""
    assert isinstance(config.loop, OnPolicyLoopConfig)
    return OnPolicyLoop(algorithm, collector, config.loop)
