"""Attention over short windows, and gated units, by torch."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn


def gated(x: Tensor) -> Tensor:
    """silu of the first half of the columns of `[N, 2 H]` times the second half."""
    row, up = x.chunk(2, dim=-1)
    return nn.functional.silu(row) * up


def window_attention(product: Tensor, near: Tensor, absent: Tensor | None = None) -> Tensor:
    """What tokens `[B, T]` find in their windows, `[B, T, D]`, by softmax(q k / sqrt(size) + near) v.

    `product` `[B, T, 3 D]` are queries, keys and values of all heads, `near` `[H, reach]` is added to scores, by
    distance in tokens. A token at an odd place, an action, sees `reach` tokens with itself, others one less: whole
    steps. The first `absent` `[B]` tokens of a row are not there.
    """
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


@cache
def _band(tokens: int, reach: int) -> tuple[Tensor, Tensor]:
    """Distances and what is hidden `[T, T]`."""
    place = torch.arange(tokens)
    distance = place[:, None] - place
    hidden = (distance < 0) | (distance >= reach - 1 + place[:, None] % 2)
    return distance.clamp(0, reach - 1), hidden
