"""Action distributions against closed forms, torch's own, and counted samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conformance import CONTINUOUS, DISCRETE
from rl_training.ops.distributions import (
    FORBIDDEN,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    action_distribution,
)
from rl_training.ops.kernels.acting import sample_categorical, sample_gaussian


def by_numpy(params: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return Categorical(params.shape[1]).sample(params, rng)


def by_kernel(params: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The compiled sampler through which small networks act."""
    action, log_prob = sample_categorical(params, np.array([params.shape[1]]), rng.random((len(params), 1)))
    return action[:, 0], log_prob


Sampler = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]
BOTH_SAMPLERS = pytest.mark.parametrize("sample", [by_numpy, by_kernel])


def logits(seed: int = 0, rows: int = 64, size: int = 5, scale: float = 2.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal((rows, size))).astype(np.float32)


def gaussian_params(seed: int = 0, rows: int = 64, size: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mean, log_std = rng.standard_normal((rows, size)), rng.uniform(-1.0, 0.5, (rows, size))
    return np.concatenate([mean, log_std], axis=1).astype(np.float32)


def test_the_distribution_fits_the_action_space() -> None:
    assert action_distribution(DISCRETE) == Categorical(4)
    assert action_distribution(CONTINUOUS) == DiagonalGaussian(2)
    assert Categorical(4).param_size == 4
    assert DiagonalGaussian(2).param_size == 4


def test_categorical_worked_by_hand() -> None:
    params = torch.tensor([[0.0, math.log(3.0)], [1.0, 1.0]], dtype=torch.float64)
    log_prob = Categorical(2).log_prob(params, torch.tensor([1, 0]))
    torch.testing.assert_close(log_prob, torch.tensor([math.log(0.75), math.log(0.5)], dtype=torch.float64))
    expected = [-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), math.log(2.0)]
    torch.testing.assert_close(Categorical(2).entropy(params), torch.tensor(expected, dtype=torch.float64))


def test_gaussian_worked_by_hand() -> None:
    # Two actions: 1 from N(0, 1), which is one deviation off, and 5 from N(1, 2), which is two deviations off.
    params = torch.tensor([[0.0, 1.0, 0.0, math.log(2.0)]], dtype=torch.float64)
    log_prob = DiagonalGaussian(2).log_prob(params, torch.tensor([[1.0, 5.0]], dtype=torch.float64))
    assert log_prob.item() == pytest.approx(-0.5 - 2.0 - math.log(2.0) - math.log(2.0 * math.pi))
    expected = 0.5 * math.log(2 * math.pi * math.e) + 0.5 * math.log(2 * math.pi * math.e * 4.0)
    assert DiagonalGaussian(2).entropy(params).item() == pytest.approx(expected)


def test_likelihoods_and_entropies_equal_those_of_torch() -> None:
    params = torch.from_numpy(logits()).double()
    action = torch.from_numpy(np.random.default_rng(1).integers(0, 5, 64))
    reference: Any = torch.distributions.Categorical(logits=params)
    torch.testing.assert_close(Categorical(5).log_prob(params, action), reference.log_prob(action))
    torch.testing.assert_close(Categorical(5).entropy(params), reference.entropy())
    params = torch.from_numpy(gaussian_params()).double()
    sample = torch.from_numpy(np.random.default_rng(2).standard_normal((64, 3)))
    reference = torch.distributions.Independent(torch.distributions.Normal(params[:, :3], params[:, 3:].exp()), 1)
    torch.testing.assert_close(DiagonalGaussian(3).log_prob(params, sample), reference.log_prob(sample))
    torch.testing.assert_close(DiagonalGaussian(3).entropy(params), reference.entropy())


def test_categorical_probabilities_sum_to_one() -> None:
    params = torch.from_numpy(logits(scale=20.0)).double()
    total = sum(Categorical(5).log_prob(params, torch.full((64,), index)).exp() for index in range(5))
    torch.testing.assert_close(total, torch.ones(64, dtype=torch.float64))


def test_the_gaussian_density_integrates_to_one() -> None:
    grid = torch.linspace(-12.0, 12.0, 801, dtype=torch.float64)
    cell = (grid[1] - grid[0]).item()
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    points = torch.stack([first.reshape(-1), second.reshape(-1)], dim=-1)
    params = torch.tensor([0.7, -1.2, math.log(0.5), math.log(1.7)], dtype=torch.float64).expand(len(points), 4)
    total = DiagonalGaussian(2).log_prob(params, points).exp().sum().item() * cell**2
    assert total == pytest.approx(1.0, abs=1e-9)


def test_the_gaussian_entropy_is_the_mean_of_minus_the_log_density() -> None:
    params = np.repeat(gaussian_params(rows=1), 100_000, axis=0)
    _, log_prob = DiagonalGaussian(3).sample(params, np.random.default_rng(0))
    entropy = DiagonalGaussian(3).entropy(torch.from_numpy(params[:1])).item()
    assert -log_prob.mean() == pytest.approx(entropy, abs=0.02)


@pytest.mark.parametrize(
    ("distribution", "params"),
    [(Categorical(5), logits()), (MultiCategorical((2, 3)), logits()), (DiagonalGaussian(3), gaussian_params())],
)
def test_the_log_probability_noted_while_acting_equals_the_one_that_is_learned_from(
    distribution: Any, params: np.ndarray
) -> None:
    for seed in range(20):
        action, noted = distribution.sample(params, np.random.default_rng(seed))
        learned = distribution.log_prob(torch.from_numpy(params), torch.from_numpy(action)).numpy()
        np.testing.assert_allclose(noted, learned, rtol=1e-6, atol=1e-6)


@BOTH_SAMPLERS
def test_sampled_frequencies_match_the_probabilities(sample: Sampler) -> None:
    params = np.array([[0.0, 1.0, -1.0, 0.5, -3.0]], np.float32)
    probability = np.exp(params[0]) / np.exp(params[0]).sum()
    draws = 50_000
    action, _ = sample(np.repeat(params, draws, axis=0), np.random.default_rng(0))
    counted = np.bincount(action, minlength=5)
    chi_square = float(((counted - draws * probability) ** 2 / (draws * probability)).sum())
    # Four degrees of freedom: one honest sampler in a thousand goes above 18.5.
    assert chi_square < 18.5


def test_gaussian_samples_have_their_mean_and_deviation() -> None:
    params = np.repeat(gaussian_params(rows=1), 100_000, axis=0)
    action, _ = DiagonalGaussian(3).sample(params, np.random.default_rng(0))
    np.testing.assert_allclose(action.mean(axis=0), params[0, :3], atol=0.02)
    np.testing.assert_allclose(action.std(axis=0), np.exp(params[0, 3:]), rtol=0.02)


def test_the_mode_is_the_likeliest_action_and_uses_no_randomness() -> None:
    params = logits()
    np.testing.assert_array_equal(Categorical(5).mode(params), params.argmax(axis=1))
    params = gaussian_params()
    np.testing.assert_array_equal(DiagonalGaussian(3).mode(params), params[:, :3])


def test_samples_differ_from_the_mode_and_repeat_with_the_same_stream() -> None:
    for distribution, params in ((Categorical(5), logits()), (DiagonalGaussian(3), gaussian_params())):
        first, _ = distribution.sample(params, np.random.default_rng(3))
        second, _ = distribution.sample(params, np.random.default_rng(3))
        np.testing.assert_array_equal(first, second)
        assert (first != distribution.mode(params)).any()


@BOTH_SAMPLERS
@pytest.mark.parametrize(
    "row",
    [[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, 1e4], [0.0, 0.0, -1e4], [-1e4, 1e4, -1e4]],
)
def test_extreme_logits_give_indices_in_range_and_finite_numbers(row: list[float], sample: Sampler) -> None:
    params = np.array([row] * 200, np.float32)
    action, log_prob = sample(params, np.random.default_rng(0))
    assert action.min() >= 0
    assert action.max() <= 2
    # An action that has no chance is never taken.
    assert (params[np.arange(200), action] == params.max()).all()
    assert np.isfinite(log_prob).all()
    assert np.isfinite(Categorical(3).entropy(torch.from_numpy(params)).numpy()).all()


@BOTH_SAMPLERS
def test_nan_logits_never_give_an_index_out_of_range(sample: Sampler) -> None:
    for row in ([np.nan] * 3, [np.nan, 0.0, 1.0], [0.0, 1.0, np.nan]):
        action, _ = sample(np.array([row] * 50, np.float32), np.random.default_rng(0))
        assert set(action.tolist()) <= {0, 1, 2}


@given(hnp.arrays(np.float32, (4, 6), elements=st.floats(-50, 50, width=32)), st.integers(0, 2**32 - 1))
def test_any_logits_give_indices_in_range_with_their_log_probability(params: np.ndarray, seed: int) -> None:
    exact = params.astype(np.float64) - np.log(np.exp(params.astype(np.float64)).sum(axis=1, keepdims=True))
    for sample in (by_numpy, by_kernel):
        action, log_prob = sample(params, np.random.default_rng(seed))
        assert ((action >= 0) & (action < 6)).all()
        np.testing.assert_allclose(log_prob, exact[np.arange(4), action], rtol=1e-5, atol=1e-5)


class LastDraw(np.random.Generator):
    """Draws the largest number below one: what rounding makes of it must not be an action too many."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return np.full(size, np.nextafter(1.0, 0.0))


@BOTH_SAMPLERS
def test_the_largest_random_number_still_picks_a_possible_action(sample: Sampler) -> None:
    params = np.concatenate([logits(rows=500, size=7), np.zeros((1, 7), np.float32)])
    params[::2, -1] = -1e4  # without any probability, though it is the last
    action, _ = sample(params, LastDraw())
    assert action.max() <= 6
    assert (action[::2] <= 5).all()


def test_several_choices_are_independent_categoricals() -> None:
    params = torch.from_numpy(logits()).double()
    action = torch.tensor([[1, 2]] * 64)
    several = MultiCategorical((2, 3))
    first, second = Categorical(2), Categorical(3)
    expected = first.log_prob(params[:, :2], action[:, 0]) + second.log_prob(params[:, 2:], action[:, 1])
    torch.testing.assert_close(several.log_prob(params, action), expected)
    torch.testing.assert_close(several.entropy(params), first.entropy(params[:, :2]) + second.entropy(params[:, 2:]))
    best = np.stack([logits()[:, :2].argmax(axis=1), logits()[:, 2:].argmax(axis=1)], axis=1)
    np.testing.assert_array_equal(several.mode(logits()), best)
    drawn, _ = several.sample(np.zeros((40_000, 5), np.float32), np.random.default_rng(0))
    frequencies = np.array([[np.mean((drawn == [a, b]).all(axis=1)) for b in range(3)] for a in range(2)])
    np.testing.assert_allclose(frequencies, np.full((2, 3), 1 / 6), atol=0.01)


def test_the_compiled_samplers_give_what_the_plain_ones_give() -> None:
    """From the same random numbers; the log-probabilities are those that torch learns from."""
    params = gaussian_params()
    params[:, 3:] = params[0, 3:]  # one deviation for all observations
    noise = np.random.default_rng(0).standard_normal((64, 3), dtype=np.float32)
    action, log_prob = sample_gaussian(params[:, :3], params[0, 3:], noise)
    plain, plain_log_prob = DiagonalGaussian(3).sample(params, np.random.default_rng(0))
    np.testing.assert_allclose(action, plain, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(log_prob, plain_log_prob, rtol=1e-5, atol=1e-5)
    chosen, log_prob = by_kernel(logits(), np.random.default_rng(0))
    plain, plain_log_prob = by_numpy(logits(), np.random.default_rng(0))
    np.testing.assert_array_equal(chosen, plain)
    np.testing.assert_allclose(log_prob, plain_log_prob, rtol=1e-6, atol=1e-6)


def _kl_pair(kind: str) -> tuple[Any, torch.Tensor, torch.Tensor]:
    distribution = {"one": Categorical(6), "several": MultiCategorical((2, 4)), "gaussian": DiagonalGaussian(3)}[kind]
    old, new = (torch.from_numpy(gaussian_params(seed)).double() for seed in (0, 1))
    return distribution, old, new


def test_kl_worked_by_hand() -> None:
    old, new = torch.tensor([[0.0, math.log(3.0)]]).double(), torch.tensor([[0.0, 0.0]]).double()
    expected = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert Categorical(2).kl(old, new).item() == pytest.approx(expected)
    # From N(1, 2^2) to N(0, 1): log(1 / 2) + (4 + 1) / 2 - 1 / 2
    gaussian = DiagonalGaussian(1).kl(torch.tensor([[1.0, math.log(2.0)]]), torch.tensor([[0.0, 0.0]]))
    assert gaussian.item() == pytest.approx(-math.log(2.0) + 2.0, rel=1e-6)


@pytest.mark.parametrize("kind", ["one", "several", "gaussian"])
def test_kl_equals_that_of_torch(kind: str) -> None:
    distribution, old, new = _kl_pair(kind)

    def parts(params: torch.Tensor) -> list[torch.distributions.Distribution]:
        if kind == "gaussian":
            normal = torch.distributions.Normal(params[:, :3], params[:, 3:].exp())
            return [torch.distributions.Independent(normal, 1)]
        logits = [params] if kind == "one" else [params[:, :2], params[:, 2:]]
        return [torch.distributions.Categorical(logits=part) for part in logits]

    pairs = zip(parts(old), parts(new), strict=True)
    expected = sum(torch.distributions.kl_divergence(before, after) for before, after in pairs)
    torch.testing.assert_close(distribution.kl(old, new), expected)
    assert (distribution.kl(old, new) > 0.0).all()
    torch.testing.assert_close(distribution.kl(old, old), torch.zeros(len(old)).double())


@pytest.mark.parametrize("kind", ["one", "several"])
def test_choices_that_both_forbid_add_nothing_to_the_kl_and_its_gradient(kind: str) -> None:
    distribution, old, new = _kl_pair(kind)
    allowed = torch.tensor([True, True, True, True, False, True])
    smaller = Categorical(5) if kind == "one" else MultiCategorical((2, 3))
    expected = smaller.kl(old[:, allowed], new[:, allowed])
    masked = new.masked_fill(~allowed, FORBIDDEN).requires_grad_()
    kl = distribution.kl(old.masked_fill(~allowed, FORBIDDEN), masked)
    torch.testing.assert_close(kl, expected)
    kl.sum().backward()
    assert masked.grad is not None
    assert torch.isfinite(masked.grad).all()
    assert not masked.grad[:, ~allowed].any()
