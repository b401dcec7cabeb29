"""Small models of MuZero, and what autograd says of unrolling them, to compare engines with."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.models.muzero import MLPMuZero, MuZeroNetwork, unroll
from rl_training.models.muzero_engine import MuZeroEngine
from rl_training.ops.sampled_policy import sampled_actions
from rl_training.ops.search import GumbelRule, Puct, Roots, Searcher
from rl_training.ops.two_hot import Support
from rl_training.types import SpaceInfo

DISCRETE = SpaceInfo((5,), "float32", "discrete", (), 3, (3,), (0,))
CONTINUOUS = SpaceInfo((5,), "float32", "continuous", (2,), 2, (), (), (-1.0, -1.0), (1.0, 1.0))
KINDS = {"discrete": DISCRETE, "continuous": CONTINUOUS}
REWARD, VALUE = Support(3.0, 7), Support(10.0, 21)


def made(info: SpaceInfo = DISCRETE, hidden: tuple[int, ...] = (12,), activation: str = "relu") -> MLPMuZero:
    """A network whose heads are not silent."""
    torch.manual_seed(1)
    network = MLPMuZero(
        info,
        latent_size=9,
        hidden_sizes=hidden,
        activation=activation,
        reward_support=REWARD,
        value_support=VALUE,
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def inputs(info: SpaceInfo, steps: int, batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(batch, 5)).astype(np.float32)
    if info.continuous:
        return obs, rng.uniform(-1.0, 1.0, size=(steps, batch, 2)).astype(np.float32)
    return obs, rng.integers(3, size=(steps, batch))


def slopes(out: Any, seed: int = 5) -> list[np.ndarray]:
    """Gradients of policy, value, reward and latent."""
    rng = np.random.default_rng(seed)
    shapes = (out.policy.shape, out.value.shape, out.reward.shape, out.latent.shape)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def reference(network: MuZeroNetwork, obs: np.ndarray, actions: np.ndarray, latent: bool) -> Any:
    """What autograd says in float64: results, the gradients given to them, and those of all parameters."""
    exact = copy.deepcopy(network).double()
    exact.zero_grad(set_to_none=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)  # networks make floats of what they are given
        out = unroll(exact, torch.from_numpy(obs), torch.from_numpy(actions))
    results = [out.policy, out.value, out.reward, out.latent][: 4 if latent else 3]
    assert all(result.dtype == torch.float64 for result in results)
    given = slopes(out)[: len(results)]
    torch.autograd.backward(results, [torch.from_numpy(d).double() for d in given])
    return out, given, [parameter.grad for parameter in exact.parameters()]


def assert_equal_gradients(network: MuZeroNetwork, wanted: list[torch.Tensor]) -> None:
    """The gradient is within 1e-6 of its norm, and each tensor's within 2e-6 of its own, or of its fair share."""
    ours = [parameter.grad for parameter in network.parameters()]
    whole = float(torch.cat([d.flatten() for d in wanted]).norm())
    squares = 0.0
    for (name, _), d, exact in zip(network.named_parameters(), ours, wanted, strict=True):
        assert d is not None
        error = float((d - exact).norm())
        squares += error**2
        assert error <= 2e-6 * max(float(exact.norm()), whole / len(wanted)), name
    assert squares**0.5 <= 1e-6 * whole


def searched(info: SpaceInfo, engine: MuZeroEngine, rule: Puct | GumbelRule) -> tuple[Searcher, Roots, dict[str, Any]]:
    """A search of 20 simulations from 4 roots, and how its model samples continuous actions: spread and noise."""
    rng = np.random.default_rng(3)
    embedding, params, value = engine.initial(inputs(info, 1, 4)[0])
    simulations = 20
    if not info.continuous:
        return Searcher(rule, simulations, 3, interior=3), Roots(embedding, params, value), {}
    actions, interior = 5, 2
    spread = np.array([1.0, 3.0, 1.0, 3.0, 3.0], np.float32)
    noise = rng.normal(size=(4, simulations + 1, interior, 2)).astype(np.float32)
    table = sampled_actions(params, spread, rng.normal(size=(4, actions, 2)).astype(np.float32))
    roots = Roots(embedding, np.zeros((4, actions), np.float32), value, actions=table)
    return (
        Searcher(rule, simulations, actions, action_size=2, interior=interior),
        roots,
        {"spread": spread, "noise": noise},
    )
