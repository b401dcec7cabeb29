"""The explicit form of the states of world models against autograd."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rl_training.models.flat import FlatParameters
from rl_training.models.rssm import RSSM, WorldSize, WorldState
from rl_training.models.rssm_engine import Scan
from rl_training.ops.latents import index_of
from worlds import SMALL, uniforms

SIZES = {
    "small": SMALL,
    "one block": WorldSize(deter=16, hidden=9, classes=3, units=12, depth=2, stoch=5, blocks=1),
    "wide": WorldSize(deter=64, hidden=32, classes=8, units=12, depth=2, stoch=16, blocks=8),
}
TOKENS, ACTIONS = 7, 3


def made(size: WorldSize, unimix: float = 0.01) -> RSSM:
    torch.manual_seed(1)
    rssm = RSSM(size, ACTIONS, TOKENS, unimix=unimix)
    with torch.no_grad():
        for parameter in rssm.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return rssm


def assert_equal_gradients(module: torch.nn.Module, exact: torch.nn.Module, tolerance: float = 5e-6) -> None:
    """Every tensor's gradient is within a tolerance of its norm, or of a small share of the whole."""
    wanted = [torch.zeros_like(p) if p.grad is None else p.grad for p in exact.parameters()]
    whole = float(torch.cat([d.flatten() for d in wanted]).norm())
    for (name, parameter), d in zip(module.named_parameters(), wanted, strict=True):
        assert parameter.grad is not None
        error = float((parameter.grad - d).norm())
        assert error <= tolerance * max(float(d.norm()), 1e-3 * whole), (name, error, float(d.norm()), whole)


@pytest.mark.parametrize("unimix", [0.01, 0.0])
@pytest.mark.parametrize("name", SIZES)
def test_a_scan_and_its_gradients_equal_autograd(name: str, unimix: float) -> None:
    size, steps, batch = SIZES[name], 6, 5
    rssm = made(size, unimix)
    exact = copy.deepcopy(rssm).double()
    flat = FlatParameters(rssm.parameters())
    scan = Scan(rssm)
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(steps, batch, TOKENS)).astype(np.float32)
    actions = rng.normal(size=(steps, batch, ACTIONS)).astype(np.float32) * 2.0
    first = rng.random((steps, batch)) < 0.3
    uniform = uniforms(steps, batch, size.stoch).numpy()
    state = np.zeros((batch, size.features), np.float32)
    state[:, : size.deter] = rng.normal(size=(batch, size.deter))
    latents = torch.nn.functional.one_hot(
        torch.from_numpy(rng.integers(size.classes, size=(batch, size.stoch))), size.classes
    )
    state[:, size.deter :] = latents.flatten(1).numpy()

    before = WorldState(torch.from_numpy(state[:, : size.deter]).double(), latents.double())
    leaf = torch.from_numpy(tokens).double().requires_grad_()
    seen = exact.observe(
        before, torch.from_numpy(actions).double(), leaf, torch.from_numpy(first), torch.from_numpy(uniform).double()
    )
    d_states = rng.normal(size=(steps * batch, size.features)).astype(np.float32)
    d_posterior = rng.normal(size=(steps * batch, size.features - size.deter)).astype(np.float32)
    given = [torch.from_numpy(d).double() for d in (d_states, d_posterior)]
    torch.autograd.backward([seen.state.features.flatten(0, 1), seen.posterior.exp().flatten(0, 1).flatten(1)], given)

    flat.grad.fill_(float("nan"))
    out = np.full((steps * batch, size.features), np.nan, np.float32)
    index = np.empty((steps * batch, size.stoch), np.uint8)
    scaled = (actions / np.maximum(1.0, np.abs(actions)) * ~first[..., None]).reshape(steps * batch, ACTIONS)
    softmax = scan.forward(state, scaled, tokens.reshape(-1, TOKENS), first, uniform, out, index)
    np.testing.assert_allclose(out, seen.state.features.detach().flatten(0, 1), atol=2e-6)
    mixed = (1.0 - unimix) * softmax + unimix / size.classes
    np.testing.assert_allclose(mixed, seen.posterior.exp().detach().flatten(0, 1).flatten(1), atol=2e-6)
    np.testing.assert_array_equal(index, index_of(seen.state.stoch).flatten(0, 1))
    d_tokens = np.empty((steps * batch, TOKENS), np.float32)
    scan.backward(d_states, d_posterior.copy(), d_tokens)
    exact.prior_head.zero_grad()
    for parameter in rssm.prior_head.parameters():
        parameter.grad.zero_()
    assert_equal_gradients(rssm, exact)
    np.testing.assert_allclose(d_tokens, leaf.grad.flatten(0, 1), atol=1e-5 * float(leaf.grad.abs().max()))
