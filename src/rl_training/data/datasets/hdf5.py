"""HDF5 files: read so that nothing outside of the file is opened, and no code is loaded.

An HDF5 file may name other files (external and virtual storage, links) and filters, which the library looks for among
plugins, which are code. What does is refused by its name, before its numbers are asked for.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.claims import Claims, check_plain_file, refuse_damaged
from rl_training.types import UserError

# What is built into HDF5 (deflate, shuffle, Fletcher's checksum, szip, n-bit, scale-offset) and into h5py (lzf).
_BUILT_IN_FILTERS = (1, 2, 3, 4, 5, 6, 32000)
# What h5py raises for a damaged file, as many fuzzed files showed.
_FLAWS = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError)


def load_h5py(asked_by: str) -> Any:
    """Import h5py, or raise a UserError that says how to install it."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise UserError(
            f"{asked_by!r}: needs an extra that is not installed: pip install 'rl-training[minari]' ({error})"
        ) from error


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """The group at the top of a file, open for reading; what goes wrong meanwhile is one line.

    Groups and arrays are h5py's low-level ones: thousands of episodes are opened in half the time.
    """
    h5py = load_h5py(str(path))
    try:
        check_plain_file(path)
        with h5py.File(path, "r") as opened:
            yield opened.id
    except _FLAWS as error:
        raise refuse_damaged(path, error) from None


def read_hdf5(path: Path, wanted: Container[str]) -> dict[str, Any]:
    """The wanted arrays at the top level of a file; of the others there is only the name, with None.

    Groups (D4RL's extra information) are ignored.
    """
    place, claims = repr(str(path)), Claims(path)
    with open_hdf5(path) as opened:
        items = {name: member(opened, name, place) for name in names_in(opened)}
        arrays = {name: item for name, item in items.items() if is_array(item)}
        for name in arrays:
            if name in wanted:
                claims.add(name, claimed(arrays[name], f"{place}: {name!r:.80}"))
        claims.check()
        found = {name: read_array(array) if name in wanted else None for name, array in arrays.items()}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def _h5py() -> Any:
    """The package, which is loaded: a file is open."""
    return sys.modules["h5py"]


def names_in(group: Any) -> list[str]:
    """What there is in a group."""
    return [name.decode() for name in group]


def member(group: Any, name: str, place: str) -> Any:
    """What a group has under a name, or None; a UserError if that is, or has its numbers, somewhere else."""
    h5py, key = _h5py(), name.encode()
    if not group.links.exists(key):
        return None
    if group.links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise UserError(f"{place}: {name!r:.80} is a link; only arrays in the file itself are read")
    item = h5py.h5o.open(group, key)
    if is_array(item):
        _check_storage(item.get_create_plist(), f"{place}: {name!r:.80}")
    return item


def is_array(item: Any) -> bool:
    """Whether an item of a file is an array, and no group of others."""
    return isinstance(item, _h5py().h5d.DatasetID)


def _check_storage(stored: Any, place: str) -> None:
    """Raise a UserError if reading an array would open another file or load code; its numbers are not asked for."""
    if stored.get_layout() == _h5py().h5d.VIRTUAL:
        raise UserError(f"{place} has virtual storage: its numbers are in other files, which are not read")
    if stored.get_external_count() > 0:
        raise UserError(f"{place} has external storage: its numbers are in other files, which are not read")
    for number in range(stored.get_nfilters()):
        code, _, _, name = stored.get_filter(number)
        if code not in _BUILT_IN_FILTERS:
            raise UserError(
                f"{place} is stored with filter {code} ({name.decode(errors='replace')!r:.80}), which is code that "
                "HDF5 would load; only filters that are built in are used"
            )


def claimed(array: Any, place: str) -> int:
    """The bytes that reading an array will take; a UserError if it is neither numbers nor text."""
    h5py, stored, dtype = _h5py(), array.get_create_plist(), array.dtype
    if array.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        raise UserError(f"{place} is empty; numbers are needed")
    # A chunk is unpacked before it is copied.
    chunk = math.prod(stored.get_chunk()) if stored.get_layout() == h5py.h5d.CHUNKED else 0
    elements: int = math.prod(array.shape) + chunk
    if dtype.kind == "O" and h5py.check_string_dtype(dtype) is not None:
        return elements * int(h5py.h5i.get_file_id(array).get_filesize())  # of any length, but none beyond the file
    if dtype.kind not in "fiubS":
        raise UserError(f"{place} holds {dtype!s:.80}; numbers are needed")
    return elements * int(dtype.itemsize)


def read_array(array: Any) -> Any:
    """The numbers of an array, or its text as bytes."""
    h5py = _h5py()
    if array.dtype.kind not in "fiub":
        return h5py.Dataset(array)[()]
    numbers = np.empty(array.shape, array.dtype)
    if numbers.size:
        array.read(h5py.h5s.ALL, h5py.h5s.ALL, numbers)
    return numbers


def whole_attribute(group: Any, name: str) -> int | None:
    """An attribute that is one whole number; None if it is missing or anything else, which is not decoded."""
    h5py, key = _h5py(), name.encode()
    if not h5py.h5a.exists(group, key):
        return None
    attribute = h5py.h5a.open(group, key)
    if attribute.get_space().get_simple_extent_type() != h5py.h5s.SCALAR or attribute.dtype.kind not in "iu":
        return None
    number = np.empty((), attribute.dtype)
    attribute.read(number)
    return int(number)
