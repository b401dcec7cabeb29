"""The large arrays of a run on disk: one file per chunk, hard-linked to its last file if the chunk has not changed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.data.checked_files import Entry, check, checksum, damaged, regular_file
from rl_training.data.chunks import ChunkedArray, ChunkFile, FileStamp, Part, Written
from rl_training.data.disk import sync
from rl_training.runtime.checkpoints.catalogue import ARRAYS_FOLDER
from rl_training.types import Array, UserError

# A chunk that does not change is written anew once in this many saves.
RENEWED_WITHIN = 32


class Chunks(Protocol):
    """What is needed of a large array to write it to a checkpoint."""

    versions: Array
    written: Written | None

    def chunks(self) -> list[Array]:
        """Its contents, in order; all but the last have equally many rows."""


class StoredArray:
    """A large array of a checkpoint as memory-mapped files, which are read, and checked, when they are asked for.

    The maps stay readable even after the files have been removed.
    """

    def __init__(self, name: str, chunks: list[Array], written: Written) -> None:
        self.versions = written.versions
        self.written: Written | None = written
        self._chunks = chunks
        self._unchecked = [written.folder / chunk_name(name, number) for number in range(len(chunks))]

    def chunks(self) -> list[Array]:
        if self._unchecked and self.written is not None:
            for file, chunk, saved in zip(self._unchecked, self._chunks, self.written.files, strict=True):
                check(file, chunk.reshape(-1).view(np.uint8).data, Entry(saved.stamp.size, saved.checksum))
            self._unchecked = []
        return self._chunks


def arrays_of(parts: Mapping[str, Part]) -> dict[str, ChunkedArray]:
    """The large arrays of a loop's parts, as `<part>.<array>`."""
    return {f"{name}.{array_name}": array for name, part in parts.items() for array_name, array in part.arrays.items()}


def load_arrays(arrays: Mapping[str, ChunkedArray], stored: Mapping[str, Chunks]) -> None:
    """Copy a checkpoint's arrays into these; the next checkpoint will link the chunks that have not changed."""
    unmatched = sorted(arrays.keys() ^ stored.keys())
    if unmatched:
        problem = "is missing in the checkpoint" if unmatched[0] in arrays else "is not part of this run"
        raise UserError(f"the array {unmatched[0]!r} {problem}")
    for name, array in arrays.items():
        source = stored[name]
        try:
            array.load(source.chunks())
        except ValueError as error:
            raise UserError(f"the array {name!r} of the checkpoint does not fit this run ({error})") from None
        files = source.written if isinstance(source, StoredArray) else None
        array.written = None if files is None else files._replace(versions=array.versions.copy())


def chunk_name(name: str, number: int) -> str:
    """The name of the file with a chunk of an array."""
    return f"{name}.{number}.bin"


def describe_arrays(arrays: Mapping[str, Chunks]) -> dict[str, dict[str, Any]]:
    """The shapes and dtypes that are needed to read the arrays again, and how often each has been saved."""
    described = {}
    for name, array in arrays.items():
        chunks = array.chunks()
        first = chunks[0] if chunks else np.zeros(1, np.uint8)
        described[name] = {
            "rows": sum(len(chunk) for chunk in chunks),
            "chunk_rows": len(first),
            "shape": list(first.shape[1:]),
            "dtype": first.dtype.str,
            "saves": _saves(array) + 1,
        }
    return described


def _saves(array: Chunks) -> int:
    return 0 if array.written is None else array.written.saves


def write_arrays(folder: Path, arrays: Mapping[str, Chunks]) -> dict[str, Written]:
    """Write the chunks that no file holds yet and link the others; returns each array's new `written`.

    A chunk's file is never modified, since other checkpoints may link it. However many links it has, it is one copy on
    the disk: each chunk is written anew at every 32nd save at the latest, a few at each.
    """
    if not arrays:
        return {}
    folder.mkdir()
    written = {}
    for name, array in arrays.items():
        saves, files = _saves(array), []
        for number, chunk in enumerate(array.chunks()):
            file = folder / chunk_name(name, number)
            due, known = (number + saves) % RENEWED_WITHIN == 0, _known(array, number, chunk.nbytes)
            linked = None if due or known is None else _link(file, array, known)
            total = checksum(chunk.data) if known is None else known.checksum
            files.append(linked or ChunkFile(write_file(file, chunk.data), total))
        written[name] = Written(folder, array.versions.copy(), files, saves + 1)
    sync(folder)
    return written


def entries_of(written: Mapping[str, Written]) -> dict[str, Entry]:
    """The entries of the chunks' files in a checkpoint's description."""
    return {
        f"{ARRAYS_FOLDER}/{chunk_name(name, number)}": Entry(file.stamp.size, file.checksum)
        for name, where in written.items()
        for number, file in enumerate(where.files)
    }


def _known(array: Chunks, number: int, size: int) -> ChunkFile | None:
    """The file that was written of a chunk as it is now, if there is one.

    A chunk that has not changed may have grown: unwritten rows are included once later rows have been written.
    """
    known = array.written
    if known is None or number >= len(known.files) or known.versions[number] != array.versions[number]:
        return None
    return known.files[number] if known.files[number].stamp.size == size else None


def _link(file: Path, array: Chunks, saved: ChunkFile) -> ChunkFile | None:
    """Link the file that was written, if it is still there."""
    assert array.written is not None
    try:
        os.link(array.written.folder / file.name, file, follow_symlinks=False)
    except (OSError, NotImplementedError):  # it is gone, on another disk, or links are not supported
        return None
    if _stamp(os.lstat(file)) == saved.stamp:
        return saved
    os.unlink(file)  # another process has written to that place since
    return None


def write_file(file: Path, content: bytes | memoryview) -> FileStamp:
    """Write a new file and flush it to disk."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        return _stamp(os.fstat(stream.fileno()))


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_size, status.st_ino, status.st_mtime_ns)


def read_arrays(folder: Path, described: Any, entries: Mapping[str, Entry]) -> dict[str, StoredArray]:
    """Map the arrays of a checkpoint's folder; an error names a file that is missing, or not as it is described."""
    meta = folder.parent / "meta.json"
    if not isinstance(described, dict):
        raise damaged(meta, f"its entry for the arrays is {described!r:.60}")
    arrays = {}
    for name, description in described.items():
        try:
            shapes, dtype, saves = _read_description(description)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"its entry for the array {name!r:.60} is {description!r:.60}: {error}"
            raise damaged(meta, reason) from None
        arrays[name] = _read_array(folder, name, shapes, dtype, saves, entries)
    found = entries_of({name: array.written for name, array in arrays.items() if array.written is not None})
    surplus = sorted(name for name in entries.keys() - found.keys() if name.startswith(f"{ARRAYS_FOLDER}/"))
    if surplus:
        raise damaged(meta, f"it names the file {surplus[0]!r}, which is of no array")
    return arrays


def _read_description(description: Any) -> tuple[Iterator[tuple[int, ...]], np.dtype[Any], int]:
    """The shapes of an array's chunks, their dtype, and how often the array has been saved."""
    rows, chunk_rows, saves = (_count(description[key]) for key in ("rows", "chunk_rows", "saves"))
    row_shape = tuple(_count(size) for size in description["shape"])
    dtype = np.dtype(description["dtype"])
    if dtype.hasobject:
        raise ValueError("its dtype is not one of plain numbers")
    shapes = ((min(chunk_rows, rows - start), *row_shape) for start in range(0, rows, chunk_rows))
    return shapes, dtype, saves


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.20} is not a number of things")
    return value


def _read_array(
    folder: Path,
    name: str,
    shapes: Iterable[tuple[int, ...]],
    dtype: np.dtype[Any],
    saves: int,
    entries: Mapping[str, Entry],
) -> StoredArray:
    chunks, files = [], []
    for number, shape in enumerate(shapes):
        key = f"{ARRAYS_FOLDER}/{chunk_name(name, number)}"
        file = folder / chunk_name(name, number)
        if key not in entries:
            raise damaged(folder.parent / "meta.json", f"its list of files has no {key!r}")
        try:
            chunk, stamp = _map(file, shape, dtype)
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            raise damaged(file, str(error)) from None
        chunks.append(chunk)
        files.append(ChunkFile(stamp, entries[key].checksum))
    return StoredArray(name, chunks, Written(folder, np.zeros(len(chunks), np.int64), files, saves))


def _map(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, FileStamp]:
    """Map a file as a read-only array. Torch's maps, unlike NumPy's, keep no file open."""
    stamp = _stamp(regular_file(file))
    size = math.prod(shape) * dtype.itemsize
    if stamp.size != size:
        raise damaged(file, f"it has {stamp.size} bytes instead of {size}")
    chunk: Array = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8).numpy()
    if _stamp(regular_file(file)) != stamp:
        raise damaged(file, "it was replaced while it was read")
    chunk = chunk.view(dtype).reshape(shape)
    chunk.flags.writeable = False
    return chunk, stamp
