"""Folders of files with checksums: a description in JSON names every file, and what is read is what was written."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.data.disk import open_own, own_name
from rl_training.ops.kernels.checksums import LANES, lane_sums
from rl_training.types import UserError

# More than any description has.
_LARGEST_DESCRIPTION = 64 << 20
_HEAD = b'{\n  "crc32": "'
_BLANK = b"0" * 8
# From this many bytes on a plain CRC-32 would be felt.
_LARGE = 1 << 16


class Entry(NamedTuple):
    """What a file must be: its size in bytes, and its checksum."""

    size: int
    checksum: str


class DamagedError(UserError):
    """A file is not what was written, or is none that this package wrote."""


def damaged(file: Path, reason: str) -> DamagedError:
    """The error for any file that cannot be used."""
    return DamagedError(f"{str(file)!r}: is missing, damaged or foreign ({_plainly(reason)[:160]})")


def _plainly(text: str) -> str:
    """A text on one line, without characters that would command a terminal."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def checksum(content: bytes | memoryview) -> str:
    """CRC-32; of what is large, that of 64 sums over its words, which takes a tenth of the time.

    It notices every change within one word of 32 bits, and any other but one in four billion.
    """
    size = memoryview(content).nbytes
    if size < _LARGE:
        return f"{zlib.crc32(content):08x}"
    whole, sums = size // (4 * LANES) * (4 * LANES), np.empty(LANES, np.uint32)
    lane_sums(np.frombuffer(content, np.uint32, whole // 4), sums)
    return f"{zlib.crc32(memoryview(content).cast('B')[whole:], zlib.crc32(sums.data)):08x}"


def entry_of(content: bytes | memoryview) -> Entry:
    """The entry of a file with this content."""
    return Entry(memoryview(content).nbytes, checksum(content))


def seal(description: Mapping[str, Any], files: Mapping[str, Entry] | None = None) -> bytes:
    """A description as JSON, with the entries of the files, and its own checksum of all but the checksum's digits."""
    content = {"crc32": _BLANK.decode()} | dict(description)
    if files is not None:
        content["files"] = {name: entry._asdict() for name, entry in files.items()}
    text = json.dumps(content, indent=2).encode() + b"\n"
    start = len(_HEAD)
    return text[:start] + checksum(text).encode() + text[start + len(_BLANK) :]


def unseal(file: Path, version: int) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Read a description of a format version, and the entries of the files; an error says what is wrong with it."""
    text, content = _read_description(file)
    if not isinstance(content, dict) or "format" not in content:
        raise damaged(file, "it has no 'format'")
    if content["format"] != version:
        found = _plainly(str(content["format"]))[:20]
        raise UserError(f"{str(file.parent)!r}: has format {found}; this version of rl_training reads {version}")
    _check_seal(file, text)
    del content["crc32"]
    return content, _entries(content.pop("files", None), file)


def unseal_alone(file: Path) -> dict[str, Any]:
    """Read a description that has neither a format nor files."""
    text, content = _read_description(file)
    _check_seal(file, text)
    del content["crc32"]
    return dict(content)


def _read_description(file: Path) -> tuple[bytes, Any]:
    text = read_plain(file, _LARGEST_DESCRIPTION)
    try:
        return text, json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise damaged(file, str(error)) from None


def _check_seal(file: Path, text: bytes) -> None:
    start, stop = len(_HEAD), len(_HEAD) + len(_BLANK)
    total = checksum(text[:start] + _BLANK + text[stop:])
    if not text.startswith(_HEAD) or text[start:stop] != total.encode():
        raise damaged(file, f"its checksum is not {total}")


def _entries(described: Any, file: Path) -> dict[str, Entry]:
    if not isinstance(described, dict):
        raise damaged(file, f"its list of files is {described!r:.60}")
    entries = {}
    for name, entry in described.items():
        match entry:
            case {"size": int(size), "checksum": str(total)} if type(size) is int:
                entries[name] = Entry(size, total)
            case _:
                raise damaged(file, f"its entry for {name!r:.60} is {entry!r:.60}")
    return entries


def read(folder: Path, name: str, files: Mapping[str, Entry]) -> bytes:
    """Read a file at once, and check what was read."""
    if name not in files:
        raise damaged(folder / name, "the description does not name it")
    content = read_plain(folder / name, files[name].size)
    check(folder / name, content, files[name])
    return content


def check(file: Path, content: bytes | memoryview, entry: Entry) -> None:
    """Raise if the content of a file is not what was written."""
    found = entry_of(content)
    if found.size != entry.size:
        raise damaged(file, f"it has {found.size} bytes instead of {entry.size}")
    if found != entry:
        raise damaged(file, f"its checksum is {found.checksum} instead of {entry.checksum}")


def read_plain(file: Path, most: int | None = None) -> bytes:
    """The content of a regular file that is no link; one that has more than `most` bytes is not read."""
    try:
        with open_own(own(file)) as stream:
            size = os.fstat(stream.fileno()).st_size
            if most is not None and size > most:
                raise damaged(file, f"it has {size} bytes instead of {most}")
            return bytes(stream.read())
    except OSError as error:
        raise damaged(file, error.strerror or str(error)) from None


def own(path: Path, *, folder: bool = False) -> Path:
    """The path, which must be missing or a plain file (or folder)."""
    try:
        return own_name(path, folder=folder)
    except UserError as error:
        raise DamagedError(str(error)) from None


def regular_file(file: Path) -> os.stat_result:
    """The status of a file that is there and no link."""
    try:
        return os.lstat(own(file))
    except OSError as error:
        raise damaged(file, error.strerror or str(error)) from None


def check_names(folder: Path, expected: Iterable[str], inner: str | None = None) -> None:
    """Check that a folder, and the folder `inner` in it, have exactly these files; hidden ones are passed over."""
    wanted = set(expected)
    for name in _names(folder, inner):
        if name not in wanted:
            raise damaged(folder / name, "it does not belong here")
        wanted.remove(name)
    if wanted:
        raise damaged(folder / min(wanted), "it is missing")


def _names(folder: Path, inner: str | None) -> list[str]:
    names = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):  # file systems add hidden files
            continue
        if path.name == inner:
            names += [f"{inner}/{name}" for name in _names(own(path, folder=True), None)]
        else:
            regular_file(path)
            names.append(path.name)
    return names
