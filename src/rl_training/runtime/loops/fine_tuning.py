"""Going on online: fresh experience into a replay, and minibatches from it and from the dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rl_training.algorithms.off_policy import OffPolicyAlgorithm
from rl_training.algorithms.offline import OfflineLoopConfig
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.loops.offline import Memory, RewardScale
from rl_training.types import Array, Metrics, Step, UserError


def check_sources(algorithm: OffPolicyAlgorithm, config: OfflineLoopConfig) -> None:
    """Whether everything that an online run needs of a dataset or of another run has somewhere to come from."""
    if config.dataset is None and config.offline_fraction > 0.0:
        raise UserError(
            f"offline_fraction={config.offline_fraction}: needs a dataset; give one, or offline_fraction=0 to learn "
            "from fresh experience alone"
        )
    if config.dataset is None and config.start_from is None:
        if config.reward_scale == "return_range":
            raise UserError("reward_scale='return_range': is the dataset's; give a dataset, start_from or a number")
        if algorithm.observer.normalizer is not None:
            given = algorithm.cfg.normalize_obs
            raise UserError(f"normalize_obs={given!r}: takes the dataset's scale; give a dataset, start_from or false")


class FineTuningLoop(OffPolicyLoop):
    """An offline algorithm that gathers experience, under the scales that it has. Its clock counts steps."""

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        collector: Collector,
        config: OfflineLoopConfig,
        dataset: OfflineDataset | None,
    ) -> None:
        super().__init__(algorithm, collector, config)
        self.dataset = dataset
        self.rewards = RewardScale(config, dataset)
        self._offline_fraction = config.offline_fraction
        self.memory: Memory | None = None
        if dataset is not None:
            self.memory = Memory(collector.info, dataset, self.rewards)
            algorithm.observer.fit(dataset.obs)

    @property
    def parts(self) -> Mapping[str, Any]:
        dataset = {} if self.memory is None else {"dataset": self.memory}
        return {**super().parts, "rewards": self.rewards, **dataset}

    def take_scales(self, rewards: Mapping[str, Any]) -> None:
        """Go on with the reward scale of the run that this one starts from."""
        self.rewards.load_state_dict(rewards)

    def _choose(self) -> Array:
        """The policy acts from the first step on: it has learned something already."""
        action: Array = self.algorithm.act(self.collector.obs, explore=True).action
        return action

    def _remember(self, step: Step) -> None:
        super()._remember(replace(step, reward=self.rewards(step.reward)))

    def _observe(self, steps: Sequence[Step]) -> None:
        """The scale of observations stays what it was."""

    def _learn(self, updates: int) -> Metrics:
        metrics: Metrics = {}
        for _ in range(updates):
            metrics = self.algorithm.update(self._mixed())
        return metrics

    def _mixed(self) -> Step:
        """A minibatch: some of the dataset's transitions, the rest fresh ones."""
        algorithm, size = self.algorithm, self.algorithm.cfg.batch_size
        old = round(size * self._offline_fraction) if self.memory is not None else 0
        batches = []
        if old and self.memory is not None:
            index, _ = algorithm.draw(self.memory.sampler, old)
            batches.append(algorithm.gather(self.memory.replay, index))
        if old < size:
            index, _ = algorithm.draw(self.sampler, size - old)
            batches.append(algorithm.gather(self.replay, index))
        return batches[0] if len(batches) == 1 else _joined(*batches)


def _joined(first: Step, second: Step) -> Step:
    columns = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "real")
    extras = {"discount": np.concatenate([first.extras["discount"], second.extras["discount"]])}
    joined = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in columns}
    return Step(**joined, extras=extras)
