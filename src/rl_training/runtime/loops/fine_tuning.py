"""Online fine-tuning of offline algorithms: an off-policy loop with minibatches from new experience and the dataset."""

from __future__ import annotations

from dataclasses import replace

from rl_training.algorithms.off_policy import ReplayAlgorithm
from rl_training.algorithms.offline import OfflineLoopConfig
from rl_training.data.chunks import Part
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.memory import Mixture, ReplayMemory
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.loops.memories import make_memory
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.loops.offline import DatasetMemory, RewardScale
from rl_training.types import Step, UserError


def check_sources(algorithm: ReplayAlgorithm, config: OfflineLoopConfig) -> None:
    """Refuse an online run that needs a dataset or a warm start and has neither."""
    if config.dataset is None and config.offline_fraction > 0.0:
        raise UserError(
            f"offline_fraction={config.offline_fraction}: needs a dataset; give one, or offline_fraction=0 to learn "
            "from new experience only"
        )
    if config.dataset is None and config.start_from is None:
        if config.reward_scale == "return_range":
            raise UserError("reward_scale='return_range': needs a dataset; give a dataset, start_from or a number")
        if algorithm.observer.normalizer is not None:
            given = algorithm.cfg.normalize_obs
            raise UserError(f"normalize_obs={given!r}: needs a dataset; give a dataset, start_from or false")


class FreshAndOld(Mixture):
    """A mixture of new experience, with scaled rewards, and a dataset, if there is one."""

    def __init__(self, old: DatasetMemory | None, fresh: ReplayMemory, fraction: float, rewards: RewardScale) -> None:
        super().__init__(lambda: fresh if old is None else old.memory, fresh, 0.0 if old is None else fraction)
        self._rewards = rewards

    def add(self, step: Step) -> None:
        super().add(replace(step, reward=self._rewards(step.reward)))


def make_fine_tuning(
    algorithm: ReplayAlgorithm, source: Source, config: OfflineLoopConfig, dataset: OfflineDataset | None
) -> OffPolicyLoop:
    """The loop of an offline algorithm that continues online.

    There are no random steps at the start, since the policy is trained already. The scales of observations and rewards
    stay those that it was trained with.
    """
    rewards = RewardScale(config, dataset, algorithm)
    old = None if dataset is None else DatasetMemory(algorithm.policy.info, dataset, rewards)
    if dataset is not None:
        algorithm.observer.fit(dataset.obs)
    algorithm.observer.freeze()
    fresh = make_memory(algorithm.policy, algorithm.cfg, source, config, prioritized=algorithm.prioritized)
    memory = FreshAndOld(old, fresh, config.offline_fraction, rewards)
    parts: dict[str, Part] = {"rewards": rewards, **({} if old is None else {"dataset": old})}
    return OffPolicyLoop(algorithm, source, memory, config, random_steps=0, dataset=dataset, parts=parts)
