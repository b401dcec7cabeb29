"""Converts nested plain data with arrays to the form in a checkpoint, with tensors instead of arrays, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


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
