"""Compiled softmax and losses of distributions in groups equal torch's own, with their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rl_training.ops.divergences import group_softmax, summed_divergence, summed_entropy


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def same(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Whether a function of float32 and of float64 agree, with their gradients."""
    found = []
    for given in (x.clone(), x.double()):
        given.requires_grad_()
        out = function(given)
        weight = torch.linspace(-1.0, 1.0, out.numel()).to(out).view_as(out) + 2.0
        found.append((out, *torch.autograd.grad((out * weight).sum(), given)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("width", "group"), [(16, 8), (6, 2), (51, 51), (40, 20), (3, 1)])
def test_softmax_within_groups(width: int, group: int) -> None:
    x = 5.0 * normal(4, 3, width)
    same(lambda given: group_softmax(given, group), x)
    same(lambda given: group_softmax(given, group), x.transpose(0, 1))
    sums = group_softmax(x, group).view(4, 3, -1, group).sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize(("width", "group"), [(16, 8), (6, None), (51, None), (34, 17)])
def test_weighted_divergences(width: int, group: int | None) -> None:
    weight = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    weight[2] = 0.0
    target = group_softmax(3.0 * normal(1, 5, 3, width)[0], width if group is None else group)
    target[0, :, : group or width] = 0.0  # of no probability at all
    target[0, :, 1] = 1.0
    same(lambda given: summed_divergence(given, target.to(given), weight.to(given), group), 4.0 * normal(5, 3, width))
    assert float(summed_divergence(target.clamp(min=1e-30).log(), target, weight, group)) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("width", [1, 2, 18])
def test_weighted_entropies(width: int) -> None:
    weight = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    same(lambda given: summed_entropy(given, weight.to(given)), 4.0 * normal(5, 3, width))
    assert float(summed_entropy(torch.zeros(5, 3, 4), torch.ones(5, 3))) == pytest.approx(15 * 1.3862944)
