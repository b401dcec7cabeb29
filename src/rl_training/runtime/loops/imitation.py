"""The on-policy loop of algorithms that learn from demonstrations instead of rewards."""

from __future__ import annotations

import numpy as np

from rl_training.algorithms.gail import GAIL, GAILLoopConfig
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.demonstrations import of_dataset
from rl_training.experiment.config import Config
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.loops.offline import DatasetIdentity, _build_offline_dataset
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.rng import seeded
from rl_training.types import UserError


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


def _check_discount(algorithm: GAIL, config: Config) -> None:
    """Check that gamma stays below 1 over the whole run, so that the value of an absorbing state is finite."""
    control = config.controls.get("gamma")
    highest = algorithm.cfg.gamma if control is None else control.extremes()[1]
    if algorithm.cfg.absorbing and highest >= 1.0:
        raise UserError(f"gamma={highest}: with absorbing=True it must stay below 1; or set absorbing=False")


def make(algorithm: GAIL, source: Source, config: Config, maker: EnvMaker) -> OnPolicyLoop:
    """The loop of a config."""
    loop = config.loop
    assert isinstance(loop, GAILLoopConfig)
    _check_discount(algorithm, config)
    dataset = _chosen(_build_offline_dataset(config, algorithm.policy.info), loop)
    rng = np.random.Generator(np.random.PCG64(seeded(config.run.seed, "demonstrations")))
    origin = f"{dataset.n_episodes} demonstrations, of which {dataset.terminated.sum()} terminate"
    algorithm.demonstrate(of_dataset(dataset, loop.subsample, rng), origin=origin, reward_clip=loop.reward_clip)
    return OnPolicyLoop(algorithm, source, loop, dataset=dataset, parts={"dataset": DatasetIdentity(dataset)})
