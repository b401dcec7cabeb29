"""Actions of every kind of space: who takes them, and what is said if they cannot be taken."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rl_training import train
from rl_training.experiment.registry import REGISTRY, capable
from rl_training.runtime.train import build
from rl_training.types import UserError
from run_helpers import tiny
from space_worlds import Shown, loaded


@pytest.mark.parametrize("algo", REGISTRY)
def test_a_refusal_of_actions_names_an_algorithm_that_can(algo: str) -> None:
    able = REGISTRY[algo].capabilities
    for kind in ("discrete", "multi_discrete", "multi_binary", "continuous"):
        others = [
            name
            for name in capable("vector", kind)
            if REGISTRY[name].capabilities.offline == able.offline and REGISTRY[name].family != "imitation"
        ]
        assert kind in able.actions or others


def test_several_choices_are_refused_by_dqn_with_who_can() -> None:
    with pytest.raises(UserError, match=r"multi_discrete actions .*discrete ones; ppo, a2c, .*or dreamer can"):
        build(loaded(takes="multi_discrete", algo="dqn"))


@pytest.mark.parametrize(
    ("takes", "bounds"),
    [("unbounded", "gymnasium.spaces.Box(-1, 1, (2,))"), ("from_zero", "gymnasium.spaces.Box(0, 2, (2,))")],
)
def test_the_advice_on_unbounded_actions_works(takes: str, bounds: str) -> None:
    with pytest.raises(UserError, match="actions are unbounded") as refused:
        build(loaded("discrete", takes))
    advice = re.search(r"gymnasium\.wrappers\.TransformAction\(.*\)\)$", str(refused.value))
    assert advice is not None
    assert bounds in advice[0]
    followed = eval(advice[0], {"gymnasium": gym, "env": Shown("discrete", takes)})
    assert np.isfinite(followed.action_space.low).all()
    assert np.isfinite(followed.action_space.high).all()


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_an_environment_with_bounds_as_advised_trains(algo: str, tmp_path: Path) -> None:
    result = train(tiny(algo=algo, env_id="space_worlds:bounded", time_limit=6, total_timesteps=72), run_dir=tmp_path)
    assert result["step"] == 72
