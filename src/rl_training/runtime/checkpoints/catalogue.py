"""The checkpoints of a run: found by name, pointed at by `latest` and `best`, pruned."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from rl_training.runtime.checkpoints.chunk_files import sync
from rl_training.types import UserError

_STEP = re.compile(r"step_(\d+)$")


def _recover(folder: Path) -> None:
    """Rename back what a crash in `_move` left under a temporary name."""
    for replaced in folder.glob(".replaced-*"):
        path = folder / replaced.name.removeprefix(".replaced-")
        if not path.exists():
            os.rename(replaced, path)


def point(folder: Path, name: str, path: Path) -> None:
    """Write a checkpoint's name into the one-line file `name` (`latest` or `best`)."""
    draft = folder / f".{name}.{os.getpid()}"
    draft.write_text(path.name + "\n")
    sync(draft)
    os.replace(draft, folder / name)


def pointed(folder: Path, name: str) -> Path | None:
    """The checkpoint that `latest` or `best` names, if it exists."""
    file = folder / name
    path = folder / file.read_text().strip() if file.is_file() else None
    return path if path is not None and (path / "meta.json").is_file() else None


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder, newest first."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _STEP.match(path.name))]
    return sorted(found, reverse=True)


def prune(folder: Path, keep: int, newest: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and the leftovers of crashes.

    Checkpoints after step `newest` are removed too: the run has since been resumed from an older one.
    """
    found = _by_step(folder)
    abandoned = [path for step, path in found if step > newest]
    best = pointed(folder, "best")
    if best in abandoned:
        (folder / "best").unlink()
    older = [path for step, path in found if step <= newest][keep:]
    for path in (*abandoned, *(path for path in older if path != best)):
        shutil.rmtree(path, ignore_errors=True)
    for leftover in (*folder.glob(".draft-*"), *folder.glob(".replaced-*")):
        shutil.rmtree(leftover, ignore_errors=True)


def find_checkpoint(path: str | Path, which: str = "latest") -> Path:
    """The checkpoint that a path means: itself, or the latest (or best, or `step_N`) of a run's folder."""
    path = Path(path)
    if path.parent.is_dir() and not path.exists():
        _recover(path.parent)
    if (path / "meta.json").is_file():
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not folder.is_dir():
        raise UserError(f"{str(path)!r}: there is no such run or checkpoint")
    if folder.name == "checkpoints":
        _recover(folder)
    if which not in ("latest", "best"):
        if not (folder / which / "meta.json").is_file():
            known = ", ".join(["latest", "best", *(found.name for _, found in _by_step(folder))])
            raise UserError(f"{str(path)!r}: has no checkpoint {which!r}; it has {known}")
        return folder / which
    found = pointed(folder, which)
    if found is None and which == "latest":
        found = next((path for _, path in _by_step(folder) if (path / "meta.json").is_file()), None)
    if found is None:
        raise UserError(f"{str(path)!r}: holds no {which} checkpoint of rl_training")
    return found
