"""CartPole as a picture: what it shows, that it is CartPole, and that it can be saved."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.config import load_config
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.cartpole_pixels import CartPolePixels, Picture, cartpole_pixels
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.envs.own_states import OwnStates, keep_state_of
from rl_training.runtime.train import build, train
from rl_training.types import UserError
from run_helpers import cut_and_resume, latest, run_differences, tiny

ENV_ID = "rl_training.runtime.cartpole_pixels:cartpole_pixels"
WHITE = 255


def drawn(picture: Picture, place: float, angle: float) -> np.ndarray:
    """How dark every pixel is."""
    image = picture(place, angle)
    gray = image if image.ndim == 2 else image.mean(axis=-1)
    return WHITE - gray.astype(np.float64)


def middle(row: np.ndarray) -> float:
    """Where the darkness of a row is centred, in pixels from the left edge."""
    return float((row * np.arange(len(row))).sum() / row.sum())


@pytest.fixture(params=[False, True], ids=["rgb", "gray"])
def picture(request: pytest.FixtureRequest) -> Picture:
    return Picture(64, gray=request.param, reach=2.4)


def test_spaces() -> None:
    rgb, gray, large = cartpole_pixels(), cartpole_pixels(gray=True), cartpole_pixels(size=96)
    assert rgb.observation_space == gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    assert gray.observation_space == gym.spaces.Box(0, 255, (64, 64), np.uint8)
    assert large.observation_space == gym.spaces.Box(0, 255, (96, 96, 3), np.uint8)
    for env in (rgb, gray, large):
        assert env.action_space == gym.spaces.Discrete(2)
        assert env.observation_space.contains(env.reset(seed=0)[0])
        assert env.observation_space.contains(env.step(0)[0])


def test_the_cart_moves_with_its_place(picture: Picture) -> None:
    cart_row = 52
    places = np.linspace(-2.4, 2.4, 9)
    centers = [middle(drawn(picture, place, 0.0)[cart_row]) for place in places]
    np.testing.assert_allclose(centers, 31.5 + places * 0.35 * 64 / 2.4, atol=0.05)
    # All of it is in the picture, up to the ends of the track.
    widths = [float((drawn(picture, place, 0.0)[cart_row] > 0).sum()) for place in places]
    assert min(widths) >= 13


def test_the_pole_leans_with_its_angle(picture: Picture) -> None:
    tip_row, height = 8, 42
    for angle in np.linspace(-0.2094, 0.2094, 9):
        center = middle(drawn(picture, 0.0, angle)[tip_row])
        assert center == pytest.approx(31.5 + height * np.tan(angle), abs=0.05)


@pytest.mark.parametrize(("place", "angle"), [(0.02, 0.0), (0.0, 0.002)])
def test_less_than_a_pixel_shows(picture: Picture, place: float, angle: float) -> None:
    assert (picture(place, angle) != picture(0.0, 0.0)).any()


def test_colors_tell_pole_from_cart_and_ground() -> None:
    image = Picture(64, gray=False, reach=2.4)(0.0, 0.0)
    pole, cart, ground, air = image[30, 31], image[52, 31], image[60, 31], image[2, 31]
    assert len({tuple(color.tolist()) for color in (pole, cart, ground, air)}) == 4
    assert air.tolist() == [WHITE] * 3


def test_pictures_are_new_arrays(picture: Picture) -> None:
    first = picture(0.0, 0.1)
    kept = first.copy()
    picture(1.0, -0.1)
    np.testing.assert_array_equal(first, kept)


def test_velocities_do_not_show() -> None:
    env = CartPolePixels()
    env.reset(seed=0)
    pictures = []
    for velocities in ((0.0, 0.0), (1.0, -2.0)):
        env.set_state({"state": np.array([0.1, velocities[0], 0.05, velocities[1]]), "beyond": None})
        assert env.state is not None
        pictures.append(env._draw(np.asarray(env.state)))
    np.testing.assert_array_equal(*pictures)
    # After a step they do.
    after = []
    for velocities in ((0.0, 0.0), (1.0, -2.0)):
        env.set_state({"state": np.array([0.1, velocities[0], 0.05, velocities[1]]), "beyond": None})
        after.append(env.step(0)[0])
    assert (after[0] != after[1]).any()


@pytest.mark.parametrize("env_kwargs", [{}, {"sutton_barto_reward": True}])
def test_it_is_cartpole(env_kwargs: dict[str, Any]) -> None:
    plain, seen = gym.make("CartPole-v1", **env_kwargs), cartpole_pixels(**env_kwargs)
    picture = Picture(64, gray=False, reach=2.4)
    for seed in range(3):
        expected, obs = plain.reset(seed=seed)[0], seen.reset(seed=seed)[0]
        plain.action_space.seed(seed)
        over = False
        while not over:
            np.testing.assert_array_equal(obs, picture(float(expected[0]), float(expected[2])))
            action = plain.action_space.sample()
            expected, *rest = plain.step(action)
            obs, *others = seen.step(action)
            assert rest[:3] == others[:3]
            over = rest[1] or rest[2]


def balance(state: Any) -> int:
    return int(state[2] + 0.3 * state[3] + 0.02 * state[0] + 0.05 * state[1] > 0)


def test_an_episode_is_truncated_after_500_steps() -> None:
    env = cartpole_pixels()
    env.reset(seed=0)
    inner: Any = env.unwrapped
    for _ in range(499):
        assert env.step(balance(inner.state))[2:4] == (False, False)
    assert env.step(balance(inner.state))[2:4] == (False, True)


@pytest.mark.parametrize("env_kwargs", [{"size": 15}, {"size": "64"}, {"size": True}])
def test_bad_sizes_are_refused_by_name(env_kwargs: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"env_kwargs.size=.*: must be a whole number of at least 16"):
        build(load_config({"algo": "ppo", "env_id": ENV_ID, "env_kwargs": env_kwargs}))


def test_unknown_arguments_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"env_kwargs=\{'colour': 1\}"):
        build(load_config({"algo": "ppo", "env_id": ENV_ID, "env_kwargs": {"colour": 1}}))


def test_its_state_is_saved_and_not_replayed() -> None:
    envs = EnvMaker(RunConfig(env_id=ENV_ID), LoopConfig()).vector(2)
    assert isinstance(keep_state_of(envs), OwnStates)
    envs.close()


def test_a_restored_state_goes_on_the_same() -> None:
    env, other = CartPolePixels(), CartPolePixels()
    env.reset(seed=1)
    other.reset(seed=2)
    for action in (0, 1, 1):
        env.step(action)
    other.set_state(env.get_state())
    kept = env.get_state()
    for action in (1, 1, 0, 1):
        np.testing.assert_array_equal(env.step(action)[0], other.step(action)[0])
    assert (kept["state"] != env.get_state()["state"]).any()


@pytest.mark.parametrize("changes", [{}, {"env_kwargs": {"gray": True}, "frame_stack": 2}], ids=["rgb", "stacked"])
def test_a_run_trains_and_resumes_to_the_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(env_id=ENV_ID, total_timesteps=216, eval_episodes=1, **changes)
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=120)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert latest(tmp_path / "cut").meta["resume"] == "exact"


def test_drawing_is_fast() -> None:
    """It takes some 40 microseconds, pygame some 2,000."""
    picture = Picture(64, gray=False, reach=2.4)
    times = []
    for _ in range(5):
        started = time.process_time()
        for _ in range(50):
            picture(0.1, 0.1)
        times.append((time.process_time() - started) / 50)
    assert min(times) < 5e-4
