"""A tiny A2C run from config to checkpoint, with its schedule at its exact end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.config import load_config
from rl_training.runtime.a2c_trainer import train_a2c
from rl_training.runtime.train import TrainResult
from rl_training.types import UserError

TINY: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "vectorization": "sync",
    "total_timesteps": 80,
    "num_envs": 2,
    "n_steps": 5,
    "hidden_sizes": [8],
    "eval_episodes": 2,
    "log_interval": 20,
    "ent_coef": 0.05,
    "ent_coef_schedule": 0.01,
}


def test_the_scheduled_entropy_coefficient_ends_in_the_final_metrics(tmp_path: Path) -> None:
    result = train_a2c(TINY, run_dir=tmp_path / "run")
    assert result["step"] == 80.0
    assert result["ent_coef"] == 0.01
    assert result["learning_rate"] == 7e-4
    assert "clip_coef" not in result
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [20, 40, 60, 80]
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.04, 0.03, 0.02, 0.01])


def test_the_alias_and_a_warm_up_reach_the_final_metrics(tmp_path: Path) -> None:
    plain = {key: value for key, value in TINY.items() if not key.startswith("ent_coef")}
    result = train_a2c(plain | {"entropy_coef": 0.08, "entropy_coef_warmup_steps": 162}, run_dir=tmp_path / "run")
    assert result["ent_coef"] == pytest.approx(0.08 * 81 / 162)


def test_the_result_is_a_mapping_that_knows_its_run(tmp_path: Path) -> None:
    result = train_a2c(TINY, run_dir=tmp_path / "run")
    assert isinstance(result, TrainResult)
    assert isinstance(result, Mapping)
    assert {"policy_loss", "value_loss", "entropy", "eval_return_mean", "eval_return_std"} <= set(result)
    assert result["n_updates"] == 8.0
    assert result.run_dir == tmp_path / "run"
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step_80"
    assert (result.checkpoint / "meta.json").is_file()
    assert result.stop_reason == "completed"


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_discrete_and_continuous_actions_train(env_id: str, tmp_path: Path) -> None:
    result = train_a2c(TINY | {"env_id": env_id, "time_limit": 20}, run_dir=tmp_path / "run")
    assert result["n_updates"] == 8.0
    assert result["eval_length_mean"] <= 20.0


def test_the_preset_trains(tmp_path: Path) -> None:
    preset = load_config("a2c/cartpole", total_timesteps=200, eval_episodes=1, vectorization="sync")
    assert train_a2c(preset, run_dir=tmp_path / "run")["step"] == 200.0


def test_the_config_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="algo='ppo': this trains a2c"):
        train_a2c({"algo": "ppo", "env_id": "CartPole-v1"}, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_setting_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="clip_coef: unknown key"):
        train_a2c(TINY | {"clip_coef": 0.2, "output_dir": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
