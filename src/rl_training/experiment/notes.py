"""Which code this user's own runs name: noted in the user's state folder, where nobody else's files can put it.

A note is about one place on the disk and the run that is there, by a random id that is in the run too. A run that was
copied, or that came from somebody else, has none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_training.experiment.references import found_in

Name = tuple[str, str]  # of code: the setting and its value, such as ("env_id", "my_module:make")

_LOG = logging.getLogger("rl_training")
_A_DAY = 24 * 3600.0


def new_run_id() -> str:
    """A random id for a run."""
    return os.urandom(16).hex()


def known_run_id(value: Any) -> str | None:
    """The id in a file, if it is one."""
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) else None


def state_folder() -> Path:
    """Where programs of this user keep what they want to remember; `XDG_STATE_HOME` says so on any platform."""
    asked = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(asked):
        base = Path(asked)
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path.home() / ".local" / "state"
    return base / "rl_training"


def remember(place: Path, run_id: str, names: Iterable[Name]) -> None:
    """Note which code the run at a place names, and in which folders it was found; training goes on without a note."""
    found = [[key, name, None if key == "ray_address" else found_in(name.partition(":")[0])] for key, name in names]
    if not found:
        return
    try:
        folder = _notes_folder()
        _write(folder / _file_name(place, run_id), {"run": os.path.realpath(place), "id": run_id, "code": found})
        _sweep(folder)
    except (OSError, RuntimeError) as error:  # a RuntimeError: there is no home folder
        _warn_once(
            f"the code that this run names could not be noted in the user's state folder ({error}): to resume it, name "
            "the code again, or say --trust"
        )


def recall(place: Path, run_id: Any) -> dict[Name, str | None]:
    """The code that this user gave for the run at a place, and the folder of each module that is not installed."""
    try:
        folder = state_folder() / "runs"
        file = folder / _file_name(place, str(run_id))
        if not (_is_own(folder, stat.S_ISDIR) and _is_own(file, stat.S_ISREG)):
            return {}
        note = json.loads(file.read_text(encoding="utf-8"))
        if (note["run"], note["id"]) != (os.path.realpath(place), run_id):
            return {}
        return {(str(key), str(name)): where for key, name, where in note["code"]}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return {}


def _notes_folder() -> Path:
    folder = state_folder() / "runs"
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _file_name(place: Path, run_id: str) -> str:
    """A file for every run at every place, so that no two trainings write to the same one."""
    return hashlib.sha256(os.fsencode(f"{os.path.realpath(place)}\0{run_id}")).hexdigest() + ".json"


def _write(file: Path, content: dict[str, Any]) -> None:
    """Write a file as a whole that only this user can read."""
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=".draft-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _is_own(path: Path, is_kind: Any) -> bool:
    """Whether only this user can have written this."""
    status = os.lstat(path)
    if not is_kind(status.st_mode):
        return False
    return sys.platform == "win32" or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _sweep(folder: Path) -> None:
    """Once a day, remove the notes of runs that are gone, and drafts of processes that died."""
    stamp, now = folder / ".swept", time.time()
    if stamp.exists() and now - stamp.stat().st_mtime < _A_DAY:
        return
    stamp.touch()
    for file in folder.iterdir():
        with suppress(OSError, ValueError, KeyError, TypeError):
            if file != stamp and now - file.stat().st_mtime > _A_DAY and _is_about_nothing(file):
                file.unlink()


def _is_about_nothing(file: Path) -> bool:
    return file.suffix != ".json" or not os.path.exists(json.loads(file.read_text(encoding="utf-8"))["run"])


@functools.cache
def _warn_once(words: str) -> None:
    _LOG.warning(words)
