"""The closed form of a transformer's blocks equals torch's own, with the gradients of all that it reads."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from rl_training.models.adapters import AdapterShape
from rl_training.models.transformer import Layer, Transformer, TransformerShape
from rl_training.ops.fast_path import torch_alone
from scalezero_worlds import stir


def transformer(experts: int, *, heads: int = 2, context: int = 2, stage: int = 0) -> Transformer:
    torch.manual_seed(0)
    made = Transformer(TransformerShape(16, 2, heads, context, 12, experts, AdapterShape(2, 4.0, 2)))
    stir(made)
    for layer in made.layers:
        assert isinstance(layer, Layer)
        for number in range(1, stage + 1):
            for weight in (
                layer.attention.into,
                layer.attention.out,
                layer.experts.shared_in,
                layer.experts.shared_out,
            ):
                weight.begin_stage(number)
    return made


def results(model: Transformer, x: Tensor, absent: Tensor | None, stage: int, *, states: bool = False) -> list[Tensor]:
    """What is read, and the gradients of parameters and tokens: of everything that is read, its routing too."""
    x = x.detach().clone().requires_grad_()
    read = model(x, absent, stage, states=states)
    parts = [read.features, *read.past.keys, *read.past.values, *(sent.probability for sent in read.routing)]
    total = sum((part * torch.linspace(-1.0, 1.0, part.numel()).to(part).view_as(part)).sum() for part in parts)
    leaves = [x, *(parameter for parameter in model.parameters() if parameter.requires_grad)]
    slopes = torch.autograd.grad(total, leaves, allow_unused=True)
    return [*parts, *(torch.zeros_like(leaf) if d is None else d for d, leaf in zip(slopes, leaves, strict=True))]


@pytest.mark.parametrize("experts", [0, 1, 3, 9])
@pytest.mark.parametrize("stage", [0, 2])
@pytest.mark.parametrize("absent", [None, [0, 2, 4]])
def test_blocks_equal_torch(experts: int, stage: int, absent: list[int] | None) -> None:
    model = transformer(experts, stage=stage)
    x = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(5))
    gone = None if absent is None else torch.tensor(absent)
    found = results(model, x, gone, stage)
    for one, other in zip(found, results(copy.deepcopy(model).double(), x.double(), gone, stage), strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=2e-5)


def test_tokens_that_are_no_rows_of_memory() -> None:
    model = transformer(3)
    x = torch.randn(7, 3, 16, generator=torch.Generator().manual_seed(5)).transpose(0, 1)
    for one, other in zip(results(model, x, None, 0), results(model, x.contiguous(), None, 0), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("states", [False, True], ids=["all_tokens", "states"])
@pytest.mark.parametrize("context", [1, 3, 5])
@pytest.mark.parametrize("heads", [1, 4])
def test_windows_of_any_length_and_all_heads_equal_torch(heads: int, context: int, states: bool) -> None:
    model = transformer(3, heads=heads, context=context)
    x = torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(5))
    with torch_alone():
        plain = results(model, x, None, 0, states=states)
    for one, other in zip(results(model, x, None, 0, states=states), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=5e-5)


def test_states_are_the_same_with_and_without_the_tokens_of_actions() -> None:
    model = transformer(3)
    x = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(5))
    for given in (torch_alone(False), torch_alone()):
        with given:
            torch.testing.assert_close(model(x, states=True).features, model(x).features[:, 0::2])


def test_torch_works_alone_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = transformer(3), torch.randn(3, 7, 16)
    monkeypatch.setattr("rl_training.models.transformer.attention_block", None)
    with torch_alone():
        model(x)
    with pytest.raises(TypeError):
        model(x)
