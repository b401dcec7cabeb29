"""How much memory there is, and sizes in words."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def readable(size: float) -> str:
    """A number of bytes, as people say it."""
    if size < 1024:
        return f"{size:.0f} bytes"
    power = 1 if size < 1024**2 else 2 if size < 1024**3 else 3
    return f"{size / 1024**power:.1f} {'KMG'[power - 1]}iB"


def available_memory() -> int | None:
    """The bytes that can still be taken without swapping, or None where that cannot be known."""
    known = [size for size in (_of_machine(), _of_container()) if size is not None]
    return max(0, min(known)) if known else None


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_container() -> int | None:
    """What the narrowest limit around this process leaves (control groups, version 2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    group = _CGROUPS / next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    left = [_left_in(folder) for folder in (group, *group.parents) if folder.is_relative_to(_CGROUPS)]
    return min((size for size in left if size is not None), default=None)


def _left_in(group: Path) -> int | None:
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        # Files that were read or written lately count as used, but are dropped when memory is wanted.
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit - used + int(statistics.get("inactive_file", 0))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
