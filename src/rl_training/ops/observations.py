"""Observations as numbers, and those of several arrays as one row of bytes, so that every buffer stores a single array.

A row holds the float32 entries first (so that they are aligned, and vectors can be scaled in place), then the bytes of
images, then the action mask. Unpacking returns views.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.types import Array, Choices, Coding, ObsPart, Pixels, SpaceInfo, Text


def coded(value: Any, coding: Coding | None) -> Array:
    """What an environment shows, with any leading axes, as numbers; a ValueError says what cannot be."""
    if isinstance(coding, Choices):
        return _one_hot(value, coding)
    if isinstance(coding, Text):
        return _spelled(value, coding)
    array: Array = np.asarray(value)
    return array * np.float32(255.0 / coding.highest) if isinstance(coding, Pixels) else array


def _one_hot(value: Any, coding: Choices) -> Array:
    numbers: Array = np.asarray(value)
    if numbers.dtype.kind not in "iu" or numbers.shape[numbers.ndim - len(coding.shape) :] != coding.shape:
        raise ValueError(f"must be {_whole_numbers(coding)}")
    lead = numbers.shape[: numbers.ndim - len(coding.shape)]
    chosen = numbers.reshape(-1, len(coding.counts)).astype(np.int64) - np.asarray(coding.firsts)
    if ((chosen < 0) | (chosen >= np.asarray(coding.counts))).any():
        raise ValueError(f"must be {_whole_numbers(coding)}")
    rows = np.zeros((len(chosen), sum(coding.counts)), np.float32)
    ends = np.cumsum(coding.counts)
    rows[np.arange(len(chosen))[:, None], chosen + (ends - np.asarray(coding.counts))] = 1.0
    return rows.reshape(*lead, int(ends[-1]))


def _whole_numbers(coding: Choices) -> str:
    spans = [(first, first + count - 1) for first, count in zip(coding.firsts, coding.counts, strict=True)]
    each = "from {} to {}".format(*spans[0]) if len(set(spans)) == 1 else "within " + ", ".join(map(str, spans))
    return f"whole numbers {coding.shape} {each}" if coding.shape else f"a whole number {each}"


def _spelled(value: Any, coding: Text) -> Array:
    texts: Array = np.asarray(value)
    if texts.dtype.kind not in "UO" or not all(isinstance(text, str) for text in texts.flat):
        raise ValueError("must be text")
    places = {symbol: place for place, symbol in enumerate(coding.symbols)}
    rows = np.zeros((texts.size, coding.length, len(places)), np.float32)
    for row, text in zip(rows, texts.flat, strict=True):
        symbols = text.split() if coding.words else text
        if len(symbols) > coding.length:
            raise ValueError(f"has {len(symbols)} {_symbols(coding)}; at most {coding.length} are known")
        for index, symbol in enumerate(symbols):
            if symbol not in places:
                raise ValueError(f"has {symbol!r}, which is none of its {_symbols(coding)}")
            row[index, places[symbol]] = 1.0
    return rows.reshape(*texts.shape, -1)


def _symbols(coding: Text) -> str:
    return "words" if coding.words else "characters"


def found(obs: Any, name: str) -> Any:
    """The entry of an observation that a part is made of: by its name, or by the names on the way to it.

    A KeyError has the name of what is missing.
    """
    if not name:
        return obs
    entries = {str(key): value for key, value in obs.items()} if isinstance(obs, Mapping) else None
    if entries is None and isinstance(obs, tuple):
        entries = dict(zip(map(str, range(len(obs))), obs, strict=True))
    for key, value in (entries or {}).items():
        if name == key:
            return value
        if name.startswith(f"{key}."):
            return found(value, name[len(key) + 1 :])
    raise KeyError(name)


def layout(parts: Sequence[ObsPart]) -> tuple[ObsPart, ...]:
    """The order of the parts in a row: floats before bytes, and among them vectors before images."""
    return tuple(sorted(parts, key=lambda part: (part.dtype != "float32", part.kind == "image")))


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
        vectors = [part for part in info.parts if part.dtype == "float32" and part.kind == "vector"]
        self._float_end = sum(map(part_bytes, vectors))

    @property
    def float_shape(self) -> tuple[int, ...] | None:
        """The shape of the floats of an observation's vectors, which can be normalized, or None if there are none."""
        if self._info.packed:
            return (self._float_end // 4,) if self._float_end else None
        return None if self._info.obs_kind == "image" else self._info.obs_shape

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
