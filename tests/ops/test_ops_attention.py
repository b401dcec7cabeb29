"""Compiled attention over windows and gated units equal torch's own, with their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rl_training.ops.attention import gated, window_attention


def slopes(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weight = torch.linspace(-1.0, 1.0, out.numel()).to(out).view_as(out)
    return list(torch.autograd.grad((out * weight).sum(), inputs))


def check(single: list[Tensor], double: list[Tensor]) -> None:
    for one, other in zip(single, double, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [1, 7, 32])
def test_gated_units(hidden: int) -> None:
    x = torch.randn(9, 2 * hidden, generator=torch.Generator().manual_seed(0)).mul(3.0).requires_grad_()
    wide = x.detach().double().requires_grad_()
    check([gated(x), *slopes(gated(x), [x])], [gated(wide), *slopes(gated(wide), [wide])])
    torch.testing.assert_close(gated(x), torch.nn.functional.silu(x[:, :hidden]) * x[:, hidden:])


@pytest.mark.parametrize("absent", [None, [0, 4, 2]])
@pytest.mark.parametrize(("context", "heads", "length"), [(1, 1, 5), (3, 2, 11), (9, 4, 7), (2, 2, 1)])
def test_attention_over_windows(absent: list[int] | None, context: int, heads: int, length: int) -> None:
    generator = torch.Generator().manual_seed(1)
    product = torch.randn(3, length, 3 * 8 * heads, generator=generator).requires_grad_()
    near = torch.randn(heads, 2 * context, generator=generator).requires_grad_()
    gone = None if absent is None else torch.tensor(absent).clamp(max=length - 1)
    wide = [x.detach().double().requires_grad_() for x in (product, near)]
    out, other = window_attention(product, near, gone), window_attention(*wide, gone)
    check([out, *slopes(out, [product, near])], [other, *slopes(other, wide)])
