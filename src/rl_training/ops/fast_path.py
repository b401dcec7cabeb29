"""Whether compiled functions may stand in for torch's own, which every one of them has beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_TORCH_ALONE = ContextVar("torch_alone", default=False)


def compiled(x: Tensor) -> bool:
    """Whether compiled functions can read `x`, and may."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not _TORCH_ALONE.get()


@contextmanager
def torch_alone(wanted: bool = True) -> Iterator[None]:
    """Let torch do everything in here, if that is `wanted`: what the setting `engine: autograd` asks for."""
    before = _TORCH_ALONE.set(wanted)
    try:
        yield
    finally:
        _TORCH_ALONE.reset(before)
