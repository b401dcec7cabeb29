"""Signals and evaluations: an evaluation that is cut short is made again after a resume, and nothing is lost by it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from rl_training import PPO, Callback, Interrupted, UserError, resume_training, train
from rl_training.algorithms.parts.actor_critic_policy import ActorCriticPolicy
from rl_training.runtime.checkpoints import archive
from rl_training.runtime.evaluate import episode_seeds
from run_helpers import (
    EVERYTHING_ACTIVE,
    Command,
    Recording,
    Walk,
    as_overrides,
    checkpoint_names,
    latest,
    metadata,
    metrics_rows,
    run_differences,
    tiny,
)

SEEDS = episode_seeds(2)


class Trap(Walk):
    """Calls `spring` in the third step of an evaluation, and from then on its episode does not end."""

    evaluations: ClassVar[int] = 0
    at: ClassVar[int | None] = None
    spring: ClassVar[Callable[[], Any]]
    sprung: ClassVar[bool] = False
    steps = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0 if seed in SEEDS else -1
        Trap.evaluations += seed == SEEDS[0]
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, _, info = super().step(action)
        if self.steps >= 0:
            self.steps += 1
            if Trap.at == Trap.evaluations:
                if self.steps == 3 and not Trap.sprung:
                    Trap.sprung = True
                    Trap.spring()
                assert self.steps < 1000, "the evaluation went on after the signal"
                return obs, reward, False, False, info
        return obs, reward, terminated, self.steps == 20, info


@pytest.fixture(autouse=True)
def _trap() -> Iterator[None]:
    Trap.evaluations, Trap.at = 0, None
    yield
    Trap.at = None


def set_trap(evaluation: int, spring: Callable[[], Any] = lambda: signal.raise_signal(signal.SIGINT)) -> None:
    """In an evaluation, counted from 1."""
    Trap.evaluations, Trap.at, Trap.sprung, Trap.spring = 0, evaluation, False, staticmethod(spring)


class Counts(Callback):
    """Counts what it is told, in its state."""

    def __init__(self) -> None:
        self.told = {"step": 0, "eval": 0}

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        self.told["step"] += 1

    def on_eval(self, run: Any, metrics: dict[str, float]) -> None:
        self.told["eval"] += 1

    def state_dict(self) -> dict[str, Any]:
        return dict(self.told)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.told = dict(state)


CONFIG = tiny(**EVERYTHING_ACTIVE, env_id="test_signals:Trap", callbacks=["test_signals:Counts"])
# Evaluated at the multiples of 60 that a step of 24 crosses, and at the end; with 100 the end is no multiple.
NOT_A_MULTIPLE = CONFIG | {"eval_interval": 100}


Whole = Callable[[dict[str, Any]], Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The folder of a run that was never interrupted."""
    done: dict[str, Path] = {}

    def trained(config: dict[str, Any]) -> Path:
        key = f"{config} {ActorCriticPolicy.judged_by_samples}"
        if key not in done:
            done[key] = tmp_path_factory.mktemp("whole") / "run"
            train(config, run_dir=done[key])
        return done[key]

    return trained


def interrupted(config: dict[str, Any], run_dir: Path, **options: Any) -> Any:
    with pytest.raises(Interrupted) as stop:
        train(config, run_dir=run_dir, **options)
    Trap.at = None
    return stop.value.result


@pytest.mark.parametrize(
    ("config", "evaluation", "number", "due", "step"),
    [
        (CONFIG, 1, signal.SIGTERM, "on_step", 72),
        (CONFIG, 3, signal.SIGINT, "on_step", 192),
        (CONFIG, 4, signal.SIGINT, "on_step", 240),
        (NOT_A_MULTIPLE, 3, signal.SIGTERM, "on_end", 240),
    ],
)
def test_a_signal_ends_an_evaluation_which_is_made_again_after_the_resume(
    config: dict[str, Any], evaluation: int, number: int, due: str, step: int, whole: Whole, tmp_path: Path
) -> None:
    set_trap(evaluation, lambda: signal.raise_signal(number))
    result = interrupted(config, tmp_path / "cut")
    assert result.stop_reason == metadata(tmp_path / "cut")["stop_reason"] == "interrupted"
    saved = latest(tmp_path / "cut")
    assert (saved.meta["step"], saved.state["trainer"]["due"]) == (step, due)
    assert all("eval_return_mean" not in row for row in metrics_rows(tmp_path / "cut") if row["step"] >= step)
    assert resume_training(tmp_path / "cut").stop_reason == "completed"
    assert run_differences(whole(config), tmp_path / "cut") == []
    assert checkpoint_names(whole(config)) == checkpoint_names(tmp_path / "cut")


def test_an_evaluation_that_is_cut_again_and_again_is_made_at_last(whole: Whole, tmp_path: Path) -> None:
    set_trap(4)
    interrupted(CONFIG, tmp_path / "cut")
    for _ in range(2):
        set_trap(1)
        with pytest.raises(Interrupted):
            resume_training(tmp_path / "cut")
    Trap.at = None
    resume_training(tmp_path / "cut")
    assert run_differences(whole(CONFIG), tmp_path / "cut") == []


@pytest.mark.parametrize(("config", "evaluation"), [(CONFIG, 4), (NOT_A_MULTIPLE, 3)])
def test_a_run_that_is_killed_in_its_last_evaluation_lost_no_step(
    config: dict[str, Any], evaluation: int, whole: Whole, tmp_path: Path
) -> None:
    set_trap(evaluation, lambda: os.kill(os.getpid(), signal.SIGKILL))
    context = multiprocessing.get_context("fork")
    process = context.Process(target=train, args=(config,), kwargs={"run_dir": tmp_path / "k"})
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    Trap.at = None
    assert latest(tmp_path / "k").meta["step"] == 240
    resume_training(tmp_path / "k")
    assert [entry["step"] for entry in metadata(tmp_path / "k")["resumed"]] == [240]
    assert run_differences(whole(config), tmp_path / "k") == []
    assert metadata(tmp_path / "k")["stop_reason"] == "completed"


def test_the_save_before_the_last_evaluation_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, Any]] = []
    real = archive.write_checkpoint

    def write(path: Path, checkpoint: Any) -> Path:
        written.append((path.name, checkpoint.state["trainer"]["due"]))
        return real(path, checkpoint)

    monkeypatch.setattr(archive, "write_checkpoint", write)
    told = Recording()
    train(CONFIG | {"checkpoint_interval": 1000, "callbacks": []}, run_dir=tmp_path / "run", callbacks=[told])
    assert written[-2:] == [("step_240", "on_step"), ("step_240", None)]
    assert told.at("checkpoint")[-1] == 240
    assert told.at("checkpoint").count(240) == 1, "the first of the two is none that callbacks know of"
    set_trap(4)
    interrupted(CONFIG, tmp_path / "cut")
    written.clear()
    resume_training(tmp_path / "cut")
    assert written == [("step_240", None)], "the moment before the evaluation was on the disk"


class EvaluatesItself(Counts):
    """Judges by sampled actions too, once; its counts change before that."""

    hook = "on_step"

    def _judge(self, run: Any, hook: str) -> None:
        if hook == self.hook and run.steps >= 100 and "mine" not in self.told:
            self.told["mine"] = run.steps
            self.told["return"] = run.evaluate(2, deterministic=False).mean

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        super().on_step(run, metrics)
        self._judge(run, "on_step")

    def on_eval(self, run: Any, metrics: dict[str, float]) -> None:
        super().on_eval(run, metrics)
        self._judge(run, "on_eval")

    def on_end(self, run: Any) -> None:
        self._judge(run, "on_end")


class EvaluatesInItsEvaluation(EvaluatesItself):
    hook = "on_eval"


class EvaluatesAtTheEnd(EvaluatesItself):
    hook = "on_end"


@pytest.mark.parametrize(
    ("name", "evaluation"), [("EvaluatesItself", 2), ("EvaluatesInItsEvaluation", 3), ("EvaluatesAtTheEnd", 5)]
)
def test_a_callback_that_evaluates_is_told_nothing_twice(
    name: str, evaluation: int, whole: Whole, tmp_path: Path
) -> None:
    config = CONFIG | {"callbacks": [f"test_signals:{name}"]}
    set_trap(evaluation)
    assert interrupted(config, tmp_path / "cut").stop_reason == "interrupted"
    resume_training(tmp_path / "cut")
    assert run_differences(whole(config), tmp_path / "cut") == []


class EvaluatesWhenInterrupted(Callback):
    def on_end(self, run: Any) -> None:
        if run.interrupted:
            run.evaluate(1)
            raise AssertionError("the signal was forgotten")


def test_a_callback_cannot_keep_an_interrupted_run_from_being_saved(whole: Whole, tmp_path: Path) -> None:
    set_trap(3)
    result = interrupted(CONFIG, tmp_path / "cut", callbacks=[EvaluatesWhenInterrupted()])
    assert latest(tmp_path / "cut").meta["step"] == result["step"] == 192
    resume_training(tmp_path / "cut")
    assert metrics_rows(whole(CONFIG)) == metrics_rows(tmp_path / "cut")


@pytest.mark.parametrize("evaluation", [1, 2, 3, 4])
def test_policies_that_are_judged_twice(
    evaluation: int, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By sampled actions, then by greedy ones."""
    monkeypatch.setattr(ActorCriticPolicy, "judged_by_samples", True)
    config = CONFIG | {"eval_interval": 150}
    set_trap(evaluation)
    interrupted(config, tmp_path / "cut")
    resume_training(tmp_path / "cut")
    assert run_differences(whole(config), tmp_path / "cut") == []


def test_a_signal_ends_the_evaluation_of_a_baseline(whole: Whole, tmp_path: Path) -> None:
    place = {"env_id": "test_signals:TrapOfRealNumbers", "time_limit": None}
    config = tiny(algo="awac", **place, total_timesteps=6, eval_interval=3, bc_baseline_updates=2)
    set_trap(1)
    assert interrupted(config, tmp_path / "cut").stop_reason == "interrupted"
    result = resume_training(tmp_path / "cut")
    assert "bc_return_mean" in result
    assert run_differences(whole(config), tmp_path / "cut") == []


class TrapOfRealNumbers(Trap):
    """For algorithms that learn from a dataset of Pendulum."""

    observation_space: Any = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(action[0] > 0)

    def observe(self) -> Any:
        return np.append(self.place, 0.0).astype("float32")


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_an_evaluation_at_once(second: int, whole: Whole, tmp_path: Path) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(second)
        raise AssertionError("the second signal did not end the run")

    set_trap(4, twice)
    with pytest.raises(KeyboardInterrupt) as stop:
        train(CONFIG, run_dir=tmp_path / "cut")
    assert not isinstance(stop.value, Interrupted)
    Trap.at = None
    resume_training(tmp_path / "cut")
    assert run_differences(whole(CONFIG), tmp_path / "cut") == []


class SignalInLast(Callback):
    def on_eval(self, run: Any, metrics: dict[str, float]) -> None:
        if run.finished:
            signal.raise_signal(signal.SIGINT)


def test_a_signal_after_the_last_evaluation_ends_a_script_too(tmp_path: Path) -> None:
    def script() -> None:
        for seed in range(3):
            train(tiny(seed=seed), run_dir=tmp_path / str(seed), callbacks=[SignalInLast()])

    with pytest.raises(Interrupted) as stop:
        script()
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert stop.value.result.stop_reason == "completed"
    assert stop.value.result["eval_return_mean"] == metrics_rows(tmp_path / "0")[-1]["eval_return_mean"]
    with pytest.raises(UserError, match="this run has ended at step 240"):
        resume_training(tmp_path / "0")


def test_an_agent_goes_on_after_an_evaluation_that_was_cut() -> None:
    settings = {key: CONFIG[key] for key in ("num_envs", "n_steps", "hidden_sizes", "batch_size", "eval_episodes")}
    agents = [PPO(Trap, eval_interval=60, **settings) for _ in range(2)]
    told = [Recording(), Recording()]
    agents[0].learn(240, callback=told[0])
    set_trap(2)
    with pytest.raises(Interrupted):
        agents[1].learn(240, callback=told[1])
    Trap.at = None
    agents[1].evaluate(1)
    agents[1].learn(240 - agents[1].num_timesteps, callback=told[1])
    assert told[0].evaluations == told[1].evaluations
    assert told[0].at("step") == told[1].at("step")
    for agent in agents:
        agent.close()


# Runs that were at their end when a rule was met.


@pytest.mark.parametrize("interval", [1000, 240])
def test_a_rule_that_is_met_by_the_last_evaluation_ends_nothing(interval: int, tmp_path: Path) -> None:
    rule = {"early_stopping": {"target_value": -1e9}, "eval_interval": interval}
    result = train(tiny(**rule), run_dir=tmp_path / "run")
    assert result.stop_reason == metadata(tmp_path / "run")["stop_reason"] == "completed"
    longer = resume_training(tmp_path / "run", total_timesteps=480)
    assert (longer["step"], longer.stop_reason) == (480, "completed")


# The command.


def test_the_command_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = Command(monkeypatch, capsys)
    settings = as_overrides(tiny(tmp_path / "runs", env_id="test_signals:Trap") | {"algo": "ppo"})
    set_trap(1)
    said = command("train", "ppo", *settings, "--quiet")
    Trap.at = None
    assert said.code == 130
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert said.err.strip() == f"interrupted; continue with: rl-training resume {run_dir}"
    assert command("resume", run_dir, "--quiet").code == 0
    set_trap(1)
    # A process that was started in the background ignores the signal from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        evaluated = command("eval", run_dir, "--episodes", 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (evaluated.code, evaluated.out, evaluated.err.strip()) == (130, "", "interrupted")
