"""Tensors that torch has saved, and arrays of NumPy in a pickle, read without unpickling."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.data.pickled import Made, Name, Reference, interpret
from rl_training.types import Array

_DTYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}
_ORDERED = Name("collections", "OrderedDict")
_REBUILD = Name("torch._utils", "_rebuild_tensor_v2")
_PARAMETER = Name("torch._utils", "_rebuild_parameter")
_RECONSTRUCT = {Name(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
_SCALAR = {Name(f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")}
_FROM_BUFFER = {Name(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")}
_DTYPE = Name("numpy", "dtype")
_LONGEST_SIDE = 1 << 48  # a product of longer ones would take long to compute
_MOST_VIEWS = 8  # how often all stored numbers may be used: networks that share layers name them several times
_PLAIN_KINDS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")


def read_tensors(content: bytes) -> dict[str, Array]:
    """The tensors of a file that torch saved, by name; a ValueError if it holds anything else."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {member.filename: member for member in archive.infolist()}
        if len(members) != len(archive.infolist()):
            raise ValueError("two of its parts have the same name")
        # torch does not compress: so nothing here can be larger than the file.
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise ValueError("a part of it is compressed, and torch compresses none")
        if sum(member.file_size for member in members.values()) > len(content):
            raise ValueError("its parts claim more bytes than it has")
        found = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(found) != 1:
            raise ValueError("it is not a file of tensors as torch has saved them since version 1.6")
        folder = found[0].removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in members and archive.read(order) != b"little":
            raise ValueError("its numbers are in another order of bytes than little-endian")
        stored = {
            name.removeprefix(f"{folder}data/"): archive.read(name)
            for name in members
            if name.startswith(f"{folder}data/")
        }
        return _state_dict(interpret(archive.read(found[0])), stored)


def _state_dict(value: Any, stored: Mapping[str, bytes]) -> dict[str, Array]:
    """The entries of a dictionary of tensors; the state of an OrderedDict (versions of modules) is left out."""
    if value is None:
        return {}
    if isinstance(value, Made) and value.by == _ORDERED and value.arguments == ():
        value = value.entries or {}
    if not isinstance(value, dict):
        raise ValueError("it holds something else than tensors by their names")
    if not all(isinstance(name, str) for name in value):
        raise ValueError("the name of a tensor is no text")
    tensors, left = {}, _MOST_VIEWS * sum(map(len, stored.values()))
    for name, entry in value.items():
        tensors[name] = array = _tensor(name, entry, stored)
        left -= array.nbytes
        if left < 0:
            raise ValueError(
                "its tensors use the same numbers so often that they would take far more RAM than the file"
            )
    return tensors


def _tensor(name: str, value: Any, stored: Mapping[str, bytes]) -> Array:
    if isinstance(value, Made) and value.by == _PARAMETER and isinstance(value.arguments, tuple) and value.arguments:
        value = value.arguments[0]
    if not (isinstance(value, Made) and value.by == _REBUILD and isinstance(value.arguments, tuple)):
        named = value.by if isinstance(value, Made) and isinstance(value.by, Name) else type(value).__name__
        raise ValueError(f"{name!r:.80} is no tensor, but made by {str(named)!r:.80}")
    if len(value.arguments) < 4:
        raise ValueError(f"{name!r:.80} is damaged")
    reference, offset, shape, strides = value.arguments[:4]
    numbers = _storage(name, reference, stored)
    sizes = (offset, *_whole(shape), *_whole(strides))
    if type(offset) is not int or len(_whole(shape)) != len(_whole(strides)) or min(sizes) < 0:
        raise ValueError(f"the shape of {name!r:.80} is damaged")
    count = math.prod(shape)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if count else offset
    if count > len(numbers) or (count and last >= len(numbers)) or offset > len(numbers):
        raise ValueError(f"{name!r:.80} says that it has more numbers than are stored")
    if not count:
        return np.zeros(shape, numbers.dtype)
    steps = tuple(stride * numbers.itemsize * (size > 1) for size, stride in zip(shape, strides, strict=True))
    view: Array = np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps, writeable=False)
    return np.array(view)


def _whole(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, tuple) or len(sizes) > 32 or any(type(size) is not int for size in sizes):
        raise ValueError("a shape in it is damaged")
    if any(abs(size) > _LONGEST_SIDE for size in sizes):
        raise ValueError("a shape in it is damaged")
    return sizes


def _storage(name: str, reference: Any, stored: Mapping[str, bytes]) -> Array:
    """The numbers that a tensor is a view of."""
    key = reference.key if isinstance(reference, Reference) else ()
    if not (isinstance(key, tuple) and len(key) == 5 and key[0] == "storage" and isinstance(key[2], str)):
        raise ValueError(f"the numbers of {name!r:.80} are not stored in it")
    kind = key[1].name if isinstance(key[1], Name) and key[1].module == "torch" else None
    if kind not in _DTYPES:
        raise ValueError(f"{name!r:.80} has numbers of a kind that is not read")
    if key[2] not in stored:
        raise ValueError(f"the numbers of {name!r:.80} are missing")
    content, dtype = stored[key[2]], np.dtype(_DTYPES[kind])
    if len(content) % dtype.itemsize:
        raise ValueError(f"the numbers of {name!r:.80} end too early")
    return np.frombuffer(content, dtype)


def array_of(value: Any) -> Array:
    """The array or number of NumPy that a pickle describes; a ValueError if it is none of plain numbers."""
    if type(value) in (int, float):
        return np.asarray(value, np.float64)
    kind, shape, content = _array_parts(value)
    dtype, sizes = _dtype_of(kind), _whole(shape)
    fits = isinstance(content, bytes | bytearray) and math.prod(sizes) * dtype.itemsize == len(content)
    if not fits or min(sizes, default=0) < 0:
        raise ValueError("an array in it is damaged")
    return np.frombuffer(bytes(content), dtype).reshape(sizes)


def _array_parts(value: Any) -> tuple[Any, Any, Any]:
    """The kind, the shape and the bytes of an array, by the three ways in which NumPy pickles one."""
    if isinstance(value, Made) and isinstance(value.by, Name) and isinstance(value.arguments, tuple):
        arguments, state = value.arguments, value.state
        if value.by in _SCALAR and len(arguments) == 2:
            return arguments[0], (), arguments[1]
        if value.by in _FROM_BUFFER and len(arguments) == 4 and arguments[3] == "C":
            return arguments[1], arguments[2], arguments[0]
        if value.by in _RECONSTRUCT and isinstance(state, tuple) and len(state) == 5:
            if state[3] is True and len(_whole(state[1])) > 1:
                raise ValueError("an array in it has its columns first")
            return state[2], state[1], state[4]
    raise ValueError("there is something else in place of an array")


def _dtype_of(value: Any) -> np.dtype[Any]:
    """The kind of an array's elements, out of `numpy.dtype(kind)` and its order of bytes."""
    kind = order = None
    if isinstance(value, Made) and value.by == _DTYPE and isinstance(value.arguments, tuple) and value.arguments:
        kind = value.arguments[0]
        order = value.state[1] if isinstance(value.state, tuple) and len(value.state) > 1 else "|"
    if not (isinstance(kind, str) and kind in _PLAIN_KINDS and isinstance(order, str) and order in ("<", ">", "|")):
        raise ValueError("an array in it has elements that are no plain numbers")
    return np.dtype(f"{'<' if order == '|' else order}{kind}")
