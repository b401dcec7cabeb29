"""Keeps two processes from training in one run's folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import IO

from rl_training.types import UserError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows has no fcntl; there is no lock then
    fcntl = None


def hold(folder: Path) -> IO[str]:
    """Lock the folder against other processes; the lock ends when the returned file is closed or the process ends."""
    file = (folder / ".lock").open("a+")
    if fcntl is None:
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise UserError(f"{str(folder)!r}: is being trained by process {holder}; wait for it, or end it") from None
    except OSError:
        return file  # a file system without locks
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
