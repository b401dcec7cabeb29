"""Attention over short windows, and gated units: compiled for float32 on a CPU, by torch everywhere else."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.ops.kernels.attention import attend, attend_backward, gate, gate_backward


def gated(x: Tensor) -> Tensor:
    """silu of the first half of the columns of `[N, 2 H]` times the second half."""
    if _compiled(x):
        return _Gate.apply(x)  # type: ignore[no-any-return, no-untyped-call]
    row, up = x.chunk(2, dim=-1)
    return nn.functional.silu(row) * up


def window_attention(product: Tensor, near: Tensor, absent: Tensor | None = None) -> Tensor:
    """What tokens `[B, T]` find in their windows, `[B, T, D]`, by softmax(q k / sqrt(size) + near) v.

    `product` `[B, T, 3 D]` are queries, keys and values of all heads, `near` `[H, reach]` is added to scores, by
    distance in tokens. A token at an odd place, an action, sees `reach` tokens with itself, others one less: whole
    steps. The first `absent` `[B]` tokens of a row are not there.
    """
    if _compiled(product):
        none = torch.zeros(len(product), dtype=torch.int64) if absent is None else absent
        return _Attend.apply(product, near, none)  # type: ignore[no-any-return, no-untyped-call]
    length, (heads, reach) = product.shape[1], near.shape
    distance, hidden = (table.to(product.device) for table in _band(length, reach))
    if absent is not None:
        place = torch.arange(length, device=product.device)
        # A token always sees itself, so that what is not there is nowhere nan.
        missing = (place < absent[:, None, None]) & (place[:, None] != place)
        hidden = (hidden | missing)[:, None]
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).transpose(1, 2) for x in product.chunk(3, dim=-1))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + near[:, distance]
    found = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ v
    together: Tensor = found.transpose(1, 2).flatten(-2)
    return together


def _compiled(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32


@cache
def _band(tokens: int, reach: int) -> tuple[Tensor, Tensor]:
    """Distances and what is hidden `[T, T]`."""
    place = torch.arange(tokens)
    distance = place[:, None] - place
    hidden = (distance < 0) | (distance >= reach - 1 + place[:, None] % 2)
    return distance.clamp(0, reach - 1), hidden


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty(len(x), x.shape[1] // 2)
        gate(x.detach().numpy(), out.numpy())
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        d_x = torch.empty_like(x)
        gate_backward(x.detach().numpy(), slopes[0].contiguous().numpy(), d_x.numpy())
        return d_x


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, product: Tensor, near: Tensor, absent: Tensor) -> Tensor:
        product = product.contiguous()
        count, length, width = product.shape
        shares = product.new_empty(count, length, *near.shape)
        out = product.new_empty(count, length, width // 3)
        rows = np.ascontiguousarray(absent.numpy(), np.int64)
        attend(product.detach().numpy(), near.detach().contiguous().numpy(), rows, shares.numpy(), out.numpy())
        ctx.save_for_backward(product, shares)
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        product, shares = ctx.saved_tensors
        d_product, d_near = torch.zeros_like(product), product.new_zeros(shares.shape[2:])
        given = (product.detach().numpy(), shares.numpy(), slopes[0].contiguous().numpy())
        attend_backward(*given, d_product.numpy(), d_near.numpy())
        return d_product, d_near, None
