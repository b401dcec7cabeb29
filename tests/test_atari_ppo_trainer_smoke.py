"""A tiny PPO run on Pong: bytes end to end, raw returns, its schedules at their exact ends, and an exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from on_policy_smoke import resumed_in_the_middle
from rl_training.experiment.config import load_config
from rl_training.runtime.envs.atari import AtariGames
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.train import build

pytest.importorskip("ale_py", reason="the extra atari is not installed")

TINY: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "ALE/Pong-v5",
    "env_kwargs": {"terminal_on_life_loss": True},
    "total_timesteps": 64,
    "num_envs": 2,
    "frame_stack": 4,
    "reward_clip": 1,
    "n_steps": 8,
    "batch_size": 8,
    "n_epochs": 1,
    "hidden_sizes": [],
    "time_limit": 13,
    "eval_episodes": 2,
    "checkpoint_interval": 32,
    "clip_coef": 0.1,
    "clip_coef_schedule": {"type": "linear", "end": 0.05},
    "ent_coef": 0.01,
    "ent_coef_schedule": "linear",
    "learning_rate": 2.5e-4,
    "learning_rate_schedule": "linear",
}


def test_scheduled_coefficients_end_in_the_final_metrics(tmp_path: Path) -> None:
    result = train_ppo(TINY, run_dir=tmp_path / "run")
    assert result["step"] == 64.0
    assert result["clip_coef"] == 0.05
    assert result["ent_coef"] == 0.0
    assert result["learning_rate"] == 0.0
    assert result["n_updates"] == 8.0
    assert result["episodes"] == 4.0
    assert result["eval_length_mean"] == 13.0


def test_a_resumed_run_replays_its_games_and_ends_the_same(tmp_path: Path) -> None:
    """The emulator's vector environment has no state to save: the journal brings the running episodes back."""
    train_ppo(TINY, run_dir=tmp_path / "straight")
    middle = resumed_in_the_middle(tmp_path / "straight", "step_32", "step_64")
    assert middle.meta["resume"] == "exact"
    # 3 actions of each game, and the 13 of the one before: they show whether anything outlives an episode.
    assert len(middle.envs["actor"]["keeper"]["actions"]) == 16


def test_pictures_are_bytes_until_the_network_scales_them() -> None:
    run = build(load_config(TINY))
    run.start()
    run.advance()
    rollout = run.loop.rollout  # type: ignore[attr-defined]
    assert (rollout.obs.dtype, rollout.obs.shape) == (np.uint8, (8, 2, 4, 84, 84))
    assert rollout.obs.max() > 100
    assert isinstance(run.evaluator.maker.for_evaluation(1), AtariGames)
    run.close()


def test_returns_are_raw_and_learned_rewards_clipped() -> None:
    """An invader is worth 5 points at least."""
    config = load_config(TINY | {"env_id": "ALE/SpaceInvaders-v5", "time_limit": 200, "n_steps": 200, "num_envs": 2})
    run = build(config)
    run.start()
    run.advance()
    rollout = run.loop.rollout  # type: ignore[attr-defined]
    assert set(np.unique(rollout.reward)) == {0.0, 1.0}
    assert run.metrics["episode_return_mean"] >= 5 * rollout.reward.sum() / 2
    run.close()
