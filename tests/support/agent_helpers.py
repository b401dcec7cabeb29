"""Small agents for the tests of `rl_training.api`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.runtime.checkpoints.checkpoint import Checkpoint, read_checkpoint
from run_helpers import Walk

SMALL: dict[str, Any] = {"n_steps": 8, "hidden_sizes": [8], "batch_size": 8, "n_epochs": 2, "eval_episodes": 2}
OFF_POLICY: dict[str, Any] = {
    "hidden_sizes": [8],
    "batch_size": 8,
    "buffer_size": 200,
    "learning_starts": 16,
    "eval_episodes": 2,
    "time_limit": 20,
}


def state_of(agent: Any) -> Checkpoint:
    """Everything that the agent is made of, as a checkpoint that later learning does not change."""
    with TemporaryDirectory() as folder:
        return read_checkpoint(agent.save(Path(folder) / "state"))


class Doubled(gym.ObservationWrapper[Any, Any, Any]):
    """A wrapper of a user's own, with an argument that it does not record."""

    def __init__(self, env: gym.Env[Any, Any], factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor
        self.closed = 0

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation * self.factor, np.float32)

    def close(self) -> None:
        self.closed += 1
        super().close()


class Recorded(gym.ObservationWrapper[Any, Any, Any], gym.utils.RecordConstructorArgs):
    """The same, which records its argument as Gymnasium's own do."""

    def __init__(self, env: gym.Env[Any, Any], factor: float) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, factor=factor)
        gym.ObservationWrapper.__init__(self, env)
        self.factor = factor

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation * self.factor, np.float32)


class ShownWalk(Walk):
    """A walk of a given length, which can be looked at."""

    metadata = {"render_modes": ["human", "rgb_array"]}

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        super().__init__()
        self.length, self.render_mode = length, render_mode
        self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, self.time >= self.length, info

    def render(self) -> Any:
        return np.full((3, 4, 3), self.time, np.uint8)


def wrapped(factor: float = 2.0) -> Doubled:
    """An environment in a wrapper of a user's own."""
    return Doubled(gym.make("CartPole-v1"), factor)
