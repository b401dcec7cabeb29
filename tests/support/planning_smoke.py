"""What the trainers of the planning family have in common: a tiny run, from config to checkpoint and on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import pytest

from off_policy_smoke import OffPolicySmoke
from rl_training import UserError, resume_training
from rl_training.testing import TinyEnv
from run_helpers import cut_and_resume, latest, metrics_rows, run_differences

# All that a run remembers besides its networks: priorities, targets of later searches, the moves of an episode.
_REMEMBERS: dict[str, Any] = {
    "prioritized": True,
    "per_beta_schedule": 1.0,
    "reanalyze_ratio": 0.5,
    "temperature_moves": 6,
    "checkpoint_interval": 48,
    "eval_interval": 40,
}


def two_dials() -> gym.Env[Any, Any]:
    """Actions of several numbers."""
    return TinyEnv("multi_discrete")


class PlanningSmoke(OffPolicySmoke):
    """A subclass adds to the schedules; all of them are looked at after 24, 48, 72 and 96 steps."""

    schedules: ClassVar[Mapping[str, Any]] = {"temperature": 1.0, "temperature_schedule": 0.2}
    scheduled: ClassVar[Mapping[str, Sequence[float]]] = {"temperature": [0.8, 0.6, 0.4, 0.2]}
    reports: ClassVar[set[str]] = {
        "temperature",
        "loss",
        "policy_kl",
        "value_kl",
        "reward_kl",
        "value_error",
        "value_target_mean",
        "reanalyzed",
        "grad_norm",
        "root_entropy",
        "target_entropy",
        "search_depth",
        "simulations_per_second",
    }
    foreign_env: ClassVar[tuple[str, str]] = ("planning_smoke:two_dials", "multi_discrete")

    def test_a_warm_up_of_the_temperature_reaches_the_final_metrics(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run", temperature=0.8, temperature_warmup_steps=194)
        rows = metrics_rows(tmp_path / "run")
        assert [row["temperature"] for row in rows] == pytest.approx([0.8 * (n + 1) / 194 for n in (24, 48, 72, 96)])
        assert result["temperature"] == 0.8 * 97 / 194

    def test_a_run_that_is_cut_goes_on_to_the_bit(self, tmp_path: Path) -> None:
        config = self.config(**_REMEMBERS, **self.schedules)
        type(self).train(config, run_dir=tmp_path / "whole")
        resumed = cut_and_resume(config, tmp_path / "cut", after=72)
        assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
        assert resumed["reanalyzed"] == 0.5
        assert resumed["temperature"] == self.scheduled["temperature"][-1]
        assert latest(tmp_path / "cut").meta["resume"] == "exact"


class SampledSmoke(PlanningSmoke):
    """Of searches that sample continuous actions, too."""

    def test_continuous_actions_are_trained_by_the_same_trainer(self, tmp_path: Path) -> None:
        pendulum = {"env_id": "Pendulum-v1", "time_limit": 12, "sampled_actions": 4, "value_limit": 5e3}
        result = self.run(tmp_path / "run", **pendulum)
        assert result["n_updates"] == self.n_updates
        assert result["eval_return_mean"] < 0.0
        with pytest.raises(UserError, match=r"sampled_actions=8: a resumed run keeps its sampled_actions \(4\)"):
            resume_training(tmp_path / "run", total_timesteps=120, sampled_actions=8)
        assert resume_training(tmp_path / "run", total_timesteps=120, num_simulations=6)["step"] == 120.0
