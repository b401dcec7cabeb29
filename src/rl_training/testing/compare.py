"""Where two states of a run are not equal to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.runtime.checkpoints.checkpoint import Checkpoint
from rl_training.runtime.clock import by_wall_clock


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Where two nested states are not equal to the bit; wall-clock metrics are ignored."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
        return [] if same else [where]
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return [] if same else [where]
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        kept = [key for key in a.keys() | b.keys() if key != "metrics_length" and not by_wall_clock(str(key))]
        keys = sorted(kept, key=str)
        found = [f"{where}.{key}" for key in keys if (key in a) != (key in b)]
        return found + [
            d for key in keys if key in a and key in b for d in differences(a[key], b[key], f"{where}.{key}")
        ]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return [f"{where} (lengths {len(a)} and {len(b)})"]
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{where}[{i}]")]
    return [] if a == b or (a != a and b != b) else [f"{where} ({a!r} and {b!r})"]


def checkpoint_differences(a: Checkpoint, b: Checkpoint) -> list[str]:
    """Where two checkpoints differ: weights, optimisers, counters, streams, environments, replay buffers."""
    contents = [{name: array.chunks() for name, array in checkpoint.arrays.items()} for checkpoint in (a, b)]
    return [
        *differences(a.policy, b.policy, "policy"),
        *differences(a.state, b.state, "state"),
        *differences(a.envs, b.envs, "envs"),
        *differences(contents[0], contents[1], "arrays"),
    ]
