"""A tiny PPG run from config to checkpoint, with its schedules at their exact ends, resumed between two phases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import on_policy_smoke
from rl_training.runtime.ppg_trainer import train_ppg
from rl_training.runtime.workflows import resume_training
from rl_training.types import UserError

TINY: dict[str, Any] = (
    on_policy_smoke.TINY
    | on_policy_smoke.CLIPPED
    | {
        "n_steps": 8,
        "batch_size": 8,
        "aux_interval": 3,
        "aux_batch_size": 16,
        "n_aux_epochs": 2,
        "checkpoint_interval": 64,
        "aux_learning_rate": 1e-3,
        "aux_learning_rate_schedule": "linear",
        "beta_clone": 1.0,
        "beta_clone_schedule": 2.0,
    }
)


def test_scheduled_coefficients_end_in_the_final_metrics(tmp_path: Path) -> None:
    result = train_ppg(TINY, run_dir=tmp_path / "run")
    assert result["step"] == 128.0
    assert (result["ent_coef"], result["clip_coef"]) == (0.01, 0.1)
    assert (result["aux_learning_rate"], result["beta_clone"]) == (0.0, 2.0)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(16, 129, 16))
    assert [row["clip_coef"] for row in rows][3:5] == pytest.approx([0.2, 0.1617316567634911])
    # Two phases, after the third and the sixth rollout: two epochs of 48 samples in minibatches of 16.
    assert [row.get("n_aux_updates") for row in rows] == [None, None, 6, 6, 6, 12, 12, 12]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_run_that_is_resumed_between_two_phases_ends_the_same(env_id: str, tmp_path: Path) -> None:
    train_ppg(TINY | {"env_id": env_id, "time_limit": 20}, run_dir=tmp_path / "straight")
    middle = on_policy_smoke.resumed_in_the_middle(tmp_path / "straight", "step_64", "step_128")
    assert middle.state["parts"]["phase"] == {"rows": 16, "rollouts": 1}
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("straight", "again")]
    phases = [[json.loads(line).get("clone_kl") for line in file] for file in lines]
    assert phases[0] == phases[1]


def test_a_run_that_goes_on_keeps_the_length_of_its_phases(tmp_path: Path) -> None:
    train_ppg(TINY, run_dir=tmp_path / "run")
    with pytest.raises(UserError, match=r"aux_interval=2: a resumed run keeps its aux_interval \(3\)"):
        resume_training(tmp_path / "run", aux_interval=2, total_timesteps=256)


def test_the_config_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="algo='ppo': this trains ppg"):
        train_ppg({"algo": "ppo", "env_id": "CartPole-v1"}, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
