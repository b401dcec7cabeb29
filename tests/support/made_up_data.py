"""Datasets for the runs of tests: noise that fits any spaces, and what random actions bring about in a known world."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.algorithms.base import LoopConfig
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.envs.make import EnvFactory, EnvMaker
from rl_training.types import Array, SpaceInfo, Step


def noise(info: SpaceInfo, *, episodes: int = 10, length: int = 8) -> dict[str, Array]:
    """Episodes of noise, which end in turn by themselves and by a time limit; actions are the environment's own."""
    rng = np.random.default_rng(0)
    shown = rng.standard_normal((episodes, length + 1, *info.obs_shape)).astype(info.obs_dtype)
    ends = np.arange(length) == length - 1
    by_itself = np.arange(episodes)[:, None] % 2 == 0
    columns = {
        "observations": shown[:, :-1],
        "actions": in_own_units(info, random_actions(info, (episodes, length), rng)),
        "rewards": rng.standard_normal((episodes, length)).astype(np.float32),
        "next_observations": shown[:, 1:],
        "terminals": by_itself & ends,
        "timeouts": ~by_itself & ends,
    }
    return {name: np.concatenate(column) for name, column in columns.items()}


def random_actions(info: SpaceInfo, leading: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Actions as a policy gives them: in [-1, 1], or choices counted from 0."""
    if info.continuous:
        return rng.uniform(-1.0, 1.0, (*leading, *info.action_shape)).astype(np.float32)
    return rng.integers(0, info.action_counts[0], leading)


def in_own_units(info: SpaceInfo, action: Array) -> Array:
    """The same actions as their environment takes them."""
    if not info.continuous:
        return action + info.action_starts[0]
    low, high = np.array(info.action_low), np.array(info.action_high)
    return (low + (action + 1.0) / 2.0 * (high - low)).astype(np.float32)


class Experience:
    """What random actions bring about in a world. A config can only name it, so the world is put here beforehand."""

    def __init__(self) -> None:
        self.world: EnvFactory | None = None
        self.time_limit: int | None = None

    def __call__(self, info: SpaceInfo) -> OfflineDataset:
        maker = EnvMaker(RunConfig(env_id="experience"), LoopConfig(time_limit=self.time_limit), self.world)
        rng = np.random.default_rng(0)
        collector = Collector(maker.vector(4), info, np.random.default_rng(1))
        collector.start()
        steps = [collector.step(random_actions(info, (4,), rng)) for _ in range(100)]
        collector.close()
        return _one_after_the_other(info, steps)


def _one_after_the_other(info: SpaceInfo, steps: list[Step]) -> OfflineDataset:
    """All that the first environment went through, then the second, and so on; what goes on at the end is cut off."""
    real = np.stack([step.real for step in steps], axis=1)

    def column(name: str) -> Any:
        return np.stack([getattr(step, name) for step in steps], axis=1)[real]

    terminated, truncated = column("terminated"), column("truncated")
    last_rows = np.cumsum(real.sum(axis=1)) - 1
    truncated[last_rows] |= ~terminated[last_rows]
    return OfflineDataset(
        column("obs"),
        in_own_units(info, column("action")),
        column("reward"),
        column("next_obs"),
        terminated,
        truncated,
        starts=np.flatnonzero(np.roll(terminated | truncated, 1)),
        source={"action_units": "environment"},
    )


EXPERIENCE = Experience()
