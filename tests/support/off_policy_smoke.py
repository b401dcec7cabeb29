"""What the trainers of the off-policy family have in common: a tiny run from config to checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rl_training.runtime.train import TrainResult
from rl_training.types import UserError
from run_helpers import latest, metrics_rows, tiny

_ALWAYS = {"learning_rate", "eval_return_mean", "eval_return_std"}


class OffPolicySmoke:
    """A subclass names its trainer, what it schedules, and what is to be seen of that after 24, 48, 72 and 96 steps."""

    algo: ClassVar[str]
    train: ClassVar[Callable[..., TrainResult]]
    settings: ClassVar[Mapping[str, Any]] = {}
    n_updates: ClassVar[float] = 36.0
    schedules: ClassVar[Mapping[str, Any]]
    scheduled: ClassVar[Mapping[str, Sequence[float]]]
    reports: ClassVar[set[str]] = {"q_mean", "critic_loss", "actor_loss"}
    other: ClassVar[str] = "dqn"
    foreign_setting: ClassVar[str] = "epsilon"
    foreign_env: ClassVar[tuple[str, str]] = ("CartPole-v1", "discrete")

    def run(self, folder: Path, **changes: Any) -> TrainResult:
        return type(self).train(self.config(**changes), run_dir=folder)

    def config(self, **changes: Any) -> dict[str, Any]:
        rhythm = {"total_timesteps": 96, "learning_starts": 24, "train_every": 8, "updates_per_step": 0.5}
        common = tiny(algo=self.algo, vectorization="sync", num_envs=2, eval_episodes=1, **rhythm)
        return common | dict(self.settings) | changes

    def test_scheduled_coefficients_end_in_the_final_metrics(self, tmp_path: Path) -> None:
        rates = {"learning_rate": 0.01, "learning_rate_schedule": "linear"}
        result = self.run(tmp_path / "run", **rates, **self.schedules)
        rows = metrics_rows(tmp_path / "run")
        assert [row["step"] for row in rows] == [24, 48, 72, 96]
        for name, values in {"learning_rate": [0.0075, 0.005, 0.0025, 0.0], **self.scheduled}.items():
            assert [row[name] for row in rows] == pytest.approx(values, abs=1e-12), name
            assert result[name] == values[-1], name
        # There is nothing to report of updates before the first one.
        loss = next(name for name in sorted(self.reports) if name.endswith("loss"))
        assert [loss in row for row in rows] == [False, True, True, True]

    def test_the_result_is_a_mapping_that_knows_its_run(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run")
        assert isinstance(result, TrainResult)
        assert all(isinstance(value, float) for value in result.values())
        assert self.reports | _ALWAYS <= set(result)
        assert (result["step"], result["replay_size"], result["n_updates"]) == (96.0, 96.0, self.n_updates)
        assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step_96"
        assert (result.checkpoint / "replay").is_dir()
        assert result.stop_reason == "completed"

    def test_an_early_stop_is_said_in_the_result(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run", eval_interval=48, early_stopping={"target_value": -1e9})
        assert result.stop_reason.startswith("early_stopping: eval_return_mean reached")
        assert result["step"] == 48.0
        trainer = latest(tmp_path / "run").state["trainer"]
        assert (trainer["should_stop"], trainer["stop_reason"]) == (True, result.stop_reason)

    def test_a_mistake_is_said_and_leaves_no_run_behind(self, tmp_path: Path) -> None:
        env_id, kind = self.foreign_env
        config, place = self.config(), {"output_dir": str(tmp_path)}
        for settings, words in (
            (
                {"env_id": config["env_id"], "algo": self.other},
                f"algo='{self.other}': this trains {self.algo}",
            ),
            (config | {self.foreign_setting: 1}, f"{self.foreign_setting}: unknown key"),
            (
                config | {"env_id": env_id, "time_limit": None},
                f"cannot work with the {kind} actions of {env_id}.* can$",
            ),
        ):
            with pytest.raises(UserError, match=words):
                type(self).train(settings | place)
            assert list(tmp_path.iterdir()) == []


class SoftSmoke(OffPolicySmoke):
    """With an entropy coefficient that is fixed, scheduled or learned."""

    schedules: ClassVar[Mapping[str, Any]] = {"ent_coef": 0.5, "ent_coef_schedule": 0.1}
    scheduled: ClassVar[Mapping[str, Sequence[float]]] = {"ent_coef": [0.4, 0.3, 0.2, 0.1]}
    reports: ClassVar[set[str]] = {"q_mean", "critic_loss", "actor_loss", "entropy", "ent_coef"}

    @pytest.mark.parametrize(("given", "start"), [("auto", 1.0), ("auto_0.2", 0.2)])
    def test_a_learned_coefficient_is_in_the_metrics_as_it_is_now(
        self, given: str, start: float, tmp_path: Path
    ) -> None:
        self.run(tmp_path / "run", ent_coef=given, learning_rate=0.01)
        learned = [row["ent_coef"] for row in metrics_rows(tmp_path / "run")]
        assert learned[0] == pytest.approx(start), "no update yet"
        assert len(set(learned)) == 4
        assert learned[-1] == pytest.approx(start, rel=0.9)

    def test_the_alias_and_a_warm_up_reach_the_final_metrics(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run", entropy_coef=0.08, entropy_coef_warmup_steps=194)
        assert result["ent_coef"] == pytest.approx(0.08 * 97 / 194)


class DeterministicSmoke(OffPolicySmoke):
    """With noise on its actions."""

    schedules: ClassVar[Mapping[str, Any]] = {"noise_std": 0.5, "noise_std_schedule": 0.1}
    scheduled: ClassVar[Mapping[str, Sequence[float]]] = {"noise_std": [0.4, 0.3, 0.2, 0.1]}
    reports: ClassVar[set[str]] = {"q_mean", "critic_loss", "actor_loss", "noise_std"}
