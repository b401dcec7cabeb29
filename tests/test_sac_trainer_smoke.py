"""A tiny SAC run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.train import TrainResult
from rl_training.types import UserError
from run_helpers import latest, metrics_rows, tiny

TINY: dict[str, Any] = tiny(
    algo="sac",
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
        "ent_coef": 0.5,
        "ent_coef_schedule": 0.1,
        "learning_rate": 0.01,
        "learning_rate_schedule": "linear",
    }
    result = train_sac(TINY | schedules, run_dir=tmp_path / "run")
    assert (result["ent_coef"], result["learning_rate"]) == (0.1, 0.0)
    rows = metrics_rows(tmp_path / "run")
    assert [row["step"] for row in rows] == [24, 48, 72, 96]
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.0075, 0.005, 0.0025, 0.0])
    assert ["critic_loss" in row for row in rows] == [False, True, True, True]


@pytest.mark.parametrize(("given", "start"), [("auto", 1.0), ("auto_0.2", 0.2)])
def test_a_learned_coefficient_is_in_the_metrics_as_it_is_now(given: str, start: float, tmp_path: Path) -> None:
    train_sac(TINY | {"ent_coef": given, "learning_rate": 0.01}, run_dir=tmp_path / "run")
    learned = [row["ent_coef"] for row in metrics_rows(tmp_path / "run")]
    assert learned[0] == pytest.approx(start), "no update yet"
    assert len(set(learned)) == 4
    assert learned[-1] == pytest.approx(start, rel=0.9)


def test_the_alias_and_a_warm_up_reach_the_final_metrics(tmp_path: Path) -> None:
    result = train_sac(TINY | {"entropy_coef": 0.08, "entropy_coef_warmup_steps": 194}, run_dir=tmp_path / "run")
    assert result["ent_coef"] == pytest.approx(0.08 * 97 / 194)


def test_the_result_is_a_mapping_that_knows_its_run(tmp_path: Path) -> None:
    result = train_sac(TINY, run_dir=tmp_path / "run")
    assert isinstance(result, TrainResult)
    assert all(isinstance(value, float) for value in result.values())
    assert {
        "critic_loss",
        "actor_loss",
        "q_mean",
        "entropy",
        "ent_coef",
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
    result = train_sac(TINY | changes, run_dir=tmp_path / "run")
    assert result.stop_reason.startswith("early_stopping: eval_return_mean reached")
    assert result["step"] == 48.0
    trainer = latest(tmp_path / "run").state["trainer"]
    assert (trainer["should_stop"], trainer["stop_reason"]) == (True, result.stop_reason)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algo": "dqn"}, "algo='dqn': this trains sac"),
        ({"epsilon": 1}, "epsilon: unknown key"),
        ({"env_id": "CartPole-v1", "time_limit": None}, "cannot work with the discrete actions of CartPole-v1.* can$"),
    ],
)
def test_a_mistake_is_said_and_leaves_no_run_behind(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    settings = {"env_id": TINY["env_id"]} if "algo" in changes else TINY
    with pytest.raises(UserError, match=words):
        train_sac(settings | changes | {"output_dir": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
