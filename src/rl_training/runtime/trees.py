"""Converts nested plain data with arrays to the form in a checkpoint, with tensors instead of arrays, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "NoneType": "nothing"}


def to_tensors(value: Any) -> Any:
    """Convert arrays to tensors, and NumPy's numbers to Python's."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return value.item() if isinstance(value, np.generic) else _converted(value, to_tensors)


def to_arrays(value: Any) -> Any:
    """Convert tensors to arrays, as copies."""
    return value.numpy().copy() if isinstance(value, torch.Tensor) else _converted(value, to_arrays)


def equal(left: Any, right: Any) -> bool:
    """Whether nested data with tensors is the same, to the bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        same = left.dtype == right.dtype and left.shape == right.shape
        return bool(same and left.numpy().tobytes() == right.numpy().tobytes())
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right or (left != left and right != right))


def _converted(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert the entries of a mapping, a list or a tuple; a named tuple becomes a plain one."""
    if isinstance(value, Mapping):
        return {key: convert(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [convert(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def refitted(saved: Any, own: Any) -> Any:
    """Saved data, with one's own tensors where the saved ones have another shape."""
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        return {key: refitted(value, own[key]) if key in own else value for key, value in saved.items()}
    tensors = isinstance(own, torch.Tensor) and isinstance(saved, torch.Tensor)
    return own if tensors and own.shape != saved.shape else saved


def check_like(saved: Any, own: Any, where: str, *, complete: bool = False) -> None:
    """Raise a ValueError if a saved value is of another kind than one's own, or a tensor has another shape or dtype.

    Everything fits None, and every tensor an empty one. With `complete` the keys of one's own mappings must be there;
    without, whoever loads them says which are needed.
    """
    if own is None or (type(saved) is type(own) and isinstance(own, (bool, int, float, str))):
        return
    kinds = [_kind(value) for value in (saved, own)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"{where} is {kinds[0]} instead of {kinds[1]}")
    if isinstance(own, Mapping):
        for key in own:
            if key in saved:
                check_like(saved[key], own[key], f"{where}.{key}", complete=complete)
            elif complete:
                raise ValueError(f"{where} has no {key!r}")
    elif isinstance(own, (list, tuple)) and len(saved) == len(own):
        for index, (item, mine) in enumerate(zip(saved, own, strict=True)):
            check_like(item, mine, f"{where}[{index}]", complete=complete)
    elif isinstance(own, torch.Tensor) and own.numel() and (saved.shape, saved.dtype) != (own.shape, own.dtype):
        found, wanted = (f"{list(tensor.shape)} {tensor.dtype}" for tensor in (saved, own))
        raise ValueError(f"{where} is {found} instead of {wanted}")


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    name = type(value.item() if isinstance(value, np.generic) else value).__name__
    return _WORDS.get(name, f"a {name}")
