"""Pools of workers: who gathers what with which policy, in this process and in others; and what happens to workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training import PPO, UserError, resume_training, train
from rl_training.data.strips import Strip
from rl_training.experiment.config import load_config
from rl_training.runtime.actors.engines import Delivery, Loss, WorkersLost
from rl_training.runtime.actors.pool import Pool, PoolPlan
from rl_training.runtime.actors.worker import Report, Request
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.train import build
from rl_training.types import Metrics
from run_helpers import (
    Command,
    Pulled,
    PullPlug,
    cut_and_resume,
    latest,
    metadata,
    own_process,
    run_differences,
    tiny,
    training_differences,
    wait_for,
)

UNEVEN = {"env_id": "pool_worlds:Uneven", "num_envs": 4}
LAGGING = tiny(
    algo="pool_worlds:LAGGING",
    **UNEVEN,
    num_workers=2,
    lag=4,
    total_timesteps=192,
    checkpoint_interval=48,
    normalize_obs=True,
    normalize_reward=True,
    learning_rate=3e-3,
    learning_rate_schedule="linear",
)


def trained(config: dict[str, Any], updates: int = 5) -> Any:
    """A checkpoint after some updates."""
    run = build(load_config(config))
    try:
        run.start()
        for _ in range(updates):
            run.advance()
        return run.snapshot()
    finally:
        run.close()


# The rule.


class Watched:
    """An engine that notes who was asked for what, and delivers in an order that a test decides."""

    def __init__(self, order: str = "first") -> None:
        self.asked: list[tuple[int, Request, float]] = []
        self.waiting: list[tuple[int, Request]] = []
        self.calls: list[tuple[int, str]] = []
        self.replaced: list[tuple[int, int]] = []
        self.events: list[Loss] = []
        self.order = order
        self.freed = 0

    def start(self) -> None: ...

    def send(self, worker: int, request: Request, weights: Mapping[str, Tensor]) -> None:
        self.asked.append((worker, request, float(weights["w"])))
        self.waiting.append((worker, request))

    def wait(self, seconds: float | None) -> Delivery | Loss | None:
        if self.events:
            return self.events.pop(0)
        worker, request = self.waiting.pop(0 if self.order == "first" else -1)
        rows = (request.steps, 1)
        flags = {name: np.zeros(rows, np.bool_) for name in ("terminated", "truncated")}
        numbers = np.full((*rows, 1), request.number, np.float32)
        strip = Strip(
            numbers,
            np.zeros(rows, np.int64),
            numbers[..., 0],
            **flags,
            real=np.ones(rows, np.bool_),
            last_obs=numbers[0],
            ends=numbers[0][:0],
            envs=np.array([worker]),
            records={},
        )
        return Delivery(worker, request, Report([(1.0, 2)], 1, 0, {}, 0.0), strip)

    def free(self, delivery: Delivery) -> None:
        self.freed += 1

    def call(self, worker: int, name: str, *arguments: Any) -> Any:
        self.calls.append((worker, name))
        return {} if name == "state_dict" else None if name == "take_lost" else []

    def replace(self, worker: int, life: int) -> None:
        self.replaced.append((worker, life))

    def close(self) -> None: ...


class Knows:
    """A policy whose only weight is the number of updates."""

    def __init__(self) -> None:
        self.values = {"epsilon": 0.5}
        self.updates = 0

    def policy_state(self) -> dict[str, Tensor]:
        return {"w": torch.tensor(float(self.updates))}


class Taken:
    """Notes the rollouts that an update gets."""

    def __init__(self) -> None:
        self.numbers: list[list[int]] = []
        self.envs: list[list[int]] = []

    def add(self, step: Any) -> None: ...

    def take(self, strip: Strip) -> None:
        self.numbers.append(strip.reward[0].astype(int).tolist())
        self.envs.append(strip.envs.tolist())


def pool_of(engine: Watched, **plan: Any) -> tuple[Pool, Knows]:
    policy = Knows()
    settings: dict[str, Any] = {"num_workers": 3, "num_envs": 3, "per_round": 1, "lag": 0, "fixed": True}
    return Pool(engine, policy, PoolPlan(**settings | plan)), policy  # type: ignore[arg-type]


def update(pool: Pool, policy: Knows, taken: Taken) -> None:
    pool.gather(2, taken)
    policy.updates += 1
    pool.publish(policy.policy_state, policy.values, 10 * policy.updates)


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize(("per_round", "lag"), [(1, 0), (1, 4), (2, 1), (3, 0), (3, 2)])
def test_in_fixed_order_worker_and_version_follow_from_the_number(order: str, per_round: int, lag: int) -> None:
    engine, taken = Watched(order), Taken()
    pool, policy = pool_of(engine, per_round=per_round, lag=lag)
    for number in range(7):
        update(pool, policy, taken)
        assert pool.metrics()["lag"] == min(number, lag)
    assert taken.numbers == [[r * per_round + k for k in range(per_round)] for r in range(7)]
    assert taken.envs == [[u % 3 for u in numbers] for numbers in taken.numbers]
    for worker, request, weight in engine.asked:
        version = max(0, request.number // per_round - lag)
        assert (worker, request.version, weight) == (request.number % 3, version, version)
        assert request.gradient_steps == 10 * version
        assert request.values == {"epsilon": 0.5}
    assert pool.steps == 7 * 2 * per_round  # of what was learned from, not of what was gathered
    assert pool.metrics()["episodes"] == 7 * per_round
    assert engine.freed == 7 * per_round


def test_lag_is_counted_in_gradient_steps_too() -> None:
    engine, taken = Watched(), Taken()
    pool, policy = pool_of(engine, lag=2)
    for _ in range(5):
        update(pool, policy, taken)
        metrics = pool.metrics()
    assert (metrics["lag"], metrics["lag_gradient_steps"]) == (2.0, 20.0)


def test_out_of_order_an_update_learns_from_what_arrived_first_of_each_worker() -> None:
    engine, taken = Watched("last"), Taken()
    pool, policy = pool_of(engine, per_round=2, lag=2, fixed=False)
    for _ in range(6):
        update(pool, policy, taken)
    assert all(len(set(envs)) == 2 for envs in taken.envs)
    assert taken.numbers[0] != [0, 1]
    assert len({u for numbers in taken.numbers for u in numbers}) == 12
    assert pool.why_not_exact == [
        "order=arrival: rollouts are learned from as they arrive, which no second run repeats"
    ]


def test_what_was_gathered_and_not_learned_from_is_saved_and_comes_first() -> None:
    engine, taken = Watched(), Taken()
    pool, policy = pool_of(engine, lag=3)
    for _ in range(3):
        update(pool, policy, taken)
    state = pool.state_dict()
    assert [kept["request"]["number"] for kept in state["pool"]["inbox"]] == [3, 4, 5, 6]
    other = Watched()
    again, knows = pool_of(other, lag=3)
    again.load_state_dict(state)
    knows.updates = 3
    for _ in range(3):
        update(pool, policy, taken)
        update(again, knows, taken)
    assert taken.numbers[3::2] == taken.numbers[4::2] == [[3], [4], [5]]
    assert [request for _, request, _ in other.asked] == [request for _, request, _ in engine.asked[-3:]]
    assert again.steps == pool.steps


def test_a_lost_worker_is_replaced_until_too_many_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    engine, taken = Watched(), Taken()
    pool, policy = pool_of(engine, per_round=3, restarts=2)
    update(pool, policy, taken)
    engine.events = [Loss(1, "was ended by signal 9"), Loss(1, "was ended by signal 9")]
    update(pool, policy, taken)
    assert engine.replaced == [(1, 1), (1, 2)]
    assert "worker 1 was ended by signal 9; it is replaced, and its episodes are broken off" in caplog.text
    lost = pool.take_lost()
    assert lost is not None
    assert lost.tolist() == [False, True, False]
    assert pool.take_lost() is None
    assert pool.metrics()["restarts"] == 2
    engine.events = [Loss(2, "was ended by signal 9")]
    with pytest.raises(WorkersLost, match=r"worker 2 was ended .* worker_restarts=2 were made before; the run can be"):
        update(pool, policy, taken)
    # Nothing of the round was taken, and what is there of it is saved.
    assert len(taken.numbers) == 2
    state = pool.state_dict()
    assert state.keys() == {"actor", "actor/1", "pool"}
    assert pool.why_not_exact == ["worker 2 was lost, and with it its episodes"]
    other = Watched()
    again, knows = pool_of(other, per_round=3, restarts=2)
    again.load_state_dict(state)
    assert other.replaced == [(2, 1)]
    update(again, knows, taken)
    assert taken.numbers[-1] == [6, 7, 8]


def test_metrics_of_waiting_are_shares_and_belong_to_the_wall_clock() -> None:
    from rl_training.runtime.clock import WALL_CLOCK

    pool, policy = pool_of(Watched(), lag=1)
    update(pool, policy, Taken())
    metrics = pool.metrics()
    assert {"queue_wait", "learner_idle", "worker_idle"} <= set(WALL_CLOCK)
    assert 0.0 <= metrics["learner_idle"] <= 1.0
    assert 0.0 <= metrics["worker_idle"] <= 1.0


# The same bits everywhere.


def test_one_worker_in_this_process_is_the_learner_itself() -> None:
    config = tiny(total_timesteps=10**6)
    plain, pooled = trained(config), trained(tiny(algo="pool_worlds:LAGGING", lag=0) | {"total_timesteps": 10**6})
    assert training_differences(plain, pooled) == []


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_one_process_gathers_what_the_learner_itself_would(algo: str) -> None:
    config = tiny(algo=algo, normalize_obs=True)
    alone, apart = trained(config), trained(config | {"actors": "process"})
    left = training_differences(alone, apart)
    # The streams of the environments and of the policy are those of the worker, and are saved with it.
    assert all(where.startswith(("envs", "rng.streams")) for where in left), left
    assert set(apart.envs) == {"actor", "pool"}
    assert apart.envs["actor"]["rng"]["env"] == alone.state["rng"]["streams"]["env"]
    assert apart.envs["actor"]["actor"]["steps"] == alone.envs["actor"]["steps"]


@pytest.mark.parametrize("changes", [{}, {"at_once": 2, "lag": 1}])
def test_inline_and_processes_give_the_same_bits(changes: dict[str, Any], tmp_path: Path) -> None:
    config = LAGGING | changes
    train(config, run_dir=tmp_path / "inline")
    cut_and_resume(config | {"actors": "process"}, tmp_path / "process", after=100)
    left = run_differences(tmp_path / "inline", tmp_path / "process")
    assert left == []
    assert latest(tmp_path / "process").meta["resume"] == "exact"


@pytest.mark.parametrize(("first", "then"), [("inline", "process"), ("process", "inline")])
def test_a_run_resumes_on_the_other_engine(first: str, then: str, tmp_path: Path) -> None:
    config = LAGGING | {"algo": "pool_worlds:LAGGING_RECURRENT", "normalize_reward": False}
    train(config, run_dir=tmp_path / "whole")
    with pytest.raises(Pulled):
        train(config | {"actors": first}, run_dir=tmp_path / "half", callbacks=[PullPlug(100)])
    assert resume_training(tmp_path / "half", actors=then).stop_reason == "completed"
    assert len(latest(tmp_path / "whole").envs["pool"]["inbox"]) == 5
    assert run_differences(tmp_path / "whole", tmp_path / "half") == []
    assert latest(tmp_path / "half").meta["resume"] == "exact"


def test_a_resumed_run_keeps_its_workers(tmp_path: Path) -> None:
    train(tiny(num_workers=3, total_timesteps=48), run_dir=tmp_path / "run")
    with pytest.raises(UserError, match=r"num_workers=1: a resumed run keeps its num_workers \(3\)"):
        resume_training(tmp_path / "run", total_timesteps=96, num_workers=1)


def test_arrival_is_restarted_and_says_so(tmp_path: Path) -> None:
    train(LAGGING | {"order": "arrival"}, run_dir=tmp_path / "run")
    meta = latest(tmp_path / "run").meta
    assert meta["resume"] == "restarted"
    assert "order=arrival" in meta["why_restarted"][0]
    assert resume_training(tmp_path / "run", total_timesteps=240).stop_reason == "completed"


# What happens to processes.


class Fate(Callback):
    """Asks for a fate from a step on, again and again, as often as it may."""

    def __init__(self, file: Path, times: int = 1) -> None:
        self.file, self.left = file, times

    def on_step(self, run: Any, metrics: Metrics) -> None:
        if self.left and not self.file.exists():
            self.file.touch()
            self.left -= 1


def fateful(tmp_path: Path, fate: str, **changes: Any) -> dict[str, Any]:
    kwargs = {"at": str(tmp_path / "fate"), "fate": fate}
    return tiny(env_id="pool_worlds:Fateful", env_kwargs=kwargs, num_envs=4, actors="process", num_workers=2, **changes)


def test_killed_and_frozen_workers_are_replaced_and_the_run_completes(tmp_path: Path) -> None:
    for fate, deadline in (("kill", None), ("freeze", 2.0)):
        config = fateful(tmp_path, fate, rollout_deadline=deadline, total_timesteps=320)
        result = train(config, run_dir=tmp_path / fate, callbacks=[Fate(tmp_path / "fate", times=2)])
        assert result.stop_reason == "completed"
        assert result["restarts"] == 2
        assert latest(tmp_path / fate).envs["pool"]["steps"] == result["step"] == 320


def test_too_many_lost_workers_end_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    config = fateful(tmp_path, "kill", worker_restarts=0)
    with pytest.raises(UserError, match=r"worker [01] was ended by signal 9, and worker_restarts=0 were made") as said:
        train(config, run_dir=tmp_path / "run", callbacks=[Fate(tmp_path / "fate")])
    assert f"The last good checkpoint is {tmp_path / 'run'}" in str(said.value)
    saved = latest(tmp_path / "run").meta["step"]
    assert 0 < saved < 240
    assert metadata(tmp_path / "run")["stop_reason"] == "failed"
    result = resume_training(tmp_path / "run")
    assert (result.stop_reason, result["step"]) == ("completed", saved + 32 * round((240 - saved) / 32 + 0.49))


def test_an_error_in_an_environment_is_one_line_and_a_trace_in_a_file(tmp_path: Path) -> None:
    config = fateful(tmp_path, "raise")
    with pytest.raises(UserError, match=r"worker [01]: ValueError: the pole broke \(where: .*error\.log\)") as said:
        train(config, run_dir=tmp_path / "run", callbacks=[Fate(tmp_path / "fate")])
    assert "Traceback" not in str(said.value)
    trace = (tmp_path / "run" / "error.log").read_text()
    assert trace.startswith("In worker ")
    assert 'raise ValueError("the pole\\nbroke")' in trace
    assert resume_training(tmp_path / "run").stop_reason == "completed"


def test_an_environment_that_cannot_be_made_is_said_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"env_kwargs=.*unexpected keyword"):
        train(tiny(env_id="pool_worlds:Uneven", env_kwargs={"x": 1}, actors="process"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=False).stdout
    return [int(word) for word in found.split()]


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_the_learner(number: signal.Signals, tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    config = tiny(num_envs=4, num_workers=2, actors="process", total_timesteps=10**7)
    config |= {"env_id": "pool_worlds:Uneven", "env_kwargs": {"longest": 0.05}}
    job = {"config": config, "run_dir": str(tmp_path / "run"), "slow_after": 0, "signal_file": str(tmp_path / "there")}
    with own_process(tmp_path / "job", **job) as process:
        wait_for(tmp_path / "there", process)
        workers = children_of(process.pid)
        assert len(workers) >= 2
        process.send_signal(number)
        process.wait(timeout=60)
        deadline = time.monotonic() + 1.0
        while any(map(lives, workers)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(map(lives, workers))
    assert set(os.listdir("/dev/shm")) - before == set()
    if number == signal.SIGINT:
        assert metadata(tmp_path / "run")["stop_reason"] == "interrupted"
        assert latest(tmp_path / "run").meta["step"] > 0


def test_a_script_is_not_run_again_by_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium as gym\n"
        "from rl_training import PPO\n"
        "print('once', flush=True)\n"
        "def make():\n"
        "    return gym.make('CartPole-v1')\n"
        "agent = PPO(make, num_envs=2, num_workers=2, actors='process', n_steps=8, batch_size=8)\n"
        "agent.learn(32)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("once") == 1


# Mistakes.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_workers": 2, "num_envs": 3}, r"num_workers=2: must divide num_envs=3"),
        ({"actors": "threads"}, r"actors='threads': must be one of inline, process, ray"),
        ({"num_workers": 0}, r"num_workers.*must be at least 1"),
        ({"rollout_deadline": 0}, r"rollout_deadline=0: must be above 0"),
        ({"algo": "bc", "actors": "process"}, r"actors='process': bc has none: it gathers nothing itself"),
        ({"algo": "bc", "num_workers": 2}, r"num_workers=2: bc has none: it gathers nothing itself"),
    ],
)
def test_wrong_settings_are_one_line(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        train(tiny(**changes), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_takes_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    command = Command(monkeypatch, capsys)
    said = command("train", "ppo", "env_id=CartPole-v1", "total_timesteps=64", "n_steps=8", "num_workers=3", "--quiet")
    assert said.code == 2
    assert said.err.startswith("error: num_workers=3: must divide num_envs=8")


def test_an_agent_takes_workers() -> None:
    agent = PPO("CartPole-v1", num_envs=2, num_workers=2, n_steps=8, batch_size=8)
    agent.learn(32)
    assert agent.num_timesteps == 32
