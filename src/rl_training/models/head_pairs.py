"""Two linear heads on one hidden layer, with their gradient in closed form: for float32 on a CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.transformer_blocks import array_of, multiplied
from rl_training.ops.fast_path import compiled
from rl_training.ops.kernels.blocks import add_and_open
from rl_training.ops.kernels.unroll import silu_backward
from rl_training.types import Array


def head_pair(x: Tensor, hidden: nn.Linear, first: nn.Linear, second: nn.Linear) -> tuple[Tensor, Tensor]:
    """What two heads say of silu(hidden(x)), for `[..., D]`."""
    if compiled(x):
        layers = (layer for linear in (hidden, first, second) for layer in (linear.weight, linear.bias))
        return _HeadPair.apply(x, *layers)  # type: ignore[no-any-return, no-untyped-call]
    shared = nn.functional.silu(hidden(x))
    return first(shared), second(shared)


class _Kept(NamedTuple):
    rows: Array  # [N, D]
    hidden: Array  # [N, H]
    gates: Array  # [N, H]


class _HeadPair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, first: Tensor, add: Tensor, second: Tensor, more: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = array_of(x).reshape(-1, x.shape[-1])
        hidden = multiplied(rows, array_of(weight).T)
        gates = np.empty_like(hidden)
        add_and_open(hidden, array_of(bias), gates)
        said = []
        for head, its in ((first, add), (second, more)):
            found = multiplied(hidden, array_of(head).T)
            found += array_of(its)
            said.append(torch.from_numpy(found).view(*x.shape[:-1], -1))
        ctx.save_for_backward(weight, first, second)
        ctx.kept = _Kept(rows, hidden, gates)
        return said[0], said[1]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, ...]:
        (weight, *heads), kept = map(array_of, ctx.saved_tensors), ctx.kept
        given = [array_of(slope).reshape(len(kept.rows), -1) for slope in slopes]
        d = multiplied(given[0], heads[0])
        d += multiplied(given[1], heads[1])
        silu_backward(kept.hidden, kept.gates, d)
        found = [multiplied(d, weight).reshape(*slopes[0].shape[:-1], -1)]
        for read, slope in ((kept.rows, d), (kept.hidden, given[0]), (kept.hidden, given[1])):
            found += [multiplied(slope.T, read), slope.sum(axis=0)]
        return tuple(map(torch.from_numpy, found))
