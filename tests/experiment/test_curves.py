"""Schedules that are functions of progress: checked over the curve, part of the config, found again, and gated."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from foreign import own_modules
from rl_training import DQN, PPO, UserError, evaluate_checkpoint, load_config, resume_training, train
from rl_training.experiment.config import ConfigError
from rl_training.runtime.controls import resolve_clip_coefficient
from rl_training.runtime.seeds import train_seeds
from run_helpers import Pulled, PullPlug, run_differences, tiny

TINY = tiny(vectorization="sync", total_timesteps=96)
HERE = "test_curves"


def halves(progress: float) -> float:
    return 1e-3 * (1.0 - 0.5 * progress)


def grows(progress: float) -> float:
    return 0.9 + 0.2 * progress


def dips(progress: float) -> float:
    return 0.1 if abs(progress - 0.5) > 0.1 else -0.1


def breaks(progress: float) -> float:
    return 1e-3 / (1.0 - progress)


def spike(progress: float) -> float:
    """Wrong at one place only, which is none of those that are asked when a config is read."""
    return math.nan if progress == 24 / 97 else 1e-3


def words(progress: float) -> str:
    return "fast"


def of_remaining(progress_remaining: float, extra: float) -> float:
    return 1e-3


NUMBER = 5


def test_the_value_follows_the_function(tmp_path: Path) -> None:
    config = TINY | {"learning_rate_schedule": f"{HERE}:halves"}
    result = train(config, run_dir=tmp_path / "run")
    assert result["learning_rate"] == 5e-4
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert saved["learning_rate_schedule"] == f"{HERE}:halves"
    control = load_config(config).controls["learning_rate"]
    assert [control.at(step, 96) for step in (0, 48, 96, 500)] == [1e-3, 7.5e-4, 5e-4, 5e-4]


def test_a_warm_up_multiplies_it() -> None:
    config = load_config(TINY | {"learning_rate_schedule": halves, "learning_rate_warmup_steps": 4})
    assert config.controls["learning_rate"].at(0, 96) == pytest.approx(2.5e-4)


def test_it_is_found_again_and_the_rest_of_the_run_is_the_same(tmp_path: Path) -> None:
    config = TINY | {"learning_rate_schedule": f"{HERE}:halves", "ent_coef_schedule": halves}
    train(config, run_dir=tmp_path / "whole")
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "cut", callbacks=[PullPlug(48)])
    resume_training(tmp_path / "cut")
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []


def test_a_function_without_a_name_is_given_again(tmp_path: Path) -> None:
    curve: Callable[[float], float] = lambda progress: 1e-3 * (1.0 - progress)  # noqa: E731
    config = TINY | {"learning_rate_schedule": curve}
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "cut", callbacks=[PullPlug(48)])
    saved = yaml.safe_load((tmp_path / "cut" / "config.yaml").read_text())["learning_rate_schedule"]
    assert saved.startswith("custom test_curves:test_a_function")
    assert saved.endswith("<lambda>")
    with pytest.raises(UserError, match=r"was a function of a script, which no name leads to; give it again"):
        resume_training(tmp_path / "cut")
    assert evaluate_checkpoint(tmp_path / "cut", num_episodes=1)["eval_episodes"] == 1.0
    result = resume_training(tmp_path / "cut", learning_rate_schedule=curve)
    assert result["learning_rate"] == 0.0


def test_an_agent_keeps_its_function_and_takes_it_again(tmp_path: Path) -> None:
    settings = {key: value for key, value in TINY.items() if key not in ("algo", "env_id", "total_timesteps")}
    agent = PPO("CartPole-v1", learning_rate_schedule=lambda progress: 1e-3 * (1.0 - progress), **settings)
    agent.learn(48)
    assert agent.metrics["learning_rate"] == 0.0
    agent.save(tmp_path / "saved")
    again = PPO.load(tmp_path / "saved", learning_rate_schedule=halves)
    again.learn(48)
    assert again.metrics["learning_rate"] == 5e-4


def test_seeds_in_processes_of_their_own_have_it(tmp_path: Path) -> None:
    config = load_config(TINY | {"output_dir": str(tmp_path), "learning_rate_schedule": lambda progress: 1e-3})
    from rl_training.runtime.jobs.job import Job, packed

    assert packed(Job("one", config))
    assert train_seeds(config, [1]).runs[1]["learning_rate"] == 1e-3


def test_workers_do_not_need_it(tmp_path: Path) -> None:
    config = tiny(algo="ppo", num_workers=3, actors="inline", total_timesteps=48)
    result = train(config | {"learning_rate_schedule": lambda progress: 2e-3}, run_dir=tmp_path / "run")
    assert result["learning_rate"] == 2e-3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gamma_schedule": grows}, "at progress 0.501 it returned 1.0002, but gamma must be at most 1"),
        ({"ent_coef_schedule": dips}, "it returned -0.1, but ent_coef must be at least 0"),
        ({"learning_rate_schedule": breaks}, "at progress 1 it raised ZeroDivisionError"),
        ({"learning_rate_schedule": words}, "it returned 'fast', which is not a number"),
        ({"learning_rate_schedule": of_remaining}, "missing 1 required positional argument"),
        ({"learning_rate_schedule": f"{HERE}:no_such"}, "'test_curves' has no 'no_such'"),
        ({"learning_rate_schedule": f"{HERE}:NUMBER"}, "takes the progress of the run, from 0 to 1; it is a int"),
        ({"learning_rate_schedule": "math:cos"}, "cos is a part of Python itself"),
        ({"n_steps_schedule": halves}, "n_steps takes no schedule"),
        ({"learning_rate": halves}, "learning_rate: a function is given as learning_rate_schedule"),
        ({"clip_range": halves}, "clip_coef: a function is given as clip_coef_schedule"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_mistakes_are_found_when_the_config_is_read(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(TINY | settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_value_that_is_wrong_in_between_ends_the_run(tmp_path: Path) -> None:
    config = TINY | {"total_timesteps": 97, "learning_rate_schedule": spike}
    with pytest.raises(UserError, match=r"learning_rate_schedule: at progress 0.247423 it returned nan"):
        train(config, run_dir=tmp_path / "run")


def test_the_resolvers_of_the_control_surface_take_functions() -> None:
    assert resolve_clip_coefficient({"clip_range_schedule": f"{HERE}:grows", "total_timesteps": 10}, step=5) == 1.0
    with pytest.raises(UserError, match=r"clip_coef: at progress 0.5"):
        resolve_clip_coefficient({"clip_coef_schedule": words, "total_timesteps": 10}, step=5)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run of this user, whose module lies in a folder of its own; a copy of the run is somebody else's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "own_curve.py").write_text("def curve(progress):\n    return 0.5 - 0.4 * progress\n")
    with own_modules():
        monkeypatch.chdir(project)
        config = tiny(algo="dqn", epsilon_schedule="own_curve:curve", total_timesteps=72)
        with pytest.raises(Pulled):
            train(config, run_dir=tmp_path / "run", callbacks=[PullPlug(48)])
        sys.modules.pop("own_curve")
        sys.path[:] = [place for place in sys.path if os.path.realpath(place) != os.path.realpath(project)]
        monkeypatch.chdir(elsewhere)
        yield tmp_path / "run"
        sys.modules.pop("own_curve", None)


def test_the_name_passes_the_gate_for_what_needs_it(own: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(own, tmp_path / "copy")
    refused = r"its epsilon_schedule='own_curve:curve' would import 'own_curve', and you did not give that"
    with pytest.raises(UserError, match=refused):
        resume_training(copy)
    with pytest.raises(UserError, match=refused):
        evaluate_checkpoint(copy, num_episodes=1, deterministic=False)
    evaluate_checkpoint(copy, num_episodes=1)  # greedy actions need no epsilon
    with pytest.raises(UserError, match=refused):
        DQN.load(copy)
    assert "own_curve" not in sys.modules
    evaluate_checkpoint(own, num_episodes=1, deterministic=False)
    assert resume_training(own)["epsilon"] == pytest.approx(0.1)


def test_giving_the_name_or_the_function_lets_it_in(own: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(own, tmp_path / "copy")
    with pytest.raises(UserError, match="there is no module 'own_curve'"):
        resume_training(copy, epsilon_schedule="own_curve:curve")
    assert resume_training(copy, epsilon_schedule=lambda progress: 0.25)["epsilon"] == 0.25


def test_all_mistakes_are_said_together() -> None:
    with pytest.raises(ConfigError, match="2 mistakes"):
        load_config(TINY | {"ent_coef_schedule": dips, "gama": 0.9})
