"""Hyperparameters of RL Zoo become configs that mean the same; what does not fit is listed."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rl_training import UserError, load_config
from rl_training.cli import cli
from rl_training.runtime.sb3.zoo import DEFAULTS, convert

PPO = """
defaults: &defaults
  policy: MlpPolicy
  n_timesteps: !!float 2e5
Pendulum-v1:
  <<: *defaults
  n_envs: 4
  n_steps: 1024
  learning_rate: lin_1e-3
  clip_range: lin_0.2
  gamma: 9e-1
  use_sde: True
  sde_sample_freq: 4
  normalize: "dict(norm_obs=True, norm_reward=False, clip_obs=5.)"
  env_wrapper: [my_wrappers.Noisy]
  policy_kwargs: "dict(log_std_init=-2, ortho_init=False, activation_fn=nn.ReLU, net_arch=dict(pi=[32], vf=[32]))"
  monitor_kwargs: dict(x=1)
CartPole-v1:
  <<: *defaults
  normalize: true
atari:
  policy: CnnPolicy
  env_wrapper: [stable_baselines3.common.atari_wrappers.AtariWrapper]
  frame_stack: 4
  n_envs: 8
  n_timesteps: !!float 1e7
  learning_rate: lin_2.5e-4
"""


def written(folder: Path, text: str, name: str = "ppo.yml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_an_entry_with_everything(tmp_path: Path) -> None:
    settings, missing = convert(written(tmp_path, PPO), "Pendulum-v1")
    assert settings == {
        "algo": "ppo",
        "env_id": "Pendulum-v1",
        "num_envs": 4,
        "n_steps": 1024,
        "total_timesteps": 200_000,
        "gamma": 0.9,
        "learning_rate_schedule": {"type": "linear", "start": 1e-3, "end": 0.0, "fraction": 1.0},
        "clip_coef_schedule": {"type": "linear", "start": 0.2, "end": 0.0, "fraction": 1.0},
        "use_sde": True,
        "sde_sample_freq": 4,
        "normalize_obs": True,
        "obs_clip": 5.0,
        "hidden_sizes": [32],
        "activation": "relu",
        "ortho_init": False,
        "log_std_init": -2,
    }
    assert [line.partition(":")[0] for line in missing] == ["env_wrapper", "monitor_kwargs", "log_std_init"]
    config = load_config(settings)
    assert config.controls["learning_rate"].schedule is not None


def test_defaults_that_differ_are_written_out(tmp_path: Path) -> None:
    settings, missing = convert(written(tmp_path, PPO), "CartPole-v1")
    assert (settings["n_steps"], settings["normalize_reward"], missing) == (2048, True, [])
    assert "gae_lambda" not in settings
    text = "CartPole-v1: {policy: MlpPolicy, n_timesteps: 1000, train_freq: 8, gradient_steps: -1}"
    settings, _ = convert(written(tmp_path, text, "dqn.yml"), "CartPole-v1")
    assert settings["double_q"] is False
    assert (settings["train_every"], settings["updates_per_step"]) == (8, 1.0)
    assert settings["target_update_interval"] == 10_000
    settings, _ = convert(written(tmp_path, text, "x.yml"), "CartPole-v1", algo="dqn")
    assert settings["algo"] == "dqn"


def test_games_have_one_entry(tmp_path: Path) -> None:
    for env in ("PongNoFrameskip-v4", "ALE/Pong-v5"):
        settings, missing = convert(written(tmp_path, PPO), env)
        assert (settings["env_id"], settings["frame_stack"], settings["hidden_sizes"]) == ("ALE/Pong-v5", 4, [])
        assert (settings["reward_clip"], settings["env_kwargs"]["terminal_on_life_loss"]) == (1, True)
        assert missing == []


def test_noise_entropy_and_critics(tmp_path: Path) -> None:
    text = "Pendulum-v1: {policy: MlpPolicy, noise_type: normal, noise_std: 0.2, train_freq: [1, episode]}"
    settings, missing = convert(written(tmp_path, text, "td3.yml"), "Pendulum-v1")
    assert (settings["noise_std"], settings["hidden_sizes"]) == (0.2, [400, 300])
    assert [line.partition(":")[0] for line in missing] == ["train_freq"]
    text = """
Pendulum-v1:
  policy: MlpPolicy
  ent_coef: auto_0.1
  use_sde: true
  noise_type: ornstein-uhlenbeck
  normalize: "{'norm_obs': True}"
  learning_starts: 500
  replay_buffer_class: my_buffers.Own
  policy_kwargs: "{'net_arch': [64, 64], 'n_critics': 3, 'n_quantiles': 10}"
"""
    settings, missing = convert(written(tmp_path, text, "tqc.yml"), "Pendulum-v1")
    assert {
        key: settings[key] for key in ("ent_coef", "hidden_sizes", "n_critics", "n_quantiles", "normalize_obs")
    } == {
        "ent_coef": "auto_0.1",
        "hidden_sizes": [64, 64],
        "n_critics": 3,
        "n_quantiles": 10,
        "normalize_obs": True,
    }
    left = ["noise_type", "normalize", "replay_buffer_class", "use_sde"]
    assert sorted(line.partition(":")[0] for line in missing) == left


HER = """
FetchReach-v4:
  policy: MultiInputPolicy
  replay_buffer_class: HerReplayBuffer
  replay_buffer_kwargs: "dict(online_sampling=True, goal_selection_strategy='final', n_sampled_goal=2)"
FetchPush-v4:
  policy: MultiInputPolicy
  replay_buffer_class: stable_baselines3.HerReplayBuffer
FetchSlide-v4:
  policy: MultiInputPolicy
  replay_buffer_class: my_buffers.Own
  replay_buffer_kwargs: dict(handle_timeout_termination=False)
"""


@pytest.mark.parametrize(
    ("env", "her"),
    [
        ("FetchReach-v4", {"strategy": "final", "n_sampled_goal": 2}),
        ("FetchPush-v4", {"strategy": "future", "n_sampled_goal": 4}),
        ("FetchSlide-v4", None),
    ],
)
def test_hindsight_is_a_setting(env: str, her: dict[str, Any] | None, tmp_path: Path) -> None:
    settings, missing = convert(written(tmp_path, HER, "tqc.yml"), env)
    assert settings.get("her") == her
    lines = ["replay_buffer_class: 'my_buffers.Own'", "replay_buffer_kwargs: {'handle_timeout_termination': False}"]
    assert missing == ([] if her else lines)


@pytest.mark.parametrize("algo", DEFAULTS)
def test_an_empty_entry_is_a_config(algo: str, tmp_path: Path) -> None:
    env = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    settings, missing = convert(written(tmp_path, f"{env}: {{policy: MlpPolicy}}", f"{algo}.yml"), env)
    assert load_config(settings).run.algo == algo
    assert missing == []


@pytest.mark.parametrize(
    ("text", "env", "words"),
    [
        ("- 1", "CartPole-v1", "must hold an entry for each environment"),
        ("a: [", "CartPole-v1", "cannot be read as YAML"),
        ("!!python/object/apply:os.system [false]", "CartPole-v1", "cannot be read as YAML"),
        ("CartPole-v0: {policy: MlpPolicy}", "CartPole-v1", "has no entry for 'CartPole-v1'.*CartPole-v0"),
        ("CartPole-v1: {policy_kwargs: 'dict(net_arch=open(1))'}", "CartPole-v1", "is no plain data"),
        ("CartPole-v1: {policy_kwargs: '[1]'}", "CartPole-v1", "must be a dictionary"),
        ("CartPole-v1: {policy_kwargs: 'dict(activation_fn=nn.Bilinear)'}", "CartPole-v1", "activation_fn"),
        ("CartPole-v1: {gamma: 7}", "CartPole-v1", "gamma=7"),
        ("CartPole-v1: {n_steps: lin_x}", "CartPole-v1", "n_steps"),
    ],
)
def test_mistakes_are_one_line(text: str, env: str, words: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UserError, match=words) as caught:
        convert(file, env)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_files_that_are_not_there_or_of_another_algorithm(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        convert(tmp_path / "ppo.yml", "CartPole-v1")
    with pytest.raises(UserError, match="its algorithm 'ars' is none of ppo"):
        convert(tmp_path / "ars.yml", "CartPole-v1")


def test_the_command(tmp_path: Path) -> None:
    file, output = written(tmp_path, PPO), tmp_path / "pendulum.yaml"
    run = CliRunner().invoke(cli, ["import-zoo", str(file), "Pendulum-v1"])
    assert run.exit_code == 0
    assert yaml.safe_load(run.stdout)["n_steps"] == 1024
    assert run.stderr.count("not converted: ") == 3
    run = CliRunner().invoke(cli, ["import-zoo", str(file), "Pendulum-v1", "--output", str(output)])
    assert f"rl-training train {output}" in run.stdout
    assert load_config(output).run.env_id == "Pendulum-v1"
    again = CliRunner().invoke(cli, ["import-zoo", str(file), "Pendulum-v1", "--output", str(output)])
    assert again.exit_code != 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_defaults_are_those_of_the_library() -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="compares with Stable-Baselines3")
    contrib = pytest.importorskip("sb3_contrib", reason="compares with SB3-Contrib")
    for algo, defaults in DEFAULTS.items():
        kind: Any = getattr(contrib if algo == "tqc" else sb3, algo.upper())
        theirs = {name: one.default for name, one in inspect.signature(kind.__init__).parameters.items()}
        assert {name: theirs[name] for name in defaults} == defaults
