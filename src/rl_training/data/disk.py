"""Files and folders on disk: replaced as a whole, safe from a loss of power, and never reached through a link."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path
from typing import IO, Any

from rl_training.types import UserError

# Where a system lacks them, `own_name` alone looks at a name before it is opened.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


# Windows opens no folder, so that names in it cannot be flushed, and moves nothing that is open.
WINDOWS = sys.platform == "win32"


def sync(path: Path) -> None:
    """Flush the names in a folder to disk, where the system can."""
    if WINDOWS:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole, or not at all; after a loss of power, too."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def make_folders(path: Path) -> None:
    """Make a folder and those above it, as far as they are missing; their names survive a loss of power."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def remove_tree(path: Path) -> None:
    """Remove a folder at once for whoever looks for it, then its contents; what remains of a crash is hidden."""
    hidden = path.with_name(f".dropped-{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        os.rename(path, hidden)
    except PermissionError:
        if not WINDOWS:
            raise
        return  # something of it is open; whoever prunes again finds it
    shutil.rmtree(hidden, ignore_errors=True)


def own_name(path: Path, *, folder: bool = False) -> Path:
    """The path, which must be missing or a plain file (or folder): a link would lead to what belongs to others."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        raise UserError(f"{str(path)!r}: is {_kind(mode)}; only a plain {'folder' if folder else 'file'} is used here")
    return path


def _kind(mode: int) -> str:
    known = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return known.get(stat.S_IFMT(mode), "a special file")


def open_own(path: Path, mode: str = "rb", **how: Any) -> IO[Any]:
    """Open a plain file, like `open`; anything that `own_name` refuses is not opened at all."""
    own_name(path)
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | _NO_LINK, 0o666), **how)


def read_own(path: Path, most: int = -1) -> bytes:
    """The contents of a plain file, or their first `most` bytes."""
    with open_own(path) as file:
        content: bytes = file.read(most)
    return content
