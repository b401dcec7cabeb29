"""Whenever the power is lost, a run is absent or can be resumed, and what was reported as saved is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from power_loss import Disk, every_loss
from rl_training import resume_training, train
from rl_training.data.disk import sync, write_atomically
from rl_training.experiment.config import load_config
from rl_training.experiment.manager import RunFolder
from rl_training.runtime.checkpoints.catalogue import newest
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint
from rl_training.runtime.train import Run, build
from rl_training.runtime.workflows import restore
from run_helpers import Callback, Pulled, PullPlug, tiny

CONFIG = tiny(
    env_id="run_helpers:limited_walk", checkpoint_interval=24, keep_checkpoints=2, eval_interval=48, hidden_sizes=[2]
)


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Run]:
    """A run in memory that goes on in its folder, which is alone in `disk`."""
    with pytest.raises(Pulled):
        train(CONFIG, run_dir=tmp_path / "disk" / "run", callbacks=[PullPlug(48)])
    run, _ = restore(tmp_path / "disk" / "run")
    run.archive.folder = RunFolder(tmp_path / "disk" / "run")
    yield run
    run.close()


def check_files(run: Path) -> None:
    """What a run replaces as a whole is never half."""
    json.loads((run / "metadata.json").read_text())
    assert yaml.safe_load((run / "config.yaml").read_text())["algo"] == "ppo"
    for name in ("latest", "best"):
        file = run / "checkpoints" / name
        assert not file.exists() or file.read_text().startswith("step_")


def test_what_was_reported_as_saved_is_there(saved: Run, tmp_path: Path) -> None:
    """The second save prunes the oldest checkpoint, and both pointers move."""
    disk, steps = Disk(tmp_path / "disk"), [saved.steps]
    with disk.watched():
        for _ in range(2):
            saved.advance()
            saved.archive.best_step = saved.steps
            saved.save()
            disk.report()
            steps.append(saved.steps)

    found = set()

    def check(place: Path, moment: str, told: int) -> None:
        path = newest(place / "run" / "checkpoints")
        assert path is not None, moment
        checkpoint = read_checkpoint(path)
        found.add(checkpoint.meta["step"])
        assert checkpoint.meta["step"] >= steps[told], moment
        check_files(place / "run")
        length = checkpoint.state["trainer"]["metrics_length"]
        assert (place / "run" / "metrics.jsonl").stat().st_size >= length, moment

    assert every_loss(disk, tmp_path / "after", check) > 100
    assert found == set(steps)


def test_a_checkpoint_that_replaces_one_of_its_step_is_never_lost(saved: Run, tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    with disk.watched():
        saved.save()

    def check(place: Path, moment: str, told: int) -> None:
        path = newest(place / "run" / "checkpoints")
        assert path is not None, moment
        assert read_checkpoint(path).meta["step"] == saved.steps, moment

    assert every_loss(disk, tmp_path / "after", check) > 30


def test_a_new_run_is_absent_or_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    run = build(load_config(CONFIG))
    seen = set()
    try:
        run.start()
        with disk.watched():
            run.archive.open(run, tmp_path / "disk" / "deep" / "runs" / "run")
            disk.report()
    finally:
        run.close()

    def check(place: Path, moment: str, told: int) -> None:
        folder = place / "deep" / "runs" / "run"
        seen.add((folder.exists(), told))
        if told or folder.exists():
            path = newest(folder / "checkpoints")
            assert path is not None, moment
            assert read_checkpoint(path).meta["step"] == 0, moment
            check_files(folder)
            assert (folder / "metrics.jsonl").exists(), moment

    assert every_loss(disk, tmp_path / "after", check) > 30
    assert seen == {(False, 0), (True, 0), (True, 1)}


class Ends(Callback):
    """Ends the watch when the run is about to go on."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def on_start(self, run: Any) -> None:
        self.disk.report()
        raise Pulled


def test_nothing_is_lost_while_newer_checkpoints_are_moved_aside(tmp_path: Path) -> None:
    run_dir = tmp_path / "disk" / "run"
    with pytest.raises(Pulled):
        train(CONFIG | {"keep_checkpoints": 9}, run_dir=run_dir, callbacks=[PullPlug(96)])
    rows = (run_dir / "metrics.jsonl").read_bytes()
    (run_dir / ".lock").unlink()
    disk = Disk(tmp_path / "disk")
    with disk.watched(), pytest.raises(Pulled):
        resume_training(run_dir, which="step_24", callbacks=[Ends(disk)])
    assert (run_dir / "metrics.jsonl").read_bytes() != rows
    at = set()

    def check(place: Path, moment: str, told: int) -> None:
        folder = place / "run" / "checkpoints"
        path = newest(folder)
        assert path is not None, moment
        at.add(read_checkpoint(path).meta["step"])
        for step in (0, 24, 48, 72, 96):
            places = [folder / f"step_{step}", folder / ".superseded-1" / f"step_{step}"]
            assert any(read_checkpoint(one).meta["step"] == step for one in places if one.exists()), (moment, step)
        kept = [place / "run" / "metrics.jsonl", folder / ".superseded-1" / "metrics.jsonl"]
        assert any(file.exists() and file.read_bytes() == rows for file in kept), moment
        if told:
            assert path.name == "step_24", moment
        check_files(place / "run")

    assert every_loss(disk, tmp_path / "after", check) > 60
    assert {24, 96} <= at


def test_the_model_sees_what_is_not_synced(tmp_path: Path) -> None:
    """A name without a sync of its folder, and contents without a sync of the file, may be gone."""
    disk = Disk(tmp_path)
    with disk.watched():
        (tmp_path / "plain").write_text("plain")
        (tmp_path / "plain").rename(tmp_path / "moved")
    left = [{path: data for path, data in tree.items() if path} for tree in disk.moments[-1][1]]
    for outcome in ({}, {"/moved": b""}, {"/moved": b"pl"}, {"/plain": b""}):
        assert outcome in left
    with disk.watched():
        write_atomically(tmp_path / "whole", "whole")
        sync(tmp_path / "moved")
    left = [{path: data for path, data in tree.items() if path} for tree in disk.moments[-1][1]]
    assert left == [{"/moved": b"plain", "/whole": b"whole"}] * len(left)
