"""Atari games: what an agent sees of them, what is refused, and a run that is resumed exactly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.data.replay import FrameReplay
from rl_training.experiment.config import Config, load_config
from rl_training.runtime.checkpoint import read_checkpoint, write_checkpoint
from rl_training.runtime.envs import EnvMaker
from rl_training.runtime.train import Run, build
from rl_training.testing import checkpoint_differences
from rl_training.types import UserError

pytest.importorskip("ale_py", reason="the extra atari is not installed")


def pong(**values: Any) -> Config:
    small = {"num_envs": 2, "buffer_size": 64, "learning_starts": 8, "batch_size": 4, "target_update_interval": 2}
    return load_config("dqn/atari_pong", **(small | values))


def maker(env_id: str = "ALE/Pong-v5", **values: Any) -> EnvMaker:
    config = pong(env_id=env_id, **values)
    return EnvMaker(config.run, config.loop)


@pytest.mark.parametrize("module", ["ale_py", "cv2"])
def test_a_missing_extra_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    words = r"^env_id='ALE/Pong-v5': needs an extra that is not installed: pip install 'rl-training\[atari\]' \(.*"
    with pytest.raises(UserError, match=words + module):
        build(pong())


def test_an_action_takes_four_frames_and_shows_one_small_grey_one(capfd: pytest.CaptureFixture[str]) -> None:
    env = maker(frame_stack=1).single()
    obs, info = env.reset(seed=3)
    assert (env.observation_space.shape, env.observation_space.dtype) == ((84, 84), np.uint8)
    assert (obs.shape, obs.dtype, int(obs.max()) > 50) == ((84, 84), np.uint8, True)
    frames = [info["episode_frame_number"]]
    for action in (2, 2, 3):
        frames.append(env.step(action)[-1]["episode_frame_number"])
    assert np.diff(frames).tolist() == [4, 4, 4]
    env.close()
    assert capfd.readouterr() == ("", "")


def test_episodes_begin_with_up_to_30_idle_frames() -> None:
    env = maker().single()
    idle = {env.reset(seed=seed)[1]["episode_frame_number"] for seed in range(6)}
    assert len(idle) > 3
    assert idle <= set(range(1, 31))
    env.close()


def test_the_frames_of_a_stack_are_stored_once() -> None:
    run = build(pong())
    assert run.info.obs_shape == (4, 84, 84)
    assert isinstance(run.loop.parts["replay"], FrameReplay)
    run.close()


def test_time_limit_counts_actions() -> None:
    env = maker(time_limit=5).single()
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(5)] == [False, False, False, False, True]
    env.close()


def test_a_lost_life_is_no_end() -> None:
    env = maker("ALE/Breakout-v5").single()
    lives = env.reset(seed=0)[1]["lives"]
    for _ in range(300):
        _, _, terminated, truncated, info = env.step(1)  # to fire, and not to move
        if info["lives"] < lives:
            break
    assert info["lives"] == lives - 1
    assert (terminated, truncated) == (False, False)
    env.close()


@pytest.mark.parametrize(("env_kwargs", "stickiness"), [({}, 0.25), ({"repeat_action_probability": 0.5}, 0.5)])
def test_actions_stick_as_often_as_the_environment_says(env_kwargs: dict[str, float], stickiness: float) -> None:
    env = maker(env_kwargs=env_kwargs).single()
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == stickiness
    env.close()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"env_id": "ALE/Pon-v5"}, r"env_id='ALE/Pon-v5': unknown environment; did you mean 'ALE/Pong-v5'\?"),
        ({"env_kwargs": {"frameskip": 2}}, "env_kwargs.frameskip=2: Atari games are preprocessed, which needs 1"),
        ({"env_kwargs": {"obs_type": "ram"}}, "env_kwargs.obs_type='ram': .* needs 'grayscale'; .* module:function"),
        ({"env_kwargs": {"continuous": True}}, "env_kwargs.continuous=True: .* needs False"),
        ({"env_kwargs": {"difficulty_level": 1}}, "env_kwargs=.*difficulty_level"),
        ({"algo": "sac"}, "algo='sac': cannot work with the discrete actions of ALE/Pong-v5, only with continuous"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_mistakes_are_said(values: dict[str, Any], words: str) -> None:
    base = pong() if "algo" not in values else load_config("sac", env_id="ALE/Pong-v5", num_envs=1)
    with pytest.raises(UserError, match=words):
        build(base.replace(**values))


def test_what_gymnasium_says_of_a_game_is_accepted() -> None:
    """The arguments that an environment made by `gymnasium.make` carries with it."""
    import gymnasium as gym

    maker()  # makes the games known
    kwargs = dict(gym.spec("ALE/Pong-v5").kwargs)
    assert kwargs["frameskip"] == 4
    env = maker(env_kwargs=kwargs).single()
    assert env.unwrapped._frameskip == 1
    env.close()


def advanced(run: Run, folder: Path, steps: int) -> Any:
    while run.steps < steps:
        run.advance()
    return read_checkpoint(write_checkpoint(folder / f"step_{run.steps}", run.snapshot()))


def test_pong_learns_and_resumes_to_the_bit(tmp_path: Path) -> None:
    straight, resumed = build(pong(time_limit=11)), build(pong(time_limit=11))
    straight.start()
    saved = advanced(straight, tmp_path, 32)
    assert straight.algorithm.n_updates == 6
    assert (straight.metrics["episodes"], saved.meta["resume"]) == (2.0, "exact")
    resumed.load(saved)
    assert resumed.exact
    ends = [advanced(run, tmp_path / name, 48) for name, run in (("straight", straight), ("resumed", resumed))]
    assert straight.metrics["n_updates"] == 10.0
    assert checkpoint_differences(*ends) == []
    assert checkpoint_differences(saved, ends[0])
    for run in (straight, resumed):
        run.close()
