"""Nested plain data with tensors as JSON and safetensors: exact, and nothing in these files is executed.

JSON has no tuples, no keys but strings, no nan, and few readers with integers beyond 64 bits. A value that is not plain
JSON is an object with one key that starts with `$`: `{"$tuple": [1, 2]}`, `{"$tensor": "state.optimizer.mean"}`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor

from rl_training.types import Array, UserError

_DEEPEST = 100
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_INTEGER = re.compile(r"-?0x[0-9a-f]+")


def encode(value: Any, where: str) -> tuple[bytes, bytes]:
    """A value as JSON and safetensors; an error names the place of what cannot be loaded again, starting at `where`."""
    tensors: dict[str, Tensor] = {}
    node = _encoded(value, where, tensors, 0)
    return json.dumps(node, allow_nan=False, separators=(",", ":")).encode(), encode_tensors(tensors)


def decode(text: bytes, tensors: Mapping[str, Tensor]) -> Any:
    """The value that was encoded; raises a ValueError if the text is not of that form or does not fit the tensors."""
    try:
        node = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    left = dict(tensors)
    value = _decoded(node, left, 0)
    if left:
        raise ValueError(f"it does not mention the tensor {min(left)!r}")
    return value


def _encoded(value: Any, where: str, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > _DEEPEST:
        raise UserError(f"{where[:60]}...: a checkpoint cannot hold more than {_DEEPEST} levels of nested data")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if -(2**63) <= value < 2**63 else {"$int": hex(value)}  # Python limits decimal digits, not hex
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if type(value) in (list, tuple):
        items = [_encoded(item, f"{where}[{index}]", tensors, depth + 1) for index, item in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, Mapping):
        return _encoded_mapping(value, where, tensors, depth)
    if isinstance(value, Tensor) and value.dtype in _NAMES and value.layout == torch.strided and not value.is_meta:
        name = where.encode("ascii", "backslashreplace").decode()
        while name in tensors:  # keys with dots in them can make two places look alike
            name += "'"
        tensors[name] = value
        return {"$tensor": name}
    kind = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
    raise UserError(f"{where}: a checkpoint cannot hold a {kind}, only plain data and tensors")


def _encoded_mapping(value: Mapping[Any, Any], where: str, tensors: dict[str, Tensor], depth: int) -> Any:
    items = []
    for key, item in value.items():
        if not _can_be_key(key):
            raise UserError(f"{where}: a checkpoint cannot hold a {type(key).__name__} as a key, only plain data")
        name = _encoded(key, where, tensors, depth + 1)
        place = f"{where}.{name if type(name) is str else json.dumps(name)}"  # Python limits the digits of an integer
        items.append((name, _encoded(item, place, tensors, depth + 1)))
    if all(type(key) is str and not key.startswith("$") for key, _ in items):
        return dict(items)
    return {"$dict": [list(pair) for pair in items]}


def _can_be_key(key: Any) -> bool:
    if type(key) is tuple:
        return all(map(_can_be_key, key))
    return key is None or type(key) in (bool, int, float, str) or isinstance(key, np.generic)


def _decoded(node: Any, tensors: dict[str, Tensor], depth: int) -> Any:
    """The value of a node; takes out of `tensors` what it uses."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(node, list):
        return [_decoded(item, tensors, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    if not any(key.startswith("$") for key in node):
        return {key: _decoded(item, tensors, depth + 1) for key, item in node.items()}
    match node:
        case {"$tuple": list(items), **rest} if not rest:
            return tuple(_decoded(item, tensors, depth + 1) for item in items)
        case {"$tensor": str(name), **rest} if not rest and name in tensors:
            return tensors.pop(name)
        case {"$int": str(digits), **rest} if not rest and _INTEGER.fullmatch(digits):
            return int(digits, 16)
        case {"$float": str(name), **rest} if not rest and name in _FLOATS:
            return _FLOATS[name]
        case {"$dict": list(pairs), **rest} if not rest and all(isinstance(p, list) and len(p) == 2 for p in pairs):
            items = [(_decoded(key, tensors, depth + 1), _decoded(item, tensors, depth + 1)) for key, item in pairs]
            return _unique_keys(items)
    raise ValueError(f"it has the unknown entry {json.dumps(node)[:60]}")


def _unique_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    for key, _ in pairs:
        if not _can_be_key(key):
            raise ValueError(f"a {type(key).__name__} cannot be a key")
    return _unique(pairs)


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"it has the key {twice!r:.60} twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors in the safetensors format. Its own writer copies several times, and refuses tensors that share memory."""
    # Wide numbers come first, so that all of them are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    parts = [_bytes_of(tensors[name]) for name in names]
    header: dict[str, Any] = {}
    offset = 0
    for name, part in zip(names, parts, strict=True):
        place = [offset, offset + part.nbytes]
        header[name] = {"dtype": _NAMES[tensors[name].dtype], "shape": list(tensors[name].shape), "data_offsets": place}
        offset += part.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous()
    # Strides of one element or none may be anything.
    content: Array = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy()
    return content.data


def decode_tensors(content: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises a ValueError if it is not one, before it allocates what it claims."""
    try:
        found = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
        return {name: _tensor(**described) for name, described in found}
    except (safetensors.SafetensorError, RuntimeError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _tensor(*, dtype: str, shape: list[int], data: bytearray) -> Tensor:
    if dtype not in _DTYPES:
        raise ValueError(f"a tensor has the unknown dtype {dtype!r}")
    # An empty buffer cannot be viewed.
    flat = torch.frombuffer(data, dtype=_DTYPES[dtype]) if data else torch.empty(0, dtype=_DTYPES[dtype])
    return flat.reshape(shape)
