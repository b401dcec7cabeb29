"""Available RAM, and byte counts as text."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_UNITS = "KMGTPE"


def readable(size: float) -> str:
    """A number of bytes as text with a unit, such as 1.5 GiB."""
    if size < 1024:
        return f"{size:.0f} bytes"
    power = min(int(math.log2(size) / 10), len(_UNITS))
    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}iB"


def available_memory() -> int | None:
    """The bytes of RAM that can still be allocated without swapping, or None if that is unknown."""
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
    """The RAM left by the tightest limit on this process (control groups, version 2)."""
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
        # The page cache counts as used, but is freed when memory is needed.
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit - used + int(statistics.get("inactive_file", 0))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None
