"""A training of several seeds goes on wherever it stopped, and ends as one that was never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from power_loss import Disk, every_loss
from rl_training import Callback, UserError, resume_seeds, resume_training, train_seeds
from rl_training.data.checked_files import seal, unseal_alone
from rl_training.runtime.checkpoints.lock import Locked, hold
from rl_training.runtime.jobs import job
from rl_training.runtime.seeds import SeedsInterrupted, SeedsResult, holds_seeds
from rl_training.runtime.train import TrainResult
from run_helpers import Command, differences, metadata, run_differences, tiny

SEEDS = [101, 102, 103]
CONFIG = tiny(vectorization="sync", checkpoint_interval=24, eval_interval=48, total_timesteps=96)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SeedsResult:
    """Three seeds that nobody disturbed; they are only read."""
    return train_seeds(CONFIG | {"output_dir": str(tmp_path_factory.mktemp("whole"))}, SEEDS)


@pytest.fixture
def copied(whole: SeedsResult, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.folder, tmp_path / "seeds"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary without what the wall clock and chance decide."""
    summary = json.loads((folder / "summary.json").read_text())
    for run in summary["runs"]:
        del run["seconds"], run["folder"]
    del summary["config"]["output_dir"], summary["run_id"], summary["crc32"]
    return dict(summary)


def check_equal(whole: SeedsResult, outcome: SeedsResult) -> None:
    assert summary_of(outcome.folder) == summary_of(whole.folder)
    assert list(outcome.runs) == list(whole.runs)
    for seed, run in whole.runs.items():
        other = outcome.runs[seed]
        assert run.run_dir is not None
        assert other.run_dir is not None
        assert run_differences(run.run_dir, other.run_dir) == []
        assert (other.stop_reason, other["eval_return_mean"]) == (run.stop_reason, run["eval_return_mean"])
        assert other.keys() == run.keys()
    left = [path.name for path in outcome.folder.iterdir() if path.name.startswith(".")]
    assert left == [".lock"], "no draft is left over"
    assert len(list(outcome.folder.glob("*/checkpoints"))) == len(whole.runs)


class Counts(Callback):
    """Counts the steps that are trained."""

    steps = 0

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        self.steps += 1


class InterruptedIn(Callback):
    """Sends this process a signal in the run of a seed, at a step."""

    def __init__(self, seed: int, step: int) -> None:
        self.at = seed, step

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        if (run.config.run.seed, run.steps) == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_set_goes_on_with_what_is_missing(whole: SeedsResult, tmp_path: Path) -> None:
    with pytest.raises(SeedsInterrupted) as stop:
        train_seeds(CONFIG | {"output_dir": str(tmp_path)}, SEEDS, callbacks=[InterruptedIn(102, 48)])
    folder = stop.value.outcome.folder
    assert holds_seeds(folder)
    told: list[int] = []
    outcome = resume_seeds(folder, report=lambda seed, result: told.append(seed))
    assert told == SEEDS
    runs = {metadata(path)["resumed"][0]["step"] for path in folder.glob("*seed102*")}
    assert runs == {48}, "it went on where it was"
    assert [path for path in folder.glob("*seed101*") if "resumed" in metadata(path)] == []
    # Callbacks have a place in the state by their names, so those of the first process are left out.
    assert summary_of(folder) == summary_of(whole.folder)
    assert outcome.returns == whole.returns


def moments(folder: Path) -> dict[str, Callable[[], bool]]:
    """When to kill: the folder is there; a run is; the second one is saved; the third is being made."""
    return {
        "no run yet": lambda: bool(list(folder.glob("[!.]*/summary.json"))),
        "the first run": lambda: bool(list(folder.glob("*/*seed101*/checkpoints/step_24"))),
        "the second is to be made": lambda: bool(list(folder.glob("*/*seed101*/checkpoints/step_96"))),
        "the third is a draft": lambda: bool(list(folder.glob("*/.*seed103*/checkpoints"))),
    }


@pytest.mark.parametrize("moment", moments(Path()))
def test_a_set_that_was_killed_goes_on(moment: str, processes: Any, whole: SeedsResult, tmp_path: Path) -> None:
    process = processes.Process(target=train_seeds, args=(CONFIG | {"output_dir": str(tmp_path / "sets")}, SEEDS))
    process.start()
    at = moments(tmp_path / "sets")[moment]
    while process.is_alive():
        with suppress(FileNotFoundError):  # a draft got its name while its folder was listed
            if at():
                break
        time.sleep(0.0005)
    process.kill()
    process.join()
    (folder,) = [path for path in (tmp_path / "sets").iterdir() if not path.name.startswith(".")]
    check_equal(whole, resume_seeds(folder))


def test_what_is_finished_is_trained_no_more(whole: SeedsResult, copied: Path) -> None:
    """A kill right after the last run, before the summary had it."""
    summary = unseal_alone(copied / "summary.json")
    (copied / "summary.json").write_bytes(seal(summary | {"runs": [], "missing": SEEDS}))
    (copied / ".summary.json.77").write_text("half")
    counts = Counts()
    outcome = resume_seeds(copied, callbacks=[counts])
    assert counts.steps == 0
    check_equal(whole, outcome)
    for seed, run in whole.runs.items():
        assert differences(dict(outcome.runs[seed]), dict(run)) == []
        assert 0 < outcome.runs[seed]["seconds"] <= run["seconds"]


def test_a_run_that_has_ended_is_known_by_its_newest_checkpoint(whole: SeedsResult, copied: Path) -> None:
    (run,) = copied.glob("*seed101*")
    (run / "checkpoints" / "latest").write_text("step_48\n")
    counts = Counts()
    assert resume_seeds(copied, callbacks=[counts]).returns == whole.returns
    assert counts.steps == 0


def test_the_command_goes_on_with_a_set(whole: SeedsResult, copied: Path, command: Command) -> None:
    (last,) = copied.glob("*seed103*")
    shutil.rmtree(last)
    assert "go on as they were" in command("resume", "seeds", "total_timesteps=480").err
    assert "go on as they were" in command("resume", "seeds", "--checkpoint", "best").err
    said = command("resume", "seeds", "--quiet")
    assert said.code == 0
    for seed, value in whole.returns.items():
        assert f"seed {seed}: return {value:.2f}" in said.out
    assert f"mean     {whole.mean.value:.2f}" in said.out
    assert summary_of(copied) == summary_of(whole.folder)


def test_code_that_the_set_of_somebody_else_names_is_not_imported(tmp_path: Path, command: Command) -> None:
    config = CONFIG | {"env_id": "run_helpers:limited_walk", "output_dir": str(tmp_path)}
    with pytest.raises(SeedsInterrupted) as stop:
        train_seeds(config, SEEDS, callbacks=[InterruptedIn(101, 48)])
    own = stop.value.outcome.folder
    shutil.copytree(own, tmp_path / "seeds")
    said = command("resume", "seeds", "--quiet")
    assert said.code == 2
    assert "its env_id='run_helpers:limited_walk' would import 'run_helpers'" in said.err
    assert said.err.endswith("to allow it, say --trust (trust=True in Python)\n")
    assert command("resume", "seeds", "--quiet", "--trust").code == 0
    assert command("resume", own, "--quiet").code == 0, "one's own needs no word"


def test_two_processes_never_train_one_set(copied: Path) -> None:
    with hold(copied), pytest.raises(Locked, match="is being trained by process"):
        resume_seeds(copied)


def test_a_set_is_not_a_run_and_a_run_is_no_set(whole: SeedsResult, copied: Path) -> None:
    with pytest.raises(UserError, match="holds several seeds; go on with resume_seeds"):
        resume_training(copied)
    (run, *_) = copied.glob("*seed101*")
    with pytest.raises(UserError, match="is not a folder of several seeds"):
        resume_seeds(run)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"7",
        b"[" * 100_000,
        b'{"seeds": [1]}',
        b'{"seeds": 7, "config": {}}',
        b'{"seeds": ["1"], "config": {}}',
        b'{"seeds": [1], "config": [1]}',
    ],
)
def test_a_damaged_summary_is_one_line(content: bytes, copied: Path, command: Command) -> None:
    (copied / "summary.json").write_bytes(content)
    said = command("resume", "seeds", "--quiet")
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: 'seeds/summary.json': is missing, damaged or foreign (")
    assert len(said.err.splitlines()) == 1
    assert (copied / "summary.json").read_bytes() == content


def test_one_changed_digit_of_a_summary_is_noticed(copied: Path) -> None:
    file = copied / "summary.json"
    content = file.read_text()
    assert content.count('"total_timesteps": 96') == 1
    file.write_text(content.replace('"total_timesteps": 96', '"total_timesteps": 97'))
    with pytest.raises(UserError, match=r"summary\.json': is missing, damaged or foreign \(its checksum is not"):
        resume_seeds(copied)


def test_a_damaged_run_of_a_set_is_one_line_and_changes_nothing(copied: Path, command: Command) -> None:
    (run,) = copied.glob("*seed103*")
    shutil.rmtree(run / "checkpoints" / "step_96")
    (run / "checkpoints" / "step_72" / "model.safetensors").write_bytes(b"")
    files = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != ".lock"}
    said = command("resume", "seeds", "--quiet")
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert "error: seed 103: 'seeds/" in said.err
    assert said.err.endswith("; the runs are in seeds; done: 101, 102\n")
    after = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == files


@pytest.mark.parametrize("name", ["summary.json", ".lock"])
def test_a_link_in_a_set_is_refused(name: str, copied: Path, tmp_path: Path, command: Command) -> None:
    (copied / name).rename(tmp_path / "target")
    (copied / name).symlink_to(tmp_path / "target")
    before = (tmp_path / "target").read_bytes()
    said = command("resume", "seeds", "--quiet")
    assert said.code == 2
    assert said.err.startswith(f"error: 'seeds/{name}': is a symbolic link")
    assert (tmp_path / "target").read_bytes() == before


def test_a_set_survives_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    disk, begun = Disk(tmp_path / "disk"), []

    def stopped_in_the_second(config: Any, **options: Any) -> TrainResult:
        disk.report()
        begun.append(config.run.seed)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return TrainResult({"eval_return_mean": 1.0, "step": 96.0, "seconds": 1.0}, None, None, "completed")

    monkeypatch.setattr(job, "train", stopped_in_the_second)
    with disk.watched(), pytest.raises(SeedsInterrupted):
        train_seeds(CONFIG | {"output_dir": str(tmp_path / "disk" / "sets")}, SEEDS)
    seen = set()

    def check(place: Path, moment: str, told: int) -> None:
        shown = [path for path in place.glob("sets/*") if not path.name.startswith(".")]
        assert len(shown) == 1 or not told, moment
        for folder in shown:
            missing = json.loads((folder / "summary.json").read_text())["missing"]
            assert missing in (SEEDS, SEEDS[1:])
            assert missing == SEEDS[1:] or told < 2, moment
            seen.add((len(missing), told))

    assert every_loss(disk, tmp_path / "after", check) > 10
    assert {(3, 1), (2, 2)} <= seen
