"""What the tests of several tasks share: tiny environments of different spaces, settings, and the example's SPEC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPEC = "multi_task_dqn:SPEC"


class Match(gym.Env[Any, Any]):
    """Shows one of `kinds` marks; the action that names it is worth `worth`. Episodes have eight steps."""

    def __init__(self, kinds: int = 2, worth: float = 1.0) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (kinds,), np.float32)
        self.action_space = gym.spaces.Discrete(kinds)
        self.kinds, self.worth, self.mark, self.time = kinds, worth, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.worth * float(int(action) == self.mark)
        self.time += 1
        return self.show(), reward, self.time >= 8, False, {}

    def show(self) -> Any:
        self.mark = int(self.np_random.integers(self.kinds))
        return np.eye(self.kinds, dtype=np.float32)[self.mark]


class Steer(gym.Env[Any, Any]):
    """Takes real numbers, which Q-learning cannot choose."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)


TWO: dict[str, Any] = {
    "two": {"env_id": "task_worlds:Match", "num_envs": 2, "score": {"low": 4, "high": 8}},
    "three": {
        "env_id": "task_worlds:Match",
        "env_kwargs": {"kinds": 3, "worth": 10.0},
        "num_envs": 3,
        "score": {"low": 26, "high": 80},
    },
}


def tasks(folder: Path | None = None, **changes: Any) -> dict[str, Any]:
    """Settings of a run in two tasks that takes a fraction of a second."""
    settings: dict[str, Any] = {
        "algo": SPEC,
        "tasks": TWO,
        "hidden_sizes": [16],
        "total_timesteps": 300,
        "learning_starts": 40,
        "train_every": 10,
        "updates_per_step": 0.2,
        "batch_size": 16,
        "buffer_size": 200,
        "eval_episodes": 2,
        "checkpoint_interval": 100,
        "log_interval": 20,
    } | changes
    return settings if folder is None else settings | {"output_dir": str(folder)}
