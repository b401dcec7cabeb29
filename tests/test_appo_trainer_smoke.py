"""A tiny APPO run from config to checkpoint, with its schedules at their exact ends, resumed in an episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import on_policy_smoke
from rl_training.experiment.config import load_config
from rl_training.runtime.appo_trainer import train_appo
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.types import UserError
from run_helpers import metrics_rows

TINY: dict[str, Any] = on_policy_smoke.TINY | on_policy_smoke.CLIPPED | {"n_epochs": 2, "checkpoint_interval": 64}


def test_scheduled_coefficients_end_in_the_final_metrics(tmp_path: Path) -> None:
    result = train_appo(TINY, run_dir=tmp_path / "run")
    assert result["step"] == 128.0
    assert (result["ent_coef"], result["clip_coef"], result["kl_coef"]) == (0.01, 0.1, 0.0)
    assert result["n_updates"] == 4 * 2 * 2
    rows = metrics_rows(tmp_path / "run")
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.04, 0.03, 0.02, 0.01])
    assert [row["clip_coef"] for row in rows] == pytest.approx([0.27071067811865475, 0.2, 0.12928932188134524, 0.1])


def test_aliases_and_warm_ups_reach_the_final_metrics(tmp_path: Path) -> None:
    plain = {key: value for key, value in TINY.items() if not key.startswith(("ent_coef", "clip_coef"))}
    warm = {"entropy_coef": 0.08, "entropy_coef_warmup_steps": 258, "clip_range": 0.3, "clip_range_warmup_steps": 258}
    result = train_appo(plain | warm, run_dir=tmp_path / "run")
    assert (result["ent_coef"], result["clip_coef"]) == pytest.approx((0.08 / 2, 0.3 / 2))


def test_a_penalty_that_adapts_is_in_the_metrics(tmp_path: Path) -> None:
    result = train_appo(TINY | {"kl_coef": 0.2, "kl_target": 1e3}, run_dir=tmp_path / "run")
    assert result["kl_coef"] == pytest.approx(0.2 * 0.5**4)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_update_interval": 3, "kl_coef": 0.2, "kl_target": 0.01},
        {"rnn": "lstm", "rnn_hidden_size": 8, "normalize_reward": True},
        {"env_id": "Pendulum-v1", "time_limit": 20, "rnn": "gru", "rnn_hidden_size": 8, "target_update_interval": 2},
    ],
    ids=str,
)
def test_a_run_that_is_resumed_within_an_episode_ends_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    result = train_appo(TINY | changes, run_dir=tmp_path / "run")
    assert result.checkpoint is not None
    middle = on_policy_smoke.resumed_in_the_middle(tmp_path / "run", "step_64", "step_128")
    assert ("carry" in middle.envs["actor"]) == ("rnn" in changes)
    assert evaluate_checkpoint(result.checkpoint, num_episodes=2)["eval_return_mean"] == result["eval_return_mean"]


@pytest.mark.parametrize("preset", ["appo/cartpole", "appo/cartpole_no_velocity"])
def test_the_presets_train(preset: str, tmp_path: Path) -> None:
    config = load_config(preset, total_timesteps=1_000, eval_episodes=1, vectorization="sync")
    assert 1_000 <= train_appo(config, run_dir=tmp_path / "run")["step"] <= 2_048


def test_the_config_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="algo='ppo': this trains appo"):
        train_appo({"algo": "ppo", "env_id": "CartPole-v1"}, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
