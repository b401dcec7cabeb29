"""Several columns of different types, side by side in rows of bytes: one row is gathered by one copy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rl_training.types import Array


class Columns:
    """The place of each column in a row; reading and writing go through views.

    `kinds` holds the shape and dtype of every column, in order. Every column and every row are aligned.
    """

    def __init__(self, kinds: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
        self._places: dict[str, tuple[int, int, tuple[int, ...], str]] = {}
        end = 0
        for name, (shape, dtype) in kinds.items():
            size = np.dtype(dtype).itemsize
            start = -(-end // size) * size
            end = start + math.prod(shape) * size
            self._places[name] = (start, end, shape, dtype)
        self.row_bytes = -(-end // 8) * 8

    def view(self, rows: Array, name: str) -> Array:
        """One column `[..., *shape]` of rows of bytes `[..., row_bytes]`."""
        start, end, shape, dtype = self._places[name]
        return rows[..., start:end].view(dtype).reshape(*rows.shape[:-1], *shape)

    def views(self, rows: Array) -> dict[str, Array]:
        """All columns of rows of bytes, by name."""
        return {name: self.view(rows, name) for name in self._places}

    def describe(self) -> list[list[object]]:
        """The layout as plain data: rows of one layout cannot be read with another."""
        return [[name, list(shape), dtype] for name, (_, _, shape, dtype) in self._places.items()]
