"""Policy and value losses against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.ops.policy import approximate_kl, clip_fraction, clipped_policy_loss, policy_gradient_loss, standardize
from rl_training.ops.value import clipped_value_loss, explained_variance, value_loss


def numbers(*items: float) -> torch.Tensor:
    return torch.tensor(items, dtype=torch.float64)


def test_the_clipped_surrogate_takes_the_worse_of_the_two_worked_by_hand() -> None:
    log_ratio = numbers(1.5, 0.5, 1.5, 0.5, 1.0).log().requires_grad_()
    advantage = numbers(1.0, 1.0, -1.0, -1.0, 2.0)
    # The smaller of ratio * advantage and the clipped one: 1.2, 0.5, -1.5, -0.8, 2.
    loss = clipped_policy_loss(log_ratio, advantage, 0.2)
    assert loss.item() == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8 + 2.0) / 5)
    loss.backward()
    # Where the clipped one was taken there is no gradient; elsewhere it is -ratio * advantage / 5.
    torch.testing.assert_close(log_ratio.grad, numbers(0.0, -0.5, 1.5, 0.0, -2.0) / 5)


def test_no_clipping_at_all_is_the_plain_ratio() -> None:
    log_ratio, advantage = numbers(0.4, -0.3), numbers(1.0, -2.0)
    expected = -(math.exp(0.4) - 2.0 * math.exp(-0.3)) / 2
    assert clipped_policy_loss(log_ratio, advantage, 10.0).item() == pytest.approx(expected)


def test_a_clip_of_zero_lets_no_sample_improve() -> None:
    log_ratio = numbers(0.3, -0.3).requires_grad_()
    clipped_policy_loss(log_ratio, numbers(1.0, -1.0), 0.0).backward()
    torch.testing.assert_close(log_ratio.grad, numbers(0.0, 0.0))


def test_the_policy_gradient_loss_worked_by_hand() -> None:
    log_prob = numbers(-1.0, -2.0).requires_grad_()
    loss = policy_gradient_loss(log_prob, numbers(3.0, -1.0))
    assert loss.item() == pytest.approx(-(-3.0 + 2.0) / 2)
    loss.backward()
    torch.testing.assert_close(log_prob.grad, numbers(-1.5, 0.5))


def test_the_kl_estimate_is_ratio_minus_one_minus_log_ratio_worked_by_hand() -> None:
    log_ratio = numbers(0.0, math.log(2.0), -math.log(2.0))
    assert approximate_kl(log_ratio).item() == pytest.approx(((1 - math.log(2)) + (-0.5 + math.log(2))) / 3)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_the_kl_estimate_is_never_negative(log_ratios: list[float]) -> None:
    assert approximate_kl(numbers(*log_ratios)).item() >= -1e-15


def test_the_kl_estimate_agrees_with_the_kl_of_two_known_policies() -> None:
    old, new = numbers(0.1, 0.2, 0.7), numbers(0.3, 0.3, 0.4)
    exact = (old * (old / new).log()).sum().item()
    rng = np.random.default_rng(0)
    actions = torch.from_numpy(rng.choice(3, size=200_000, p=old.numpy()))
    assert approximate_kl((new / old).log()[actions]).item() == pytest.approx(exact, rel=0.02)


def test_the_clip_fraction_counts_ratios_outside_the_interval() -> None:
    assert clip_fraction(numbers(1.0, 1.3, 0.7, 1.1).log(), 0.2).item() == 0.5
    assert clip_fraction(numbers(1.0, 1.3, 0.7, 1.1).log(), 0.05).item() == 0.75


def test_standardised_advantages_worked_by_hand() -> None:
    torch.testing.assert_close(standardize(numbers(1.0, 3.0)), numbers(-1.0, 1.0) / math.sqrt(2.0))


def test_standardised_advantages_have_mean_zero_and_deviation_one() -> None:
    scaled = standardize(100.0 + 7.0 * torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    assert scaled.mean().item() == pytest.approx(0.0, abs=1e-4)
    assert scaled.std().item() == pytest.approx(1.0, abs=1e-4)


def test_a_single_advantage_is_left_as_it_is() -> None:
    torch.testing.assert_close(standardize(numbers(3.5)), numbers(3.5))


def test_equal_advantages_become_zero_and_not_nan() -> None:
    torch.testing.assert_close(standardize(numbers(2.0, 2.0, 2.0)), numbers(0.0, 0.0, 0.0))


def test_the_value_loss_is_the_mean_squared_error() -> None:
    value = numbers(1.0, 4.0).requires_grad_()
    loss = value_loss(value, numbers(2.0, 1.0))
    assert loss.item() == pytest.approx((1.0 + 9.0) / 2)
    loss.backward()
    torch.testing.assert_close(value.grad, numbers(-1.0, 3.0))


def test_value_clipping_takes_the_larger_error_worked_by_hand() -> None:
    # Kept values: 1.2 (moved too far up), 0.8 (too far down), 1.1 (near enough).
    value, old, target = numbers(2.0, 0.0, 1.1), numbers(1.0, 1.0, 1.0), numbers(2.0, -3.0, 1.0)
    value.requires_grad_()
    errors = [max(0.0, 0.8**2), max(3.0**2, 3.8**2), max(0.1**2, 0.1**2)]
    loss = clipped_value_loss(value, old, target, 0.2)
    assert loss.item() == pytest.approx(sum(errors) / 3)
    loss.backward()
    # The first two were taken from the kept value, which does not move.
    torch.testing.assert_close(value.grad, numbers(0.0, 0.0, 0.2 / 3))


def test_value_clipping_still_learns_where_the_plain_error_is_larger() -> None:
    value = numbers(3.0).requires_grad_()
    loss = clipped_value_loss(value, numbers(1.0), numbers(0.0), 0.5)
    assert loss.item() == pytest.approx(9.0)
    loss.backward()
    torch.testing.assert_close(value.grad, numbers(6.0))


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.floats(-9, 9)), min_size=1), st.floats(0.01, 5))
def test_the_clipped_value_loss_is_never_below_the_plain_one(
    rows: list[tuple[float, float, float]], clip: float
) -> None:
    value, old, target = (numbers(*items) for items in zip(*rows, strict=True))
    assert clipped_value_loss(value, old, target, clip).item() >= value_loss(value, target).item() - 1e-12


def test_explained_variance_of_perfect_useless_and_harmful_predictions() -> None:
    target = np.array([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(target + 7.0, target) == 1.0
    assert explained_variance(np.full(4, 2.0), target) == 0.0
    assert explained_variance(-target, target) == pytest.approx(-3.0)
    assert explained_variance(target, np.full(4, 2.0)) == 0.0
