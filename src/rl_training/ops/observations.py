"""Packing of observations with several arrays into one row of bytes, so that every buffer stores a single array.

A row holds the float32 entries first (so that they are aligned, and can be scaled in place), then the bytes of images,
then the action mask. Unpacking returns views.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.types import Array, ObsPart, SpaceInfo


def layout(parts: Sequence[ObsPart]) -> tuple[ObsPart, ...]:
    """The order of the parts in a row: floats before bytes."""
    return tuple(sorted(parts, key=lambda part: part.dtype != "float32"))


def part_bytes(part: ObsPart) -> int:
    """The number of bytes that a part takes in a row."""
    return math.prod(part.shape) * np.dtype(part.dtype).itemsize


def row_bytes(parts: Sequence[ObsPart], mask_size: int) -> int:
    """The length of a row: padded, so that the floats of every row are aligned."""
    return -(-(sum(map(part_bytes, parts)) + mask_size) // 4) * 4


def pack(obs: Array | Mapping[str, Array], mask: Array | None, parts: Sequence[ObsPart], mask_size: int) -> Array:
    """One observation and its mask as a row of bytes; without a mask everything is allowed."""
    row = np.zeros(row_bytes(parts, mask_size), np.uint8)
    start = 0
    for part in parts:
        value = obs[part.name] if isinstance(obs, Mapping) else obs
        end = start + part_bytes(part)
        row[start:end] = np.ascontiguousarray(value, dtype=part.dtype).reshape(-1).view(np.uint8)
        start = end
    row[start : start + mask_size] = 1 if mask is None else np.asarray(mask, np.uint8)
    return row


class Unpacker:
    """Reads rows `[..., bytes]` of one environment's observations; plain observations pass through."""

    def __init__(self, info: SpaceInfo) -> None:
        self._info = info
        self._slices: list[tuple[ObsPart, slice]] = []
        start = 0
        for part in info.parts:
            self._slices.append((part, slice(start, start + part_bytes(part))))
            start += part_bytes(part)
        self._mask = slice(start, start + info.mask_size)
        floats = [math.prod(part.shape) for part in info.parts if part.dtype == "float32"]
        self._float_end = 4 * sum(floats)

    @property
    def float_shape(self) -> tuple[int, ...] | None:
        """The shape of an observation's floats, which can be normalized, or None if there are none."""
        if self._info.packed:
            return (self._float_end // 4,) if self._float_end else None
        return None if self._info.obs_dtype == "uint8" else self._info.obs_shape

    def floats(self, rows: Array) -> Array:
        """The floats `[..., *float_shape]`, as a view."""
        return rows[..., : self._float_end].view(np.float32) if self._info.packed else rows

    def inputs(self, rows: Array) -> Any:
        """The network's inputs: an array, or a mapping of arrays for a Dict space."""
        if not self._info.packed:
            return rows
        arrays = {
            part.name: rows[..., where].view(part.dtype).reshape(*rows.shape[:-1], *part.shape)
            for part, where in self._slices
        }
        return arrays if self._info.obs_kind == "dict" else arrays[""]

    def mask(self, rows: Array) -> Array | None:
        """Which choices are allowed `[..., action_size]`, or None if there is no mask."""
        return rows[..., self._mask].view(np.bool_) if self._info.mask_size else None
