"""Environments of other people's packages: they train, resume to the bit, and `doctor` says what is true of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import pytest

from rl_training import PPO, train
from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.doctor.env_check import check_environment
from rl_training.runtime.envs.make import EnvMaker
from rl_training.types import Text, UserError
from run_helpers import cut_and_resume, latest, run_differences, tiny


class Package(NamedTuple):
    """A package, the settings of a run on one of its environments, and what `doctor` finds in so many steps."""

    module: str
    settings: dict[str, Any]
    steps: int = 600
    problems: tuple[str, ...] = ()


# Two lanes and three cars, so that a step takes milliseconds.
SHORT_ROAD = {"vehicles_count": 3, "lanes_count": 2, "duration": 5, "simulation_frequency": 5}
PACKAGES = {
    "minigrid": Package("minigrid", {"env_id": "minigrid:MiniGrid-Empty-5x5-v0", "time_limit": 12}),
    "raw minigrid": Package("minigrid", {"env_id": "test_packages:raw_grid", "time_limit": 12}),
    "highway-env": Package(
        "highway_env", {"env_id": "highway_env:highway-fast-v0", "env_kwargs": {"config": SHORT_ROAD}}, 240
    ),
    "gymnasium-robotics": Package(
        "gymnasium_robotics", {"algo": "sac", "env_id": "gymnasium_robotics:PointMaze_UMaze-v3", "time_limit": 12}
    ),
    "flappy-bird-gymnasium": Package(
        "flappy_bird_gymnasium",
        {"env_id": "flappy_bird_gymnasium:FlappyBird-v0", "env_kwargs": {"use_lidar": False}, "time_limit": 12},
    ),
    # A game takes more steps than are played here.
    "ale-py": Package("ale_py", {"env_id": "ALE/Pong-v5", "frame_stack": 2, "time_limit": 12}, 240, ("truncation",)),
}


def raw_grid(env_id: str = "MiniGrid-GoToObject-6x6-N2-v0") -> gym.Env[Any, Any]:
    """MiniGrid with its own observations: a Dict of a direction, an image of 7 x 7 codes and a mission in words."""
    import minigrid

    gym.register_envs(minigrid)
    return gym.make(env_id)


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> Iterator[Package]:
    found = PACKAGES[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other packages warn of when they are imported or made
        pytest.importorskip(found.module, reason=f"{request.param} is not installed")
        yield found


def test_an_environment_trains_and_resumes_to_the_bit(package: Package, tmp_path: Path) -> None:
    short = {"total_timesteps": 48, "checkpoint_interval": 24, "num_envs": 2, "eval_episodes": 1, "n_epochs": 1}
    usual = tiny(**package.settings)
    settings = usual | {key: value for key, value in (short | {"learning_starts": 12}).items() if key in usual}
    train(settings, run_dir=tmp_path / "whole")
    cut_and_resume(settings, tmp_path / "cut", after=24)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert latest(tmp_path / "cut").meta["resume"] == "exact"


def test_doctor_says_what_is_true(package: Package) -> None:
    settings = package.settings
    found = list(check_environment(settings["env_id"], settings.get("env_kwargs", {}), steps=package.steps))
    assert {finding.subject for finding in found if finding.level == "PROBLEM"} == set(package.problems)
    assert {finding.subject: finding.words for finding in found}["resume"].startswith("is exact")


@pytest.fixture
def minigrid() -> Any:
    return pytest.importorskip("minigrid", reason="the extra minigrid is not installed")


@pytest.mark.usefixtures("minigrid")
def test_minigrid_with_its_module_is_minigrid() -> None:
    """Observations of numbers, as for the id alone."""
    kinds = set()
    for env_id in ("MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-Empty-5x5-v0"):
        maker = EnvMaker(RunConfig(env_id=env_id), LoopConfig())
        envs = maker.vector(1)
        kinds.add(maker.describe(envs))
        envs.close()
    (info,) = kinds
    assert info.obs_shape == (7 * 7 * 21 + 4,)


@pytest.mark.usefixtures("minigrid")
def test_raw_minigrid_has_an_image_of_codes_a_direction_and_words() -> None:
    maker = EnvMaker(RunConfig(env_id="test_packages:raw_grid"), LoopConfig())
    envs = maker.vector(1)
    parts = {part.name: part for part in maker.describe(envs).parts}
    envs.close()
    assert {name: part.shape for name, part in parts.items()} == {
        "direction": (4,),
        "image": (7, 7, 3),
        "mission": (5 * 12,),
    }
    assert parts["image"].kind == "image"
    words = parts["mission"].coding
    assert isinstance(words, Text)
    assert words.words
    assert {"go", "to", "the", "green", "ball"} <= set(words.symbols)
    agent = PPO("test_packages:raw_grid", n_steps=8, num_envs=1, hidden_sizes=[8])
    obs, _ = raw_grid().reset(seed=0)
    assert agent.predict(obs)[0] in range(7)
    with pytest.raises(UserError, match=r"obs.mission='fly home': has 'fly', which is none of its words"):
        agent.predict(obs | {"mission": "fly home"})


@pytest.mark.usefixtures("minigrid")
def test_sentences_without_end_are_refused_with_what_to_write() -> None:
    with pytest.raises(UserError, match=r"'mission' is a BabyAIMissionSpace.*write a gymnasium.ObservationWrapper"):
        PPO("test_packages:raw_grid", env_kwargs={"env_id": "BabyAI-GoToRedBall-v0"})
