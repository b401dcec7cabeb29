"""MiniGrid: what an observation says, ends of episodes, exact resume, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.config import load_config
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.envs.grids import GridObservation, mission_vectors
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.train import build, train
from rl_training.types import UserError
from run_helpers import cut_and_resume, latest, run_differences, tiny

EMPTY, DOORS = "MiniGrid-Empty-5x5-v0", "MiniGrid-GoToDoor-5x5-v0"
LEFT, RIGHT, FORWARD = 0, 1, 2
CELL = 11 + 6 + 4
UNSEEN, FREE, WALL, GOAL, AGENT = 0, 1, 2, 8, 10


@pytest.fixture
def minigrid() -> Any:
    return pytest.importorskip("minigrid", reason="the extra minigrid is not installed")


def maker(env_id: str = EMPTY, time_limit: int | None = None, **env_kwargs: Any) -> EnvMaker:
    return EnvMaker(RunConfig(env_id=env_id, env_kwargs=env_kwargs), LoopConfig(time_limit=time_limit))


def made(env_id: str = EMPTY, **env_kwargs: Any) -> GridObservation:
    env = maker(env_id, **env_kwargs)._base()
    assert isinstance(env, GridObservation)
    return env


def codes(vector: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
    """Object, colour and state of every cell, read back from an observation."""
    rows = vector[: cells[0] * cells[1] * CELL].reshape(*cells, CELL)
    parts = np.split(rows, [11, 17], axis=-1)
    assert all((part.sum(axis=-1) == 1).all() for part in parts)
    return np.stack([part.argmax(axis=-1) for part in parts], axis=-1)


@pytest.mark.usefixtures("minigrid")
@pytest.mark.parametrize(
    ("env_kwargs", "space"),
    [
        ({}, gym.spaces.Box(0, 1, (7 * 7 * CELL + 4,), np.float32)),
        ({"agent_view_size": 5}, gym.spaces.Box(0, 1, (5 * 5 * CELL + 4,), np.float32)),
        ({"view": "whole"}, gym.spaces.Box(0, 1, (5 * 5 * CELL + 4,), np.float32)),
        ({"observation": "pixels"}, gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)),
        ({"observation": "pixels", "view": "whole"}, gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)),
        ({"observation": "pixels", "image_size": 80}, gym.spaces.Box(0, 255, (80, 80, 3), np.uint8)),
    ],
)
def test_spaces(env_kwargs: dict[str, Any], space: gym.Space[Any]) -> None:
    env = made(**env_kwargs)
    assert env.observation_space == space
    assert env.action_space == gym.spaces.Discrete(7)
    assert space.contains(env.reset(seed=0)[0])
    assert space.contains(env.step(FORWARD)[0])


@pytest.mark.usefixtures("minigrid")
@pytest.mark.parametrize("view", ["agent", "whole"])
def test_every_code_is_in_the_vector(view: str) -> None:
    from minigrid.wrappers import FullyObsWrapper

    env_id = "MiniGrid-DoorKey-5x5-v0"
    plain: gym.Env[Any, Any] = gym.make(env_id)
    if view == "whole":
        plain = FullyObsWrapper(plain)
    env = made(env_id, view=view)
    expected, vector = plain.reset(seed=3)[0], env.reset(seed=3)[0]
    rng, seen = np.random.default_rng(0), set()
    for _ in range(120):
        assert (codes(vector, expected["image"].shape[:2]) == expected["image"]).all()
        assert vector[-4:].argmax() == expected["direction"]
        seen |= {tuple(cell) for cell in expected["image"].reshape(-1, 3).tolist()}
        action = int(rng.integers(7))
        expected, vector = plain.step(action)[0], env.step(action)[0]
    assert len(seen) >= 5


@pytest.mark.usefixtures("minigrid")
def test_the_whole_grid_shows_the_agent() -> None:
    env = made(view="whole")
    before = codes(env.reset(seed=0)[0], (5, 5))
    after = codes(env.step(FORWARD)[0], (5, 5))
    assert before[1, 1].tolist() == [AGENT, 0, 0]
    assert (after[1, 1, 0], after[2, 1].tolist()) == (FREE, [AGENT, 0, 0])
    assert codes(env.step(RIGHT)[0], (5, 5))[2, 1].tolist() == [AGENT, 0, 1]


@pytest.mark.usefixtures("minigrid")
def test_pixels_are_those_of_minigrid_in_the_middle_of_a_square() -> None:
    from minigrid.wrappers import RGBImgObsWrapper, RGBImgPartialObsWrapper

    for view, wrapper, tile in (("agent", RGBImgPartialObsWrapper, 9), ("whole", RGBImgObsWrapper, 12)):
        plain = wrapper(gym.make(EMPTY), tile_size=tile)
        image = made(observation="pixels", view=view).reset(seed=0)[0]
        frame = plain.reset(seed=0)[0]["image"]
        margin = (64 - len(frame)) // 2
        inner = (slice(margin, margin + len(frame)),) * 2
        np.testing.assert_array_equal(image[inner], frame)
        image[inner] = 0
        assert not image.any()


@pytest.mark.usefixtures("minigrid")
@pytest.mark.parametrize("observation", ["grid", "pixels"])
def test_ends_of_episodes(observation: str) -> None:
    env = made(observation=observation)
    env.reset(seed=0)
    way = [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD]
    for action in way[:-1]:
        assert env.step(action)[1:4] == (0, False, False)
    _, reward, terminated, truncated, _ = env.step(way[-1])
    assert (reward, terminated, truncated) == (pytest.approx(1 - 0.9 * 5 / 100), True, False)
    env.reset(seed=0)
    assert [env.step(LEFT)[2:4] for _ in range(100)] == [(False, False)] * 99 + [(False, True)]


@pytest.mark.usefixtures("minigrid")
def test_a_time_limit_of_ours_is_a_truncation_too() -> None:
    env = maker(time_limit=4)._base()
    env.reset(seed=0)
    assert [env.step(LEFT)[2:4] for _ in range(4)] == [(False, False)] * 3 + [(False, True)]


@pytest.mark.usefixtures("minigrid")
def test_seeds_reproduce_episodes() -> None:
    def observations(env: Any, seed: int) -> np.ndarray:
        rng = np.random.default_rng(0)
        return np.stack([env.reset(seed=seed)[0], *(env.step(int(rng.integers(7)))[0] for _ in range(15))])

    env, other = made("MiniGrid-FourRooms-v0"), made("MiniGrid-FourRooms-v0")
    first, second = observations(env, 1), observations(env, 2)
    assert (first != second).any()
    np.testing.assert_array_equal(first, observations(env, 1))
    np.testing.assert_array_equal(first, observations(other, 1))


# Missions


class Missions:
    """In the place of MiniGrid's space of missions."""

    def __init__(self, words: list[list[str]] | None) -> None:
        self.ordered_placeholders = words

    @staticmethod
    def mission_func(*words: str) -> str:
        return " ".join(words)


def test_missions_are_numbers() -> None:
    vectors = mission_vectors(Missions([["get", "go"], ["the"], ["red", "green", "blue"]]))
    assert len(vectors) == 6
    assert vectors["go the red"].tolist() == [0, 1, 1, 0, 0]
    assert vectors["get the blue"].tolist() == [1, 0, 0, 0, 1]


@pytest.mark.parametrize("words", [None, [["one"], ["way"]]])
def test_a_mission_that_is_always_the_same_is_left_out(words: list[list[str]] | None) -> None:
    assert mission_vectors(Missions(words)) == {}


@pytest.mark.usefixtures("minigrid")
def test_missions_are_seen() -> None:
    vectors, images = made(DOORS), made(DOORS, observation="pixels")
    assert isinstance(images.observation_space, gym.spaces.Dict)
    colors = vectors.unwrapped.observation_space["mission"].ordered_placeholders[0]  # type: ignore[index]
    told = set()
    for seed in range(8):
        vector, parts = vectors.reset(seed=seed)[0], images.reset(seed=seed)[0]
        mission = vectors.unwrapped.mission  # type: ignore[attr-defined]
        (color,) = [color for color in colors if color in mission]
        np.testing.assert_array_equal(vector[-6:], parts["mission"])
        assert colors[int(parts["mission"].argmax())] == color
        assert images.observation_space.contains(parts)
        told.add(color)
    assert len(told) > 2


@pytest.mark.usefixtures("minigrid")
def test_all_environments_have_a_number_for_their_missions() -> None:
    made()  # registers them
    ids = [key for key in gym.registry if key.startswith("MiniGrid-")]
    assert len(ids) > 50
    for env_id in ids:
        # Mazes need files that are not in the package; of old versions Gymnasium warns.
        if "WFC" in env_id or (env_id.replace("-v0", "-v1") in ids and env_id.endswith("-v0")):
            continue
        env = made(env_id)
        for seed in range(3):
            assert env.observation_space.contains(env.reset(seed=seed)[0]), env_id


# Runs, and what is refused


@pytest.mark.usefixtures("minigrid")
@pytest.mark.parametrize(
    "changes",
    [
        {"env_id": EMPTY, "time_limit": 30},
        {"env_id": EMPTY, "time_limit": 30, "env_kwargs": {"observation": "pixels"}},
        {"env_id": DOORS, "env_kwargs": {"observation": "pixels", "view": "whole"}},
    ],
    ids=["grid", "pixels", "missions"],
)
def test_a_run_trains_and_resumes_to_the_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(total_timesteps=216, eval_episodes=1, **changes)
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=120)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert latest(tmp_path / "cut").meta["resume"] == "exact"


@pytest.mark.usefixtures("minigrid")
@pytest.mark.parametrize(
    ("env_kwargs", "words"),
    [
        ({"observation": "text"}, "env_kwargs.observation='text': must be grid or pixels"),
        ({"view": 3}, "env_kwargs.view=3: must be agent or whole"),
        (
            {"observation": "pixels", "image_size": 6},
            "env_kwargs.image_size=6: must be a whole number of at least 7, a pixel for each cell",
        ),
        (
            {"observation": "pixels", "image_size": 64.0},
            "env_kwargs.image_size=64.0: must be a whole number of at least 7, a pixel for each cell",
        ),
    ],
)
def test_bad_options_are_refused_by_name(env_kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        build(load_config({"algo": "ppo", "env_id": EMPTY, "env_kwargs": env_kwargs}))
    assert str(error.value) == words


@pytest.mark.usefixtures("minigrid")
def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"env_kwargs=\{'pixel': True\}: .*'pixel'"):
        build(load_config({"algo": "ppo", "env_id": EMPTY, "env_kwargs": {"pixel": True}}))


@pytest.mark.usefixtures("minigrid")
def test_a_misspelt_id_has_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"unknown environment.*MiniGrid-Empty-5x5-v0"):
        maker("MiniGrid-Emty-5x5-v0")


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)  # type: ignore[arg-type]
    with pytest.raises(UserError) as error:
        build(load_config({"algo": "ppo", "env_id": EMPTY}))
    assert str(error.value).startswith(
        f"env_id={EMPTY!r}: needs an extra that is not installed: pip install 'rl-training[minigrid]' ("
    )
    assert "\n" not in str(error.value)
