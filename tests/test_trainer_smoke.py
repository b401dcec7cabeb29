"""A tiny PPO run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import on_policy_smoke
from rl_training.experiment.config import load_config
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.train import TrainResult
from rl_training.types import UserError

TINY: dict[str, Any] = on_policy_smoke.TINY | on_policy_smoke.CLIPPED | {"n_epochs": 2}


def test_scheduled_coefficients_end_in_the_final_metrics(tmp_path: Path) -> None:
    result = train_ppo(TINY, run_dir=tmp_path / "run")
    assert result["step"] == 128.0
    assert result["ent_coef"] == 0.01
    assert result["clip_coef"] == 0.1
    assert result["learning_rate"] == 3e-4
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [32, 64, 96, 128]
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.04, 0.03, 0.02, 0.01])
    assert [row["clip_coef"] for row in rows] == pytest.approx([0.27071067811865475, 0.2, 0.12928932188134524, 0.1])


def test_an_update_beyond_the_last_step_uses_the_end_of_the_schedule(tmp_path: Path) -> None:
    """Native environments spend some rows on resets, which the clock does not count: the last update comes late."""
    result = train_ppo(TINY | {"vectorization": "native"}, run_dir=tmp_path / "run")
    assert 128.0 < result["step"] < 160.0
    assert (result["ent_coef"], result["clip_coef"]) == (0.01, 0.1)


@pytest.mark.parametrize("names", [("entropy_coef", "clip_range"), ("ent_coef", "clip_coef")])
def test_aliases_and_warm_up_reach_the_final_metrics(names: tuple[str, str], tmp_path: Path) -> None:
    entropy, clip = names
    plain = {key: value for key, value in TINY.items() if not key.startswith(("ent_coef", "clip_coef"))}
    settings = {entropy: 0.08, f"{entropy}_warmup_steps": 258, clip: 0.4, f"{clip}_schedule": "linear"}
    result = train_ppo(plain | settings, run_dir=tmp_path / "run")
    assert result["ent_coef"] == pytest.approx(0.08 * 129 / 258)
    assert result["clip_coef"] == 0.0


def test_the_result_is_a_mapping_that_knows_its_run(tmp_path: Path) -> None:
    result = train_ppo(TINY, run_dir=tmp_path / "run")
    assert isinstance(result, TrainResult)
    assert isinstance(result, Mapping)
    assert all(isinstance(value, float) for value in result.values())
    assert {"policy_loss", "value_loss", "approx_kl", "eval_return_mean", "eval_return_std"} <= set(result)
    assert result["episode_return_mean"] > 1.0
    assert result.run_dir == tmp_path / "run"
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step_128"
    assert (result.checkpoint / "meta.json").is_file()
    assert result.stop_reason == "completed"


def test_an_early_stop_is_said_in_the_result(tmp_path: Path) -> None:
    rule = {"target_value": 1.0}
    result = train_ppo(TINY | {"eval_interval": 32, "early_stopping": rule}, run_dir=tmp_path / "run")
    assert result.stop_reason.startswith("early_stopping: eval_return_mean reached")
    assert result["step"] == 32.0
    # The schedules ran over the length that the run was to have.
    assert result["ent_coef"] == pytest.approx(0.04)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_discrete_and_continuous_actions_train(env_id: str, tmp_path: Path) -> None:
    result = train_ppo(TINY | {"env_id": env_id, "time_limit": 20}, run_dir=tmp_path / "run")
    assert result["n_updates"] == 4 * 2 * 2
    assert result["eval_length_mean"] <= 20.0


def test_a_checked_config_a_file_and_a_preset_train_too(tmp_path: Path) -> None:
    checked = load_config({"algo": "ppo", **TINY})
    first = train_ppo(checked, run_dir=tmp_path / "checked")
    second = train_ppo(tmp_path / "checked" / "config.yaml", run_dir=tmp_path / "file")
    drop = {"seconds", "steps_per_second"}
    assert {key: value for key, value in first.items() if key not in drop} == {
        key: value for key, value in second.items() if key not in drop
    }
    preset = load_config("ppo/cartpole", total_timesteps=256, eval_episodes=1, vectorization="sync")
    assert train_ppo(preset, run_dir=tmp_path / "preset")["step"] == 256.0


def test_the_config_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="algo='a2c': this trains ppo"):
        train_ppo({"algo": "a2c", "env_id": "CartPole-v1"}, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mistake_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"clip_coef_schedule=-0\.1: it reaches -0\.1, but clip_coef must be"):
        train_ppo(TINY | {"clip_coef_schedule": -0.1, "output_dir": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
