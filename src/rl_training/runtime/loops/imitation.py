"""The on-policy loop of who learns from demonstrations and not from rewards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.algorithms.gail import GAIL, GAILLoopConfig
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.demonstrations import of_dataset
from rl_training.experiment.config import Config
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.loops.offline import Identity, _build_offline_dataset
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.rng import seeded
from rl_training.types import Metrics, UserError

_LOG = logging.getLogger("rl_training")


class ImitationLoop(OnPolicyLoop):
    """GAIL's. Its clock counts environment steps."""

    algorithm: GAIL

    def __init__(
        self, algorithm: GAIL, collector: Collector, config: GAILLoopConfig, dataset: OfflineDataset, seed: int
    ) -> None:
        super().__init__(algorithm, collector, config)
        self.dataset = _chosen(dataset, config)
        self._identity = Identity(self.dataset)
        rng = np.random.Generator(np.random.PCG64(seeded(seed, "demonstrations")))
        algorithm.demonstrate(of_dataset(self.dataset, config.subsample, rng), reward_clip=config.reward_clip)

    @property
    def parts(self) -> Mapping[str, Any]:
        return {**super().parts, "dataset": self._identity}

    def step(self, refresh: Callable[[int], None]) -> Metrics:
        if self.steps == 0:
            _say_what_is_imitated(self.algorithm, self.dataset)
            refresh(0)
            _say_how_likely_it_became(self.algorithm.imitate())
        return super().step(refresh)


def _chosen(dataset: OfflineDataset, config: GAILLoopConfig) -> OfflineDataset:
    """The demonstrations that a config asks for."""
    count = config.demonstrations or dataset.n_episodes
    if count > dataset.n_episodes:
        raise UserError(f"demonstrations={count}: the dataset has {dataset.n_episodes} episodes; ask for fewer")
    dataset = dataset.episodes(np.arange(count))
    longest = int(dataset.lengths.max())
    if config.subsample > longest:
        raise UserError(f"subsample={config.subsample}: the longest demonstration has {longest} steps; keep more")
    return dataset


def _say_what_is_imitated(algorithm: GAIL, dataset: OfflineDataset) -> None:
    """One line: how much is learned from, and what is done about episodes of different lengths."""
    if algorithm.cfg.absorbing:
        ends = "an end is judged as a state that lasts for ever"
    else:
        ends = "nothing follows an end, so that rewards above 0 favour long episodes, and those below 0 short ones"
    _LOG.info(
        "imitates %d steps of %d demonstrations, of which %d end; %s (absorbing=%s)",
        len(algorithm.demonstrations),
        dataset.n_episodes,
        dataset.terminated.sum(),
        ends,
        algorithm.cfg.absorbing,
    )


def _say_how_likely_it_became(log_likelihood: Sequence[float]) -> None:
    """One line on a warm start, if there was one."""
    if log_likelihood:
        _LOG.info(
            "before it acts, the policy repeated the demonstrations: mean log-likelihood %.3f at the first of %d "
            "steps, %.3f at the last (bc_updates)",
            log_likelihood[0],
            len(log_likelihood),
            log_likelihood[-1],
        )


def _check_discount(algorithm: GAIL, config: Config) -> None:
    """What lasts for ever is worth a number only if the future counts less and less, over the whole run."""
    control = config.controls.get("gamma")
    highest = algorithm.cfg.gamma if control is None else control.extremes()[1]
    if algorithm.cfg.absorbing and highest >= 1.0:
        raise UserError(f"gamma={highest}: with absorbing=True it must stay below 1; or set absorbing=False")


def make(algorithm: GAIL, collector: Collector, config: Config) -> ImitationLoop:
    """The loop of a config."""
    assert isinstance(config.loop, GAILLoopConfig)
    _check_discount(algorithm, config)
    dataset = _build_offline_dataset(config, collector.info)
    return ImitationLoop(algorithm, collector, config.loop, dataset, config.run.seed)
