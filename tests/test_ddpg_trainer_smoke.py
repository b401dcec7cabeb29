"""A tiny DDPG run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training.runtime.ddpg_trainer import train_ddpg
from rl_training.runtime.train import TrainResult
from rl_training.types import UserError
from run_helpers import latest, metrics_rows, tiny

TINY: dict[str, Any] = tiny(
    algo="ddpg",
    vectorization="sync",
    num_envs=2,
    total_timesteps=96,
    learning_starts=24,
    train_every=8,
    updates_per_step=0.5,
    eval_episodes=1,
)


def test_scheduled_coefficients_end_in_the_final_metrics(tmp_path: Path) -> None:
    schedules = {
        "noise_std": 0.5,
        "noise_std_schedule": 0.1,
        "learning_rate": 0.01,
        "learning_rate_schedule": "linear",
    }
    result = train_ddpg(TINY | schedules, run_dir=tmp_path / "run")
    assert (result["noise_std"], result["learning_rate"]) == (0.1, 0.0)
    rows = metrics_rows(tmp_path / "run")
    assert [row["step"] for row in rows] == [24, 48, 72, 96]
    assert [row["noise_std"] for row in rows] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.0075, 0.005, 0.0025, 0.0])
    assert ["critic_loss" in row for row in rows] == [False, True, True, True]


def test_the_result_is_a_mapping_that_knows_its_run(tmp_path: Path) -> None:
    result = train_ddpg(TINY, run_dir=tmp_path / "run")
    assert isinstance(result, TrainResult)
    assert all(isinstance(value, float) for value in result.values())
    assert {
        "critic_loss",
        "actor_loss",
        "q_mean",
        "noise_std",
        "learning_rate",
        "eval_return_mean",
        "eval_return_std",
    } <= set(result)
    assert (result["step"], result["replay_size"]) == (96.0, 96.0)
    assert result["n_updates"] == 36.0
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step_96"
    assert (result.checkpoint / "replay").is_dir()
    assert result.stop_reason == "completed"


def test_an_early_stop_is_said_in_the_result(tmp_path: Path) -> None:
    changes = {"eval_interval": 48, "early_stopping": {"target_value": -1e9}}
    result = train_ddpg(TINY | changes, run_dir=tmp_path / "run")
    assert result.stop_reason.startswith("early_stopping: eval_return_mean reached")
    assert result["step"] == 48.0
    trainer = latest(tmp_path / "run").state["trainer"]
    assert (trainer["should_stop"], trainer["stop_reason"]) == (True, result.stop_reason)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algo": "dqn"}, "algo='dqn': this trains ddpg"),
        ({"ent_coef": 1}, "ent_coef: unknown key"),
        ({"env_id": "CartPole-v1", "time_limit": None}, "cannot work with the discrete actions of CartPole-v1.* can$"),
    ],
)
def test_a_mistake_is_said_and_leaves_no_run_behind(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    settings = {"env_id": TINY["env_id"]} if "algo" in changes else TINY
    with pytest.raises(UserError, match=words):
        train_ddpg(settings | changes | {"output_dir": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
