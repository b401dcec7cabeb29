"""A tiny ScaleZero run from config to checkpoint, in one environment and in two, with its schedules at exact ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from planning_smoke import PlanningSmoke
from rl_training import UserError, evaluate_checkpoint, resume_training
from rl_training.runtime.scalezero_trainer import train_scalezero
from rl_training.testing.contract import CHECKS, check_resumes, check_settings_are_live
from run_helpers import cut_and_resume, latest, metrics_rows, run_differences

TASKS = {"cartpole": "CartPole-v1", "acrobot": {"env_id": "Acrobot-v1", "time_limit": 10}}
SMALL = {"width": 16, "layers": 1, "expert_size": 8, "experts": 2}


class TestScaleZero(PlanningSmoke):
    algo = "scalezero"
    train = staticmethod(train_scalezero)
    settings = SMALL
    reports = PlanningSmoke.reports | {"latent_loss", "expert_0", "expert_1", "stage", "solved_tasks"}
    schedules = PlanningSmoke.schedules | {"c_scale_schedule": 0.5, "latent_coef_schedule": "linear"}
    scheduled = PlanningSmoke.scheduled | {"c_scale": [0.2, 0.3, 0.4, 0.5], "latent_coef": [7.5, 5.0, 2.5, 0.0]}
    foreign_env = ("Pendulum-v1", "continuous")

    def test_the_noise_of_a_search_is_reported_where_it_acts(self, tmp_path: Path) -> None:
        assert "dirichlet_fraction" not in self.run(tmp_path / "gumbel")
        assert self.run(tmp_path / "puct", search="puct")["dirichlet_fraction"] == 0.25

    def test_one_trainer_trains_several_tasks(self, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run", env_id=None, tasks=TASKS, **self.schedules)
        found = [row["temperature"] for row in metrics_rows(tmp_path / "run")]
        assert found == pytest.approx(self.scheduled["temperature"], abs=1e-12)
        assert result["temperature"] == self.scheduled["temperature"][-1]
        assert result["step"] == result["cartpole/steps"] + result["acrobot/steps"] == 96.0
        assert result["n_updates"] == self.n_updates
        for name in ("policy_kl", "latent_loss", "root_entropy", "expert_1", "eval_return_mean", "replay_size"):
            assert {f"cartpole/{name}", f"acrobot/{name}"} <= set(result), name
        again = evaluate_checkpoint(tmp_path / "run")
        assert again["acrobot/eval_return_mean"] == result["acrobot/eval_return_mean"] < 0.0

    def test_several_tasks_that_are_cut_go_on_to_the_bit(self, tmp_path: Path) -> None:
        remembers = {"prioritized": True, "reanalyze_ratio": 0.5, "checkpoint_interval": 48, "normalize_obs": True}
        stages = {"stages": 3, "stage_updates": 9}
        config = self.config(env_id=None, tasks=TASKS, **remembers, **stages, **self.schedules)
        train_scalezero(config, run_dir=tmp_path / "whole")
        resumed = cut_and_resume(config, tmp_path / "cut", after=72)
        assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
        assert resumed["stage"] == 2.0
        assert latest(tmp_path / "cut").meta["resume"] == "exact"

    def test_a_run_is_exact_around_the_moment_when_a_solved_task_leaves(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        solved = {**TASKS, "cartpole": {"env_id": "CartPole-v1", "target_return": 5.0}}
        leaving = {"stages": 2, "first_stage_updates": 12, "solved_episodes": 1, "checkpoint_interval": 16}
        # A rule for a metric that is not there any more when the task has left.
        watched = {
            "early_stopping": {"metric": "cartpole/value_error", "mode": "min", "patience": 50},
            "eval_interval": 40,
        }
        config = self.config(env_id=None, tasks=solved, log_interval=8, **leaving, **watched)
        train_scalezero(config, run_dir=tmp_path / "whole")
        words = "early_stopping.metric='cartpole/value_error': there are no new values of it, so this rule waits"
        assert caplog.messages.count(words) == 1
        state = latest(tmp_path / "whole").state["algorithm"]
        (first,) = {row["step"] for row in metrics_rows(tmp_path / "whole") if row["n_updates"] == state["stage_began"]}
        assert (metrics_rows(tmp_path / "whole")[-1]["solved_tasks"], first) == (1.0, 72)
        for after in (64, 72, 80):
            cut_and_resume(config, tmp_path / str(after), after=after)
            assert run_differences(tmp_path / "whole", tmp_path / str(after)) == []

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (
                {"tasks": {**TASKS, "swing": "Pendulum-v1"}},
                r"tasks\.swing: algo='scalezero': cannot work with the continuous actions of Pendulum-v1, only with "
                r"discrete ones",
            ),
            (
                {"env_id": "Pendulum-v1"},
                r"^algo='scalezero': cannot work with the continuous actions of Pendulum-v1, only with discrete ones; "
                r"ppo, .* or dreamer can$",
            ),
            (
                {"tasks": TASKS, "task_weights": {"cartpol": 2.0}},
                r"task_weights=.*there is no task 'cartpol'.*did you mean 'cartpole'",
            ),
            ({"tasks": TASKS, "task_weights": {"cartpole": 0.0}}, r"task_weights=.*the weight of 'cartpole' must be"),
            ({"env_id": "CartPole-v1", "task_weights": {"a": 1.0}}, r"task_weights=.*'a'.*which needs no weight"),
            ({"tasks": TASKS, "width": 30, "heads": 4}, "width=30: must be a multiple of heads=4"),
            ({"tasks": TASKS, "width": 20}, "width=20: must be a multiple of latent_group=8"),
        ],
    )
    def test_wrong_tasks_are_one_line_and_leave_nothing_behind(
        self, changes: Mapping[str, Any], words: str, tmp_path: Path
    ) -> None:
        with pytest.raises(UserError, match=words) as caught:
            train_scalezero(self.config(output_dir=str(tmp_path), time_limit=None, env_id=None) | changes)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


# The settings that act only with several tasks or stages are told from dead ones in the contract of the registry.
@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check is not check_settings_are_live], ids=lambda check: check.__name__
)
def test_the_contract_holds_with_two_tasks(check: Callable[..., None]) -> None:
    check("scalezero", tasks=2)


@pytest.mark.parametrize("stages", [2, 3])
def test_a_later_stage_resumes_to_the_bit(stages: int) -> None:
    """Of a second stage, which is half way, and of a third, which has just begun."""
    check_resumes("scalezero", tasks=2, stages=stages, stage_updates=6, reanalyze_ratio=0.5, prioritized=True)


def test_a_resumed_run_keeps_its_stages(tmp_path: Path) -> None:
    small = SMALL | {"stages": 2, "stage_updates": 4, "num_envs": 2, "total_timesteps": 20, "eval_episodes": 1}
    train_scalezero({"env_id": "CartPole-v1", **small}, run_dir=tmp_path / "run")
    with pytest.raises(UserError, match=r"^stages=3: a resumed run keeps its stages \(2\)"):
        resume_training(tmp_path / "run", stages=3)
