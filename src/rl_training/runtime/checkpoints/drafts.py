"""Folders that get their name only once they are complete, and the remains of those whose process died before."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rl_training.data.disk import WINDOWS, make_folders, sync
from rl_training.runtime.checkpoints.lock import LOCK_FILE, Lock, Locked, hold
from rl_training.types import UserError

_DRAFT = re.compile(r"\..+\.[0-9a-f]{12}")
# What a draft may contain besides hidden files; a folder with anything else is not ours.
_CONTENTS = {"checkpoints", "config.yaml", "metadata.json", "metrics.jsonl", "summary.json"}


def create_folder(
    path: Path | None,
    output_dir: str,
    name: str,
    fill: Callable[[Path], None],
    announce: Callable[[Path], None] = lambda _: None,
) -> tuple[Path, Lock]:
    """Create a folder and fill it before it gets its name; it is locked from the first moment on.

    Its name is `path`, or `name` in `output_dir` with a number if that is taken. Nothing that exists is overwritten.
    `announce` is told the name right before the folder gets it.
    """
    if path is not None and path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        raise _exists(path)
    parent = Path(output_dir) if path is None else path.parent
    final = parent / name if path is None else path
    made: Path | None = None
    lock: Lock | None = None
    try:
        make_folders(parent)
        sweep_drafts(parent)
        made, lock = _make_draft(parent, final.name)
        fill(made)
        sync(made)
        made = _publish(lock, final, announce, numbered=path is None)
        sync(parent)
        return made, lock
    except BaseException as error:
        if made is not None and lock is not None:
            with lock:
                _remove(made)
        if isinstance(error, OSError):
            raise UserError(f"cannot write the run to {str(final)!r}: {error.strerror or error}") from error
        raise


def _make_draft(parent: Path, name: str) -> tuple[Path, Lock]:
    for _ in range(10):
        draft = parent / f".{name}.{os.urandom(6).hex()}"  # process ids repeat on a shared disk
        draft.mkdir()
        with suppress(FileNotFoundError, Locked):  # it was swept, or is being swept, before it could be locked
            return draft, hold(draft)
    raise OSError(f"drafts vanish from {str(parent)!r}")


def _publish(lock: Lock, final: Path, announce: Callable[[Path], None], *, numbered: bool) -> Path:
    for attempt in range(1, 1000):
        target = final if attempt == 1 else final.with_name(f"{final.name}-{attempt}")
        if target.is_dir() and any(target.iterdir()):
            if numbered:
                continue
            break
        announce(target)
        try:
            if WINDOWS and target.is_dir():  # which is empty, and would not be replaced
                target.rmdir()
            lock.move(target)
            return target
        except OSError:
            if not (numbered and target.exists()):
                raise
    raise _exists(final)


def _exists(path: Path) -> UserError:
    return UserError(f"run_dir={str(path)!r}: exists already; resume it, or choose another")


def sweep_drafts(parent: Path) -> None:
    """Remove the drafts of dead processes from a folder; a living process has locked its own."""
    for path in parent.iterdir():
        if _DRAFT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            with suppress(OSError, UserError):
                _sweep(path)


def sweep_files(folder: Path, names: Iterable[str]) -> None:
    """Remove the drafts of files that dead processes were replacing; the folder must be locked."""
    for name in names:
        for draft in folder.glob(f".{name}.*"):
            if draft.suffix[1:].isdigit():
                draft.unlink(missing_ok=True)


def _sweep(draft: Path) -> None:
    names = set(os.listdir(draft))
    if not names:
        draft.rmdir()
    elif LOCK_FILE in names and all(name in _CONTENTS or name.startswith(".") for name in names):
        with hold(draft) as lock:
            # Without a note it is ours only if it was not even begun.
            if lock.sure and (lock.inherited or names == {LOCK_FILE}):
                _remove(draft)


def _remove(draft: Path) -> None:
    """Remove a draft, its lock at the end: what a crash leaves can be swept again."""
    for path in draft.iterdir() if draft.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK_FILE:
            path.unlink(missing_ok=True)
    shutil.rmtree(draft, ignore_errors=True)
