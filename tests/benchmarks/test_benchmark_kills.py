"""The campaign of kills: its cases, a few real kills, and that what it looks for is found when it is there."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark_helpers import kill_cases, kill_chains, kill_findings, kill_runs, kills
from rl_training import train
from rl_training.experiment.registry import REGISTRY
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint, write_checkpoint

NAME = "frozen_lake/a2c"
SECONDS = {phase: [0.01] * 8 for phase in kill_runs.PHASES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A short run that was never killed, with the steps at which it saved."""
    folder = tmp_path_factory.mktemp("whole")
    settings = kill_cases.CASES[NAME].settings | {
        "total_timesteps": 120,
        "checkpoint_interval": 40,
        "eval_interval": 50,
    }
    run = train(settings, run_dir=folder / "runs" / "run").run_dir
    steps = {int(path.name.removeprefix("step_")) for path in (run / "checkpoints").glob("step_*")}
    return kill_findings.Whole.read(run, {"saved": steps, "seconds": SECONDS})


@pytest.fixture
def folder(whole: Any, tmp_path: Path) -> Path:
    """The folder of a chain whose run is equal to the whole one."""
    shutil.copytree(whole.run, tmp_path / "chain" / "runs" / "run")
    (tmp_path / "chain" / "tmp").mkdir()
    return tmp_path / "chain"


def found_in(whole: Any, folder: Path, *, extra: set[int] = frozenset(), concluded: bool = True) -> list[str]:
    return list(kill_findings.differences(whole, folder / "runs" / "run", extra, concluded=concluded))


def left_in(whole: Any, folder: Path, sessions: set[int] = frozenset()) -> list[str]:
    shared = kill_findings.shared_memory()
    return list(kill_findings.left_over(whole, folder, folder / "runs" / "run", sessions, shared))


def test_cases_have_every_algorithm_and_every_kind_of_environment() -> None:
    cases = kill_cases.CASES
    assert {case.settings["algo"] for case in cases.values()} == set(REGISTRY)
    worlds = {name.partition("/")[0] for name in cases}
    assert worlds >= {
        *("acrobot", "mountain_car", "reacher", "bipedal_walker", "car_racing", "frozen_lake", "taxi", "minigrid"),
        *("dict", "async", "pong", "fine_tuning"),
    }
    assert all(name.endswith(f"/{case.settings['algo']}") for name, case in cases.items())


def test_runs_that_are_killed_end_as_the_whole_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kills.jsonl"
    command = ["--only", NAME, "--kills", "3", "--seed", "1", "--out", str(out)]
    kills.main(command)
    header, *lines = map(json.loads, out.read_text().splitlines())
    assert header["seed"] == 1
    assert sum(len(line["kills"]) for line in lines) >= 3
    assert [line["unresumable"] + line["differences"] for line in lines] == [[]] * len(lines)
    for kill in (kill for line in lines for kill in line["kills"]):
        assert kill["during"] in kill_runs.PHASES
        assert kill["code"] in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, kill_runs.INTERRUPTED)
    said = capsys.readouterr().out
    assert f"{NAME}  " in said
    # It goes on where it was: there is nothing left to do.
    kills.main(command)
    assert capsys.readouterr().out == said


def test_an_equal_run_has_no_findings(whole: Any, folder: Path) -> None:
    assert found_in(whole, folder) == []
    assert left_in(whole, folder) == []


def change_weight(run: Path) -> None:
    path = max((run / "checkpoints").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    checkpoint = read_checkpoint(path)
    name = next(iter(checkpoint.policy))
    changed = checkpoint.policy | {name: checkpoint.policy[name] + 1e-7}
    write_checkpoint(path, replace(checkpoint, policy=changed))


def change_metric(run: Path) -> None:
    file = run / "metrics.jsonl"
    file.write_text(file.read_text().replace('"episodes": ', '"episodes": 1', 1))


def lose_row(run: Path) -> None:
    file = run / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def change_config(run: Path) -> None:
    file = run / "config.yaml"
    file.write_text(file.read_text() + "more: 1\n")


def lose_checkpoint(run: Path) -> None:
    shutil.rmtree(min((run / "checkpoints").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_"))))


def change_result(run: Path) -> None:
    file = run / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"stop_reason": "interrupted"}))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (change_weight, "/policy/"),
        (change_metric, "metrics/000/"),
        (lose_row, " became None"),
        (change_config, "config: "),
        (lose_checkpoint, "checkpoints: "),
        (change_result, "metadata/stop_reason: 'completed' became 'interrupted'"),
    ],
)
def test_a_difference_is_found(whole: Any, folder: Path, fault: Callable[[Path], None], words: str) -> None:
    fault(folder / "runs" / "run")
    found = found_in(whole, folder)
    assert found
    assert all(words in line for line in found), found


def test_a_step_at_which_a_signal_stopped_it_may_have_a_checkpoint(whole: Any, folder: Path) -> None:
    checkpoints = folder / "runs" / "run" / "checkpoints"
    newest, *older = sorted((int(path.name.removeprefix("step_")) for path in checkpoints.glob("step_*")), reverse=True)
    best = kill_findings.pointed(folder / "runs" / "run", "best")
    shutil.copytree(checkpoints / f"step_{newest}", checkpoints / f"step_{newest - 1}")
    assert found_in(whole, folder), "an unexpected checkpoint"
    for step in older[kill_cases.KEPT - 2 :]:  # the keep rule counts the additional one
        if step != best:
            shutil.rmtree(checkpoints / f"step_{step}")
    assert found_in(whole, folder, extra={newest - 1}) == []


def test_what_a_run_says_of_its_end_is_not_asked_of_one_that_was_killed_after_it(whole: Any, folder: Path) -> None:
    change_result(folder / "runs" / "run")
    assert found_in(whole, folder, concluded=False) == []


@pytest.mark.parametrize(
    "name",
    [
        "runs/.draft-of-a-run",
        "runs/another",
        "runs/run/.metadata.json.123",
        "runs/run/stale",
        "runs/run/checkpoints/.draft-step_7-123",
        "runs/run/checkpoints/.latest.123",
        "tmp/forgotten",
        "state/rl_training/.note.123",
    ],
)
def test_a_file_that_was_left_over_is_found(whole: Any, folder: Path, name: str) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    assert left_in(whole, folder) == [name]


def test_a_process_that_was_left_over_is_found(whole: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_findings, "_PATIENCE", 0.1)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        (line,) = left_in(whole, folder, {process.pid})
    finally:
        process.communicate()
    assert line.startswith(f"process {process.pid}: ")
    assert left_in(whole, folder, {process.pid}) == []


def test_shared_memory_that_nobody_uses_is_found(whole: Any, folder: Path) -> None:
    before = kill_findings.shared_memory()
    file = Path("/dev/shm", f"test_kills_{os.getpid()}")
    file.write_bytes(b"0")
    try:
        found = kill_findings.left_over(whole, folder, folder / "runs" / "run", set(), before)
    finally:
        file.unlink()
    assert str(file) in found


class Scripted:
    """A server whose processes do and say what a test wants."""

    process = 1

    def __init__(self, *processes: Callable[[Path], int]) -> None:
        self.processes = list(processes)

    def start(self, folder: Path, settings: Any, run: Path | None) -> Any:
        (folder / "words.txt").write_text("a line\nand why\n")
        self.folder, self.progress = folder, kill_runs.Progress(folder / "progress", new=True)
        return self.progress

    def ended(self, seconds: float) -> bool:
        return True

    def exit_code(self) -> int:
        return self.processes.pop(0)(self.folder)


def chain_of(whole: Any, folder: Path, *processes: Callable[[Path], int]) -> Any:
    chain = kill_chains.Chain(NAME, 0)
    kill_chains.Killer(Scripted(*processes), whole, {}, folder, chain).run(random.Random(0))
    return chain


def test_a_run_that_cannot_be_resumed_is_reported(whole: Any, folder: Path) -> None:
    chain = chain_of(whole, folder, lambda folder: kill_runs.MISTAKE)
    assert chain.unresumable == ["ended with 2: and why"]
    words, well = kills.report([chain])
    assert not well
    assert f"{NAME} 0: ended with 2: and why" in words


def test_a_process_that_does_not_end_is_reported(whole: Any, folder: Path) -> None:
    def hang(folder: Path) -> int:
        raise kill_chains.Stuck("did not end")

    assert chain_of(whole, folder, hang).unresumable == ["did not end"]


def test_a_checkpoint_that_cannot_be_read_is_reported(whole: Any, folder: Path) -> None:
    def damage(folder: Path) -> int:
        next((folder / "runs" / "run" / "checkpoints").glob("step_*/model.safetensors")).write_bytes(b"")
        return 0

    (line,) = chain_of(whole, folder, damage).differences
    assert line.startswith("cannot be compared: DamagedError: ")


def test_a_step_that_was_saved_and_is_lost_is_reported(
    whole: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(killer: Any, moment: Any) -> tuple[int, dict[str, Any]]:
        (folder / "runs" / "run" / "checkpoints" / "latest").write_text("step_0\n")
        return -moment.signals[0], {"during": "saving", "signals": [9], "drafts": []}

    newest = max(whole.saved)
    monkeypatch.setattr(kill_chains.Killer, "_kill_one", lose)
    chain = chain_of(whole, folder, lambda folder: 0)
    assert chain.unresumable == [f"step {newest} was saved, and then the latest was 0"]


def test_moments_are_decided_by_the_seed_and_reach_every_phase() -> None:
    def drawn(seed: int) -> list[Any]:
        chance = random.Random(seed)
        return [kill_chains.Moment.draw(chance, SECONDS) for _ in range(200)]

    assert drawn(0) == drawn(0) != drawn(1)
    assert {moment.phase for moment in drawn(0)} == set(kill_runs.PHASES)
    assert {moment.draft for moment in drawn(0)} == {True, False}
    assert {moment.signals for moment in drawn(0)} == {tuple(map(int, signals)) for signals in kill_chains._SIGNALS}
    assert all(1 <= moment.entry <= 4 for moment in drawn(0))


def test_a_file_of_another_seed_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "kills.jsonl"
    kills.Campaign([NAME], 1, 0, out)
    with pytest.raises(SystemExit, match="was made with another seed; name another file"):
        kills.Campaign([NAME], 1, 1, out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--kills 0", "--kills 0: must be at least 1"),
        ("--jobs 0", "--jobs 0: must be at least 1"),
        ("--out nowhere/kills.jsonl", "--out nowhere/kills.jsonl: there is no such folder"),
    ],
)
def test_mistakes(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        kills.parse(arguments.split())
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_unknown_case_is_said_plainly() -> None:
    with pytest.raises(SystemExit, match="--only nothing: no case has such a name"):
        kills.main(["--only", "nothing"])
