"""A step of Adam in one private operation of torch and in plain ones; which versions of torch have the former."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch
from torch import Tensor

from rl_training.models.adam import AdamStep, adam_on, fused_adam, plain_adam
from rl_training.models.flat import FlatAdam, FlatGroup

# The first version of torch whose `torch._fused_adam_` computes on a CPU.
FUSED_SINCE = (2, 4)
PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(".")[:2])


def test_every_version_that_is_allowed_has_the_fused_step_and_so_does_this_one() -> None:
    required = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    (floor,) = (match[1] for text in required if (match := re.fullmatch(r"torch>=([\d.]+)", text)))
    assert version(floor) >= FUSED_SINCE
    assert version(torch.__version__) >= FUSED_SINCE
    assert adam_on(torch.device("cpu")) is fused_adam, "training would be slower: a newer torch has changed it"


def test_it_is_called_in_one_place() -> None:
    source = PROJECT.parent / "src"
    assert [file.name for file in source.rglob("*.py") if "_fused_adam_(" in file.read_text()] == ["adam.py"]


class Steps:
    """Adam with one of the two steps, from weights of their own."""

    def __init__(self, step: AdamStep, weights: Tensor) -> None:
        self.step, self.weights = step, weights.clone()
        self.moment, self.square = torch.zeros_like(weights), torch.zeros_like(weights)
        self.count = torch.zeros(())

    def __call__(self, grad: Tensor, rate: float, betas: tuple[float, float], eps: float) -> None:
        self.step(self.weights, grad, self.moment, self.square, self.count, rate, betas, eps)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize(("betas", "eps"), [((0.9, 0.999), 1e-8), ((0.5, 0.9), 1e-5)])
def test_both_steps_are_the_same_but_for_rounding(scale: float, betas: tuple[float, float], eps: float) -> None:
    """After one step they differ by one unit in the last place at most, after 500 by a few."""
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(1003, generator=rng)  # not a multiple of any vector's length
    one, other = Steps(fused_adam, weights), Steps(plain_adam, weights)
    unit = torch.finfo(torch.float32).eps
    for number in range(500):
        grad = scale * torch.randn(1003, generator=rng) * (torch.rand(1003, generator=rng) < 0.8)
        for steps in (one, other):
            steps(grad, 3e-3 if number % 7 else 0.0, betas, eps)
        size = one.weights.abs().clamp(min=1e-2)
        bound = unit * (1 if number == 0 else 16)
        assert ((one.weights - other.weights).abs() / size).max() <= bound, number
    assert (one.weights - weights).abs().mean() > 0.01
    torch.testing.assert_close(one.moment, other.moment, rtol=1e-5, atol=1e-6 * scale)
    torch.testing.assert_close(one.square, other.square, rtol=1e-5, atol=0.0)
    assert one.count == other.count == 500


def removed(*_: Any, **__: Any) -> None:
    raise TypeError("_fused_adam_() got an unexpected keyword argument 'lr'")


@pytest.mark.parametrize("gone", [True, False])
def test_without_the_private_operation_the_plain_step_serves(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    adam_on.cache_clear()
    with monkeypatch.context() as patch:
        if gone:
            patch.delattr(torch, "_fused_adam_")
        else:
            patch.setattr(torch, "_fused_adam_", removed)
        assert adam_on(torch.device("cpu")) is plain_adam
        weights, grad = torch.ones(3), torch.tensor([1.0, -2.0, 0.0])
        adam = FlatAdam(FlatGroup(weights, grad), eps=1e-8)
        adam.step(0.1)  # a first step moves every weight by the learning rate, against the sign of its gradient
        torch.testing.assert_close(weights, torch.tensor([0.9, 1.1, 1.0]))
    adam_on.cache_clear()
    assert adam_on(torch.device("cpu")) is fused_adam
