"""Classic control of which the velocities are hidden."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.experiment.config import load_config
from rl_training.runtime.no_velocity import NoVelocity
from rl_training.runtime.train import build
from rl_training.types import UserError


@pytest.mark.parametrize(
    ("env_id", "shown"),
    [
        ("CartPole-v1", [0, 2]),
        ("Pendulum-v1", [0, 1]),
        ("MountainCar-v0", [0]),
        ("MountainCarContinuous-v0", [0]),
        ("Acrobot-v1", [0, 1, 2, 3]),
    ],
)
def test_only_places_are_shown(env_id: str, shown: list[int]) -> None:
    full, partial = gym.make(env_id), NoVelocity(env_id)
    obs, _ = full.reset(seed=3)
    np.testing.assert_array_equal(partial.reset(seed=3)[0], obs[shown])
    full.action_space.seed(0)
    for _ in range(5):
        action = full.action_space.sample()
        expected, found = full.step(action), partial.step(action)
        np.testing.assert_array_equal(found[0], expected[0][shown])
        assert found[1:4] == expected[1:4]
        assert partial.observation_space.contains(found[0])
    assert partial.observation_space.shape == (len(shown),)
    for env in (full, partial):
        env.close()


def test_the_time_limit_is_that_of_the_environment() -> None:
    env = NoVelocity("CartPole-v1")
    env.close()
    assert env.get_wrapper_attr("_max_episode_steps") == 500


def test_arguments_reach_the_environment() -> None:
    env = NoVelocity("Pendulum-v1", g=1.5)
    env.close()
    assert env.get_wrapper_attr("g") == 1.5


@pytest.mark.parametrize("env_id", ["CartPol-v1", "Taxi-v3", "BipedalWalker-v3", "phys2d/CartPole-v1", 1, [1], None])
def test_others_are_refused_by_name(env_id: Any) -> None:
    settings: dict[str, Any] = {
        "env_id": "rl_training.runtime.no_velocity:NoVelocity",
        "env_kwargs": {"env_id": env_id},
    }
    with pytest.raises(UserError, match=r"must be one of CartPole-v0, CartPole-v1, .*Acrobot-v1") as refusal:
        build(load_config({"algo": "ppo", **settings}))
    assert f"env_kwargs.env_id={env_id!r}: " in str(refusal.value)
    assert str(refusal.value).count("/") == str(env_id).count("/")  # of no namespace, which may not be installed
