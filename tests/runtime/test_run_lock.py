"""One process at a time trains in a run's folder, and it looks at nothing before it has the folder for itself."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_training import PPO, Callback, UserError, resume_training, train
from rl_training.runtime.checkpoints import lock as locks
from rl_training.runtime.checkpoints.lock import Locked, hold
from run_helpers import (
    Pulled,
    PullPlug,
    Walk,
    checkpoint_names,
    do_job,
    latest,
    limited_walk,
    metadata,
    metrics_rows,
    run_differences,
    tiny,
)

CUT = tiny(env_id="run_helpers:limited_walk", checkpoint_interval=48, eval_interval=48, keep_checkpoints=9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never disturbed; it is only read."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(CUT, run_dir=run_dir)
    return run_dir


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """The same run, which ended in the middle."""
    with pytest.raises(Pulled):
        train(CUT, run_dir=tmp_path / "run", callbacks=[PullPlug(120)])
    return tmp_path / "run"


@pytest.fixture
def long_lived() -> Iterator[list[int]]:
    """Processes to end with the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


# Lock, then read, then act.


def resume_and_tell(run_dir: Path, answer: Path) -> None:
    try:
        resume_training(run_dir)
        answer.write_text("done")
    except UserError as error:
        answer.write_text(str(error))


def resumed_elsewhere(processes: Any, run_dir: Path) -> str:
    """Another process goes on with the run, to its end or to its refusal, which is returned."""
    answer = run_dir.with_name("answer")
    process = processes.Process(target=resume_and_tell, args=(run_dir, answer))
    process.start()
    process.join()
    return answer.read_text()


def test_a_process_that_looked_before_another_finished_takes_nothing_back(
    processes: Any, cut: Path, whole: Path
) -> None:
    """B sees where the run stands; A goes on with it to the end, if it may; then B goes on."""
    answers: list[str] = []

    def made_late() -> Any:
        if not answers:
            answers.append(resumed_elsewhere(processes, cut))
        return limited_walk()

    with pytest.raises(Pulled):
        resume_training(cut, env_factory=made_late, callbacks=[PullPlug(0)])
    if answers == ["done"]:
        assert run_differences(whole, cut) == [], "what A had finished is still there"
    assert f"is being trained by process {os.getpid()} on" in answers[0]
    resume_training(cut)
    assert run_differences(whole, cut) == []


def test_an_agent_does_not_write_over_what_another_process_has_trained_since(tmp_path: Path) -> None:
    settings = {key: value for key, value in CUT.items() if key not in ("algo", "env_id", "total_timesteps")}
    agent = PPO(limited_walk, **settings, output_dir=str(tmp_path / "runs"))
    try:
        run_dir = agent.learn(48).result.run_dir
        resume_training(run_dir, total_timesteps=144, env_factory=limited_walk)
        before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
        with pytest.raises(UserError, match=r"another process has changed this run meanwhile.*step_144"):
            agent.learn(48)
        with pytest.raises(UserError, match=r"another process has changed this run"):
            agent.learn(48)
        assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before
    finally:
        agent.close()
    assert latest(run_dir).meta["step"] == 144


def test_an_agent_goes_on_in_its_folder_where_nobody_else_was(tmp_path: Path) -> None:
    settings = {key: value for key, value in CUT.items() if key not in ("algo", "env_id", "total_timesteps")}
    agent = PPO(limited_walk, **settings, output_dir=str(tmp_path / "runs"))
    agent.learn(48).learn(48)
    agent.close()
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert latest(run_dir).meta["step"] == 96


def test_a_new_run_is_locked_before_it_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename
    refused: list[str] = []

    def rename(source: Any, target: Any, **keywords: Any) -> None:
        real(source, target, **keywords)
        if Path(target) == tmp_path / "run":
            with pytest.raises(Locked) as caught:
                resume_training(target)
            refused.append(str(caught.value))

    monkeypatch.setattr(os, "rename", rename)
    train(CUT, run_dir=tmp_path / "run")
    assert len(refused) == 1


# Which checkpoint.


def test_an_older_checkpoint_is_gone_on_from_only_by_its_name(cut: Path, whole: Path) -> None:
    """A crash after a checkpoint was complete, and before `latest` named it."""
    (cut / "checkpoints" / "latest").write_text("step_48\n")
    resume_training(cut)
    assert metadata(cut)["resumed"][0]["step"] == 96
    assert run_differences(whole, cut) == []
    assert list((cut / "checkpoints").glob(".superseded-*")) == []


@pytest.mark.parametrize("by_path", [False, True])
def test_what_is_newer_than_a_named_checkpoint_is_moved_aside(
    by_path: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    train(CUT, run_dir=run_dir)
    names, rows = checkpoint_names(run_dir), metrics_rows(run_dir)
    kept = {name: latest(run_dir, name).state["trainer"]["metrics"] for name in names}
    assert names == ["step_0", "step_48", "step_96", "step_144", "step_192", "step_240"]
    if by_path:
        result = resume_training(run_dir / "checkpoints" / "step_48", total_timesteps=96)
    else:
        result = resume_training(run_dir, which="step_48", total_timesteps=96)
    assert result["step"] == 96
    branch = run_dir / "checkpoints" / ".superseded-1"
    assert checkpoint_names(run_dir) == ["step_0", "step_48", "step_96"]
    assert latest(run_dir).meta["step"] == 96
    assert sorted(path.name for path in branch.glob("step_*")) == sorted(names[2:])
    for name in names[2:]:
        assert latest(branch / name).state["trainer"]["metrics"] == kept[name], "it is whole"
    assert latest(branch).meta["step"] == 240, "the folder as a whole is found like that of a run"
    assert [json.loads(line)["step"] for line in (branch / "metrics.jsonl").read_text().splitlines()] == [
        row["step"] for row in rows
    ]
    moved = "step_240, step_192, step_144, step_96: newer than this, and moved to checkpoints/.superseded-1"
    assert any(moved in record.getMessage() for record in caplog.records)
    assert any(moved in change for change in metadata(run_dir)["resumed"][0]["changes"])


def test_the_keep_rule_holds_for_what_was_moved_aside(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(CUT | {"total_timesteps": 96}, run_dir=run_dir)
    for time_ in range(1, 5):
        resume_training(run_dir, which="step_48", total_timesteps=96, keep_checkpoints=2)
        branches = sorted(path.name for path in (run_dir / "checkpoints").glob(".superseded-*"))
        assert branches == [f".superseded-{number}" for number in range(max(1, time_ - 1), time_ + 1)]


class Scores(Callback):
    """Decides by itself what the evaluations come to."""

    def __init__(self, *scores: float) -> None:
        self.scores = list(scores)

    def on_start(self, run: Any) -> None:
        from rl_training.runtime.evaluations import Evaluation

        run.evaluate = lambda episodes: Evaluation((self.scores.pop(0),), (1,))


def test_best_goes_with_its_checkpoint(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(CUT, run_dir=run_dir, callbacks=[Scores(1.0, 2.0, 9.0, 3.0, 4.0)])
    folder = run_dir / "checkpoints"
    assert (folder / "best").read_text() == "step_144\n"
    with pytest.raises(Pulled):
        resume_training(run_dir, which="step_96", callbacks=[PullPlug(96)])
    assert (folder / "best").read_text() == "step_96\n"
    assert latest(folder / ".superseded-1", "best").meta["step"] == 144
    with pytest.raises(Pulled):
        resume_training(run_dir, which="step_0", callbacks=[PullPlug(0)])
    assert not (folder / "best").exists(), "nothing was evaluated by then"
    assert latest(folder / ".superseded-2", "best").meta["step"] == 96


def test_a_best_that_is_older_stays(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(CUT, run_dir=run_dir, callbacks=[Scores(9.0, 2.0, 1.0, 3.0, 4.0)])
    with pytest.raises(Pulled):
        resume_training(run_dir, which="step_96", callbacks=[PullPlug(96)])
    assert latest(run_dir, "best").meta["step"] == 48
    assert not (run_dir / "checkpoints" / ".superseded-1" / "best").exists()


# The lock itself.


class ForkedWalk(Walk):
    """Forks a process at its first step that does nothing and outlives this one."""

    fork: Callable[[], int] = staticmethod(os.fork)

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file, self.forked = Path(file), False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.forked:
            self.forked, pid = True, self.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            with self.file.open("a") as stream:
                stream.write(f"{pid}\n")
        return super().step(action)


class WalkForkedInC(ForkedWalk):
    """Its fork is one that Python does not know of."""

    fork = staticmethod(lambda: ctypes.CDLL(None).fork())


@pytest.mark.parametrize("env", ["ForkedWalk", "WalkForkedInC"])
def test_processes_that_an_environment_forks_do_not_keep_the_lock(
    env: str, processes: Any, tmp_path: Path, long_lived: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    children = tmp_path / "children"
    config = CUT | {
        "env_id": f"test_run_lock:{env}",
        "env_kwargs": {"file": str(children)},
        "time_limit": 11,
        "num_envs": 1,
        "eval_interval": None,
    }
    job = {
        "config": config,
        "run_dir": str(tmp_path / "run"),
        "slow_after": 60,
        "signal_file": str(tmp_path / "passed"),
    }
    process = processes.Process(target=do_job, args=(job,))
    process.start()
    while not (tmp_path / "passed").exists():
        assert process.is_alive()
        time.sleep(0.005)
    with pytest.raises(Locked, match=rf"is being trained by process {process.pid} on \S+ \(since 2"):
        resume_training(tmp_path / "run")
    process.kill()
    process.join()
    long_lived += [int(line) for line in children.read_text().split()]
    for pid in long_lived:
        os.kill(pid, 0)  # they live
    result = resume_training(tmp_path / "run", env_factory=lambda **_: limited_walk())
    assert result.stop_reason == "completed"
    said = f"process {process.pid} on"
    assert any(said in record.getMessage() and "is dead" in record.getMessage() for record in caplog.records)
    assert any(said in change for change in metadata(tmp_path / "run")["resumed"][0]["changes"])


def test_a_lock_that_was_released_says_nothing(cut: Path) -> None:
    assert (cut / ".lock").read_bytes() == b""
    assert hold_and_leave(cut) == ""


def hold_and_leave(folder: Path) -> str:
    with hold(folder) as lock:
        return lock.inherited


def test_copying_the_folder_of_a_run_does_not_let_others_in(processes: Any, cut: Path, tmp_path: Path) -> None:
    """A process loses a record lock when it closes any descriptor of the file."""
    with hold(cut):
        shutil.copytree(cut, tmp_path / "copy")
        assert f"is being trained by process {os.getpid()} on" in resumed_elsewhere(processes, cut)
        # The copy is another run, which nobody trains, whatever note was copied with it.
        with hold(tmp_path / "copy") as copied:
            assert copied.inherited == ""
    assert resumed_elsewhere(processes, cut) == "done"


def taken_in_another_process(folder: Path, ready: Any, end: Any) -> None:
    with hold(folder):
        ready.set()
        end.wait(60)


def test_a_run_whose_lock_was_taken_over_writes_no_more(processes: Any, cut: Path) -> None:
    """As on a shared disk, where nothing is known of whether a process of another machine lives."""
    ready, end = processes.Event(), processes.Event()
    other = processes.Process(target=taken_in_another_process, args=(cut, ready, end))

    class LosesItsLock(Callback):
        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            if other.pid is None:
                (cut / ".lock").write_text("")
                other.start()
                assert ready.wait(60)

    try:
        with pytest.raises(UserError, match=r"was taken over by process \d+ on .*, and is not written any more"):
            resume_training(cut, callbacks=[LosesItsLock()])
    finally:
        end.set()
        other.join()
    assert checkpoint_names(cut)[-1] == "step_96"


def test_two_threads_of_one_process_never_hold_one_folder(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(Locked, match=f"by process {os.getpid()}, which is this one"):
        hold(tmp_path)
    (tmp_path / "other").mkdir()
    with hold(tmp_path), hold(tmp_path / "other"):
        pass


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"17\n",
        b'{"pid": "x", "host": 3, "born": []}',
        b"[" * 5000,
    ],
)
def test_a_note_that_nobody_can_read_keeps_nobody_out(note: bytes, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(note)
    with hold(tmp_path) as lock:
        assert lock.inherited == ""
    assert (tmp_path / ".lock").read_bytes() == b""


def test_a_process_with_the_id_of_a_dead_one_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    note = locks._this_process((0, (tmp_path / ".lock").stat().st_ino)) | {"pid": os.getppid()}
    (tmp_path / ".lock").write_text(json.dumps(note))
    with hold(tmp_path) as lock:
        assert f"process {os.getppid()} on" in lock.inherited
    alive = note | {"born": locks._born(os.getppid())}
    (tmp_path / ".lock").write_text(json.dumps(alive))
    with pytest.raises(Locked, match=f"process {os.getppid()} on"):
        hold(tmp_path)
    # Of another machine nothing is known but what the kernel says.
    (tmp_path / ".lock").write_text(json.dumps(alive | {"host": "elsewhere"}))
    with hold(tmp_path) as lock:
        assert "on elsewhere" in lock.inherited


def test_on_a_file_system_without_locks_the_note_keeps_others_out(
    processes: Any, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "lockf", unsupported)
    with hold(cut) as lock:
        assert not lock.sure
        assert f"is being trained by process {os.getpid()} on" in resumed_elsewhere(processes, cut)
