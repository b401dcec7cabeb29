"""A tiny IMPALA run from config to checkpoint, with its schedule at its exact end, resumed in an episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import on_policy_smoke
from rl_training.experiment.config import load_config
from rl_training.runtime.impala_trainer import train_impala
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.types import UserError
from run_helpers import metrics_rows

TINY: dict[str, Any] = {key: value for key, value in on_policy_smoke.TINY.items() if key != "batch_size"} | {
    "checkpoint_interval": 64
}


def test_the_scheduled_entropy_coefficient_ends_in_the_final_metrics(tmp_path: Path) -> None:
    result = train_impala(
        TINY | {"rho_bar_schedule": 0.5, "learning_rate_schedule": "linear"}, run_dir=tmp_path / "run"
    )
    assert result["step"] == 128.0
    assert (result["ent_coef"], result["learning_rate"], result["n_updates"]) == (0.01, 0.0, 4.0)
    assert "clip_coef" not in result
    rows = metrics_rows(tmp_path / "run")
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.04, 0.03, 0.02, 0.01])


def test_the_alias_and_a_warm_up_reach_the_final_metrics(tmp_path: Path) -> None:
    plain = {key: value for key, value in TINY.items() if not key.startswith("ent_coef")}
    result = train_impala(plain | {"entropy_coef": 0.08, "entropy_coef_warmup_steps": 258}, run_dir=tmp_path / "run")
    assert result["ent_coef"] == pytest.approx(0.08 * 129 / 258)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rnn": "lstm", "rnn_hidden_size": 8, "normalize_reward": True},
        {"env_id": "Pendulum-v1", "time_limit": 20, "rnn": "gru", "rnn_hidden_size": 8, "optimizer": "adam"},
        {"env_id": "Pendulum-v1", "time_limit": 20, "use_sde": True, "normalize_obs": True, "total_timesteps": 160},
    ],
    ids=str,
)
def test_a_run_that_is_resumed_within_an_episode_ends_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    result = train_impala(TINY | changes, run_dir=tmp_path / "run")
    assert result.checkpoint is not None
    saved = sorted(int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").glob("step_*"))
    middle = on_policy_smoke.resumed_in_the_middle(tmp_path / "run", f"step_{saved[-2]}", f"step_{saved[-1]}")
    assert ("carry" in middle.envs["actor"]) == ("rnn" in changes)
    assert evaluate_checkpoint(result.checkpoint, num_episodes=2)["eval_return_mean"] == result["eval_return_mean"]


def test_the_preset_trains(tmp_path: Path) -> None:
    preset = load_config("impala/cartpole", total_timesteps=1_000, eval_episodes=1, vectorization="sync")
    assert train_impala(preset, run_dir=tmp_path / "run")["step"] == 1_024.0


def test_the_config_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="algo='ppo': this trains impala"):
        train_impala({"algo": "ppo", "env_id": "CartPole-v1"}, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
