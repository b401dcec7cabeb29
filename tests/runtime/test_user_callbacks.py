"""Callbacks of one's own: functions, classes and objects; hooks that nobody would call are said before the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training import PPO, Callback, UserError, resume_training, train
from rl_training.runtime.callbacks import FunctionCallback
from run_helpers import Pulled, PullPlug, metadata, run_differences, tiny

STEADY = tiny(vectorization="sync")
SEEN: list[int] = []


def seen(run: Any) -> None:
    SEEN.append(run.steps)


def stops_at_72(run: Any) -> bool:
    return bool(run.steps < 72)


def of_stable_baselines(locals_: dict[str, Any], globals_: dict[str, Any]) -> bool:
    return True


class Misspelt(Callback):
    def on_stp(self, run: Any, metrics: Any) -> None: ...


class OfStableBaselines(Callback):
    def _on_step(self) -> bool:
        return True


class AtTheEndOfRollouts(Callback):
    def _on_rollout_end(self) -> None: ...


class AtTheStart(Callback):
    def _on_training_start(self) -> None: ...


class WithoutMetrics(Callback):
    def on_step(self, run: Any) -> None:  # type: ignore[override]
        ...


class Foreign:
    """As a callback of Stable-Baselines3, whose class is not ours."""

    def _on_step(self) -> bool:
        return True


class Helpers(Callback):
    """Methods that are no hooks, and do not look like one."""

    def once(self) -> None: ...
    def only(self) -> None: ...
    def on_new_record(self) -> None: ...


class Calls:
    """An object that is called like a function."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def __call__(self, run: Any) -> None:
        self.steps.append(run.steps)


def test_a_function_is_called_after_every_step() -> None:
    steps: list[int] = []
    counts = Calls()
    PPO("CartPole-v1", **without_run(STEADY)).learn(72, callback=lambda run: steps.append(run.steps))
    PPO("CartPole-v1", **without_run(STEADY)).learn(72, callback=[counts, Helpers()])
    assert steps == counts.steps == [24, 48, 72]


def without_run(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ("algo", "env_id", "total_timesteps")}


def test_a_function_that_returns_false_ends_the_run(tmp_path: Path) -> None:
    result = train(STEADY, run_dir=tmp_path / "run", callbacks=[stops_at_72])
    assert result["step"] == 72
    assert result.stop_reason == metadata(tmp_path / "run")["stop_reason"] == "the callback stops_at_72 returned False"


def test_a_function_by_name_is_part_of_the_config_and_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    train(STEADY, run_dir=tmp_path / "plain")
    SEEN.clear()
    named = STEADY | {"callbacks": ["test_user_callbacks:seen"]}
    with pytest.raises(Pulled):
        train(named, run_dir=tmp_path / "run", callbacks=[PullPlug(120)])
    assert SEEN == [24, 48, 72, 96, 120, 144]
    SEEN.clear()
    resume_training(tmp_path / "run")  # from the checkpoint at step 96
    assert SEEN == [120, 144, 168, 192, 216, 240]
    found = run_differences(tmp_path / "plain", tmp_path / "run")
    assert [line for line in found if "callbacks" not in line] == []


MISTAKES = [
    ("Misspelt", "Misspelt.on_stp would never be called; did you mean 'on_step'?"),
    ("OfStableBaselines", "OfStableBaselines._on_step would never be called; here it is on_step(run, metrics)"),
    ("AtTheEndOfRollouts", "_on_rollout_end would never be called; here it is on_step(run, metrics)"),
    ("AtTheStart", "_on_training_start would never be called; here it is on_start(run)"),
    ("WithoutMetrics", "WithoutMetrics.on_step is called as on_step(run, metrics): too many positional arguments"),
    ("Foreign", "subclass of rl_training.Callback"),
    ("Foreign", "its _on_step is on_step(run, metrics)"),
    ("of_stable_baselines", "a function is called with the run alone"),
]


@pytest.mark.parametrize(("name", "words"), MISTAKES, ids=lambda value: value.split(" ")[0])
def test_what_would_not_be_called_is_said(name: str, words: str, tmp_path: Path) -> None:
    given = globals()[name]
    item = given() if isinstance(given, type) else given
    agent = PPO("CartPole-v1", **without_run(STEADY))
    ways = {
        "learn": lambda: agent.learn(24, callback=[item]),
        "train": lambda: train(STEADY, run_dir=tmp_path / "run", callbacks=[item]),
        "config": lambda: train(STEADY | {"callbacks": [f"test_user_callbacks:{name}"]}, run_dir=tmp_path / "run"),
    }
    for way in ways.values():
        with pytest.raises(UserError) as caught:
            way()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("test_user_callbacks:MISTAKES", "it is a list"),
        ("os:getpid", "must name a function that takes the run, a subclass"),
        ("test_user_callbacks:Calls", "it is the class Calls"),
    ],
)
def test_what_a_name_leads_to_must_be_a_callback(reference: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        train(STEADY | {"callbacks": [reference]}, run_dir=tmp_path / "run")
    assert words in str(caught.value)


def test_one_function_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"callbacks: must be a list of callbacks; write \[seen\]"):
        train(STEADY, run_dir=tmp_path / "run", callbacks=seen)  # type: ignore[arg-type]


def test_it_remembers_nothing() -> None:
    assert FunctionCallback(seen, "seen").state_dict() == {}
