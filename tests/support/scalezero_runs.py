"""Runs of ScaleZero in tiny tasks, what is in their memories, and a walk on any scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.algorithms.scalezero import ScaleZero
from rl_training.data.memory import ReplayMemory
from rl_training.experiment.config import Config
from rl_training.runtime.train import Run, build
from rl_training.testing.contract import tiny_config
from rl_training.testing.tiny import TinyEnv

SMALL = {"width": 16, "layers": 1, "expert_size": 8, "experts": 2, "context_length": 2, "train_every": 8}


class Walk(TinyEnv):
    """The walk of `TinyEnv` with other numbers: of actions, in observations, in rewards."""

    def __init__(self, choices: int = 3, scale: float = 1.0, shift: float = 0.0, worth: float = 1.0) -> None:
        super().__init__()
        self.action_space = gym.spaces.Discrete(choices, start=1)
        self._scale, self._shift, self._worth = np.float32(scale), np.float32(shift), worth

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, self._worth * reward, terminated, truncated, info

    def _obs(self) -> Any:
        return self._scale * super()._obs() + self._shift


class Runs:
    """Makes runs of so many tiny tasks, or of a config, and closes them."""

    def __init__(self) -> None:
        self.made: list[Run] = []

    def __call__(self, tasks: int = 2, steps: int = 1, **settings: Any) -> Run:
        return self.of(tiny_config("scalezero", settings.pop("env", None), tasks=tasks, **SMALL | settings), steps)

    def of(self, config: Config, steps: int) -> Run:
        run = build(config)
        self.made.append(run)
        run.start()
        for _ in range(steps):
            run.advance()
        return run

    def close(self) -> None:
        for run in self.made:
            run.close()


def learner_of(run: Run) -> ScaleZero:
    assert isinstance(run.algorithm, ScaleZero)
    return run.algorithm


def memories_of(run: Run) -> Mapping[str, ReplayMemory]:
    return run.loop.memories  # type: ignore[attr-defined,no-any-return]


def policies_in(memory: Any) -> Any:
    """The policies that searches found, as they are remembered."""
    return memory.replay.gather(np.arange(len(memory)), gamma=1.0).records["policy"].copy()
