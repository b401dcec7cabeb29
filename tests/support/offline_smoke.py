"""What the trainers of the offline family have in common: a tiny run from a dataset to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rl_training.runtime.train import TrainResult
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.types import UserError
from run_helpers import cut_and_resume, differences, latest, metrics_rows, run_differences, tiny

_ALWAYS = {"learning_rate", "eval_return_mean", "eval_return_std", "eval_return_last5_mean", "dataset_return_mean"}


class OfflineSmoke:
    """A subclass names its trainer and class, and a coefficient that goes from 0.5 to 0.1."""

    algo: ClassVar[str]
    train: ClassVar[Callable[..., TrainResult]]
    kind: ClassVar[type[Any]]
    coefficient: ClassVar[str]
    reports: ClassVar[set[str]] = {"critic_loss", "actor_loss", "q_mean", "bc_return_mean"}

    def run(self, folder: Path, **changes: Any) -> TrainResult:
        return type(self).train(self.config(**changes), run_dir=folder)

    def config(self, **changes: Any) -> dict[str, Any]:
        settings = tiny(algo=self.algo, env_id="Pendulum-v1", time_limit=20, eval_episodes=1)
        del settings["total_timesteps"]
        curve = {self.coefficient: 0.5, f"{self.coefficient}_schedule": 0.1}
        return settings | {"total_updates": 96, "learning_rate": 0.01} | curve | changes

    def test_a_scheduled_coefficient_ends_in_the_final_metrics(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run")
        rows = metrics_rows(tmp_path / "run")
        assert [row["step"] for row in rows] == [24, 48, 72, 96]
        assert [row[self.coefficient] for row in rows] == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-12)
        assert result[self.coefficient] == 0.1
        assert all(self.reports - {"bc_return_mean"} <= row.keys() for row in rows), "every step is an update"

    def test_the_result_is_a_mapping_that_knows_its_run(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run")
        assert isinstance(result, TrainResult)
        assert all(isinstance(value, float) for value in result.values())
        assert self.reports | _ALWAYS <= set(result)
        assert (result["step"], result["n_updates"]) == (96.0, 96.0)
        assert "episode_return_mean" not in result, "no episode was played to learn from"
        assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step_96"
        assert not (result.checkpoint / "replay").exists(), "a dataset is where it was"
        assert result.stop_reason == "completed"

    def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(self, tmp_path: Path) -> None:
        active = {"normalize_obs": True, "checkpoint_interval": 24, "eval_interval": 40}
        self.run(tmp_path / "whole", **active)
        resumed = cut_and_resume(self.config(**active), tmp_path / "cut", after=50)
        assert resumed["step"] == 96.0
        assert run_differences(tmp_path / "whole", tmp_path / "cut") == []

    def test_its_checkpoint_is_judged_as_the_run_was(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run", normalize_obs=True, eval_episodes=3)
        judged = evaluate_checkpoint(tmp_path / "run")
        assert {"step", "eval_return_mean", "eval_length_mean"} <= judged.keys()
        assert judged == {name: result[name] for name in judged}

    def test_an_early_stop_is_said_in_the_result(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run", eval_interval=40, early_stopping={"target_value": -1e9})
        assert result.stop_reason.startswith("early_stopping: eval_return_mean reached")
        assert result["step"] == 40.0
        trainer = latest(tmp_path / "run").state["trainer"]
        assert (trainer["should_stop"], trainer["stop_reason"]) == (True, result.stop_reason)

    def test_its_class_learns_what_its_trainer_does(self, tmp_path: Path) -> None:
        self.run(tmp_path / "run")
        own = ("algo", "env_id", "total_updates")
        agent = self.kind("Pendulum-v1", **{name: value for name, value in self.config().items() if name not in own})
        agent.learn(96)
        saved = agent.save(tmp_path / "agent")
        agent.close()
        assert differences(latest(tmp_path / "run").policy, latest(saved).policy) == []

    def test_a_mistake_is_said_and_leaves_no_run_behind(self, tmp_path: Path) -> None:
        mistakes = {
            f"algo='ppo': this trains {self.algo}": {"algo": "ppo", "env_id": "CartPole-v1"},
            "gae_lambda: unknown key": self.config(gae_lambda=0.9),
            "total_updates and total_timesteps: two names of one setting": self.config(total_timesteps=5),
            "dataset: is missing; give a file": self.config(dataset=None),
            "'nowhere.npz': there is no such": self.config(dataset="nowhere.npz"),
        }
        for words, settings in mistakes.items():
            with pytest.raises(UserError, match=words):
                type(self).train(settings | {"output_dir": str(tmp_path)})
            assert list(tmp_path.iterdir()) == []
