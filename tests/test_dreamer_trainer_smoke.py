"""A tiny Dreamer run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from off_policy_smoke import OffPolicySmoke
from rl_training import UserError, resume_training
from rl_training.runtime.dreamer_trainer import train_dreamer
from rl_training.runtime.train import TrainResult
from run_helpers import cut_and_resume, latest, metrics_rows, run_differences

LOSSES = ("reconstruction", "reward", "continue", "dynamics", "representation", "policy", "value", "replay_value")


class TestDreamer(OffPolicySmoke):
    algo = "dreamer"
    train = staticmethod(train_dreamer)
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 3, "imagination_starts": 5, "warmup_updates": 2}
    schedules: ClassVar[Mapping[str, Any]] = {
        "entropy_coef": 0.5,
        "entropy_coef_schedule": 0.1,
        "free_nats": 1.0,
        "free_nats_schedule": "linear",
    }
    scheduled: ClassVar[Mapping[str, Sequence[float]]] = {
        "entropy_coef": [0.4, 0.3, 0.2, 0.1],
        "free_nats": [0.75, 0.5, 0.25, 0.0],
    }
    reports: ClassVar[set[str]] = {
        *(f"{name}_loss" for name in LOSSES),
        "entropy_coef",
        "loss",
        "kl",
        "entropy",
        "value",
        "return_scale",
        "imagined_return",
        "imagined_reward",
        "replayed_return",
        "grad_norm",
        "eval_return_mean_greedy",
    }

    def test_the_result_is_a_mapping_that_knows_its_run(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run")
        assert isinstance(result, TrainResult)
        assert self.reports | {"learning_rate", "eval_return_mean", "eval_return_std"} <= set(result)
        assert (result["step"], result["n_updates"]) == (96.0, self.n_updates)
        # The end of an episode has a row of its own.
        assert result["replay_size"] == 96.0 + result["episodes"]
        assert (tmp_path / "run" / "checkpoints" / "step_96" / "replay").is_dir()
        assert result.stop_reason == "completed"

    def test_the_entropy_coefficient_is_in_the_final_metrics(self, tmp_path: Path) -> None:
        assert self.run(tmp_path / "plain")["entropy_coef"] == 3e-4
        by_alias = self.run(tmp_path / "alias", ent_coef=0.08, ent_coef_warmup_steps=194)
        assert by_alias["entropy_coef"] == pytest.approx(0.08 * 97 / 194)
        result = self.run(tmp_path / "schedule", ent_coef_schedule={"type": "linear", "start": 0.2, "end": 0.02})
        assert result["entropy_coef"] == 0.02
        with pytest.raises(UserError, match=r"ent_coef and entropy_coef|entropy_coef and ent_coef|two names"):
            self.run(tmp_path / "both", ent_coef=0.1, entropy_coef=0.1)

    def test_a_scheduled_coefficient_is_what_the_update_uses(self, tmp_path: Path) -> None:
        """A coefficient of 0 from the first step on is the same as one that falls to 0 at once."""
        plain = self.run(tmp_path / "plain", entropy_coef=0.0)
        fallen = {"type": "linear", "start": 0.5, "end": 0.0, "steps": 1}
        scheduled = self.run(tmp_path / "scheduled", entropy_coef_schedule=fallen)
        other = self.run(tmp_path / "other", entropy_coef=0.5)
        assert scheduled["policy_loss"] == plain["policy_loss"] != other["policy_loss"]

    def test_a_run_that_is_cut_goes_on_to_the_bit(self, tmp_path: Path) -> None:
        """In the middle of episodes: the carry, windows that wait, states that were written back, the slow value."""
        config = self.config(checkpoint_interval=40, eval_interval=32, **self.schedules)
        type(self).train(config, run_dir=tmp_path / "whole")
        resumed = cut_and_resume(config, tmp_path / "cut", after=72)
        assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
        assert resumed["n_updates"] == self.n_updates
        assert latest(tmp_path / "cut").meta["resume"] == "exact"

    def test_the_number_of_updates_follows_from_the_clock(self, tmp_path: Path) -> None:
        """A run that is resumed and extended has no updates to catch up with."""
        self.run(tmp_path / "run", total_timesteps=72, updates_per_step=0.3)
        assert metrics_rows(tmp_path / "run")[-1]["n_updates"] == int((72 - 24) * 0.3)
        resumed = resume_training(tmp_path / "run", total_timesteps=120)
        assert resumed["n_updates"] == int((120 - 24) * 0.3)

    def test_continuous_actions_are_trained_by_the_same_trainer(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run", env_id="Pendulum-v1", time_limit=12)
        assert result["n_updates"] == self.n_updates
        assert result["eval_return_mean"] < 0.0
        with pytest.raises(UserError, match=r"size='1m': a resumed run keeps its size \('xxs'\)"):
            resume_training(tmp_path / "run", total_timesteps=120, size="1m")
        assert resume_training(tmp_path / "run", total_timesteps=120, imagination_horizon=2)["step"] == 120.0

    def test_a_mistake_is_said_and_leaves_no_run_behind(self, tmp_path: Path) -> None:
        config, place = self.config(), {"output_dir": str(tmp_path)}
        for settings, words in (
            ({"env_id": config["env_id"], "algo": "dqn"}, "algo='dqn': this trains dreamer"),
            (config | {"epsilon": 1}, "epsilon: unknown key"),
            (config | {"imagine_horizon": 9}, "imagine_horizon: unknown key.*'imagination_horizon'"),
            (config | {"size": "2m"}, "size='2m'"),
            (config | {"batch_length": 1}, "batch_length=1"),
            (config | {"gamma": 1.5}, "gamma=1.5"),
            (config | {"entropy_coef_schedule": -1.0}, "entropy_coef"),
            (config | {"bins": 1}, "bins=1"),
            (config | {"deter": 30}, "deter=30: must be a multiple of blocks=8"),
            (config | {"buffer_size": 9}, "buffer_size=9: must be at least 10, .* = 5 rows of each of 2"),
            (config | {"model": "rl_training.testing:LinearQNetwork"}, "must be a .*world_model.DreamerNetwork"),
        ):
            with pytest.raises(UserError, match=words):
                type(self).train(settings | place)
            assert list(tmp_path.iterdir()) == []
