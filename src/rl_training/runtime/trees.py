"""Converts nested plain data with arrays to the form in a checkpoint, with tensors instead of arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def to_tensors(value: Any) -> Any:
    """Convert arrays to tensors, and NumPy's numbers to Python's."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: to_tensors(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_tensors(item) for item in value)
    return value


def to_arrays(value: Any) -> Any:
    """Convert tensors to arrays, as copies."""
    if isinstance(value, torch.Tensor):
        return value.numpy().copy()
    if isinstance(value, Mapping):
        return {key: to_arrays(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_arrays(item) for item in value)
    return value
