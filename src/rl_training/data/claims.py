"""What a file of somebody else says about itself, checked before it is believed."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from rl_training.data import ram
from rl_training.types import UserError

# No compression of arrays gets further than deflate on zeros, which is 1032 to 1.
_MOST_COMPRESSED = 1032
_SMALL = 1 << 20  # bytes; what claims no more than this is read, however short its file is
_LONGEST_JSON = 64 << 20  # bytes; the bounds of a space of images are some megabytes
_KINDS = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}


class Claims:
    """Adds up the sizes that the arrays of a file claim to have, so that they are compared before any is read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._total = 0
        self._largest = ("", -1)

    def add(self, member: str, size: int) -> None:
        """Count the bytes that an array will take when it is read."""
        self._total += size
        self._largest = max(self._largest, (member, size), key=lambda claim: claim[1])

    def check(self) -> None:
        """Raise a UserError if all together do not fit into RAM, or cannot be in the file."""
        total, available, (member, size) = self._total, ram.available_memory(), self._largest
        said = f"{str(self._file)!r}: says that its arrays take {ram.readable(total)}"
        if size < total:
            said += f", {member} alone {ram.readable(size)}"
        else:
            said = f"{str(self._file)!r}: says that {member} takes {ram.readable(size)}"
        if available is not None and total > available:
            raise UserError(f"{said}, and {ram.readable(available)} of RAM are available")
        stored = self._file.stat().st_size
        if total > max(_SMALL, _MOST_COMPRESSED * stored):
            raise UserError(f"{said}, and the file has {ram.readable(stored)}: no compression gets that far")


def check_plain_file(file: Path) -> None:
    """Raise a UserError if this is no file: to open a pipe or a device could wait for ever; an OSError if none."""
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((words for is_kind, words in _KINDS.items() if is_kind(mode)), "a device")
        raise UserError(f"{str(file)!r}: is {kind}, not a file")


def read_json(file: Path) -> Any:
    """The contents of a JSON file; raises an OSError or a ValueError if there are none."""
    check_plain_file(file)
    size = file.stat().st_size
    if size > _LONGEST_JSON:
        raise ValueError(f"it has {ram.readable(size)}; at most {ram.readable(_LONGEST_JSON)} are read")
    try:
        return json.loads(file.read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def refuse_damaged(file: Path, error: Exception) -> UserError:
    """A one-line error for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"{str(file)!r}: is missing")
    reason = " ".join(str(error).split())
    return UserError(f"{str(file)!r}: is damaged, or not what its name says ({reason:.200})")
