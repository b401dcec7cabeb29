"""The large arrays of a run on disk: one file per chunk, hard-linked to its last file if the chunk has not changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.data.chunks import ChunkedArray, FileStamp, Part, Written
from rl_training.types import Array, UserError

ARRAYS_FOLDER = "replay"


class Chunks(Protocol):
    """What is needed of a large array to write it to a checkpoint."""

    versions: Array
    written: Written | None

    def chunks(self) -> list[Array]:
        """Its contents, in order; all but the last have equally many rows."""


class StoredArray:
    """A large array of a checkpoint as memory-mapped files, which are read lazily.

    The maps stay readable even after the files have been removed.
    """

    def __init__(self, folder: Path, chunks: list[Array], stamps: list[FileStamp]) -> None:
        self.versions = np.zeros(len(chunks), np.int64)
        self.written: Written | None = Written(folder, self.versions, stamps)
        self._chunks = chunks

    def chunks(self) -> list[Array]:
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


def describe_arrays(arrays: Mapping[str, Chunks]) -> dict[str, dict[str, Any]]:
    """The shapes and dtypes that are needed to read the arrays again."""
    described = {}
    for name, array in arrays.items():
        chunks = array.chunks()
        first = chunks[0] if chunks else np.zeros(1, np.uint8)
        described[name] = {
            "rows": sum(len(chunk) for chunk in chunks),
            "chunk_rows": len(first),
            "shape": list(first.shape[1:]),
            "dtype": first.dtype.str,
        }
    return described


def write_arrays(folder: Path, arrays: Mapping[str, Chunks]) -> dict[str, Written]:
    """Write the chunks that no file holds yet and link the others; returns each array's new `written`.

    A chunk's file is never modified, since other checkpoints may link it.
    """
    if not arrays:
        return {}
    folder.mkdir()
    written = {}
    for name, array in arrays.items():
        stamps = []
        for number, chunk in enumerate(array.chunks()):
            file = folder / f"{name}.{number}.bin"
            stamps.append(_link(file, array, number, chunk.nbytes) or write_file(file, chunk.data))
        written[name] = Written(folder, array.versions.copy(), stamps)
    sync(folder)
    return written


def _link(file: Path, array: Chunks, number: int, size: int) -> FileStamp | None:
    """Link the file that holds the chunk as it is now, if there is one.

    A chunk that has not changed may have grown: unwritten rows are included once later rows have been written.
    """
    known = array.written
    if known is None or number >= len(known.stamps) or known.versions[number] != array.versions[number]:
        return None
    if known.stamps[number].size != size:
        return None
    try:
        os.link(known.folder / file.name, file)
    except (OSError, NotImplementedError):  # it is gone, on another disk, or links are not supported
        return None
    if _stamp(os.stat(file)) == known.stamps[number]:
        return known.stamps[number]
    os.unlink(file)  # another process has written to that place since
    return None


def write_file(file: Path, content: bytes | memoryview) -> FileStamp:
    """Write a new file and flush it to disk."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        return _stamp(os.fstat(stream.fileno()))


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_size, status.st_ino, status.st_mtime_ns)


def read_arrays(folder: Path, described: Any) -> dict[str, StoredArray]:
    """Read the arrays of a folder; an error names a file that is missing, damaged or unexpected."""
    if not isinstance(described, Mapping):
        raise unreadable(folder.parent / "meta.json", f"its entry for the arrays is {described!r:.60}")
    arrays = {name: _read_array(folder, name, description) for name, description in described.items()}
    expected = {f"{name}.{number}.bin" for name, array in arrays.items() for number in range(len(array.chunks()))}
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    for file in found:
        if file.name not in expected and not file.name.startswith("."):  # file systems add hidden files
            raise unreadable(file, "it is not part of this checkpoint")
    return arrays


def _read_array(folder: Path, name: str, description: Any) -> StoredArray:
    try:
        rows, chunk_rows = description["rows"], description["chunk_rows"]
        starts = range(0, rows, chunk_rows)
        row_shape, dtype = tuple(map(int, description["shape"])), np.dtype(description["dtype"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f"its entry for the array {name!r} is {description!r:.60}: {error}"
        raise unreadable(folder.parent / "meta.json", reason) from None
    chunks, stamps = [], []
    for number, start in enumerate(starts):
        file = folder / f"{name}.{number}.bin"
        try:
            chunk, stamp = _map(file, (min(chunk_rows, rows - start), *row_shape), dtype)
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            raise unreadable(file, str(error)) from None
        chunks.append(chunk)
        stamps.append(stamp)
    return StoredArray(folder, chunks, stamps)


def _map(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, FileStamp]:
    """Map a file as a read-only array. Torch's maps, unlike NumPy's, keep no file open."""
    stamp = _stamp(os.stat(file))
    size = int(np.prod(shape)) * dtype.itemsize
    if stamp.size != size:
        raise ValueError(f"it has {stamp.size} bytes instead of {size}")
    chunk: Array = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8).numpy()
    if _stamp(os.stat(file)) != stamp:
        raise ValueError("it was replaced while it was read")
    chunk = chunk.view(dtype).reshape(shape)
    chunk.flags.writeable = False
    return chunk, stamp


def unreadable(file: Path, reason: str) -> UserError:
    """The error for any file of a checkpoint that cannot be used."""
    return UserError(f"{str(file)!r}: is missing, damaged or foreign ({reason})")
