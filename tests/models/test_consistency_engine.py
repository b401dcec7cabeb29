"""The explicit gradient of the consistency loss against autograd."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rl_training.models.consistency_engine import ConsistencyEngine
from rl_training.models.efficientzero import Consistency
from rl_training.models.flat import FlatParameters
from rl_training.ops.kernels.layer_norm import cosine_gradient


def made(size: int, projection: int, hidden: int) -> Consistency:
    """Norms have scales and shifts of their own."""
    torch.manual_seed(size)
    module = Consistency((size,), projection_size=projection, hidden_size=hidden)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    FlatParameters(module.parameters())
    return module


def assert_equal_to_autograd(module: Consistency, engine: ConsistencyEngine, steps: int, batch: int) -> None:
    rng = np.random.default_rng(steps * batch)
    size = module.projector[0].in_features
    latents = rng.random((steps, batch, size + 2)).astype(np.float32)[..., :size]  # as they lie beside actions
    seen = rng.random((steps * batch, size)).astype(np.float32)
    weight = np.where(rng.random((steps, batch)) < 0.3, 0.0, rng.random((steps, batch))).astype(np.float32)
    exact = copy.deepcopy(module).double()
    exact.zero_grad(set_to_none=True)
    leaf = torch.from_numpy(latents.astype(np.float64)).requires_grad_()
    share = torch.from_numpy(weight).double()
    losses = exact(leaf, torch.from_numpy(seen).double().reshape(leaf.shape), share > 0.0)
    loss = (share * losses).sum()
    (1.7 * loss).backward()
    assert leaf.grad is not None

    for parameter in module.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(float("nan"))  # every gradient must be written, none added to
    ours, d_latent = engine.gradient(latents, seen, weight, 1.7)
    assert ours == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    assert d_latent.dtype == np.float32
    assert np.linalg.norm(d_latent - leaf.grad.numpy()) <= 1e-6 * np.linalg.norm(leaf.grad.numpy())
    assert not d_latent[weight == 0.0].any()
    whole = torch.cat([parameter.grad.flatten() for parameter in exact.parameters()])  # type: ignore[union-attr]
    fair = float(whole.norm()) / len(list(exact.parameters()))
    for (name, parameter), wanted in zip(module.named_parameters(), exact.parameters(), strict=True):
        assert parameter.grad is not None
        assert wanted.grad is not None
        error = float((parameter.grad - wanted.grad).norm())
        assert error <= 2e-6 * max(float(wanted.grad.norm()), fair), name


@pytest.mark.parametrize(("size", "projection", "hidden"), [(9, 16, 8), (5, 7, 3), (64, 64, 32), (33, 47, 23)])
def test_loss_and_gradients_equal_autograd(size: int, projection: int, hidden: int) -> None:
    module = made(size, projection, hidden)
    engine = ConsistencyEngine(module)
    for steps, batch in ((5, 33), (1, 1), (3, 8), (2, 40)):
        assert_equal_to_autograd(module, engine, steps, batch)


def test_several_threads_compute_the_same() -> None:
    module = made(9, 16, 8)
    try:
        torch.set_num_threads(2)
        assert_equal_to_autograd(module, ConsistencyEngine(module), 3, 20)
    finally:
        torch.set_num_threads(1)


def test_the_engine_sees_the_weights_of_now() -> None:
    module = made(9, 16, 8)
    engine = ConsistencyEngine(module)
    assert_equal_to_autograd(module, engine, 2, 9)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    assert_equal_to_autograd(module, engine, 2, 9)


def test_cosines_of_vectors_without_a_length_are_0() -> None:
    x = np.array([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [1e-12, 0.0, 0.0], [1.0, 2.0, 3.0]], np.float32)
    wanted = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 2.0, 3.0]], np.float32)
    weight, d = np.array([1.0, 1.0, 1.0, 0.5], np.float32), np.empty_like(x)
    leaf = torch.from_numpy(x).requires_grad_()
    cosine = torch.cosine_similarity(leaf, torch.from_numpy(wanted), dim=1)
    loss = -(torch.from_numpy(weight) * cosine).sum()
    (2.0 * loss).backward()
    assert leaf.grad is not None
    assert cosine_gradient(x, wanted, weight, 2.0, d) == pytest.approx(loss.item(), abs=1e-6)
    np.testing.assert_allclose(d, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert np.isfinite(d).all()
