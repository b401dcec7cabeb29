"""The closed form of two heads on one hidden layer equals torch's own, with its gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from rl_training.models.head_pairs import head_pair
from rl_training.models.transformer_blocks import unwoven, woven


def results(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    said = head_pair(x, *layers)  # type: ignore[arg-type]
    total = sum((part * torch.linspace(-1.0, 1.0, part.numel()).to(part).view_as(part)).sum() for part in said)
    return [*said, *torch.autograd.grad(total, [x, *layers.parameters()])]


@pytest.mark.parametrize("shape", [(5, 3, 8), (7, 8)])
def test_a_pair_of_heads_equals_torch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layers, x = nn.ModuleList([nn.Linear(8, 6), nn.Linear(6, 2), nn.Linear(6, 11)]), torch.randn(shape)
    for one, other in zip(results(layers, x), results(copy.deepcopy(layers).double(), x.double()), strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-5)


def test_a_head_that_nobody_asks_has_no_gradient() -> None:
    torch.manual_seed(0)
    layers, x = nn.ModuleList([nn.Linear(8, 6), nn.Linear(6, 2), nn.Linear(6, 11)]), torch.randn(5, 8)
    head_pair(x, *layers)[1].sum().backward()  # type: ignore[arg-type, no-untyped-call]
    assert not layers[1].weight.grad.any()
    assert layers[2].weight.grad.any()


def test_tokens_are_woven_and_taken_apart() -> None:
    latents, table = torch.randn(2, 4, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    actions = torch.tensor([[0, 2, 2], [1, 2, 0]])
    tokens = woven(latents, table, actions)
    states, acts = unwoven(tokens)
    assert torch.equal(states, latents.transpose(0, 1))
    assert torch.equal(acts, table[actions].transpose(0, 1))
    weights = [torch.randn_like(part) for part in (states, acts)]
    found = torch.autograd.grad((states * weights[0]).sum() + (acts * weights[1]).sum(), (latents, table))
    plain = (latents.transpose(0, 1) * weights[0]).sum() + (table[actions].transpose(0, 1) * weights[1]).sum()
    for one, other in zip(found, torch.autograd.grad(plain, (latents, table)), strict=True):
        torch.testing.assert_close(one, other)
