"""Numbers as distributions over points: worked by hand, there and back, at the ends and beyond them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.ops.two_hot import Support, expectation, expected, h_transform, inverse_h, largest_return, two_hot

SMALL, ATARI = Support(2.0, 5), Support(300.0, 601)
SUPPORTS = [SMALL, Support(10.0, 21), Support(7.3, 10), ATARI]


def log(probabilities: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def test_compressed_numbers_worked_by_hand() -> None:
    # sqrt(3 + 1) - 1 + 0.003, and the same below 0.
    x = np.array([-8.0, -3.0, 0.0, 3.0, 99.0])
    np.testing.assert_allclose(h_transform(x), [-2.008, -1.003, 0.0, 1.003, 9.099], rtol=1e-12)


def test_a_number_between_two_points_worked_by_hand() -> None:
    # 3 is 1.003 on the compressed scale: between the points 1 and 2, at 0.3% of the way.
    np.testing.assert_allclose(
        two_hot(np.array([3.0, -3.0]), SMALL), [[0, 0, 0, 0.997, 0.003], [0.003, 0.997, 0, 0, 0]], atol=1e-7
    )


def test_points_are_even_and_symmetric() -> None:
    np.testing.assert_array_equal(SMALL.points, [-2, -1, 0, 1, 2])
    for support in SUPPORTS:
        assert support.points.dtype == np.float32
        assert len(support.points) == support.bins
        np.testing.assert_array_equal(support.points, -support.points[::-1])
        np.testing.assert_allclose(np.diff(support.points), support.gap, rtol=1e-4)


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_a_number_on_a_point_has_all_the_weight_there(support: Support) -> None:
    points = np.linspace(-support.limit, support.limit, support.bins)
    np.testing.assert_allclose(two_hot(inverse_h(points), support), np.eye(support.bins), atol=1e-6)


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_numbers_outside_the_range_count_as_its_ends(support: Support) -> None:
    largest = largest_return(support)
    ends = two_hot(np.array([-1e30, -2.0 * largest, -largest, largest, 2.0 * largest, 1e30]), support)
    np.testing.assert_allclose(ends, np.eye(support.bins)[[0, 0, 0, -1, -1, -1]], atol=1e-6)
    np.testing.assert_allclose(expectation(log(ends), support), np.repeat([-largest, largest], 3), rtol=1e-5)


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_numbers_survive_the_way_there_and_back(support: Support) -> None:
    largest = largest_return(support)
    x = np.concatenate([np.linspace(-largest, largest, 4001), np.linspace(-1.0, 1.0, 401), [1e-4, -1e-6]])
    there = two_hot(x.reshape(4, -1), support)
    assert there.dtype == np.float32
    np.testing.assert_allclose(there.sum(axis=-1), 1.0, rtol=1e-6)
    assert ((there > 0.0).sum(axis=-1) <= 2).all()
    back = expectation(log(there), support)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back.reshape(-1), x, rtol=1e-4, atol=1e-4)


@given(st.floats(-1e5, 1e5))
def test_the_inverse_is_the_inverse(x: float) -> None:
    assert inverse_h(h_transform(np.float64(x))) == pytest.approx(x, rel=1e-12, abs=1e-300)
    # The same with a float32 between them: no digits are lost near 0.
    single = np.float32(x)
    assert inverse_h(h_transform(single)) == pytest.approx(float(single), rel=1e-6, abs=1e-37)


def test_the_textbook_form_of_the_inverse_gives_the_same() -> None:
    y, eps = np.linspace(-400.0, 400.0, 999), 0.001
    root = (np.sqrt(1.0 + 4.0 * eps * (np.abs(y) + 1.0 + eps)) - 1.0) / (2.0 * eps)
    np.testing.assert_allclose(inverse_h(y), np.sign(y) * (root**2 - 1.0), rtol=1e-10, atol=1e-10)


def test_the_largest_return_of_known_supports() -> None:
    # CartPole at a discount of 0.997 needs 259, which 21 bins of width 1 do not hold.
    assert largest_return(Support(10.0, 21)) == pytest.approx(117.7, abs=0.5)
    assert largest_return(Support(20.0, 41)) > 259.0


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_equal_logits_mean_zero(support: Support) -> None:
    np.testing.assert_array_equal(expectation(np.zeros((3, support.bins), np.float32), support), np.zeros(3))


def test_a_shift_of_the_logits_changes_nothing() -> None:
    logits = np.random.default_rng(0).normal(size=(4, 3, 21)).astype(np.float32)
    support = Support(10.0, 21)
    np.testing.assert_allclose(expectation(logits + 500.0, support), expectation(logits, support), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("support", SUPPORTS, ids=str)
def test_the_torch_form_gives_the_same(support: Support) -> None:
    logits = 3.0 * np.random.default_rng(0).normal(size=(4, 3, support.bins)).astype(np.float32)
    wanted = expectation(logits, support)
    # By the compiled loop where it can, by torch where a gradient is asked for.
    for leaf in (torch.from_numpy(logits), torch.from_numpy(logits).requires_grad_()):
        ours = expected(leaf, support)
        assert ours.dtype == torch.float32
        assert ours.requires_grad == leaf.requires_grad
        np.testing.assert_allclose(ours.detach().numpy(), wanted, rtol=1e-5, atol=support.limit * 1e-6)


def test_the_gradient_of_the_torch_form_equals_finite_differences() -> None:
    logits = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda leaf: expected(leaf, Support(5.0, 7)), logits)


@pytest.mark.parametrize("wrong", [(0.0, 5), (-1.0, 5), (np.inf, 5), (np.nan, 5), (1.0, 1)])
def test_a_support_without_points_is_refused(wrong: tuple[float, int]) -> None:
    with pytest.raises(ValueError, match="2 bins"):
        Support(*wrong)
