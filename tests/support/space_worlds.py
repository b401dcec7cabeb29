"""Environments of every kind of space: they show random observations of it, and take any action."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.envs.make import EnvMaker
from rl_training.types import Array, SpaceInfo
from run_helpers import tiny

MIXED = spaces.Dict(
    {
        "goal": spaces.Tuple((spaces.MultiBinary(2), spaces.Text(3, charset="xyz"))),
        "view": spaces.Box(0, 255, (7, 7, 3), np.uint8),
        "where": spaces.Dict({"cell": spaces.MultiDiscrete([3, 2], start=[1, 0]), "room": spaces.Discrete(4, start=9)}),
    }
)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=5),
    "multi_discrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi_binary": spaces.MultiBinary((2, 3)),
    "text": spaces.Text(4, charset="ab"),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,))}))),
    "mixed": MIXED,
    "small": spaces.Box(0, 255, (5, 4), np.uint8),
    "float": spaces.Box(0.0, 1.0, (3, 9, 8)),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), None),
    "unbounded_text": spaces.Text(1_000),
    "pair": spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)}), "a.b": spaces.Discrete(2)}),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=2),
    "continuous": spaces.Box(-2.0, 2.0, (2,)),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "from_zero": spaces.Box(0.0, np.inf, (2,)),
}
TRAINED = ("multi_discrete", "multi_binary", "text", "tuple", "mixed", "small", "float")


class Shown(gym.Env[Any, Any]):
    """Shows random observations of a space, for six steps; the reward is the sum of all flags of an action."""

    def __init__(self, shows: str = "mixed", takes: str = "discrete") -> None:
        self.observation_space, self.action_space = OBSERVATIONS[shows], ACTIONS[takes]
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def look(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.steps += 1
        return self.look(), float(np.sum(action)), False, self.steps == 6, {}


def bounded() -> gym.Env[Any, Any]:
    """What the message about unbounded actions says."""
    env = Shown("discrete", "unbounded")
    return gym.wrappers.TransformAction(env, lambda action: action, spaces.Box(-1, 1, (2,)))


def config(shows: str = "mixed", takes: str = "discrete", **changes: Any) -> dict[str, Any]:
    return tiny(env_id="space_worlds:Shown", env_kwargs={"shows": shows, "takes": takes}, time_limit=6, **changes)


def loaded(shows: str = "mixed", takes: str = "discrete", **changes: Any) -> Config:
    return load_config(config(shows, takes, **changes))


def made(shows: str, **loop: Any) -> tuple[SpaceInfo, Array]:
    """The spaces of an environment, and its first observations with seeds 0 and 1."""
    maker = EnvMaker(RunConfig(env_id="space_worlds:Shown", env_kwargs={"shows": shows}), LoopConfig(**loop))
    envs = maker.vector(2)
    rows = np.array(envs.reset(seed=[0, 1])[0])
    info = maker.describe(envs)
    envs.close()
    return info, rows.astype(info.obs_dtype)


def own(shows: str, seed: int) -> Any:
    """The first observation, as the environment shows it."""
    return Shown(shows).reset(seed=seed)[0]
