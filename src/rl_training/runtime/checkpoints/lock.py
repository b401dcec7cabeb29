"""Keeps two processes from training in one run's folder.

The lock is a record lock of POSIX on the file `.lock`. The kernel gives it to a process and not to an open file: a
process that an environment forks has no part in it, and it ends with its holder, whatever children live on. It has one
trap: a process loses it when it closes any descriptor of the file, as a callback does that copies the run's folder.
So the holder also notes in the file who it is, which keeps others out while it lives, and takes the lock again with
every checkpoint.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any

from rl_training.data.disk import WINDOWS, open_own
from rl_training.types import UserError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # as on Windows; there is no lock then
    fcntl = None

LOCK_FILE = ".lock"
_LONGEST_NOTE = 4096
# Seconds in which a process that was killed lets go of its files: all of its threads must have ended.
_LAST_BREATH = 5.0


class Locked(UserError):
    """The folder is being trained by another process, or by this one."""


class Lock:
    """A folder that this process has locked, until `release` or its own end.

    `inherited` says who held it before and ended without a release, if somebody did. Where a file system has no locks,
    it is not `sure`: the note alone keeps others out.
    """

    def __init__(self, folder: Path, file: IO[bytes]) -> None:
        self.folder = folder
        self.inherited = ""
        self.sure = True
        self.key = _key(os.fstat(file.fileno()))
        self.process = os.getpid()
        self._file = file

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def take(self) -> None:
        """Take the lock, or raise if a living process has it."""
        if _key(os.stat(self.folder / LOCK_FILE)) != self.key:
            raise FileNotFoundError(f"{LOCK_FILE} was replaced by another process")
        locked, holder = self._lock(), self._note()
        deadline = time.monotonic() + _LAST_BREATH
        while not locked and _is_dying(holder) and time.monotonic() < deadline:
            time.sleep(0.01)
            locked = self._lock()
        if not locked or _lives(holder):
            raise Locked(f"{str(self.folder)!r}: is being trained by {_words(holder)}; wait for it, or end it")
        if holder:
            self.inherited = f"{_words(holder)} is dead and had not released the run"
        os.ftruncate(self._file.fileno(), 0)
        self._file.write((json.dumps(_this_process(self.key)) + "\n").encode())

    def move(self, target: Path) -> None:
        """Give the folder another name."""
        if WINDOWS:
            self._file.close()  # a folder with an open file cannot be moved there
        try:
            os.rename(self.folder, target)
            self.folder = target
        finally:
            if WINDOWS:
                self._file = open_own(self.folder / LOCK_FILE, "a+b", buffering=0)

    def renew(self) -> None:
        """Take the lock again, in case that it was lost; raise if another process has it."""
        if not self._lock():
            raise Locked(f"{str(self.folder)!r}: was taken over by {_words(self._note())}, and is not written any more")

    def release(self) -> None:
        """Let others have the folder; a forked process has nothing to release."""
        if not self._file.closed and self.process == os.getpid():
            with suppress(OSError):  # a disk that is full, or gone
                os.ftruncate(self._file.fileno(), 0)
            self.close()

    def close(self) -> None:
        """Give up the lock, but leave the note."""
        _held.pop(self.key, None)
        self._file.close()

    def _lock(self) -> bool:
        try:
            if fcntl is None:
                raise OSError
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # systems differ in which
            return False
        except OSError:  # a file system without locks
            self.sure = False
        return True

    def _note(self) -> dict[str, Any]:
        """What the holder noted of itself; a note that was copied with its folder does not count."""
        try:
            self._file.seek(0)
            note = json.loads(self._file.read(_LONGEST_NOTE))
        except (OSError, ValueError, RecursionError):
            return {}
        return note if isinstance(note, dict) and note.get("file") == self.key[1] else {}


# The locks of this process, by device and inode of their files: the kernel would grant it the same one twice.
_held: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()
_one_at_a_time = threading.Lock()


def hold(folder: Path) -> Lock:
    """Lock a folder against other processes, and against a second run of this one; raise `Locked` if it is taken."""
    path = folder / LOCK_FILE
    with _one_at_a_time:
        # Looked up without opening it, since closing a second descriptor would end the lock that is held.
        held = _held.get(_key(os.stat(path))) if path.exists() else None
        if held is not None and held.process == os.getpid():
            raise Locked(f"{str(folder)!r}: is being trained by process {os.getpid()}, which is this one")
        lock = Lock(folder, open_own(path, "a+b", buffering=0))
        try:
            lock.take()
        except BaseException:
            lock.close()
            raise
        _held[lock.key] = lock
    return lock


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _this_process(key: tuple[int, int]) -> dict[str, Any]:
    pid, since = os.getpid(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {"pid": pid, "host": platform.node(), "since": since, "born": _born(pid), "file": key[1]}


def _lives(note: dict[str, Any]) -> bool:
    """Whether a note is of another process of this machine that is known to be alive."""
    pid, born = note.get("pid"), note.get("born")
    if type(pid) is not int or pid == os.getpid() or note.get("host") != platform.node():
        return False
    return born is not None and born == _born(pid)


def _is_dying(note: dict[str, Any]) -> bool:
    """Whether a note is of a process of this machine that is dead, though it may still hold its lock."""
    return note.get("born") is not None and note.get("host") == platform.node() and not _lives(note)


def _born(pid: int) -> str | None:
    """When a process was started, in words that no other process has; None if it is dead, or if that is not known."""
    try:
        # Counted from the end of its name, which may contain anything.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if state in "ZX" else f"{boot} {fields[18]}"  # a zombie is dead
    except (OSError, ValueError, IndexError):
        return None


def _words(note: dict[str, Any]) -> str:
    if not note:
        return "another process"
    return f"process {note.get('pid')} on {note.get('host')} (since {note.get('since')})"
