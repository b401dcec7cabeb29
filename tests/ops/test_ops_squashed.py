"""Gaussian actions squashed by tanh: exact where tanh is 1, a density that is one, and gradients in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance import CONTINUOUS
from rl_training.models.mlp_ddpg import CriticShape
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.ops.distributions import LOG_STD_MAX, LOG_STD_MIN, squashed_log_prob, squashed_sample
from rl_training.ops.kernels.squashed import squashed_backward, squashed_forward

FORMS = pytest.mark.parametrize("form", ["kernel", "torch"])


def sample(form: str, params: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
    """Actions and log-densities by the kernel or by torch, from float32 as in training."""
    params, noise = np.asarray(params, np.float32), np.asarray(noise, np.float32)
    if form == "torch":
        action, log_prob = squashed_sample(torch.from_numpy(params), torch.from_numpy(noise))
        return action.numpy(), log_prob.numpy()
    found = np.full_like(noise, np.nan), np.full(len(noise), np.nan, np.float32)
    squashed_forward(params, noise, *found)
    return found


def exact(params: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
    """The same in double precision: 1 - tanh(x)^2 is 1 / cosh(x)^2."""
    params, noise = (np.asarray(np.asarray(array, np.float32), np.float64) for array in (params, noise))
    mean, log_std = np.split(params, 2, axis=-1)
    log_std = np.clip(log_std, -20.0, 2.0)
    raw = mean + np.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.tanh(raw), (gaussian + 2.0 * np.log(np.cosh(raw))).sum(axis=-1)


@FORMS
@pytest.mark.parametrize("mean", [-40.0, -10.0, -1.0, 0.0, 1.0, 10.0, 40.0])
def test_log_densities_are_exact_however_saturated_the_action_is(form: str, mean: float) -> None:
    noise = np.linspace(-3.0, 3.0, 13)[:, None]
    for log_std in (-3.0, 0.0, 1.0):
        params = np.tile([[mean, log_std]], (13, 1))
        action, log_prob = sample(form, params, noise)
        expected = exact(params, noise)
        np.testing.assert_allclose(action, expected[0], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(log_prob, expected[1], rtol=2e-6, atol=2e-6)
        assert np.isfinite(log_prob).all()
    if abs(mean) >= 10.0:  # as saturated as can be, and still not infinitely likely
        assert (np.abs(action[6]) == 1.0).all()


@given(st.integers(0, 100_000))
def test_kernel_and_torch_agree_on_any_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, size = rng.integers(1, 6, 2)
    params = rng.normal(0.0, 4.0, (rows, 2 * size))
    noise = rng.standard_normal((rows, size))
    for found, expected in zip(sample("kernel", params, noise), exact(params, noise), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for found, expected in zip(sample("torch", params, noise), exact(params, noise), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@FORMS
def test_deviations_are_kept_within_their_limits(form: str) -> None:
    wild, kept = (np.array([[0.5, log_std]]) for log_std in (90.0, LOG_STD_MAX))
    noise = np.array([[0.3]])
    np.testing.assert_array_equal(sample(form, wild, noise)[1], sample(form, kept, noise)[1])
    tiny, kept = (np.array([[0.5, log_std]]) for log_std in (-90.0, LOG_STD_MIN))
    np.testing.assert_array_equal(sample(form, tiny, noise)[1], sample(form, kept, noise)[1])


def integral(actions: np.ndarray, log_density: np.ndarray) -> float:
    """The area below a density by trapezoids, in double precision."""
    density = np.exp(log_density.astype(np.float64))
    return float((0.5 * (density[1:] + density[:-1]) * np.diff(actions.astype(np.float64))).sum())


@pytest.mark.parametrize("mean", [-1.5, 0.0, 0.7])
@pytest.mark.parametrize("log_std", [-2.0, -0.5, 0.3])
def test_the_density_integrates_to_one_over_the_interval(mean: float, log_std: float) -> None:
    grid = torch.tanh(torch.linspace(-7.0, 7.0, 20_001, dtype=torch.float64))  # dense where the density is steep
    params = torch.tensor([[mean, log_std]], dtype=torch.float64).expand(len(grid), 2)
    density = squashed_log_prob(params, grid[:, None]).numpy()
    assert integral(grid.numpy(), density) == pytest.approx(1.0, abs=2e-3)


@FORMS
def test_the_density_of_samples_integrates_to_one_too(form: str) -> None:
    """The samples' own log-densities over their own actions, for noise in equal steps."""
    noise = np.linspace(-6.0, 6.0, 4001)[:, None]
    action, log_prob = sample(form, np.tile([[0.4, -0.3]], (4001, 1)), noise)
    assert integral(action[:, 0], log_prob) == pytest.approx(1.0, abs=2e-3)


def test_densities_of_several_actions_multiply() -> None:
    params = torch.tensor([[0.3, -0.8, -0.2, 0.4]])
    action = torch.tensor([[0.1, -0.9]])
    parts = [squashed_log_prob(params[:, [k, k + 2]], action[:, [k]]) for k in (0, 1)]
    torch.testing.assert_close(squashed_log_prob(params, action), parts[0] + parts[1])


def test_the_models_log_density_of_a_sampled_action_is_that_of_the_sample() -> None:
    torch.manual_seed(0)
    model = MLPSACModel(CONTINUOUS, CriticShape((8,), "relu", 2))
    obs = torch.randn(200, 3)
    with torch.no_grad():
        action, log_prob = squashed_sample(model.actor(obs), torch.randn(200, 2))
        found = model.action_logprobs(obs, action)
    assert found.shape == (200,)
    inside = (action.abs() < 0.99).all(dim=1)
    assert inside.sum() > 100
    torch.testing.assert_close(found[inside], log_prob[inside], rtol=1e-3, atol=1e-3)


def test_the_models_log_density_of_the_ends_of_the_interval_is_finite() -> None:
    model = MLPSACModel(CONTINUOUS, CriticShape((8,), "relu", 2))
    ends = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
    log_prob = model.action_logprobs(torch.zeros(3, 3), ends)
    assert torch.isfinite(log_prob).all()
    log_prob.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.actor.parameters())


def test_the_models_critics_give_one_column_for_each_quantile() -> None:
    for quantiles in (1, 7):
        model = MLPSACModel(CONTINUOUS, CriticShape((8,), "relu", 3, quantiles))
        assert model.critic(torch.zeros(5, 3), torch.zeros(5, 2)).shape == (3, 5, quantiles)
        assert model.actor(torch.zeros(5, 3)).shape == (5, 4)


@pytest.mark.parametrize(
    "log_stds",
    [[-1.0, 0.5], [LOG_STD_MAX, LOG_STD_MIN], [LOG_STD_MAX + 3.0, LOG_STD_MIN - 3.0], [1.9999, -19.999]],
    ids=["inside", "at the limits", "beyond the limits", "almost at the limits"],
)
@pytest.mark.parametrize("spread", [0.5, 10.0])
def test_the_closed_form_gradient_is_autograds(log_stds: list[float], spread: float) -> None:
    rng = np.random.default_rng(0)
    params = np.concatenate([rng.normal(0.0, spread, (9, 2)), np.tile(log_stds, (9, 1))], axis=1).astype(np.float32)
    noise, d_action = rng.standard_normal((2, 9, 2)).astype(np.float32)
    d_log_prob = -0.37
    leaf = torch.from_numpy(params.astype(np.float64)).requires_grad_()
    action, log_prob = squashed_sample(leaf, torch.from_numpy(noise.astype(np.float64)))
    ((action * torch.from_numpy(d_action)).sum() + d_log_prob * log_prob.sum()).backward()
    assert leaf.grad is not None
    gradient = np.full_like(params, np.nan)
    actions = action.detach().numpy().astype(np.float32)
    squashed_backward(params, noise, actions, d_action, d_log_prob, gradient)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-4, atol=1e-5)
    beyond = np.abs(np.array(log_stds) + 9.0) > 11.0
    assert (gradient[:, 2:][:, beyond] == 0.0).all(), "a deviation that is held pulls nothing"
    assert (gradient[:, 2:][:, ~beyond] != 0.0).all()
