"""What kills.py looks for: where a run differs from one that was never killed, and what is left over of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bit_records import Record
from kill_cases import KEPT, SPARE
from kill_runs import RUNS, STATE, TEMPORARY

_SWEPT = ".swept"  # says when the notes of a user were last swept
_SHARED_MEMORY = Path("/dev/shm")
_PATIENCE = 10.0  # seconds in which the processes of a dead one must have ended
# What a run leaves behind that its metadata says of the whole of it; the rest is when and how it was started.
_RESULT = ("result", "steps", "stop_reason")


def runs_in(folder: Path) -> list[Path]:
    """The runs that a user sees."""
    place = folder / RUNS
    return sorted(path for path in place.iterdir() if not path.name.startswith(".")) if place.is_dir() else []


def step_of(name: str) -> int:
    return int(name.removeprefix("step_"))


def pointed(run: Path, name: str) -> int | None:
    """The step that `latest` or `best` names. The files are read as they are: the package might mend them."""
    file = run / "checkpoints" / name
    return step_of(file.read_text().strip()) if file.is_file() else None


def hidden_in(folder: Path) -> set[Path]:
    """Hidden entries among the runs, in a run and among its checkpoints, but for the lock: drafts, mostly."""
    found = (path for pattern in (".*", "*/.*", "*/checkpoints/.*") for path in (folder / RUNS).glob(pattern))
    return {path for path in found if path.name != ".lock"}


@dataclass(frozen=True)
class Whole:
    """A run that was never killed: its folder, the steps at which it saved, and the seconds of its phases."""

    run: Path
    saved: frozenset[int]
    seconds: Mapping[str, list[float]]
    values: Mapping[str, str]  # of everything in it

    @classmethod
    def read(cls, run: Path, notes: Mapping[str, Any]) -> Whole:
        return cls(run, frozenset(notes["saved"]), notes["seconds"], run_values(run))


def run_values(run: Path) -> dict[str, str]:
    """Everything in a run's folder but the wall clock, by path: numbers, and hashes of arrays."""
    from rl_training.runtime.checkpoints.checkpoint import read_checkpoint

    record = Record()
    record.add("config", (run / "config.yaml").read_text())
    for name in ("latest", "best"):
        record.add(name, pointed(run, name))
    for path in sorted((run / "checkpoints").glob("step_*")):
        record.add_checkpoint(read_checkpoint(path), f"{path.name}/")
    for number, line in enumerate((run / "metrics.jsonl").read_text().splitlines()):
        record.add(f"metrics/{number:03}", json.loads(line))
    metadata = json.loads((run / "metadata.json").read_text())
    record.add("metadata", {name: metadata.get(name) for name in _RESULT})
    return record.values


def differences(whole: Whole, run: Path, extra: set[int], *, concluded: bool) -> list[str]:
    """Where a run differs from the whole one.

    It may have saved at `extra` steps, where a signal stopped it; such a checkpoint says so. The metadata of a run that
    was killed after its last checkpoint are not `concluded`.
    """
    found = run_values(run)
    kept, expected = _steps(run), _kept(whole.saved | extra, pointed(run, "best"))
    # Which ones of a replay share no file with the newest depends on how often the run was resumed.
    spare, replays = kept - expected, any((run / "checkpoints").glob("step_*/replay"))
    fits = expected <= kept and spare <= whole.saved | extra and len(spare) <= (SPARE if replays else 0)
    lines = [] if fits else [f"checkpoints: {sorted(expected)} became {sorted(kept)}"]
    shared = (_steps(whole.run) & kept) - (extra - {max(whole.saved)})
    for path in sorted(whole.values.keys() | found.keys()):
        part = path.split("/")[0]
        if part.startswith("step_") and step_of(part) not in shared:
            continue
        if part == "metadata" and not concluded:
            continue
        before, after = whole.values.get(path), found.get(path)
        if before != after:
            lines.append(f"{path}: {before} became {after}")
    return lines


def _steps(run: Path) -> set[int]:
    return {step_of(path.name) for path in (run / "checkpoints").glob("step_*")}


def _kept(saved: Iterable[int], best: int | None) -> set[int]:
    """The checkpoints that are left of those that were saved: the newest, and the best one."""
    return {*sorted(saved)[-KEPT:], *([] if best is None else [best])}


def left_over(whole: Whole, folder: Path, run: Path | None, sessions: set[int], shared: set[str]) -> list[str]:
    """What is there of a chain of processes that should not be: files, processes, shared memory."""
    lines = [f"process {number}: {command}" for number, command in _survivors(sessions).items()]
    lines += [f"{_SHARED_MEMORY / name}" for name in sorted(_unused(shared_memory() - shared))]
    known = {RUNS: {"" if run is None else run.name}, TEMPORARY: set[str]()}
    for place, names in known.items():
        lines += _strangers(folder, folder / place, names)
    if run is not None:
        lines += _strangers(folder, run, {path.name for path in whole.run.iterdir()})
        usual = {path.name for path in (whole.run / "checkpoints").iterdir() if not path.name.startswith("step_")}
        checkpoints = {f"step_{step}" for step in _steps(run)}  # which ones is compared with the rest of the run
        lines += _strangers(folder, run / "checkpoints", usual | checkpoints)
        lines += [str(path.relative_to(folder)) for path in sorted((run / "checkpoints").glob("step_*/**/.*"))]
    hidden = sorted(path for path in (folder / STATE).rglob(".*") if path.name != _SWEPT)
    lines += [str(path.relative_to(folder)) for path in hidden]
    return lines


def _strangers(folder: Path, place: Path, known: set[str]) -> list[str]:
    found = sorted(place.iterdir()) if place.is_dir() else []
    return [str(path.relative_to(folder)) for path in found if path.name not in known]


def shared_memory() -> set[str]:
    return {path.name for path in _SHARED_MEMORY.iterdir()} if _SHARED_MEMORY.is_dir() else set()


def _unused(names: set[str]) -> set[str]:
    """Those that no living process has in its memory: other programs use shared memory too."""
    if not names:
        return names
    maps = "\n".join(_read(path / "maps") for path in _processes())
    return {name for name in names if f"{_SHARED_MEMORY / name}" not in maps and (_SHARED_MEMORY / name).exists()}


def _survivors(sessions: set[int]) -> dict[int, str]:
    """The living processes of some sessions, by their id, after they had time to end."""
    deadline = time.monotonic() + _PATIENCE
    while (found := _living(sessions)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _living(sessions: set[int]) -> dict[int, str]:
    found = {}
    for path in _processes():
        # The name of the program, which is in brackets, may hold anything.
        state, _, _, session = (_read(path / "stat").rpartition(")")[2].split() + [""] * 4)[:4]
        if state not in ("", "Z") and int(session) in sessions:
            found[int(path.name)] = _read(path / "cmdline").replace("\0", " ").strip()
    return found


def _processes() -> Iterator[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdigit())


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # it has ended meanwhile, or is somebody else's
        return ""
