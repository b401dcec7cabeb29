"""A tiny TRPO run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import on_policy_smoke
from rl_training.experiment.config import load_config
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint
from rl_training.runtime.trpo_trainer import train_trpo
from rl_training.testing import checkpoint_differences
from rl_training.types import UserError
from run_helpers import metrics_rows

TINY: dict[str, Any] = on_policy_smoke.TINY | {
    "n_critic_updates": 2,
    "target_kl": 0.03,
    "target_kl_schedule": {"type": "cosine", "end": 0.01},
}


def test_scheduled_coefficients_end_in_the_final_metrics(tmp_path: Path) -> None:
    result = train_trpo(TINY, run_dir=tmp_path / "run")
    assert result["step"] == 128.0
    assert result["ent_coef"] == 0.01
    assert result["target_kl"] == 0.01
    assert result["learning_rate"] == 1e-3
    assert result["n_updates"] == 4.0
    rows = metrics_rows(tmp_path / "run")
    assert [row["step"] for row in rows] == [32, 64, 96, 128]
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.04, 0.03, 0.02, 0.01])
    assert [row["target_kl"] for row in rows] == pytest.approx([0.02707106781, 0.02, 0.01292893219, 0.01])
    assert all(0.0 <= row["kl"] <= row["target_kl"] for row in rows)
    assert any(row["accepted"] for row in rows)


def test_a_trust_region_that_closes_stops_the_policy(tmp_path: Path) -> None:
    result = train_trpo(TINY | {"target_kl_schedule": "linear"}, run_dir=tmp_path / "run")
    assert (result["target_kl"], result["kl"], result["accepted"]) == (0.0, 0.0, 0.0)


def test_aliases_and_warm_up_reach_the_final_metrics(tmp_path: Path) -> None:
    plain = {key: value for key, value in TINY.items() if not key.startswith(("ent_coef", "target_kl"))}
    settings = {"entropy_coef": 0.08, "entropy_coef_warmup_steps": 258, "target_kl_warmup_steps": 258}
    result = train_trpo(plain | settings, run_dir=tmp_path / "run")
    assert result["ent_coef"] == pytest.approx(0.08 * 129 / 258)
    assert result["target_kl"] == pytest.approx(0.01 * 129 / 258)


@pytest.mark.parametrize(
    "settings",
    [{}, {"env_id": "Pendulum-v1", "time_limit": 20}, {"env_id": "Pendulum-v1", "time_limit": 20, "use_sde": True}],
    ids=["discrete", "continuous", "state_dependent_noise"],
)
def test_a_run_in_two_halves_equals_one_that_was_never_stopped(settings: dict[str, Any], tmp_path: Path) -> None:
    config = TINY | settings | {"checkpoint_interval": 64}
    whole = train_trpo(config, run_dir=tmp_path / "run")
    expected, rows = read_checkpoint(whole.checkpoint), metrics_rows(whole.run_dir)
    resumed = train_trpo(config, resume=whole.run_dir / "checkpoints" / "step_64")
    assert resumed.checkpoint == whole.checkpoint
    assert not checkpoint_differences(expected, read_checkpoint(resumed.checkpoint))
    assert metrics_rows(whole.run_dir) == rows


@pytest.mark.parametrize("preset", ["cartpole", "pendulum", "mountaincar_continuous"])
def test_the_presets_train(preset: str, tmp_path: Path) -> None:
    config = load_config(
        f"trpo/{preset}", total_timesteps=64, num_envs=2, n_steps=32, eval_episodes=1, vectorization="sync"
    )
    random_steps = 64.0 if config.algorithm.normalize_obs else 0.0  # for the first statistics
    assert train_trpo(config, run_dir=tmp_path / "run")["step"] == random_steps + 64.0


def test_the_config_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="algo='ppo': this trains trpo"):
        train_trpo({"algo": "ppo", "env_id": "CartPole-v1"}, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mistake_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"target_kl_schedule=-0\.1: it reaches -0\.1, but target_kl must be"):
        train_trpo(TINY | {"target_kl_schedule": -0.1, "output_dir": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
