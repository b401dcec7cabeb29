"""Wherever a run is killed, what is visible of it can be resumed, and ends as a run that was never killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import run_helpers
from rl_training import resume_training, train
from rl_training.experiment.config import load_config
from rl_training.experiment.manager import RunFolder
from rl_training.runtime.checkpoints.catalogue import find_checkpoint, pointed
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from rl_training.runtime.train import Run, build
from rl_training.runtime.workflows import restore
from run_helpers import checkpoint_names, latest, metrics_rows, run_differences, tiny

KILLS = int(os.environ.get("RL_TRAINING_KILLS", "5"))

# It saves after every update, so that most of its time is spent writing checkpoints.
SAVES_ALWAYS = tiny(
    env_id="run_helpers:limited_walk",
    checkpoint_interval=1,
    keep_checkpoints=2,
    eval_interval=48,
    learning_rate_schedule="linear",
    normalize_obs=True,
    total_timesteps=1200,
)


def visible_runs(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


def drafts(folder: Path) -> set[Path]:
    """The checkpoints that are being written, or were when a process died."""
    return set(folder.glob("*/checkpoints/.draft-*"))


def has_ended(run: Path) -> bool:
    """Whether it has been evaluated for the last time, too."""
    trainer = latest(run).state["trainer"]
    return trainer["stop_reason"] == "completed" and trainer["due"] is None


class After:
    """So many seconds after something has come true, or after this was made."""

    def __init__(self, seconds: float, start: Callable[[], bool] = lambda: True) -> None:
        self.seconds, self.start, self.since = seconds, start, float("inf")

    def __call__(self) -> bool:
        if self.since == float("inf") and self.start():
            self.since = time.monotonic()
        return time.monotonic() - self.since > self.seconds


def kill_when(processes: Any, moment: Callable[[], bool], target: Callable[..., Any], *arguments: Any) -> bool:
    """Start a process and kill it at a moment; says whether it was still at work."""
    process = processes.Process(target=target, args=arguments)
    process.start()
    while process.is_alive() and not moment():
        time.sleep(0.0002)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), f"it failed with {process.exitcode}"
    return bool(process.exitcode == -signal.SIGKILL)


def test_random_kills_never_leave_a_run_that_cannot_be_resumed(processes: Any, tmp_path: Path) -> None:
    """Killed again and again: at start-up, in the middle of steps, and while a checkpoint is being written."""
    chance = random.Random(20260312)
    folder = tmp_path / "runs"
    config = SAVES_ALWAYS | {"output_dir": str(folder)}
    train(config, run_dir=tmp_path / "whole")
    kills = kills_while_writing = 0
    while kills < KILLS or kills_while_writing == 0:
        unfinished = [path for path in visible_runs(folder) if not has_ended(path)]
        before = [latest(path).meta["step"] for path in unfinished]
        goes_on = bool(unfinished) and chance.random() < 0.7
        job = (resume_training, chance.choice(unfinished)) if goes_on else (train, config)
        left, known = drafts(folder), len(visible_runs(folder))
        moments = [
            After(chance.uniform(0.0, 0.8)),
            # However slow the machine is, some runs get as far as this.
            After(chance.uniform(0.0, 0.2), lambda known=known: len(visible_runs(folder)) > known),
            lambda left=left: bool(drafts(folder) - left),
        ]
        killed = kill_when(processes, chance.choice(moments[::2] if goes_on else moments[:2]), *job)
        kills += killed
        kills_while_writing += killed and bool(drafts(folder) - left)
        for path, step in zip(unfinished, before, strict=True):
            assert latest(path).meta["step"] >= step, "nothing that was saved is lost"
        assert kills < KILLS + 100
    for path in visible_runs(folder):
        if not has_ended(path):
            resume_training(path)
        assert run_differences(tmp_path / "whole", path) == []
        assert latest(path, "best").meta["step"] == latest(path).state["trainer"]["best_step"]


class Crash(BaseException):
    """The process dies here: nothing after it runs, not even what tidies up."""


class CrashAt:
    """Dies at the n-th call of whatever changes the disk, before or after that call has taken effect."""

    NAMES = ("mkdir", "rename", "replace", "fsync", "link", "unlink", "rmdir", "truncate")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int | None, *, after: bool) -> None:
        self.number, self.after = number, after
        self.calls: list[str] = []
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append(name)
            if self.number is not None and len(self.calls) > self.number:
                if self.after and len(self.calls) == self.number + 1:
                    real(*arguments, **keywords)
                raise Crash
            return real(*arguments, **keywords)

        return call


def every_crash(work: Callable[[], None], prepare: Callable[[], None], check: Callable[[str], None]) -> list[str]:
    """Do the work with a crash before and after each of its calls; gives the calls of undisturbed work."""
    prepare()
    with pytest.MonkeyPatch.context() as patch:
        watched = CrashAt(patch, None, after=False)
        work()
    for number in range(len(watched.calls)):
        for after in (False, True):
            prepare()
            with pytest.MonkeyPatch.context() as patch:
                CrashAt(patch, number, after=after)
                with suppress(Crash):
                    work()
            check(f"{'after' if after else 'before'} call {number}, {watched.calls[number]}")
    return watched.calls


@pytest.fixture
def saved_run(tmp_path: Path) -> Iterator[tuple[Run, Path]]:
    """A run in memory, beside the folder that it left some steps ago."""
    config = tiny(env_id="run_helpers:limited_walk", checkpoint_interval=24, keep_checkpoints=2, eval_interval=24)
    with pytest.raises(run_helpers.Pulled):
        train(config, run_dir=tmp_path / "template", callbacks=[run_helpers.PullPlug(72)])
    run, _ = restore(tmp_path / "template")
    try:
        yield run, tmp_path / "template"
    finally:
        run.close()


def test_a_crash_at_any_moment_of_a_save_leaves_a_checkpoint(saved_run: tuple[Run, Path], tmp_path: Path) -> None:
    run, template = saved_run
    old = run.steps
    run.advance()
    # The new checkpoint is the best, so that both pointers move, and pruning has something to do.
    run.archive.best_step = run.steps
    work_dir = tmp_path / "work"

    def prepare() -> None:
        shutil.rmtree(work_dir, ignore_errors=True)
        shutil.copytree(template, work_dir)
        run.archive.folder = RunFolder(work_dir)

    seen = set()

    def check(moment: str) -> None:
        found = read_checkpoint(find_checkpoint(work_dir))
        assert found.meta["step"] in (old, run.steps), moment
        seen.add(found.meta["step"])
        best = read_checkpoint(find_checkpoint(work_dir, "best"))
        assert best.meta["step"] == found.state["trainer"]["best_step"] or found.meta["step"] == old, moment
        again, _ = restore(work_dir, trust=True)
        again.close()
        assert again.steps == found.meta["step"], moment

    calls = every_crash(run.save, prepare, check)
    assert seen == {old, run.steps}
    assert calls.count("rename") == 2, "the new checkpoint, and the old one that was pruned"
    assert calls.count("replace") == 2
    assert calls.count("fsync") >= 9
    assert "rmdir" in calls, "an old checkpoint was pruned"


def test_a_crash_while_a_checkpoint_replaces_another_of_its_step(saved_run: tuple[Run, Path], tmp_path: Path) -> None:
    run, template = saved_run
    work_dir = tmp_path / "work"

    def prepare() -> None:
        shutil.rmtree(work_dir, ignore_errors=True)
        shutil.copytree(template, work_dir)
        run.archive.folder = RunFolder(work_dir)

    def check(moment: str) -> None:
        assert read_checkpoint(find_checkpoint(work_dir)).meta["step"] == run.steps, moment
        assert read_checkpoint(find_checkpoint(work_dir / "checkpoints" / f"step_{run.steps}")), moment
        again, _ = restore(work_dir, trust=True)
        # And the next save tidies up.
        again.archive.folder = RunFolder(work_dir)
        again.save()
        again.close()
        left = [path.name for path in (work_dir / "checkpoints").iterdir() if path.is_dir()]
        assert sorted(left) == sorted(checkpoint_names(work_dir)), moment

    assert every_crash(run.save, prepare, check).count("rename") == 2


def test_a_crash_while_an_agents_save_is_replaced(saved_run: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = saved_run
    path = tmp_path / "agents" / "mine"

    def prepare() -> None:
        shutil.rmtree(path.parent, ignore_errors=True)
        write_checkpoint(path, run.snapshot())

    def work() -> None:
        write_checkpoint(path, run.snapshot())

    def check(moment: str) -> None:
        found: Checkpoint = read_checkpoint(find_checkpoint(path))
        assert found.meta["step"] == run.steps, moment

    every_crash(work, prepare, check)


def test_a_crash_at_start_up_shows_no_run_or_one_that_can_be_resumed(tmp_path: Path) -> None:
    run = build(load_config(tiny(tmp_path / "runs", env_id="run_helpers:limited_walk")))
    seen = set()

    def prepare() -> None:
        run.archive.unlock()
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)

    def check(moment: str) -> None:
        shown = visible_runs(tmp_path / "runs")
        seen.add(len(shown))
        for path in shown:
            again, _ = restore(path)
            again.close()
            assert again.steps == 0, moment
            assert pointed(path / "checkpoints", "latest") == path / "checkpoints" / "step_0", moment

    try:
        run.start()
        every_crash(lambda: run.archive.open(run), prepare, check)
    finally:
        run.close()
    assert seen == {0, 1}


def test_a_crash_while_resuming_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    config = tiny(env_id="run_helpers:limited_walk", checkpoint_interval=96)
    with pytest.raises(run_helpers.Pulled):
        train(config, run_dir=tmp_path / "template", callbacks=[run_helpers.PullPlug(150)])
    resume_training(shutil.copytree(tmp_path / "template", tmp_path / "whole"), trust=True)
    work_dir = tmp_path / "work"

    class DiesAtOnce(run_helpers.Callback):
        def on_start(self, run: Any) -> None:
            raise Crash

    def prepare() -> None:
        shutil.rmtree(work_dir, ignore_errors=True)
        shutil.copytree(tmp_path / "template", work_dir)

    def work() -> None:
        with suppress(Crash):
            resume_training(work_dir, callbacks=[DiesAtOnce()], trust=True)

    def check(moment: str) -> None:
        resume_training(work_dir, trust=True)
        assert run_differences(tmp_path / "whole", work_dir) == [], moment

    rows = len(metrics_rows(tmp_path / "template"))
    assert every_crash(work, prepare, check).count("replace") >= 4, "metrics, latest, config and metadata"
    prepare()
    work()
    assert len(metrics_rows(work_dir)) < rows, "rows after the checkpoint were cut"
