"""Log-densities of given actions: they depend on the actions, integrate to one, and have closed-form gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance import CONTINUOUS, agent
from off_policy_reference import acted, transitions
from rl_training.algorithms.awac import awac_weights
from rl_training.algorithms.parts.regressions import CategoricalLikelihood, SquaredError
from rl_training.ops.distributions import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    Categorical,
    before_squashing,
    gaussian_log_prob,
    squashed_log_prob,
)
from rl_training.ops.kernels.heads import gaussian_backward, gaussian_forward
from rl_training.ops.kernels.likelihood import squashed_likelihood, squashed_likelihood_backward
from rl_training.ops.policy import effective_share

FORMS = pytest.mark.parametrize("form", ["kernel", "torch"])


def squashed(form: str, params: Any, action: Any) -> np.ndarray:
    """Log-densities of squashed actions, from float32 as in training."""
    params, action = np.asarray(params, np.float32), np.asarray(action, np.float32)
    if form == "torch":
        return squashed_log_prob(torch.from_numpy(params), torch.from_numpy(action)).numpy()
    found = np.full(len(action), np.nan, np.float32)
    squashed_likelihood(params, before_squashing(torch.from_numpy(action)).numpy(), found)
    return found


def gaussian(form: str, mean: Any, log_std: Any, action: Any) -> np.ndarray:
    arrays = [np.asarray(array, np.float32) for array in (mean, log_std, action)]
    if form == "torch":
        return gaussian_log_prob(*map(torch.from_numpy, arrays)).numpy()
    found, entropy = np.full((2, len(arrays[0])), np.nan, np.float32)
    gaussian_forward(arrays[0], arrays[1], arrays[2].astype(np.float64), found, entropy)
    return found


def area(points: np.ndarray, log_density: np.ndarray) -> float:
    """The integral of a density by trapezoids, in double precision."""
    return float(np.trapezoid(np.exp(log_density.astype(np.float64)), points.astype(np.float64)))


# The densities


@FORMS
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-2.0, 2.0), (-0.4, 0.4), (-1.0, 3.0)])
def test_the_squashed_density_integrates_to_one_in_the_environments_own_units(
    form: str, low: float, high: float
) -> None:
    """Of an action that is scaled to other bounds, the density is that of the policy's, divided by the scale."""
    own = np.tanh(np.linspace(-6.0, 6.0, 20_001))
    scale = (high - low) / 2.0
    taken = low + (own + 1.0) * scale
    log_density = squashed(form, np.tile([[0.6, -0.7]], (len(own), 1)), ((taken - low) / scale - 1.0)[:, None])
    assert area(taken, log_density - np.log(scale)) == pytest.approx(1.0, abs=2e-3)


@FORMS
def test_the_squashed_density_is_the_share_of_samples_that_fall_into_a_bin(form: str) -> None:
    rng = np.random.default_rng(0)
    samples = np.tanh(0.3 + np.exp(-0.5) * rng.standard_normal(400_000))
    shares, edges = np.histogram(samples, bins=40, range=(-0.95, 0.95))
    middles = (edges[1:] + edges[:-1]) / 2.0
    density = np.exp(squashed(form, np.tile([[0.3, -0.5]], (40, 1)), middles[:, None]))
    np.testing.assert_allclose(density, shares / len(samples) / np.diff(edges), rtol=0.05, atol=0.01)


@FORMS
@pytest.mark.parametrize("log_std", [-2.0, 0.0, 1.0])
def test_the_gaussian_density_integrates_to_one(form: str, log_std: float) -> None:
    points = np.linspace(-30.0, 30.0, 40_001)
    found = gaussian(form, np.full((len(points), 1), 0.4), [log_std], points[:, None])
    assert area(points, found) == pytest.approx(1.0, abs=1e-3)
    assert points[found.argmax()] == pytest.approx(0.4, abs=2e-3)


@FORMS
def test_densities_of_several_actions_multiply(form: str) -> None:
    params, action = np.array([[0.3, -0.8, -0.2, 0.4]]), np.array([[0.1, -0.9]])
    parts = [squashed(form, params[:, [k, k + 2]], action[:, [k]]) for k in (0, 1)]
    np.testing.assert_allclose(squashed(form, params, action), sum(parts), rtol=1e-5)
    parts = [gaussian(form, action[:, [k]], [0.1 + k], params[:, [k]]) for k in (0, 1)]
    np.testing.assert_allclose(gaussian(form, action, [0.1, 1.1], params[:, :2]), sum(parts), rtol=1e-5)


@FORMS
def test_actions_at_the_ends_of_the_interval_have_finite_densities(form: str) -> None:
    found = squashed(form, np.zeros((3, 4)), [[1.0, -1.0], [-1.0, 1.0], [0.999999, -0.999999]])
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, found[0], rtol=1e-3)


@given(st.integers(0, 100_000))
def test_kernels_and_torch_agree_on_any_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, size = rng.integers(1, 6, 2)
    action = rng.uniform(-1.0, 1.0, (rows, size))
    params = np.concatenate([rng.normal(0, 2, (rows, size)), rng.uniform(-3, 3, (rows, size))], axis=1)
    np.testing.assert_allclose(*(squashed(form, params, action) for form in ("kernel", "torch")), rtol=1e-4, atol=1e-4)
    log_std = rng.uniform(-3, 2, size)
    found = (gaussian(form, params[:, :size], log_std, action) for form in ("kernel", "torch"))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)


# The gradients


@pytest.mark.parametrize(
    "log_stds",
    [[-1.0, 0.5], [LOG_STD_MAX, -3.0], [LOG_STD_MAX + 3.0, LOG_STD_MAX + 0.01]],
    ids=["inside", "at the limit", "beyond the limit"],
)
def test_the_closed_form_gradient_of_the_squashed_density_is_autograds(log_stds: list[float]) -> None:
    rng = np.random.default_rng(0)
    params = np.concatenate([rng.normal(0.0, 1.0, (9, 2)), np.tile(log_stds, (9, 1))], axis=1).astype(np.float32)
    action = rng.uniform(-1.0, 1.0, (9, 2)).astype(np.float32)
    d_log_prob = rng.standard_normal(9).astype(np.float32)
    leaf = torch.from_numpy(params.astype(np.float64)).requires_grad_()
    (squashed_log_prob(leaf, torch.from_numpy(action).double()) * torch.from_numpy(d_log_prob)).sum().backward()
    assert leaf.grad is not None
    gradient = np.full_like(params, np.nan)
    squashed_likelihood_backward(params, np.arctanh(action), d_log_prob, gradient)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-4, atol=1e-5)
    held = np.array(log_stds) > LOG_STD_MAX
    assert (gradient[:, 2:][:, held] == 0.0).all(), "a deviation that is held pulls nothing"
    assert (gradient[:, 2:][:, ~held] != 0.0).all()


def test_a_deviation_below_its_limit_is_held_too() -> None:
    gradient = np.full((1, 2), np.nan, np.float32)
    params = np.array([[0.5, LOG_STD_MIN - 1.0]], np.float32)
    squashed_likelihood_backward(params, np.array([[0.5]], np.float32), np.ones(1, np.float32), gradient)
    np.testing.assert_array_equal(gradient, 0.0)


def test_the_closed_form_gradient_of_the_gaussian_density_is_autograds() -> None:
    rng = np.random.default_rng(0)
    mean, action = rng.uniform(-1.0, 1.0, (2, 9, 3)).astype(np.float32)
    log_std, d_log_prob = np.array([-1.0, 0.3, 1.5], np.float32), rng.standard_normal(9).astype(np.float32)
    leaves = [torch.from_numpy(array.astype(np.float64)).requires_grad_() for array in (mean, log_std)]
    log_prob = gaussian_log_prob(*leaves, torch.from_numpy(action).double())
    (log_prob * torch.from_numpy(d_log_prob)).sum().backward()
    d_mean, d_log_std = mean.copy(), np.full_like(log_std, np.nan)
    gaussian_backward(d_mean, log_std, action.astype(np.float64), d_log_prob, 0.0, d_log_std)
    for found, leaf in zip((d_mean, d_log_std), leaves, strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-4, atol=1e-5)


# The actors' densities of the data's actions


def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions of two dimensions that cover a square, and the area of each."""
    middles = (edges[1:] + edges[:-1]) / 2.0
    pairs = np.stack(np.meshgrid(middles, middles), axis=-1).reshape(-1, 2)
    return pairs.astype(np.float32), np.outer(np.diff(edges), np.diff(edges)).ravel()


@pytest.mark.parametrize("engine", ["auto", "autograd"])
@pytest.mark.parametrize(
    ("algo", "head", "edges"),
    [
        ("awac", "squashed", np.tanh(np.linspace(-6.0, 6.0, 151))),
        ("awac", "gaussian", np.linspace(-2.0, 2.0, 201)),
        ("iql", "gaussian", np.linspace(-8.0, 8.0, 151)),
    ],
    ids=["soft", "narrow gaussian", "gaussian"],
)
def test_an_actors_density_is_that_of_the_actions_it_is_given(
    engine: str, algo: str, head: str, edges: np.ndarray
) -> None:
    """Not of actions that it drew itself: over all actions at one observation it integrates to one."""
    learner = agent(algo, CONTINUOUS, engine=engine, policy_head=head)
    regression = learner.regression
    actions, area_of_each = cells(edges)
    obs = np.repeat(transitions(CONTINUOUS, 1).obs, len(actions), axis=0)
    columns = (actions, np.ones(len(obs), np.float32))
    density, again = (
        np.exp(learner.actor.fit(obs, regression, *columns, learning_rate=0.0).astype(np.float64)) for _ in range(2)
    )
    np.testing.assert_array_equal(density, again)
    assert (density * area_of_each).sum() == pytest.approx(1.0, abs=0.01)
    assert density.max() > 3.0 * np.median(density)
    if head == "gaussian":  # the mean of a squashed Gaussian is nowhere to be read
        mean = (density[:, None] * actions).sum(axis=0) / density.sum()
        np.testing.assert_allclose(mean, acted(learner, obs[:1], explore=False)[0], atol=1e-3)


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_what_is_held_out_costs_what_it_would_if_it_were_learned_from(engine: str) -> None:
    for algo, settings in (
        ("awac", {}),
        ("awac", {"policy_head": "squashed"}),
        ("bc", {"loss": "likelihood"}),
        ("bc", {"loss": "likelihood", "policy_head": "squashed"}),
        ("bc", {"loss": "mse"}),
    ):
        learner, batch = agent(algo, CONTINUOUS, engine=engine, **settings), transitions(CONTINUOUS, 9)
        regression = learner.regression
        report = learner.actor.fit(batch.obs, regression, batch.action, np.ones(9, np.float32), learning_rate=0.0)
        held_out = regression.held_out(learner.policy, batch.obs, batch.action)
        np.testing.assert_allclose(held_out, regression.costs(report, batch.action), rtol=1e-4, atol=1e-5)


# Weights and losses, by hand


def test_regression_losses_worked_by_hand() -> None:
    logits, weight = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([3.0, 0.5])
    one_of_two = CategoricalLikelihood(Categorical(2))
    loss, log_prob = one_of_two.loss(logits, torch.tensor([0, 0]), weight, None)
    np.testing.assert_allclose(log_prob.numpy(), [-np.log(2.0), 1.0 - np.log(1.0 + np.e)], rtol=1e-6)
    assert loss.item() == pytest.approx((3.0 * np.log(2.0) + 0.5 * (np.log(1.0 + np.e) - 1.0)) / 2)
    outputs, wanted = torch.tensor([[50.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    loss, own = SquaredError().loss(outputs, wanted, weight)
    np.testing.assert_array_equal(own.numpy(), [[1.0, 0.0], [0.0, 0.0]])
    # Averaged over samples and dimensions: (3 * 1 + 0.5 * 4) / (2 * 2).
    assert loss.item() == pytest.approx(5.0 / 4.0)


def clipped_weights(advantage: torch.Tensor, awac_lambda: float, max_weight: float) -> np.ndarray:
    return awac_weights(advantage, awac_lambda=awac_lambda, weighting="clipped", max_weight=max_weight).numpy()


def softmax_weights(advantage: torch.Tensor, awac_lambda: float) -> np.ndarray:
    return awac_weights(advantage, awac_lambda=awac_lambda, weighting="softmax", max_weight=1.0).numpy()


def test_exponential_weights_are_clipped_and_do_not_overflow() -> None:
    advantage = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4])
    found = clipped_weights(advantage, 0.5, 5.0)
    np.testing.assert_allclose(found, [0.0, np.exp(-2.0), 1.0, 5.0, 5.0], rtol=1e-6)
    np.testing.assert_allclose(clipped_weights(advantage[1:4], 0.5, 100.0), np.exp([-2.0, 0.0, 2.0]), 1e-5)


def test_softmax_weights_have_a_mean_of_one_and_do_not_overflow() -> None:
    advantage = np.array([-1.0, 0.0, 0.5])
    powers = np.exp(advantage / 0.5)
    found = softmax_weights(torch.from_numpy(advantage), 0.5)
    np.testing.assert_allclose(found, 3.0 * powers / powers.sum(), rtol=1e-6)
    extreme = softmax_weights(torch.tensor([0.0, 1e4]), 0.1)
    np.testing.assert_array_equal(extreme, [0.0, 2.0])


@pytest.mark.parametrize(("weight", "share"), [([2.0] * 4, 1.0), ([0.0, 0.0, 3.0, 0.0], 0.25), ([1.0, 3.0], 0.8)])
def test_the_effective_share_of_weighted_samples(weight: list[float], share: float) -> None:
    assert effective_share(torch.tensor(weight)).item() == pytest.approx(share)
