"""Large arrays that are saved in chunks, so that saving again writes only the chunks that have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from rl_training.types import Array


class FileStamp(NamedTuple):
    """Identifies a file, to notice that it has been replaced by another."""

    size: int
    inode: int
    modified: int


class ChunkFile(NamedTuple):
    """A file with a saved chunk: which file it is, and the checksum of its content."""

    stamp: FileStamp
    checksum: str


class Written(NamedTuple):
    """The folder with an array's saved chunks, their versions there, their files, and how often it has been saved."""

    folder: Path
    versions: Array
    files: list[ChunkFile]
    saves: int


class ChunkedArray:
    """One array `data` `[rows, *shape]` that tracks which of its chunks of rows have changed.

    Code that writes into `data` must call `touch` or `touch_rows`. `versions` counts the changes of every chunk; rows
    from `used` on have never been written, so they take no memory and are not saved. `written` says where the chunks
    are on disk and at which versions, or is None.
    """

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: str, *, chunk_bytes: int = 8 << 20) -> None:
        self.data = np.zeros((rows, *shape), dtype)
        self.chunk_rows = max(1, min(rows, chunk_bytes // max(1, self.data[:1].nbytes)))
        self.versions = np.zeros(-(-rows // self.chunk_rows), np.int64)
        self.used = 0
        self.written: Written | None = None

    def touch(self, start: int, stop: int) -> None:
        """Note that the rows `start` to `stop` (not included) have been written."""
        first, last = start // self.chunk_rows, (stop - 1) // self.chunk_rows
        if first == last:
            self.versions[first] += 1
        else:
            self.versions[first : last + 1] += 1
        if stop > self.used:
            self.used = stop

    def touch_rows(self, index: Array) -> None:
        """Note that the rows of `index`, in any order, have been written."""
        if index.size:
            self.versions[index // self.chunk_rows] += 1  # once per chunk, however many rows of it there are
            self.used = max(self.used, int(index.max()) + 1)

    def chunks(self) -> list[Array]:
        """Views of the used chunks, in order; the last one ends at row `used`."""
        starts = range(0, self.used, self.chunk_rows)
        return [self.data[start : min(start + self.chunk_rows, self.used)] for start in starts]

    def load(self, chunks: Sequence[Array]) -> None:
        """Load what `chunks` returned; raises a ValueError if it does not fit."""
        sizes = [chunk.shape[0] for chunk in chunks]
        if any(size != self.chunk_rows for size in sizes[:-1]) or (sizes and not 0 < sizes[-1] <= self.chunk_rows):
            raise ValueError(f"chunks of {sizes} rows do not fit chunks of {self.chunk_rows}")
        if sum(sizes) > self.data.shape[0]:
            raise ValueError(f"{sum(sizes)} rows do not fit into {self.data.shape[0]}")
        for chunk in chunks:
            if chunk.shape[1:] != self.data.shape[1:] or chunk.dtype != self.data.dtype:
                have, want = (chunk.shape[1:], chunk.dtype), (self.data.shape[1:], self.data.dtype)
                raise ValueError(f"rows of {have[0]} {have[1]} do not fit rows of {want[0]} {want[1]}")
        stop = sum(sizes)
        for number, chunk in enumerate(chunks):
            start = number * self.chunk_rows
            self.data[start : start + chunk.shape[0]] = chunk
        self.data[stop : self.used] = 0
        self.used = stop
        self.versions += 1


class Part(Protocol):
    """A part of a loop with a state to save: plain data, and large arrays, which are saved in chunks."""

    @property
    def arrays(self) -> Mapping[str, ChunkedArray]:
        """The large arrays, by name."""

    def state_dict(self) -> dict[str, Any]:
        """Everything else."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned; the arrays have been loaded before."""
