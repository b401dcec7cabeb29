"""Archives of arrays (.npz), read without unpickling, and only after their sizes have been checked."""

from __future__ import annotations

import ast
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from rl_training.data.claims import Claims, refuse_damaged
from rl_training.types import Array, UserError

_ENDING = ".npy"
_LONGEST_HEADER = 10_000  # bytes; a header of plain arrays has about 100
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# How an array of numbers, booleans or text describes the type of its elements.
_PLAIN = re.compile(r"[<>|=]?[biufSU][0-9]{1,10}")
_FLAWS = (ValueError, EOFError, OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error)


class _Header(NamedTuple):
    """What an array says of itself: its elements, its shape, and how many bytes come before its numbers."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    length: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(path: Path, wanted: Container[str]) -> dict[str, Any]:
    """The wanted arrays of an archive, by their names; of the others there is only the name, with None."""
    place = repr(str(path))
    try:
        with path.open("rb") as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise UserError(f"{place}: is a single array; it must be an archive of several, by their names")
            with zipfile.ZipFile(file) as archive:
                return _read_archive(archive, path, wanted)
    except _FLAWS as error:
        raise refuse_damaged(path, error) from None


def _read_archive(archive: zipfile.ZipFile, path: Path, wanted: Container[str]) -> dict[str, Any]:
    place, members = repr(str(path)), archive.infolist()
    names = [member.filename.removesuffix(_ENDING) for member in members]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{place}: has two arrays of the name {twice[0]!r:.80}; which of them is meant is not known")
    claims = Claims(path)
    for member, name in zip(members, names, strict=True):
        if not member.filename.endswith(_ENDING):
            raise UserError(f"{place}: is not an archive of arrays alone: {member.filename!r:.80} is none")
        if member.compress_type not in _METHODS:
            raise UserError(f"{place}: {name!r:.80} is compressed by a method that is not read here, only by deflate")
        with archive.open(member) as opened:  # an array that is not wanted is opened too: its name may be damaged
            if name in wanted:
                header = _read_header(opened, place, name)
                if member.file_size != header.length + header.nbytes:
                    raise ValueError(f"{name} has {member.file_size} bytes, and its header says otherwise")
                claims.add(name, header.nbytes)
    claims.check()
    return {
        name: _read_array(archive, member) if name in wanted else None
        for member, name in zip(members, names, strict=True)
    }


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as opened:
        array: Array = np.lib.format.read_array(opened, allow_pickle=False, max_header_size=_LONGEST_HEADER)
        return array


def _read_header(opened: Any, place: str, name: str) -> _Header:
    """The header of an array of plain elements; a UserError for other ones, a ValueError if it is damaged."""
    text, length = _header_text(opened)
    try:
        header = ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"the header of {name} is damaged")
    kind, shape = header["descr"], header["shape"]
    if not isinstance(shape, tuple) or any(type(size) is not int or size < 0 for size in shape) or len(shape) > 32:
        raise ValueError(f"the shape of {name} is {shape!r:.80}")
    if not isinstance(header["fortran_order"], bool):
        raise ValueError(f"the header of {name} is damaged")
    if isinstance(kind, str) and kind.lstrip("|") == "O":
        raise UserError(
            f"{place}: is not an archive of plain arrays: {name!r:.80} would have to be unpickled, which could run "
            "code and is never done"
        )
    if not isinstance(kind, str) or not _PLAIN.fullmatch(kind):
        raise UserError(f"{place}: {name!r:.80} holds {kind!r:.80}; numbers or text are needed")
    try:
        return _Header(np.dtype(kind), shape, length)
    except TypeError:
        raise ValueError(f"the elements of {name} are {kind!r}") from None


def _header_text(opened: BinaryIO) -> tuple[str, int]:
    """The text of an array's header, and the number of bytes up to its end."""
    version = np.lib.format.read_magic(opened)
    width = 2 if version == (1, 0) else 4
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"it is of the version {version}")
    length = int.from_bytes(opened.read(width), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header has {length} bytes")
    content = opened.read(length)
    if len(content) != length:
        raise ValueError("its header ends too early")
    return content.decode("latin1"), len(np.lib.format.MAGIC_PREFIX) + 2 + width + length
