"""A tiny recurrent PPO run from config to checkpoint, with its schedules at their exact ends, resumed in an episode."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import on_policy_smoke
from rl_training.experiment.config import load_config
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint
from rl_training.runtime.recurrent_ppo_trainer import train_recurrent_ppo
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from rl_training.testing import checkpoint_differences
from rl_training.types import UserError
from run_helpers import metrics_rows

TINY: dict[str, Any] = (
    on_policy_smoke.TINY | on_policy_smoke.CLIPPED | {"n_epochs": 2, "rnn_hidden_size": 8, "checkpoint_interval": 64}
)


def test_scheduled_coefficients_end_in_the_final_metrics(tmp_path: Path) -> None:
    result = train_recurrent_ppo(TINY, run_dir=tmp_path / "run")
    assert result["step"] == 128.0
    assert (result["ent_coef"], result["clip_coef"], result["learning_rate"]) == (0.01, 0.1, 3e-4)
    assert result["n_updates"] == 4 * 2 * 2
    rows = metrics_rows(tmp_path / "run")
    assert [row["step"] for row in rows] == [32, 64, 96, 128]
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.04, 0.03, 0.02, 0.01])
    assert [row["clip_coef"] for row in rows] == pytest.approx([0.27071067811865475, 0.2, 0.12928932188134524, 0.1])


@pytest.mark.parametrize("changes", [{"rnn": "gru"}, {"env_id": "Pendulum-v1", "time_limit": 20, "shared_core": True}])
def test_a_run_that_is_resumed_within_an_episode_ends_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    train_recurrent_ppo(TINY | changes, run_dir=tmp_path / "straight")
    shutil.copytree(tmp_path / "straight", tmp_path / "again")
    middle = read_checkpoint(tmp_path / "straight" / "checkpoints" / "step_64")
    assert middle.envs["actor"]["carry"].any()
    resume_training(tmp_path / "again" / "checkpoints" / "step_64")
    ends = [read_checkpoint(tmp_path / name / "checkpoints" / "step_128") for name in ("straight", "again")]
    assert checkpoint_differences(*ends) == []


def test_a_run_of_native_environments_that_is_resumed_ends_the_same(tmp_path: Path) -> None:
    """Resumed where an episode is just over, so that its environment resets at the next step."""
    native = TINY | {"vectorization": "native", "num_envs": 8, "total_timesteps": 600}
    train_recurrent_ppo(native, run_dir=tmp_path / "straight")
    shutil.copytree(tmp_path / "straight", tmp_path / "again")
    saved = sorted((tmp_path / "again" / "checkpoints").glob("step_*"), key=lambda path: int(path.name[5:]))
    remembered = {path: read_checkpoint(path).envs["actor"]["carry"].any(dim=1) for path in saved[:-1]}
    middle = next(path for path, envs in remembered.items() if envs.any() and not envs.all())
    resume_training(middle)
    ends = [read_checkpoint(tmp_path / name / "checkpoints" / saved[-1].name) for name in ("straight", "again")]
    assert checkpoint_differences(*ends) == []


def test_native_environments_train_and_the_checkpoint_is_judged(tmp_path: Path) -> None:
    """Native ones spend rows on resets, which are no steps."""
    result = train_recurrent_ppo(TINY | {"vectorization": "native", "num_envs": 8}, run_dir=tmp_path / "run")
    assert result.checkpoint is not None
    assert result["step"] < 2 * 128
    assert evaluate_checkpoint(result.checkpoint, num_episodes=2)["eval_return_mean"] == result["eval_return_mean"]


def test_the_preset_trains(tmp_path: Path) -> None:
    preset = load_config("recurrent_ppo/cartpole_no_velocity", total_timesteps=1_000, eval_episodes=1)
    assert train_recurrent_ppo(preset, run_dir=tmp_path / "run")["step"] == 1000.0 + 1024.0, (
        "the random steps for the first statistics, and a rollout"
    )


def test_the_config_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="algo='ppo': this trains recurrent_ppo"):
        train_recurrent_ppo({"algo": "ppo", "env_id": "CartPole-v1"}, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
