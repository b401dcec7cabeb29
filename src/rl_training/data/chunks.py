"""Large arrays that are saved piece by piece, so that saving again costs only what has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl_training.types import Array


class FileStamp(NamedTuple):
    """What tells a file from another that is put in its place."""

    size: int
    inode: int
    modified: int


class Written(NamedTuple):
    """The folder that holds the chunks of an array, the versions that they have there, and the stamps of the files."""

    folder: Path
    versions: Array
    stamps: list[FileStamp]


class ChunkedArray:
    """One array `data` `[rows, *shape]` that knows which of its chunks of rows have changed.

    Whoever writes into `data` says so with `touch` or `touch_rows`. `versions` counts the changes of every chunk;
    rows from `used` on have never been written, so their memory is not taken and they are not saved. `written` says
    where the chunks are on disk, if they are, and at which versions.
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
        """Views of the chunks that have been used, in order; the last one ends where the use ends."""
        starts = range(0, self.used, self.chunk_rows)
        return [self.data[start : min(start + self.chunk_rows, self.used)] for start in starts]

    def load(self, chunks: Sequence[Array]) -> None:
        """Take over what `chunks` gave; a ValueError says what does not fit."""
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
