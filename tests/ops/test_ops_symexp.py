"""Symmetric logarithms and exponentially spaced points: worked by hand, there and back, exactly 0 before learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.ops.symexp import (
    SymexpPoints,
    symexp,
    symexp_loss,
    symexp_mean,
    symexp_places,
    symexp_target_entropy,
    symexp_two_hot,
    symlog,
)

PAPER, SMALL = SymexpPoints(), SymexpPoints(5, 2.0)
SUPPORTS = [PAPER, SMALL, SymexpPoints(63, 20.0), SymexpPoints(10, 7.3), SymexpPoints(2, 1.0)]


def test_logarithms_worked_by_hand() -> None:
    x = torch.tensor([-(math.e - 1.0), 0.0, math.e**2 - 1.0])
    torch.testing.assert_close(symlog(x), torch.tensor([-1.0, 0.0, 2.0]))
    torch.testing.assert_close(symexp(torch.tensor([-1.0, 0.0, 2.0])), x)


@given(st.floats(-1e8, 1e8, width=32))
def test_the_exponential_is_the_inverse_of_the_logarithm(x: float) -> None:
    number = torch.tensor(x, dtype=torch.float64)
    assert float(symexp(symlog(number))) == pytest.approx(x, rel=1e-12, abs=1e-300)
    # In single precision the exponential has a tenth of the digits at 1e8, and near 0 none are lost.
    assert float(symexp(symlog(number.float()))) == pytest.approx(x, rel=1e-5, abs=1e-37)


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_points_are_ordered_and_exactly_symmetric(support: SymexpPoints) -> None:
    points = support.points
    assert points.dtype == np.float32
    assert len(points) == support.bins
    assert (np.diff(points) > 0.0).all()
    np.testing.assert_array_equal(points, -points[::-1])
    assert points[-1] == pytest.approx(math.expm1(support.limit), rel=1e-6)


def test_the_points_of_the_paper() -> None:
    # 255 points, 20 / 127 apart on the logarithmic scale; the middle one is 0.
    assert PAPER.points[127] == 0.0
    assert PAPER.points[128] == pytest.approx(math.expm1(20.0 / 127.0), rel=1e-6)


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_equal_logits_are_exactly_0(support: SymexpPoints) -> None:
    for level in (0.0, 0.1, -7.3):
        mean = symexp_mean(torch.full((3, 4, support.bins), level), support)
        assert torch.equal(mean, torch.zeros(3, 4))


def test_summed_one_after_the_other_equal_probabilities_would_not_give_0() -> None:
    assert np.cumsum(PAPER.points * np.float32(1.0 / 255.0))[-1] != 0.0


def test_mirrored_logits_mean_the_opposite_exactly() -> None:
    logits = 3.0 * torch.randn(20, 255, generator=torch.Generator().manual_seed(0))
    mirrored = symexp_mean(logits.flip(-1), PAPER)
    torch.testing.assert_close(mirrored, -symexp_mean(logits, PAPER), rtol=1e-5, atol=0.0)


def test_a_number_between_two_points_worked_by_hand() -> None:
    # The points are 0, e - 1 and e^2 - 1: 1 is 1 / (e - 1) = 58% of the way to the first.
    share = 1.0 / (math.e - 1.0)
    wanted = torch.tensor([[0.0, 0.0, 1.0 - share, share, 0.0], [0.0, share, 1.0 - share, 0.0, 0.0]])
    torch.testing.assert_close(symexp_two_hot(torch.tensor([1.0, -1.0]), SMALL), wanted)


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_a_number_on_a_point_has_all_the_weight_there(support: SymexpPoints) -> None:
    assert torch.equal(symexp_two_hot(torch.from_numpy(support.points), support), torch.eye(support.bins))


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_numbers_outside_the_range_count_as_its_ends(support: SymexpPoints) -> None:
    ends = symexp_two_hot(torch.tensor([-1e30, 1e30]), support)
    assert torch.equal(ends, torch.eye(support.bins)[[0, -1]])


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_numbers_survive_the_way_there_and_back(support: SymexpPoints) -> None:
    x = symexp(torch.linspace(-support.limit, support.limit, 1001))
    there = symexp_two_hot(x.view(7, 143), support)
    torch.testing.assert_close(there.sum(-1), torch.ones(7, 143))
    assert ((there > 0.0).sum(-1) <= 2).all()
    back = symexp_mean(there.log(), support)
    torch.testing.assert_close(back.view(-1), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_the_loss_is_the_cross_entropy_and_its_gradient_is_the_difference(support: SymexpPoints) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 5, support.bins, generator=generator, requires_grad=True)
    target = symexp(torch.randn(6, 5, generator=generator) * support.limit)
    loss = symexp_loss(logits, target, support)
    wanted = symexp_two_hot(target, support)
    torch.testing.assert_close(loss, -(wanted * logits.log_softmax(-1)).sum(-1))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(gradient, logits.detach().softmax(-1) - wanted)


def test_the_loss_less_the_entropy_of_its_target_is_a_divergence() -> None:
    target = torch.tensor([0.0, 0.3, -12.5, 4e5, 1e30])
    best = (symexp_two_hot(target, PAPER) + 1e-30).log()
    floor = symexp_target_entropy(target, PAPER)
    torch.testing.assert_close(symexp_loss(best, target, PAPER), floor)
    assert floor[0] == 0.0
    assert floor[1] > 0.1
    worse = best + torch.randn(5, 255, generator=torch.Generator().manual_seed(2))
    assert (symexp_loss(worse, target, PAPER) >= floor - 1e-6).all()


def test_no_gradient_reaches_the_target() -> None:
    target = torch.tensor([1.3], requires_grad=True)
    logits = torch.zeros(1, 255, requires_grad=True)
    symexp_loss(logits, target, PAPER).sum().backward()
    assert target.grad is None
    assert not symexp_places(target, PAPER)[1].requires_grad


def test_the_gradient_of_the_mean_equals_finite_differences() -> None:
    logits = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda leaf: symexp_mean(leaf, SymexpPoints(9, 3.0)), logits)


def test_a_number_that_is_none_is_not_hidden() -> None:
    assert symexp_loss(torch.zeros(1, 255), torch.tensor([math.nan]), PAPER).isnan().all()


@pytest.mark.parametrize("wrong", [(1, 20.0), (255, 0.0), (255, -1.0), (255, 100.0), (255, math.nan)])
def test_points_that_cannot_be_are_refused(wrong: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="at least 2 bins"):
        SymexpPoints(*wrong)
