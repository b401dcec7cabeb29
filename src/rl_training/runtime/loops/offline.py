"""The offline loop: updates from a dataset only."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.bc import BC
from rl_training.algorithms.off_policy import OffPolicyAlgorithm, ReplayAlgorithm
from rl_training.algorithms.offline import BehaviorLoopConfig, DatasetConfig, OfflineLoopConfig, TransitionsConfig
from rl_training.data.chunks import ChunkedArray, Part
from rl_training.data.datasets.arrays import fit_dataset, from_arrays
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.files import to_arrays
from rl_training.data.memory import ReplayMemory
from rl_training.data.ram import available_memory, readable
from rl_training.data.replay import Replay, replay_of
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.references import is_reference, resolve_maker, unfitting_call
from rl_training.ops.kernels.returns import running_returns_kernel
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.loops.base import Latest, Refresh, known_time_limit
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.rng import seeded
from rl_training.types import Array, Metrics, SpaceInfo, UserError

_LOG = logging.getLogger("rl_training")
_VALIDATION_EVERY = 100  # updates
_DEVIATION = 10.0  # of discounted returns, with `reward_scale: auto`
_VALIDATION_ROWS = 4096  # at once


class RewardScale:
    """Transforms rewards for learning: clips, scales, then shifts them, in offline and online training."""

    arrays: Mapping[str, ChunkedArray] = {}

    def __init__(self, config: DatasetConfig, dataset: OfflineDataset | None, algorithm: ReplayAlgorithm) -> None:
        self.factor, self.shift, self._clip = 1.0, 0.0, None
        if isinstance(config, OfflineLoopConfig):
            self.shift, self._clip = config.reward_shift, config.reward_clip
            if isinstance(config.reward_scale, float):
                self.factor = config.reward_scale
            elif dataset is not None:  # else it is replaced by the factor of the run that this one starts from
                gamma = float(getattr(algorithm.cfg, "gamma", 1.0))
                by_range = config.reward_scale == "return_range"
                reward = self._clipped(dataset.reward)
                self.factor = _range_factor(dataset) if by_range else _deviation_factor(dataset, reward, gamma)
                _LOG.info("reward_scale=%s: rewards are multiplied by %.3g", config.reward_scale, self.factor)

    def __call__(self, reward: Array) -> Array:
        return (self._clipped(reward) * self.factor + self.shift).astype(np.float32)

    def _clipped(self, reward: Array) -> Array:
        return reward if self._clip is None else np.clip(reward, -self._clip, self._clip)

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "shift": self.shift}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.factor, self.shift = state["factor"], state["shift"]


def _range_factor(dataset: OfflineDataset) -> float:
    spread = float(np.ptp(dataset.returns[dataset.whole]))
    if spread == 0.0:
        raise UserError("reward_scale='return_range': all episodes of the dataset have the same return; give a number")
    return 1000.0 / spread


def _deviation_factor(dataset: OfflineDataset, reward: Array, gamma: float) -> float:
    """The factor that brings the deviation of discounted returns to a fixed value; 1 if all are the same."""
    done = dataset.terminated | dataset.truncated
    real = np.ones((len(reward), 1), np.bool_)
    returns = running_returns_kernel(reward[:, None], done[:, None], real, gamma, np.zeros(1))
    deviation = float(returns.std())
    return _DEVIATION / deviation if deviation > 0.0 else 1.0


class DatasetIdentity:
    """The size and checksum of a dataset: a checkpoint keeps them, so that a run is resumed with the same data."""

    arrays: Mapping[str, ChunkedArray] = {}

    def __init__(self, dataset: OfflineDataset) -> None:
        self._dataset = dataset
        self._checksum = 0
        for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
            self._checksum = zlib.crc32(getattr(dataset, name).data, self._checksum)

    def state_dict(self) -> dict[str, Any]:
        return {"transitions": len(self._dataset), "checksum": self._checksum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if dict(state) != self.state_dict():
            raise UserError(
                f"dataset: is not the one that the run was trained on ({state['transitions']} transitions then, "
                f"{len(self._dataset)} now, or other contents); a resumed run needs the same"
            )


class DatasetMemory(DatasetIdentity):
    """A dataset in the form of a replay buffer."""

    def __init__(self, info: SpaceInfo, dataset: OfflineDataset, rewards: RewardScale) -> None:
        super().__init__(dataset)
        self._info, self._rewards = info, rewards
        needed, available = Replay.bytes_needed(info, 1, len(dataset)), available_memory()
        if available is not None and needed > available:
            raise UserError(
                f"dataset: as a replay of {len(dataset)} transitions it needs another {readable(needed)} of RAM, and "
                f"{readable(available)} are available; top_return_fraction keeps fewer episodes"
            )

    @cached_property
    def memory(self) -> ReplayMemory:
        """The dataset as replay memory, made at its first use: a checkpoint's reward scale has been loaded by then."""
        data = self._dataset
        replay = replay_of(
            self._info,
            obs=data.obs,
            action=data.action,
            reward=self._rewards(data.reward),
            next_obs=data.next_obs,
            terminated=data.terminated,
            truncated=data.truncated,
        )
        return ReplayMemory(replay)


class OfflineLoop:
    """The loop of behaviour cloning, IQL and other offline algorithms; it counts updates."""

    def __init__(
        self, algorithm: OffPolicyAlgorithm, info: SpaceInfo, dataset: OfflineDataset, config: DatasetConfig, seed: int
    ) -> None:
        self.algorithm = algorithm
        self.dataset = dataset
        self.held_out: OfflineDataset | None = None
        if isinstance(config, BehaviorLoopConfig) and config.validation_fraction > 0.0:
            dataset, self.held_out = _split(dataset, config.validation_fraction, seed)
        self.rewards = RewardScale(config, dataset, algorithm)
        self.data = DatasetMemory(info, dataset, self.rewards)
        self.latest = Latest()
        self.parts: dict[str, Part] = {"rewards": self.rewards, "dataset": self.data, "latest": self.latest}
        algorithm.observer.fit(dataset.obs)

    @property
    def steps(self) -> int:
        return self.algorithm.n_updates

    def step(self, refresh: Refresh) -> Metrics:
        """One update, with the values of the schedules after it: the last update uses their end values."""
        algorithm = self.algorithm
        refresh(self.steps + 1)
        with np.errstate(over="ignore", invalid="ignore"):  # the driver refuses metrics that are not finite
            self.latest.metrics |= algorithm.learn_from(self.data.memory, 1)
        if self.held_out is not None and (self.steps == 1 or self.steps % _VALIDATION_EVERY == 0):
            self.latest.metrics["validation_loss"] = self._validate(self.held_out)
        return self.latest.metrics | {"n_updates": float(algorithm.n_updates)}

    def warnings(self, total_steps: int) -> list[str]:
        return []

    def _validate(self, held_out: OfflineDataset) -> float:
        assert isinstance(self.algorithm, BC)
        total = 0.0
        for start in range(0, len(held_out), _VALIDATION_ROWS):
            part = slice(start, start + _VALIDATION_ROWS)
            obs, action = held_out.obs[part], held_out.action[part]
            total += len(obs) * self.algorithm.validation_loss(obs, action)
        return total / len(held_out)


def _split(dataset: OfflineDataset, fraction: float, seed: int) -> tuple[OfflineDataset, OfflineDataset]:
    if dataset.n_episodes < 2:
        raise UserError(f"validation_fraction={fraction}: the dataset has one episode; none can be held out")
    return dataset.split(fraction, np.random.Generator(np.random.PCG64(seeded(seed, "validation"))))


def make(algorithm: OffPolicyAlgorithm, source: Source, config: Config, maker: EnvMaker) -> OfflineLoop | OffPolicyLoop:
    """The loop of a config: offline training, or online fine-tuning."""
    from rl_training.runtime.loops.fine_tuning import check_sources, make_fine_tuning

    loop, info = config.loop, algorithm.policy.info
    assert isinstance(loop, DatasetConfig)
    if not loop.collects:
        return OfflineLoop(algorithm, info, _build_offline_dataset(config, info), loop, config.run.seed)
    assert isinstance(loop, OfflineLoopConfig)
    check_sources(algorithm, loop)
    dataset = None if loop.dataset is None else _build_offline_dataset(config, info)
    return make_fine_tuning(algorithm, source, loop, dataset)


def _build_offline_dataset(config: Config | Mapping[str, Any] | str, info: SpaceInfo | None = None) -> OfflineDataset:
    """The dataset that a config names, in the policy's format, with raw rewards."""
    config = config if isinstance(config, Config) else load_config(config)
    loop = config.loop
    if not isinstance(loop, DatasetConfig):
        raise UserError(f"algo={config.run.algo!r}: learns from its own experience, not from a dataset")
    if loop.dataset is None:
        raise UserError(
            "dataset: is missing; give a file (.npz, .hdf5), a Minari id or folder, a run that has a replay, or "
            "module:function"
        )
    info = info or _spaces(config)
    try:
        dataset = fit_dataset(_read(config, loop, loop.dataset, info), info, loop.action_units)
    except UserError as error:
        raise UserError(f"dataset: {error}") from None
    if loop.top_return_fraction < 1.0:
        dataset = dataset.best(loop.top_return_fraction)
    _log_summary(dataset, config.run.env_id)
    return dataset


def _log_summary(dataset: OfflineDataset, env_id: str) -> None:
    """Log one line about the dataset, and one for each decision that was made about it."""
    _LOG.info(
        "the dataset has %d transitions in %d episodes (%d terminated, %d truncated)%s",
        len(dataset),
        dataset.n_episodes,
        dataset.terminated.sum(),
        dataset.truncated.sum(),
        f", mean return {dataset.return_mean:.2f}" if dataset.rewarded else "",
    )
    origin = dataset.source.get("env_id")
    other = [f"the dataset is from {origin}, but this run uses {env_id}"] if origin not in (None, env_id) else []
    for note in (*other, *dataset.source.get("notes", ())):
        _LOG.info("dataset: %s", note)


def _read(config: Config, loop: DatasetConfig, name: str, info: SpaceInfo) -> OfflineDataset:
    from rl_training.runtime.datasets import open_dataset

    answers: dict[str, Any] = {
        # Behaviour cloning does not use why an episode ended.
        "done_means": loop.done_means if isinstance(loop, TransitionsConfig) else "terminal",
        "time_limit": known_time_limit(config),
        # Imitation learning uses no rewards.
        "rewards_needed": isinstance(loop, OfflineLoopConfig) or loop.top_return_fraction < 1.0,
    }
    if not is_reference(name) or Path(name).exists():
        return open_dataset(name, **answers)
    make_dataset = resolve_maker(name, key="dataset", makes="a dataset")
    problem = unfitting_call(make_dataset, info)
    if problem is not None:
        raise UserError(f"{name!r}: is called with (SpaceInfo): {problem}")
    made = make_dataset(info)
    if isinstance(made, OfflineDataset):
        made = to_arrays(made)  # so that it is checked like a file
    if not isinstance(made, Mapping):
        raise UserError(f"{name!r}: it made a {type(made).__name__}, not an OfflineDataset or a mapping of arrays")
    return from_arrays(made, source={"path": name}, **answers)


def _spaces(config: Config) -> SpaceInfo:
    maker = EnvMaker(config.run, config.loop)
    envs = maker.masking(maker.vector(1))
    try:
        return maker.describe(envs)
    finally:
        envs.close()
