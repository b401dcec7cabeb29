"""The checkpoints of a run: found by name, pointed at by `latest` and `best`, moved aside, pruned."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from rl_training.data.disk import make_folders, own_name, read_own, remove_tree, sync, write_atomically
from rl_training.types import UserError

_LOG = logging.getLogger("rl_training")
_STEP = re.compile(r"step_(0|[1-9][0-9]*)")
_SUPERSEDED = re.compile(r"\.superseded-([0-9]+)")
# What a process that died leaves in a folder of checkpoints.
_LEFTOVERS = re.compile(r"\.(draft-.*|replaced-.*|dropped-.*|(latest|best)\.[0-9]+)")
_LONGEST_NAME = 100
_MOST_RUNS = 12
# The folder of a checkpoint with its large arrays: a file per chunk.
ARRAYS_FOLDER = "replay"


def recover(folder: Path) -> None:
    """Rename back what a crash left under a temporary name; only the process that has locked the run may do so."""
    for replaced in folder.glob(".replaced-*"):
        path = folder / replaced.name.removeprefix(".replaced-")
        if not path.exists():
            os.rename(replaced, path)


def _placed(path: Path) -> Path:
    """The path of a checkpoint, or where a crash left it while it was being replaced."""
    replaced = path.parent / f".replaced-{path.name}"
    return replaced if not path.exists() and replaced.is_dir() else path


def point(folder: Path, name: str, path: Path) -> None:
    """Write a checkpoint's name into the one-line file `name` (`latest` or `best`)."""
    write_atomically(folder / name, path.name + "\n")


def pointed(folder: Path, name: str) -> Path | None:
    """The checkpoint that `latest` or `best` names, if it exists."""
    if not own_name(folder / name).exists():
        return None
    words = read_own(folder / name, _LONGEST_NAME).decode("ascii", "replace").strip()
    path = own_name(_placed(folder / words), folder=True) if _STEP.fullmatch(words) else None
    return path if path is not None and (path / "meta.json").is_file() else None


def listed(folder: Path) -> list[tuple[int, Path]]:
    """What has the name of a checkpoint in a folder, newest first; it may be a link, or not complete."""
    names = {path.name.removeprefix(".replaced-") for path in folder.iterdir()}
    found = [(int(match[1]), _placed(folder / name)) for name in names if (match := _STEP.fullmatch(name))]
    return sorted(found, reverse=True)


def by_step(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder, newest first."""
    return [(step, own_name(path, folder=True)) for step, path in listed(folder)]


def newest(folder: Path) -> Path | None:
    """The complete checkpoint of the latest step, whether or not `latest` names it already."""
    return next((path for _, path in by_step(folder) if (path / "meta.json").is_file()), None)


class Superseded(NamedTuple):
    """The checkpoints that were moved aside, and the folder that they are in now."""

    folder: Path
    names: list[str]


def supersede(folder: Path, chosen: Path, metrics: Path) -> Superseded | None:
    """Move what is newer than the chosen checkpoint aside, with a copy of the metrics; None if nothing is newer.

    The newest goes first, so that a crash in between leaves a run that never got further.
    """
    steps = {path: step for step, path in by_step(folder)}
    newer = [path for path, step in steps.items() if step > steps[chosen]]
    if not newer:
        return None
    branch = folder / f".superseded-{1 + max(_branches(folder), default=0)}"
    make_folders(branch)
    if metrics.exists():
        write_atomically(branch / metrics.name, read_own(metrics))
    if pointed(folder, "best") in newer:
        os.rename(folder / "best", branch / "best")
    for path in newer:
        os.rename(path, branch / path.name)
    sync(branch)
    sync(folder)
    return Superseded(branch, [path.name for path in newer])


def _branches(folder: Path) -> dict[int, Path]:
    """What was moved aside, by number."""
    return {int(match[1]): path for path in folder.iterdir() if (match := _SUPERSEDED.fullmatch(path.name))}


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, the best one and the spare ones, and the leftovers of crashes.

    Of the folders with superseded checkpoints, the newest `keep` stay too.
    """
    found, best = [path for _, path in by_step(folder)], pointed(folder, "best")
    kept = {*found[:keep], best, *_spares(found, best)}
    older = [path for path in found if path not in kept]
    for path in (*older, *(path for _, path in sorted(_branches(folder).items(), reverse=True)[keep:])):
        remove_tree(path)
    sweep_leftovers(folder)


def _spares(found: list[Path], best: Path | None) -> list[Path]:
    """Of checkpoints, newest first: one that shares no file with the newest, and the one that will take its place.

    A file with many links is one copy on the disk. Chunks that do not change are renewed within some saves, so the
    oldest one after the spare will share no file with the newest either; until then both stay.
    """
    chunks = _chunk_files(found[0]) if found else set()
    if not chunks:
        return []
    steady = [path for path in found if path != best]  # another one may be the best soon
    apart = next((place for place, path in enumerate(steady) if not chunks & _chunk_files(path)), len(steady))
    return steady[max(apart - 1, 0) : apart + 1]


def _chunk_files(checkpoint: Path) -> set[int]:
    """What tells the files of a checkpoint's large arrays from others on the disk."""
    folder = own_name(checkpoint / ARRAYS_FOLDER, folder=True)
    return {entry.inode() for entry in os.scandir(folder)} if folder.is_dir() else set()


def sweep_leftovers(folder: Path) -> None:
    """Remove what dead processes left; only the process that has locked the run may do so."""
    for path in folder.iterdir():
        if _LEFTOVERS.fullmatch(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def find_run(path: str | Path) -> tuple[Path, str | None] | None:
    """The folder of the run that a path means, and the checkpoint in it if the path names one; None if it is no run."""
    path = Path(path)
    if path.parent.name == "checkpoints" and _STEP.fullmatch(path.name):
        return path.parent.parent, path.name
    if path.name == "checkpoints":
        return path.parent, None
    return (path, None) if os.path.lexists(path / "checkpoints") else None


def find_checkpoint(path: str | Path, which: str = "latest") -> Path:
    """The checkpoint that a path means: itself, or the latest (or best, or `step_N`) of a run's folder."""
    name, path = Path(path).name, _placed(Path(path))
    if path.parent.name == "checkpoints":
        own_name(path, folder=True)
        if _STEP.fullmatch(name) and path.is_dir():  # whoever reads it says what is missing
            return _itself(path, name, which)
    if (path / "meta.json").is_file():
        return _itself(path, name, which)
    inner = own_name(path / "checkpoints", folder=True)
    folder = inner if inner.is_dir() else path
    if not folder.is_dir():
        raise UserError(f"{str(path)!r}: there is no such run or checkpoint")
    if which not in ("latest", "best"):
        named = _placed(folder / which)
        if not _STEP.fullmatch(which) or not own_name(named, folder=True).is_dir():
            known = ", ".join(["latest", "best", *(found.name for _, found in by_step(folder))])
            raise UserError(f"{str(path)!r}: has no checkpoint {which!r}; it has {known}")
        return named
    found = pointed(folder, which)
    if which == "latest":
        found = _checked_latest(folder, found)
    if found is None:
        raise UserError(f"{str(path)!r}: {_runs_instead(path) or f'holds no {which} checkpoint of rl_training'}")
    return found


def _itself(path: Path, name: str, which: str) -> Path:
    """A checkpoint that is named by its own path."""
    if which not in ("latest", name):
        raise UserError(f"{str(path)!r}: is one checkpoint; {which!r} can be asked of the folder of its run")
    return path


def _runs_instead(path: Path) -> str | None:
    """The runs in a folder that is no run itself, up to two levels below it."""
    found = sorted(str(place.parent) for form in ("*", "*/*") for place in path.glob(f"{form}/checkpoints"))
    if not found:
        return None
    more = f", and {len(found) - _MOST_RUNS} more" if len(found) > _MOST_RUNS else ""
    return f"holds {len(found)} run{'' if len(found) == 1 else 's'}; name one: {', '.join(found[:_MOST_RUNS])}{more}"


def _checked_latest(folder: Path, named: Path | None) -> Path | None:
    """The checkpoint that `latest` names, or else the newest; a warning if both are not the same.

    A crash, or damage, may leave an older one named. `best` fits the one that is named, so that stays the latest.
    """
    found = newest(folder)
    if found is not None and found != named and (folder / "latest").exists():
        names = (
            "no checkpoint of the run; taking the newest," if named is None else f"{named.name}; there is a newer one,"
        )
        _LOG.warning(f"{str(folder / 'latest')!r}: names {names} {found.name}")
    return named or found


def find_newest(run_dir: Path) -> Path:
    """The checkpoint that a run goes on from: the newest, even if `latest` does not name it."""
    named = find_checkpoint(run_dir)
    return newest(run_dir / "checkpoints") or named
