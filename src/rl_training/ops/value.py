"""Value losses and their diagnostics, batched: every argument is `[B]`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.types import Array


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """Half the mean squared error."""
    return 0.5 * (value - target).square().mean()


def clipped_value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """The larger of the plain error and that of a value kept within `clip` of the old one."""
    kept = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * torch.max((value - target).square(), (kept - target).square()).mean()


def explained_variance(value: Array, target: Array) -> float:
    """1 - Var[target - value] / Var[target]; 0 where the target does not vary."""
    variance = float(np.var(target))
    return 0.0 if variance == 0.0 else 1.0 - float(np.var(target - value)) / variance
