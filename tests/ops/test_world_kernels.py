"""The kernels of world models: exp and sums in vectors, returns, samples at the edges, means that are exactly 0."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_training.models.rssm_engine_heads import symexp_places
from rl_training.ops.kernels import lean
from rl_training.ops.kernels.products import pack, panels_for, product
from rl_training.ops.kernels.returns import lambda_return_kernel
from rl_training.ops.kernels.vectors import dot, exp32, largest, logistic32, tanh32, total
from rl_training.ops.kernels.world_heads import choose, symexp_probabilities, two_hot_losses, two_hot_slopes
from rl_training.ops.kernels.world_states import draw_latents, enter_latents
from rl_training.ops.latents import sample_index
from rl_training.ops.returns import lambda_return
from rl_training.ops.symexp import SymexpPoints, symexp_loss, symexp_mean

F = np.float32


def test_products_of_parts_of_matrices() -> None:
    rng = np.random.default_rng(0)
    for rows, inputs, outputs in ((1, 1, 1), (3, 5, 7), (4, 16, 8), (5, 9, 24), (9, 33, 47), (16, 64, 32)):
        x, w = rng.normal(size=(rows, inputs + 5)).astype(F), rng.normal(size=(inputs + 4, outputs)).astype(F)
        out, panels = rng.normal(size=(rows, outputs + 6)).astype(F), panels_for(inputs + 4, outputs)
        pack(w, panels)
        wanted = x[:, 2 : 2 + inputs].astype(float) @ w[3 : 3 + inputs]
        for add in (0, 1):
            before = out.copy()
            product(x, 2, inputs, panels, 3, out, 4, outputs, add)
            there = out[:, 4 : 4 + outputs]
            np.testing.assert_allclose(there, wanted + add * before[:, 4 : 4 + outputs], rtol=1e-5, atol=1e-5)
            there[...] = before[:, 4 : 4 + outputs]
            np.testing.assert_array_equal(out, before)  # nothing beside it was touched


@lean
def curves(x: np.ndarray, exp: np.ndarray, logistic: np.ndarray, tanh: np.ndarray) -> None:
    for i in range(x.size):
        exp[i], logistic[i], tanh[i] = exp32(x[i]), logistic32(x[i]), tanh32(x[i])


@lean
def reduce(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    out[0], out[1], out[2] = dot(x, y), total(x), largest(x)


def test_exp_and_its_kin() -> None:
    x = np.linspace(-86.0, 86.0, 4001).astype(F)
    exp, logistic, tanh = (np.empty_like(x) for _ in range(3))
    curves(x, exp, logistic, tanh)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(exp, np.exp(wide), rtol=2e-7)
    np.testing.assert_allclose(logistic, 1.0 / (1.0 + np.exp(-wide)), rtol=4e-7)
    np.testing.assert_allclose(tanh, np.tanh(wide), atol=2e-7)


def test_beyond_the_range_of_exp_and_numbers_that_are_none() -> None:
    x = np.array([-1e8, -100.0, 100.0, np.inf, -np.inf, np.nan, 0.0], F)
    exp, logistic, tanh = (np.empty_like(x) for _ in range(3))
    curves(x, exp, logistic, tanh)
    np.testing.assert_allclose(logistic[:5], [0.0, 0.0, 1.0, 1.0, 0.0], atol=1e-37)
    np.testing.assert_array_equal(tanh[:5], [-1.0, -1.0, 1.0, 1.0, -1.0])
    assert np.isnan([exp[5], logistic[5], tanh[5]]).all()
    assert (exp[6], logistic[6], tanh[6]) == (1.0, 0.5, 0.0)


@pytest.mark.parametrize("size", [1, 7, 15, 16, 17, 31, 32, 64, 255])
def test_sums_of_vectors_of_any_size(size: int) -> None:
    rng = np.random.default_rng(size)
    # What is beyond the vectors must not be looked at.
    x, y = (np.full(300, 1e9, F) for _ in range(2))
    x[:size], y[:size] = rng.normal(size=size) - 9.0, rng.normal(size=size)
    out = np.empty(3, F)
    reduce(x[:size], y[:size], out)
    np.testing.assert_allclose(out[:2], [x[:size].astype(float) @ y[:size], x[:size].sum(dtype=float)], rtol=3e-6)
    assert out[2] == x[:size].max()


def test_returns_are_those_of_torch() -> None:
    rng = np.random.default_rng(0)
    reward, value, discount, trace = rng.random((4, 6, 3)).astype(F)
    wanted = lambda_return(*(torch.from_numpy(x) for x in (reward, value, discount, trace)))
    np.testing.assert_allclose(lambda_return_kernel(reward, value, discount, trace), wanted, rtol=1e-6)


@pytest.mark.parametrize("unimix", [0.0, 0.2])
def test_latents_are_drawn_as_by_torch(unimix: float) -> None:
    rng = np.random.default_rng(0)
    softmax = 0.05 + rng.random((400, 3, 4), dtype=F)
    softmax[::5, :, 3] = softmax[1::7, :, 0] = 0.0
    softmax /= softmax.sum(axis=-1, keepdims=True)
    uniform = rng.random((400, 3), dtype=F)
    # The ends of the interval, and a number that rounding has moved out of it.
    uniform[::4], uniform[1::4], uniform[2::4] = 0.0, np.nextafter(F(1.0), F(0.0)), 1.0
    index, state = np.empty((400, 3), np.uint8), np.full((400, 2 + 12), 7.0, F)
    draw_latents(softmax.reshape(400, 12), 4, unimix, uniform, index, state, 2)
    mixed = torch.from_numpy((1.0 - unimix) * softmax + unimix / 4).double().log()
    inside = uniform < 1.0
    np.testing.assert_array_equal(index[inside], sample_index(mixed, torch.from_numpy(uniform).double())[inside])
    np.testing.assert_array_equal(state[:, 2:].reshape(400, 3, 4), np.eye(4)[index])
    assert (state[:, :2] == 7.0).all()
    if unimix == 0.0:  # what is impossible is never drawn, neither first nor last
        assert (np.take_along_axis(softmax, index[..., None].astype(int), axis=-1) > 0.0).all()


def test_the_index_after_the_last_class_is_a_row_of_zeros() -> None:
    state = np.full((1, 3 + 8), 7.0, F)
    enter_latents(np.array([[4, 1]], np.uint8), 4, state, 3)
    np.testing.assert_array_equal(state[0, 3:], [0, 0, 0, 0, 0, 1, 0, 0])


def test_forbidden_choices_are_never_drawn() -> None:
    rng = np.random.default_rng(0)
    out, counts = rng.normal(size=(500, 5)).astype(F), np.array([3, 2])
    allowed = rng.random((500, 5)) < 0.5
    allowed[np.arange(500), rng.integers(3, size=500)] = allowed[np.arange(500), 3 + rng.integers(2, size=500)] = True
    uniform = rng.random((500, 2), dtype=F)
    uniform[::3], uniform[1::3] = 0.0, np.nextafter(F(1.0), F(0.0))
    action, columns = np.empty((500, 2), np.int64), np.empty((500, 5), F)
    choose(out, np.zeros(5, F), counts, 0.1, allowed, uniform, action, columns)
    assert allowed[columns.astype(bool)].all()
    np.testing.assert_array_equal(columns.sum(axis=1), 2.0)
    np.testing.assert_allclose(out[:, :3].sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("bins", [2, 7, 30, 255])
def test_symexp_means_and_losses_are_those_of_torch(bins: int) -> None:
    support, rng = SymexpPoints(bins, 4.0), np.random.default_rng(0)
    logits, bias = rng.normal(scale=2.0, size=(40, bins)).astype(F), rng.normal(size=bins).astype(F)
    points = support.points
    target = np.concatenate([rng.normal(scale=20.0, size=35), points[[0, -1, bins // 2]], [-1e6, 1e6]]).astype(F)[None]
    weight = rng.random((1, 40)).astype(F)
    leaf = torch.from_numpy(logits + bias).double().requires_grad_()
    exact = symexp_loss(leaf, torch.from_numpy(target[0]).double(), support)
    (exact * torch.from_numpy(weight[0])).sum().backward()
    mean, loss = np.empty(40, F), np.empty(40, F)
    symexp_probabilities(logits, bias, points[-(bins // 2) :].copy(), mean)
    np.testing.assert_allclose(mean, symexp_mean(leaf.detach(), support), rtol=2e-5, atol=2e-5)
    lower, share = symexp_places(target, support)
    two_hot_losses(logits, lower[0], share[0], loss)
    np.testing.assert_allclose(loss, exact.detach(), rtol=1e-5)
    two_hot_slopes(logits, lower, share, weight)
    assert leaf.grad is not None
    np.testing.assert_allclose(logits, leaf.grad, atol=1e-6)


@pytest.mark.parametrize("bins", [2, 7, 254, 255])
def test_equal_logits_mean_exactly_0(bins: int) -> None:
    mean = np.full(3, np.nan, F)
    points = SymexpPoints(bins).points[-(bins // 2) :].copy()
    symexp_probabilities(np.full((3, bins), 0.3, F), np.zeros(bins, F), points, mean)
    np.testing.assert_array_equal(mean, 0.0)
