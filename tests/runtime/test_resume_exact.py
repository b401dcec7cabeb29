"""A run that is ended in whatever way and resumed ends as one that was never ended, to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import run_helpers
from forgery import changed_state
from rl_training import Callback, UserError, resume_training, train
from rl_training.runtime.train import Interrupted
from run_helpers import (
    EVERYTHING_ACTIVE,
    Pulled,
    PullPlug,
    Recording,
    checkpoint_names,
    cut_and_resume,
    differences,
    latest,
    metadata,
    metrics_rows,
    own_process,
    run_differences,
    tiny,
    training_differences,
    wait_for,
)

N = 240


class WalkThatSavesItsPlace(run_helpers.Walk):
    """Gives and takes a state in which its generator is not."""

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place}

    def set_state(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


ACTIVE = tiny(**EVERYTHING_ACTIVE, total_timesteps=2 * N)


def killed_and_resumed(config: dict[str, Any], tmp_path: Path) -> Path:
    """Kill a process that trains, go on in another one, and compare with a run that was never killed."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    passed = tmp_path / "passed"
    with own_process(tmp_path, config=config, run_dir=str(killed), slow_after=N, signal_file=str(passed)) as process:
        wait_for(passed, process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    at = latest(killed).meta["step"]
    assert 96 <= at < 2 * N, "it was killed in the middle"
    assert metadata(killed)["result"] is None
    with own_process(tmp_path, run_dir=str(killed)) as process:
        _, complaints = process.communicate(timeout=120)
        assert process.returncode == 0, complaints
    train(config, run_dir=whole)
    assert run_differences(whole, killed) == []
    assert latest(killed).meta["resume"] == "exact"
    assert latest(killed).meta["step"] >= 2 * N
    assert [entry["step"] for entry in metadata(killed)["resumed"]] == [at]
    return killed


@pytest.mark.parametrize(
    ("env_id", "needs"),
    [("CartPole-v1", None), ("Pendulum-v1", None), ("LunarLander-v3", "Box2D"), ("Hopper-v5", "mujoco")],
)
def test_kill_9_and_resume_in_new_processes(env_id: str, needs: str | None, tmp_path: Path) -> None:
    if needs:
        pytest.importorskip(needs)
    vectorization = "native" if env_id == "CartPole-v1" else "auto"
    config = ACTIVE | {"env_id": env_id, "num_envs": 4, "n_steps": 16, "batch_size": 32, "vectorization": vectorization}
    killed = killed_and_resumed(config, tmp_path)
    end = latest(killed)
    # All that was to be active was: the comparison above would mean little otherwise.
    assert {"obs_normalizer.mean", "obs_normalizer.count"} <= end.policy.keys()
    assert end.state["algorithm"]["reward_normalizer"]["count"] > 0
    assert end.state["callbacks"]["EarlyStopping.0"]["best"] is not None
    rows = metrics_rows(killed)
    assert len({row["ent_coef"] for row in rows}) > 3
    assert rows[-1]["ent_coef"] == 0.0
    assert sum("eval_return_mean" in row for row in rows) > 3


# Everything of the off-policy algorithms that remembers something.
OFF_POLICY_ACTIVE = {
    name: EVERYTHING_ACTIVE[name]
    for name in ("normalize_obs", "learning_rate", "learning_rate_schedule", "eval_interval", "early_stopping")
}
EVERY_OPTION_OF_DQN = {
    "algo": "dqn",
    "n_step": 3,
    "prioritized": True,
    "per_beta_schedule": 1.0,
    "dueling": True,
    "epsilon": 1.0,
    "epsilon_schedule": 0.05,
    "tau": 0.5,
}
STACKED_IMAGES = {
    "algo": "dqn",
    "env_id": "rl_training.testing:TinyEnv",
    "env_kwargs": {"observations": "image"},
    "frame_stack": 3,
    "n_step": 2,
    "normalize_obs": False,
    "buffer_size": 90,
}


def test_kill_9_and_resume_with_a_replay_in_new_processes(tmp_path: Path) -> None:
    config = tiny(**OFF_POLICY_ACTIVE | EVERY_OPTION_OF_DQN, total_timesteps=2 * N, checkpoint_interval=48)
    end = latest(killed_and_resumed(config, tmp_path))
    assert end.state["algorithm"]["n_updates"] > 100
    for name in ("replay.rows", "sampler.priorities"):
        assert sum(len(chunk) for chunk in end.arrays[name].chunks()) == 150, "the replay was full"
    assert len({row["epsilon"] for row in metrics_rows(tmp_path / "killed")}) > 10


def test_kill_9_and_resume_of_a_planner_in_new_processes(tmp_path: Path) -> None:
    """Searches with noise, priorities, and targets of later searches that were written back."""
    config = tiny(
        algo="gumbel_muzero",
        prioritized=True,
        per_beta_schedule=1.0,
        reanalyze_ratio=0.5,
        temperature_schedule=0.25,
        temperature_moves=8,
        normalize_obs=True,
        buffer_size=150,
        eval_interval=60,
        total_timesteps=2 * N,
        checkpoint_interval=48,
    )
    end = latest(killed_and_resumed(config, tmp_path))
    assert end.state["algorithm"]["n_updates"] > 100
    for name in ("replay.rows", "replay.records", "sampler.priorities"):
        assert sum(len(chunk) for chunk in end.arrays[name].chunks()) == 150, "the replay was full"
    rows = metrics_rows(tmp_path / "killed")
    assert {row["reanalyzed"] for row in rows if "reanalyzed" in row} == {0.5}
    assert (rows[-1]["temperature"], len({row["temperature"] for row in rows}) > 10) == (0.25, True)


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_kill_9_and_resume_of_a_world_model_in_new_processes(engine: str, tmp_path: Path) -> None:
    """Episodes, windows that wait and states that were written back, in the middle of all of them."""
    config = tiny(
        algo="dreamer",
        engine=engine,
        **{"size": "xxs", "deter": 16, "hidden": 8, "units": 8, "stoch": 4, "classes": 4, "blocks": 2, "bins": 15},
        batch_size=2,
        batch_length=6,
        entropy_coef_schedule=1e-3,
        normalize_obs=True,
        imagination_starts=5,
        buffer_size=150,
        eval_interval=60,
        total_timesteps=2 * N,
        checkpoint_interval=48,
    )
    end = latest(killed_and_resumed(config, tmp_path))
    assert end.state["algorithm"]["n_updates"] > 50
    for name in ("replay.rows", "replay.records"):
        assert sum(len(chunk) for chunk in end.arrays[name].chunks()) == 150, "the replay was full"
    rows = metrics_rows(tmp_path / "killed")
    assert (rows[-1]["entropy_coef"], len({row["entropy_coef"] for row in rows}) > 10) == (1e-3, True)


@pytest.mark.parametrize("online", [False, True])
def test_kill_9_and_resume_with_a_dataset_in_new_processes(online: bool, tmp_path: Path) -> None:
    config = tiny(
        **OFF_POLICY_ACTIVE,
        algo="iql",
        env_id="rl_training.testing:TinyEnv",
        env_kwargs={"actions": "continuous"},
        time_limit=None,
        dataset="rl_training.testing:tiny_dataset",
        done_means="terminal",
        online=online,
        actor_learning_rate_schedule="cosine",
        total_timesteps=2 * N,
    )
    end = latest(killed_and_resumed(config, tmp_path))
    assert end.state["algorithm"]["n_updates"] == ((2 * N - 48) // 4 if online else 2 * N)
    assert len({row["learning_rate"] for row in metrics_rows(tmp_path / "killed")}) > 10


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(
    "changes",
    [
        EVERY_OPTION_OF_DQN,
        STACKED_IMAGES,
        {"algo": "ddpg", "n_step": 2},
        {"algo": "td3", "policy_delay": 3, "noise_std_schedule": "linear"},
        {"algo": "sac", "ent_coef": "auto_0.5"},
        {"algo": "sac", "n_step": 3},
        {"algo": "sac", "ent_coef": 0.5, "ent_coef_schedule": "linear", "engine": "autograd"},
        {"algo": "redq", "policy_delay": 5, "n_critics": 4},
        {"algo": "tqc"},
    ],
    ids=lambda changes: f"{changes['algo']}-{len(changes)}",
)
def test_a_replay_resumes_to_the_bit_in_process(changes: dict[str, Any], num_envs: int, tmp_path: Path) -> None:
    config = tiny(**OFF_POLICY_ACTIVE | changes, num_envs=num_envs)
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=120)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    end = latest(tmp_path / "cut")
    assert end.meta["resume"] == "exact"
    assert end.state["algorithm"]["n_updates"] == 48
    (resumed,) = metadata(tmp_path / "cut")["resumed"]
    assert 0 < resumed["step"] < 150, "some of the replay came from before the cut"


@pytest.mark.parametrize(("before", "after"), [(0.1, "auto_0.5"), ("auto_0.5", 0.1)])
def test_an_entropy_coefficient_may_become_learned_or_fixed_at_a_resume(
    before: float | str, after: float | str, tmp_path: Path
) -> None:
    config = tiny(algo="sac", ent_coef=before, vectorization="sync")
    train(config | {"total_timesteps": 96}, run_dir=tmp_path / "run")
    result = resume_training(tmp_path / "run", ent_coef=after, total_timesteps=144)
    assert result["ent_coef"] == (0.1 if after == 0.1 else pytest.approx(0.5, rel=0.1))
    assert len({row["ent_coef"] for row in metrics_rows(tmp_path / "run") if row["step"] > 96}) == (
        1 if after == 0.1 else 2
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"algo": "a2c"},
        {"algo": "a2c", "env_id": "Pendulum-v1", "normalize_advantage": True},
        {"vectorization": "sync"},
        {"vectorization": "native"},
        {"engine": "autograd", "env_id": "Pendulum-v1"},
        {"vectorization": "async", "num_envs": 2},
        {"env_id": "run_helpers:limited_walk", "env_kwargs": {"noise": 0.3}},
        # Its episodes depend on how many there were: one evaluation is the same as one, but not as the third.
        {"env_id": "run_helpers:limited_savable_walk", "eval_interval": None, "early_stopping": []},
        {"env_id": "test_resume_exact:WalkThatSavesItsPlace"},
        {"env_id": "run_helpers:savable_walks"},
        {"env_id": "run_helpers:savable_walks", "env_kwargs": {"mode": "SameStep"}},
        {"env_id": "run_helpers:walks", "env_kwargs": {"mode": "Disabled"}},
        {"env_id": "Acrobot-v1", "frame_stack": 3, "time_limit": 13, "reward_clip": 0.5},
        {"env_id": "FrozenLake-v1", "target_kl": 0.01, "clip_range_vf": 0.2},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values() if not isinstance(value, dict)),
)
def test_resumes_to_the_bit_in_process(changes: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(**EVERYTHING_ACTIVE | changes)
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=120)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert latest(tmp_path / "cut").meta["resume"] == "exact"


def test_bipedal_walker_is_rebuilt_for_every_episode(tmp_path: Path) -> None:
    pytest.importorskip("Box2D")
    config = tiny(env_id="BipedalWalker-v3", time_limit=21, num_envs=2, eval_interval=60, total_timesteps=192)
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=120)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert latest(tmp_path / "cut").meta["resume"] == "exact"


def test_a_run_that_is_cut_again_and_again_ends_the_same(tmp_path: Path) -> None:
    config = ACTIVE | {"env_id": "Pendulum-v1", "checkpoint_interval": 48}
    train(config, run_dir=tmp_path / "whole")
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "cut", callbacks=[PullPlug(60)])
    for after in (150, 160, 300):
        with pytest.raises(Pulled):
            resume_training(tmp_path / "cut", callbacks=[PullPlug(after)])
    resume_training(tmp_path / "cut")
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert len(metadata(tmp_path / "cut")["resumed"]) == 4


def test_a_resume_from_an_older_checkpoint_forgets_what_came_after_it(tmp_path: Path) -> None:
    config = ACTIVE | {"checkpoint_interval": 48, "keep_checkpoints": 9}
    train(config, run_dir=tmp_path / "run")
    first_end = latest(tmp_path / "run")
    older = checkpoint_names(tmp_path / "run")[2]
    assert int(older.removeprefix("step_")) < N
    # A different second half, and fewer checkpoints than the first half has left behind.
    with pytest.raises(Pulled):
        resume_training(
            tmp_path / "run",
            which=older,
            learning_rate=0.1,
            keep_checkpoints=2,
            callbacks=[PullPlug(int(older.removeprefix("step_")) + 120)],
        )
    at = latest(tmp_path / "run").meta["step"]
    assert int(older.removeprefix("step_")) < at < 2 * N
    assert max(int(name.removeprefix("step_")) for name in checkpoint_names(tmp_path / "run")) == at
    assert max(row["step"] for row in metrics_rows(tmp_path / "run")) <= at + 120
    result = resume_training(tmp_path / "run")
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / f"step_{result['step']:.0f}"
    assert differences(first_end.policy, latest(tmp_path / "run").policy)
    steps = [row["step"] for row in metrics_rows(tmp_path / "run")]
    assert steps == sorted(set(steps))
    best = latest(tmp_path / "run", "best")
    evaluations = {
        row["step"]: row["eval_return_mean"] for row in metrics_rows(tmp_path / "run") if "eval_return_mean" in row
    }
    assert evaluations[best.meta["step"]] == max(evaluations.values())


def test_evaluation_is_invisible_to_training(tmp_path: Path) -> None:
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        quiet = tiny(env_id=env_id, normalize_obs=True, normalize_reward=True)
        ends = []
        for number, changes in enumerate(
            ({}, {"eval_interval": 24, "eval_episodes": 5}, {"eval_interval": 100, "eval_episodes": 20})
        ):
            run_dir = tmp_path / f"{env_id}{number}"
            train(quiet | changes, run_dir=run_dir)
            ends.append(latest(run_dir))
        assert training_differences(ends[0], ends[1]) == []
        assert training_differences(ends[0], ends[2]) == []
        # The comparison can fail: another seed is seen at once.
        train(quiet | {"seed": 1}, run_dir=tmp_path / f"{env_id}-other")
        assert training_differences(ends[0], latest(tmp_path / f"{env_id}-other"))


class EvaluatesByItself(Callback):
    """Asks for evaluations of its own."""

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        if run.steps == 96:
            run.evaluate(20)


def test_an_evaluation_of_a_callback_changes_no_later_one(tmp_path: Path) -> None:
    # Torch's results of a row may depend on how many rows there are.
    config = tiny(env_id="Pendulum-v1", time_limit=30, eval_interval=48, learning_rate=0.02, engine="autograd")
    train(config, run_dir=tmp_path / "plain")
    train(config, run_dir=tmp_path / "asking", callbacks=[EvaluatesByItself()])
    assert differences(metrics_rows(tmp_path / "plain"), metrics_rows(tmp_path / "asking")) == []


class ThrowsDice(Callback):
    """Draws from the generators that belong to everyone."""

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        metrics["dice"] = random.random() + float(np.random.random()) + float(torch.rand(()))


def test_global_generators_go_on_after_a_resume(tmp_path: Path) -> None:
    config = tiny(env_id="run_helpers:DiceWalk")
    train(config, run_dir=tmp_path / "whole", callbacks=[ThrowsDice()])
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "cut", callbacks=[ThrowsDice(), PullPlug(150)])
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    resume_training(tmp_path / "cut", callbacks=[ThrowsDice()])
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert len({row["dice"] for row in metrics_rows(tmp_path / "cut")}) == 10


def test_evaluation_is_invisible_to_an_environment_that_uses_global_generators(tmp_path: Path) -> None:
    config = tiny(env_id="run_helpers:DiceWalk")
    train(config, run_dir=tmp_path / "quiet")
    train(config | {"eval_interval": 24}, run_dir=tmp_path / "judged")
    assert training_differences(latest(tmp_path / "quiet"), latest(tmp_path / "judged")) == []


def test_two_runs_of_one_seed_are_equal_and_of_two_are_not(tmp_path: Path) -> None:
    train(ACTIVE, run_dir=tmp_path / "one")
    np.random.seed(99)
    torch.manual_seed(99)
    train(ACTIVE, run_dir=tmp_path / "two")
    train(ACTIVE | {"seed": 5}, run_dir=tmp_path / "other")
    assert run_differences(tmp_path / "one", tmp_path / "two") == []
    assert run_differences(tmp_path / "one", tmp_path / "other") != []


class SignalAt(Callback):
    """Sends this process a signal in the middle of a step, of an evaluation or of a checkpoint."""

    def __init__(self, number: int, steps: int, hook: str) -> None:
        self.number, self.steps, self.hook = number, steps, hook

    def _send(self, run: Any, hook: str) -> None:
        if hook == self.hook and run.steps >= self.steps:
            self.steps = 10**9
            signal.raise_signal(self.number)

    def on_start(self, run: Any) -> None:
        self._send(run, "start")

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        self._send(run, "step")

    def on_eval(self, run: Any, metrics: dict[str, float]) -> None:
        self._send(run, "eval")

    def on_checkpoint(self, run: Any, path: Path) -> None:
        self._send(run, "checkpoint")


@pytest.mark.parametrize(
    ("number", "steps", "hook"),
    [
        (signal.SIGINT, 96, "step"),
        (signal.SIGTERM, 90, "step"),
        (signal.SIGINT, 60, "eval"),
        (signal.SIGINT, 96, "checkpoint"),
        (signal.SIGTERM, 0, "start"),
    ],
)
def test_an_interrupted_run_resumes_as_if_nothing_had_happened(
    number: int, steps: int, hook: str, tmp_path: Path
) -> None:
    config = tiny(**EVERYTHING_ACTIVE)
    train(config, run_dir=tmp_path / "whole")
    with pytest.raises(Interrupted) as stop:
        train(config, run_dir=tmp_path / "cut", callbacks=[SignalAt(number, steps, hook)])
    result = stop.value.result
    assert result.stop_reason == "interrupted"
    assert result.checkpoint is not None
    saved = latest(tmp_path / "cut")
    assert steps <= saved.meta["step"] <= steps + 48
    assert metadata(tmp_path / "cut")["stop_reason"] == "interrupted"
    # As in an uninterrupted run at this step.
    assert saved.state["trainer"]["should_stop"] is False
    assert saved.state["trainer"]["stop_reason"] is None
    resume_training(tmp_path / "cut")
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert metadata(tmp_path / "cut")["stop_reason"] == "completed"


def test_a_signal_in_the_last_step_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    config = tiny(**EVERYTHING_ACTIVE, vectorization="sync")
    with pytest.raises(Interrupted) as stop:
        train(config, run_dir=tmp_path / "run", callbacks=[SignalAt(signal.SIGTERM, 240, "step")])
    result = stop.value.result
    assert result.stop_reason == "completed"
    assert metrics_rows(tmp_path / "run")[-1]["eval_return_mean"] == result["eval_return_mean"]


class SignalTwice(Callback):
    def __init__(self, second: int) -> None:
        self.second = second

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(self.second)
        raise AssertionError("the second signal did not end the run")


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once_and_handlers_are_given_back(second: int, tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(KeyboardInterrupt) as stop:
        train(tiny(), run_dir=tmp_path / "run", callbacks=[SignalTwice(second)])
    assert not isinstance(stop.value, Interrupted)
    assert {number: signal.getsignal(number) for number in before} == before
    assert resume_training(tmp_path / "run").stop_reason == "completed"


def test_training_outside_the_main_thread_installs_no_handlers(tmp_path: Path) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(train(tiny(), run_dir=tmp_path / "run")))
    thread.start()
    thread.join()
    assert [result.stop_reason for result in results] == ["completed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_saves_and_exits_with_130(number: int, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to every process of the group: those of asynchronous environments get it too."""
    config = tiny(tmp_path / "runs", **EVERYTHING_ACTIVE, vectorization="async", num_envs=2, total_timesteps=4000)
    (tmp_path / "patience_of_tests.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from rl_training import Callback\n"
        "class Slow(Callback):\n"
        "    def on_start(self, run):\n"
        "        step = run.source.collector.step\n"
        "        def slow(action, records):  # so that the signal comes before the environments are needed again\n"
        "            if run.steps > 100:\n"
        f"                Path({str(tmp_path / 'passed')!r}).touch()\n"
        "                time.sleep(0.02)\n"
        "            return step(action, records)\n"
        "        run.source.collector.step = slow\n"
    )
    (tmp_path / "config.yaml").write_text(json.dumps(config | {"callbacks": ["patience_of_tests:Slow"]}))
    process = subprocess.Popen(
        [sys.executable, "-c", "from rl_training.cli import main; main()", "train", "config.yaml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(tmp_path / "passed", process)
        os.killpg(process.pid, number)
        output, complaints = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130, complaints
    assert "Traceback" not in complaints + output
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert f"interrupted; continue with: rl-training resume {run_dir}" in complaints
    saved = latest(run_dir)
    assert metadata(run_dir)["stop_reason"] == "interrupted"
    assert saved.meta["step"] > 100
    # What was learned and logged up to there is what an uninterrupted run learns and logs.
    train(config, run_dir=tmp_path / "whole", callbacks=[_StopAt(saved.meta["step"])])
    whole = [row for row in metrics_rows(tmp_path / "whole") if row["step"] < saved.meta["step"]]
    cut = [row for row in metrics_rows(run_dir) if row["step"] < saved.meta["step"]]
    assert differences(whole, cut) == []
    assert training_differences(latest(tmp_path / "whole"), saved) == []


class _StopAt(Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        if run.steps >= self.steps:
            run.request_stop("far enough")


def test_an_extended_run_holds_the_schedules_end_values(tmp_path: Path) -> None:
    config = tiny(learning_rate=0.01, learning_rate_schedule="linear", ent_coef=0.5, ent_coef_schedule=0.1)
    train(config, run_dir=tmp_path / "run")
    assert latest(tmp_path / "run").state["trainer"]["horizon"] == 240
    before = latest(tmp_path / "run").policy
    result = resume_training(tmp_path / "run", total_timesteps=480)
    assert result["learning_rate"] == 0.0
    assert result["ent_coef"] == 0.1
    late = [row for row in metrics_rows(tmp_path / "run") if row["step"] > 250]
    assert len(late) > 5
    assert {row["ent_coef"] for row in late} == {0.1}
    assert differences(before, latest(tmp_path / "run").policy) == [], "a learning rate of 0 moves nothing"
    assert latest(tmp_path / "run").state["trainer"]["horizon"] == 240


def test_stretch_schedules_runs_them_over_the_longer_run(tmp_path: Path) -> None:
    config = tiny(ent_coef=0.5, ent_coef_schedule="linear", vectorization="sync")
    train(config, run_dir=tmp_path / "run")
    result = resume_training(tmp_path / "run", total_timesteps=480, stretch_schedules=True)
    by_step = {row["step"]: row["ent_coef"] for row in metrics_rows(tmp_path / "run")}
    assert by_step[240] == 0.0
    assert by_step[360] == pytest.approx(0.5 * (1 - 360 / 480))
    assert result["ent_coef"] == 0.0
    assert latest(tmp_path / "run").state["trainer"]["horizon"] == 480


class SetsByHand(Callback):
    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        run.algorithm.ent_coef, run.algorithm.clip_coef = 0.25, 0.05


def test_hyperparameters_that_were_set_on_the_algorithm_come_back(tmp_path: Path) -> None:
    config = tiny(clip_coef_schedule="linear")
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[SetsByHand(), PullPlug(120)])
    assert latest(tmp_path / "run").state["trainer"]["hyperparameters"] == {"ent_coef": 0.25}
    result = resume_training(tmp_path / "run")
    assert result["ent_coef"] == 0.25
    assert result["clip_coef"] == 0.0, "a schedule goes its own way"
    assert resume_training(tmp_path / "run", ent_coef=0.5, total_timesteps=288)["ent_coef"] == 0.5


def test_changes_at_a_resume_are_recorded(tmp_path: Path) -> None:
    ended = train(tiny(), run_dir=tmp_path / "run")["step"]
    result = resume_training(tmp_path / "run", overrides=["total_timesteps=360"], learning_rate=0.5)
    assert result["learning_rate"] == 0.5
    (entry,) = metadata(tmp_path / "run")["resumed"]
    assert entry["step"] == ended
    assert sorted(entry["changes"]) == ["learning_rate: 0.0003 -> 0.5", "total_timesteps: 240 -> 360"]
    assert "total_timesteps: 360" in (tmp_path / "run" / "config.yaml").read_text()
    assert latest(tmp_path / "run").meta["config"]["learning_rate"] == 0.5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_envs", 4),
        ("env_id", "Acrobot-v1"),
        ("hidden_sizes", [16]),
        ("n_steps", 16),
        ("seed", 7),
        ("algo", "a2c"),
        ("normalize_obs", True),
        ("env_kwargs", {"sutton_barto_reward": True}),
        ("vectorization", "sync"),
        ("adam_eps", 0.1),
        ("output_dir", "elsewhere"),
    ],
)
def test_what_a_run_is_cannot_change_at_a_resume(key: str, value: Any, tmp_path: Path) -> None:
    config = tiny()
    if key == "algo":
        config = tiny(algo="a2c", n_steps=8)
        value = "ppo"
    train(config, run_dir=tmp_path / "run")
    before = latest(tmp_path / "run")
    with pytest.raises(UserError, match=rf"{key}=.*start a new run"):
        resume_training(tmp_path / "run", total_timesteps=480, **{key: value})
    assert differences(before.meta, latest(tmp_path / "run").meta) == []
    assert "resumed" not in metadata(tmp_path / "run")


def test_an_environment_that_ignores_its_seed_restarts_its_episodes(tmp_path: Path) -> None:
    config = tiny(env_id="run_helpers:UnseededWalk")
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[PullPlug(120)])
    saved = latest(tmp_path / "run")
    assert saved.meta["resume"] == "exact"
    recording = Recording()
    result = resume_training(tmp_path / "run", callbacks=[recording])
    end = latest(tmp_path / "run")
    assert end.meta["resume"] == "restarted"
    assert end.envs["actor"]["restarts"] == 1
    assert result["step"] == 240
    changes = metadata(tmp_path / "run")["resumed"][0]["changes"]
    assert any("replaying its episode gives other observations" in change for change in changes)
    assert end.meta["why_restarted"] == [change.partition("exactly: ")[2] for change in changes]


def test_only_the_episodes_that_differ_start_again(tmp_path: Path) -> None:
    """Environment 0 cannot be brought back; the others keep their episodes."""
    from rl_training.runtime.workflows import restore

    config = tiny(env_id="run_helpers:limited_walk", checkpoint_interval=24)
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[PullPlug(50)])
    path = tmp_path / "run" / "checkpoints" / "step_48"
    with changed_state(path, "envs") as envs:
        envs["actor"]["raw"][0] += 1.0
    before = latest(tmp_path / "run").envs["actor"]
    run, notes = restore(tmp_path / "run")
    try:
        after = run.snapshot()
    finally:
        run.close()
    assert before["lengths"].tolist()[1:] == after.envs["actor"]["lengths"].tolist()[1:]
    assert max(before["lengths"].tolist()[1:]) > 0
    assert after.envs["actor"]["lengths"][0] == 0
    assert torch.equal(before["raw"][1:], after.envs["actor"]["raw"][1:])
    assert after.meta["resume"] == "restarted"
    assert notes == [
        "the environments are not restored exactly: environment 0: replaying its episode gives other observations, "
        "so the episode starts again"
    ]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_environments_that_cannot_be_asked_restart_and_say_so(mode: str, tmp_path: Path) -> None:
    config = tiny(env_id="run_helpers:walks", env_kwargs={"mode": mode})
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[PullPlug(120)])
    assert latest(tmp_path / "run").meta["resume"] == "restarted"
    assert resume_training(tmp_path / "run").stop_reason == "completed"
    assert latest(tmp_path / "run").envs["actor"]["restarts"] == 1


def test_a_finished_run_says_how_to_go_on(tmp_path: Path) -> None:
    train(tiny(), run_dir=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"has ended at step 2\d\d \(completed\).*total_timesteps"):
        resume_training(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_run_that_was_stopped_early_stays_stopped(tmp_path: Path) -> None:
    config = tiny(eval_interval=24, early_stopping={"target_value": 1})
    result = train(config, run_dir=tmp_path / "run")
    assert result.stop_reason.startswith("early_stopping: eval_return_mean reached")
    trainer = latest(tmp_path / "run").state["trainer"]
    assert trainer["should_stop"] is True
    assert trainer["stop_reason"] == result.stop_reason
    for changes in ({}, {"total_timesteps": 480}):
        with pytest.raises(UserError, match="early_stopping"):
            resume_training(tmp_path / "run", **changes)
    assert resume_training(tmp_path / "run", early_stopping=None).stop_reason == "completed"
    assert latest(tmp_path / "run").state["trainer"]["should_stop"] is False


def test_a_run_that_a_callback_stopped_goes_on_with_more_steps(tmp_path: Path) -> None:
    result = train(tiny(), run_dir=tmp_path / "run", callbacks=[_StopAt(100)])
    assert result.stop_reason == "far enough"
    with pytest.raises(UserError, match="far enough"):
        resume_training(tmp_path / "run")
    assert resume_training(tmp_path / "run", total_timesteps=480).stop_reason == "completed"


def test_gymnasium_episodes_are_what_the_journal_says(tmp_path: Path) -> None:
    """Replaying the saved seed and actions by hand gives the observation that the checkpoint shows."""
    train(tiny(env_id="Pendulum-v1", total_timesteps=120), run_dir=tmp_path / "run")
    envs = latest(tmp_path / "run").envs["actor"]
    keeper = envs["keeper"]
    for index in range(3):
        env = gym.make("Pendulum-v1")
        seen, _ = env.reset(seed=int(keeper["seeds"][1, index]))  # of the running episode
        for action in keeper["actions"].numpy()[int(keeper["starts"][1, index]) :, index]:
            seen = env.step(action)[0]
        env.close()
        assert np.array_equal(seen, envs["raw"][index].numpy())


def test_a_run_that_goes_on_takes_no_other_folder(tmp_path: Path) -> None:
    train(tiny(), run_dir=tmp_path / "run")
    with pytest.raises(UserError, match="stays in its folder"):
        train(tiny(total_timesteps=480), run_dir=tmp_path / "other", resume=tmp_path / "run")
    assert not (tmp_path / "other").exists()
