"""Algorithms and environments for tests of worker pools. Worker processes import them by name."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.algorithms.on_policy import OnPolicyLoopConfig
from rl_training.algorithms.ppo import SPEC
from rl_training.algorithms.recurrent_ppo import SPEC as RECURRENT
from rl_training.algorithms.settings import setting


class LaggingLoopConfig(OnPolicyLoopConfig):
    """Rollouts of an older policy, some of them at a time."""

    lag: int = setting(1, "How many updates old the policy may be.", ge=0)
    at_once: int = setting(1, "Rollouts that an update learns from.", ge=1)

    @property
    def rounds_ahead(self) -> int:
        return self.lag

    def rollouts_per_round(self, num_workers: int) -> int:
        return self.at_once


LAGGING = replace(SPEC, name="lagging", loop=LaggingLoopConfig)
LAGGING_RECURRENT = replace(RECURRENT, name="lagging_recurrent", loop=LaggingLoopConfig)


class Uneven(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole, truncated early, whose steps take a time that no seed decides."""

    def __init__(self, longest: float = 0.002) -> None:
        super().__init__(gym.make("CartPole-v1", max_episode_steps=12))
        self._longest = longest

    def step(self, action: Any) -> Any:
        time.sleep(self._longest * os.urandom(1)[0] / 255)
        return super().step(action)


class Fateful(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole. Once, when the file `at` appears, the process that sees it meets its fate. A step takes `seconds`."""

    def __init__(self, at: str, fate: str, seconds: float = 0.0) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._at, self._fate, self._seconds = Path(at), fate, seconds

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        if self._at.exists():
            try:
                self._at.rename(f"{self._at}.seen")
            except FileNotFoundError:  # another process was first
                return super().step(action)
            if self._fate == "raise":
                raise ValueError("the pole\nbroke")
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}[self._fate])
        return super().step(action)


class Marked(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole, slowly. Every process that has one leaves its number in a folder."""

    def __init__(self, folder: str, seconds: float = 0.001) -> None:
        super().__init__(gym.make("CartPole-v1"))
        Path(folder, str(os.getpid())).touch()
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return super().step(action)


class Moody(gym.Env[Any, Any]):
    """Rewards say who acts: the process. Observations are two numbers."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), float(os.getpid()), False, False, {}
