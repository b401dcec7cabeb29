"""The explicit unroll of MuZero's MLP against autograd, finite differences and torch; and how it is packed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.models.efficientzero import ValuePrefixNetwork
from rl_training.models.flat import FlatParameters
from rl_training.models.muzero import MLPMuZero, min_max, muzero_network, unroll
from rl_training.models.muzero_engine import MuZeroEngine, within_reach
from rl_training.models.muzero_search import EngineSearchModel, TorchSearchModel
from rl_training.ops.kernels import acting
from rl_training.ops.kernels import unroll as kernels
from rl_training.ops.sampled_policy import sample_logits
from rl_training.ops.search import GumbelRule, PackedModel, Puct
from rl_training.ops.two_hot import expectation, expected
from rl_training.types import ObsPart, SpaceInfo
from unrolled_models import (
    CONTINUOUS,
    DISCRETE,
    KINDS,
    REWARD,
    VALUE,
    assert_equal_gradients,
    inputs,
    made,
    reference,
    searched,
    slopes,
)


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("hidden", [(), (12,), (16, 11), (8, 12, 7)], ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_equal_autograd(kind: str, activation: str, hidden: tuple[int, ...], steps: int) -> None:
    info = KINDS[kind]
    network = made(info, hidden, activation)
    flat = FlatParameters(network.parameters())
    engine = MuZeroEngine(network, trained=True)
    obs, actions = inputs(info, steps, 33)
    for latent in (False, True):
        out, given, wanted = reference(network, obs, actions, latent)
        flat.grad.fill_(float("nan"))  # every gradient must be written, none added to
        ours = engine.forward(obs, actions)
        for name in ("latent", "policy", "value", "reward"):
            theirs = getattr(out, name).detach().numpy()
            np.testing.assert_allclose(getattr(ours, name), theirs, rtol=1e-5, atol=3e-6)
        engine.backward(*given)
        assert_equal_gradients(network, wanted)


def test_batches_and_steps_may_change_between_calls() -> None:
    network = made()
    FlatParameters(network.parameters())
    engine = MuZeroEngine(network, trained=True)
    for steps, batch in ((2, 8), (5, 33), (1, 3), (3, 8), (2, 1)):
        obs, actions = inputs(DISCRETE, steps, batch, seed=batch)
        _, given, wanted = reference(network, obs, actions, latent=True)
        engine.forward(obs, actions)
        engine.backward(*given)
        assert_equal_gradients(network, wanted)


def test_several_threads_compute_the_same() -> None:
    network = made(CONTINUOUS, (16, 8), "silu")
    FlatParameters(network.parameters())
    engine = MuZeroEngine(network, trained=True)
    obs, actions = inputs(CONTINUOUS, 3, 33)
    _, given, wanted = reference(network, obs, actions, latent=False)
    try:
        torch.set_num_threads(2)
        engine.forward(obs, actions)
        engine.backward(*given)
    finally:
        torch.set_num_threads(1)
    assert_equal_gradients(network, wanted)


def test_the_engine_sees_the_weights_of_now() -> None:
    network = made()
    FlatParameters(network.parameters())
    engine = MuZeroEngine(network, trained=True)
    obs, actions = inputs(DISCRETE, 2, 4)
    engine.forward(obs, actions)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
        theirs = unroll(network, torch.from_numpy(obs), torch.from_numpy(actions))
    np.testing.assert_allclose(engine.forward(obs, actions).value, theirs.value.numpy(), rtol=1e-5, atol=1e-5)
    latent, policy, _ = engine.initial(obs)
    np.testing.assert_allclose(latent, theirs.latent[0].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy, theirs.policy[0].numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_activations_of_large_numbers_equal_torch(activation: str) -> None:
    x = np.linspace(-100.0, 100.0, 4001).astype(np.float32).reshape(1, -1)
    bias, gates, ours = np.full(x.size, 0.5, np.float32), np.empty_like(x), x.copy()
    arguments = (ours, bias, gates) if activation == "silu" else (ours, bias)
    getattr(kernels, f"add_bias_{activation}")(*arguments)
    theirs = getattr(torch.nn.functional, activation)(torch.from_numpy(x).double() + 0.5).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=4e-6)


# Scaling of latents


def _rows_to_scale(size: int) -> np.ndarray:
    rng = np.random.default_rng(size)
    rows = rng.normal(size=(12, size)).astype(np.float32)
    rows[0] = 3.25  # all equal
    rows[1] = 0.0
    rows[2, : size // 2] = rows[2].min()  # several lowest
    rows[3, : size // 2] = rows[3].max()  # several highest
    rows[4] = np.where(np.arange(size) % 2, 1.0, -1.0)  # nothing else
    rows[5] = 1e-7 * rows[5]  # a tiny range around 0
    rows[6] = 1.0 + 1e-6 * np.arange(size)  # a tiny range far from 0
    rows[7] = np.linspace(0.0, 0.99e-5, size)
    rows[8] = np.linspace(0.0, 1.01e-5, size)
    rows[9] *= 1e6
    return rows


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 64, 65])
@pytest.mark.parametrize("extra", [0, 5])
def test_scaling_and_its_gradient_with_ties_and_tiny_ranges(size: int, extra: int) -> None:
    rows = _rows_to_scale(size)
    rng = np.random.default_rng(0)
    others = rng.normal(size=(12, extra)).astype(np.float32)
    d_latent, d_next = rng.normal(size=(2, 12, size)).astype(np.float32)
    leaf = torch.from_numpy(rows).requires_grad_()
    scaled = min_max(leaf)
    scaled.backward(torch.from_numpy(d_latent + 0.5 * d_next))
    assert leaf.grad is not None

    raw, latents = np.concatenate([rows, others], axis=1), np.full((15, size + 2), 7.0, np.float32)
    rest, ranges = np.empty((12, extra), np.float32), np.empty((12, 3), np.float32)
    kernels.scale_latents(raw, np.zeros(size + extra, np.float32), latents, 3, rest, ranges)
    np.testing.assert_allclose(latents[3:, :size], scaled.detach().numpy(), rtol=1e-6, atol=1e-7)
    assert (latents[:3] == 7.0).all()
    assert (latents[:, size:] == 7.0).all()
    np.testing.assert_array_equal(rest, others)
    d_raw = np.full((12, size + extra), 7.0, np.float32)
    kernels.scale_latents_backward(raw, ranges, d_latent, d_next, 0.5, d_raw)
    error = np.abs(d_raw[:, :size] - leaf.grad.numpy()).max(axis=1)
    # A row that is divided by 1e-5 has gradients of 1e5, and rounding errors in proportion.
    assert (error <= 2e-6 * (np.abs(d_latent).max() + np.abs(d_next).max()) * np.sqrt(size) / ranges[:, 2]).all()
    assert (d_raw[:, size:] == 7.0).all()


def test_the_bias_is_added_before_scaling() -> None:
    raw, bias = np.array([[1.0, 1.0, 1.0, 4.0]], np.float32), np.array([0.0, 1.0, 4.0, 2.0], np.float32)
    latents, rest, ranges = np.empty((1, 3), np.float32), np.empty((1, 1), np.float32), np.empty((1, 3), np.float32)
    kernels.scale_latents(raw, bias, latents, 0, rest, ranges)
    np.testing.assert_array_equal(latents, [[0.0, 0.25, 1.0]])
    np.testing.assert_array_equal(rest, [[6.0]])
    np.testing.assert_array_equal(ranges, [[1.0, 5.0, 4.0]])


# The half gradient, by finite differences on a linear model


class LinearModel:
    """The model without hidden layers, in float64 and a few lines."""

    def __init__(self, network: MLPMuZero) -> None:
        self.parts = {
            name: (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy())
            for name, layer in network.named_children()
            if isinstance(layer, nn.Linear)
        }

    def apply(self, name: str, x: np.ndarray) -> np.ndarray:
        weight, bias = self.parts[name]
        return x @ weight.T + bias

    def scaled(self, x: np.ndarray) -> np.ndarray:
        low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
        return (x - low) / (high - low)

    def loss(self, obs: np.ndarray, actions: np.ndarray, given: list[np.ndarray]) -> float:
        """The sum of all results, weighted by `given`: policies, values and rewards."""
        latent = self.scaled(self.apply("first_latent", obs))
        total = 0.0
        for step in range(len(actions) + 1):
            total += (given[0][step] * self.apply("policy", latent)).sum()
            total += (given[1][step] * self.apply("value", latent)).sum()
            if step < len(actions):
                inside = np.concatenate([latent, actions[step]], axis=1)
                total += (given[2][step] * self.apply("reward", inside)).sum()
                latent = self.scaled(self.apply("next_latent", inside))
        return total

    def difference(self, name: str, entry: tuple[int, int], *arguments: Any) -> float:
        """The derivative of the loss with respect to one weight."""
        weight, _ = self.parts[name]
        kept, losses = weight[entry], []
        for move in (1e-6, -1e-6):
            weight[entry] = kept + move
            losses.append(self.loss(*arguments))
        weight[entry] = kept
        return (losses[0] - losses[1]) / 2e-6


@pytest.mark.parametrize("form", ["engine", "torch"])
@pytest.mark.parametrize(
    ("only", "step"),
    [(only, step) for only in ("policy", "value", "reward") for step in range(4) if (only, step) != ("reward", 3)],
)
def test_the_gradient_of_later_steps_is_halved_once_for_every_step_between(form: str, only: str, step: int) -> None:
    network = made(CONTINUOUS, ())
    FlatParameters(network.parameters())
    engine = MuZeroEngine(network, trained=True)
    obs, actions = inputs(CONTINUOUS, 3, 4)
    out = engine.forward(obs, actions)
    given = [np.zeros_like(d) for d in slopes(out)[:3]]
    at = ("policy", "value", "reward").index(only)
    given[at][step] = slopes(out)[at][step]
    if form == "engine":
        engine.backward(*given)
    else:
        theirs = unroll(network, torch.from_numpy(obs), torch.from_numpy(actions))
        results = [theirs.policy, theirs.value, theirs.reward]
        torch.autograd.backward(results, [torch.from_numpy(d) for d in given])
    model = LinearModel(network)
    # The result of step k hangs on the first latent by way of k - 1 latents that the dynamics both made and got.
    halvings = max(step - 1, 0) if only != "reward" else step
    assert network.first_latent.weight.grad is not None
    for entry in ((0, 0), (4, 2), (8, 4)):
        plain = model.difference("first_latent", entry, obs, actions, given)
        ours = float(network.first_latent.weight.grad[entry])
        assert ours == pytest.approx(0.5**halvings * plain, rel=1e-3, abs=1e-4)
    assert abs(plain) > 1e-3


# Acting and search


@pytest.mark.parametrize("hidden", [(), (12,), (16, 11)], ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("kind", KINDS)
def test_initial_and_step_equal_torch(kind: str, activation: str, hidden: tuple[int, ...]) -> None:
    info = KINDS[kind]
    network = made(info, hidden, activation)
    engine = MuZeroEngine(network, trained=False)
    obs, actions = inputs(info, 1, 6)
    with torch.no_grad():
        latent = network.represent(torch.from_numpy(obs))
        policy, value = network.predict(latent)
        after, reward = network.dynamics(latent, torch.from_numpy(actions[0]))
        next_policy, next_value = network.predict(after)
    wanted = (latent, policy, expected(value, VALUE))
    for ours, theirs in zip(engine.initial(obs), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-5, atol=1e-5)
    wanted = (after, expected(reward, REWARD), next_policy, expected(next_value, VALUE))
    before = latent.numpy().copy()
    for ours, theirs in zip(engine.step(before, actions[0]), wanted, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-5, atol=1e-5)
    np.testing.assert_array_equal(before, latent.numpy())


class PackedReader:
    """Reads a packed model by its documentation."""

    def __init__(self, packed: PackedModel) -> None:
        self.packed = packed
        self.layers = []
        for size, outputs, offset in packed.layers.tolist():
            end = offset + size * outputs
            weight = packed.weights[offset:end].reshape(size, outputs)
            self.layers.append((weight, packed.weights[end : end + outputs]))

    def _run(self, start: int, count: int, x: np.ndarray) -> list[np.ndarray]:
        for weight, bias in self.layers[start : start + count]:
            x = x @ weight + bias
            if self.packed.kind == acting.TANH:
                x = np.tanh(x)
            elif self.packed.kind == acting.RELU:
                x = np.maximum(x, 0.0)
            else:
                x = x / (1.0 + np.exp(-x))
        return [x @ weight + bias for weight, bias in self.layers[start + count : start + count + 2]]

    def step(self, latent: np.ndarray, action: np.ndarray) -> list[np.ndarray]:
        dynamics, prediction = self.packed.hidden
        policy_size = int(self.packed.layers[-2, 1])
        columns = action if self.packed.action_size else np.eye(policy_size, dtype=np.float32)[action]
        raw, reward = self._run(0, dynamics, np.concatenate([latent, columns], axis=1))
        low, high = raw.min(axis=1, keepdims=True), raw.max(axis=1, keepdims=True)
        after = (raw - low) / (high - low)
        policy, value = self._run(dynamics + 2, prediction, after)
        assert len(self.layers) == dynamics + prediction + 4
        return [
            after,
            expectation(reward, self.packed.reward_support),
            policy,
            expectation(value, self.packed.value_support),
        ]


@pytest.mark.parametrize("hidden", [(), (12,), (16, 11)], ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_packed_layout_read_by_its_documentation(kind: str, activation: str, hidden: tuple[int, ...]) -> None:
    info = KINDS[kind]
    network = made(info, hidden, activation)
    engine = MuZeroEngine(network, trained=False)
    obs, actions = inputs(info, 1, 6)
    spread = np.array([1.0, 3.0], np.float32) if info.continuous else None
    packed = engine.packed(0.9, spread)
    assert (packed.discount, packed.latent, packed.hidden) == (0.9, 9, (len(hidden), len(hidden)))
    assert packed.action_size == (2 if info.continuous else 0)
    assert packed.spread is spread
    assert packed.weights.dtype == np.float32
    assert packed.layers.dtype == np.int64
    latent = engine.initial(obs)[0]
    for ours, theirs in zip(
        PackedReader(packed).step(latent, actions[0]), engine.step(latent, actions[0]), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)
    # The same memory again, with the weights of now.
    with torch.no_grad():
        network.reward.bias.add_(torch.arange(7.0))  # type: ignore[operator, union-attr]
    again = engine.packed(0.9, spread)
    assert again.weights is packed.weights
    for ours, theirs in zip(PackedReader(again).step(latent, actions[0]), engine.step(latent, actions[0]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)


def test_layers_follow_each_other_in_the_packed_vector() -> None:
    packed = MuZeroEngine(made(), trained=False).packed(1.0)
    assert packed.layers[:, :2].tolist() == [[12, 12], [12, 9], [12, 7], [9, 12], [12, 3], [12, 21]]
    ends = (packed.layers[:, 2] + (packed.layers[:, 0] + 1) * packed.layers[:, 1]).tolist()
    assert packed.layers[0, 2] == 0
    assert all(end == start for end, (_, start) in zip(ends, pairwise(packed.layers[:, 2].tolist()), strict=False))
    assert ends[-1] == packed.weights.size


@pytest.mark.parametrize("rule", [Puct(), GumbelRule(considered=3)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_all_three_models_search_alike(kind: str, rule: Puct | GumbelRule) -> None:
    info = KINDS[kind]
    network = made(info, (12,), "silu")
    engine = MuZeroEngine(network, trained=False)
    searcher, roots, sampling = searched(info, engine, rule)
    fused = searcher(engine.packed(0.9, sampling.get("spread")), roots, noise=sampling.get("noise"))
    assert (fused.visits > 0).sum() > 4
    assert (fused.depth > 1.5).all()
    for model in (EngineSearchModel(engine, 0.9, **sampling), TorchSearchModel(network, 0.9, **sampling)):
        result = searcher(model, roots)  # type: ignore[arg-type]
        np.testing.assert_array_equal(result.visits, fused.visits)
        np.testing.assert_allclose(result.q, fused.q, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(result.value, fused.value, rtol=1e-4, atol=2e-5)


def test_sampled_actions_belong_to_their_node() -> None:
    network = made(CONTINUOUS)
    engine = MuZeroEngine(network, trained=False)
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, 4, 3, 2)).astype(np.float32)
    spread = np.array([1.0, 2.0, 0.5, 9.0], np.float32)  # the root has more actions
    latent, params, _ = engine.initial(inputs(CONTINUOUS, 1, 2)[0])
    action = rng.uniform(-1.0, 1.0, size=(2, 2)).astype(np.float32)
    for model in (
        EngineSearchModel(engine, 0.9, spread=spread, noise=noise),
        TorchSearchModel(network, 0.9, spread=spread, noise=noise),
    ):
        leaves = model.step(latent, action, 3)
        params = engine.step(latent, action)[2]
        mean, std = params[:, :2], np.exp(np.clip(params[:, 2:], -5.0, 2.0))
        assert leaves.actions is not None
        for j in range(3):
            wanted = np.tanh(mean + spread[j] * std * noise[:, 3, j])
            np.testing.assert_allclose(leaves.actions[:, j], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(leaves.logits, sample_logits(spread[:3], noise[:, 3]))
        assert (leaves.logits != 0.0).all()
        np.testing.assert_array_equal(leaves.discount, np.full(2, 0.9, np.float32))


def test_a_model_of_continuous_actions_needs_noise_and_no_other_takes_it() -> None:
    noise, spread = np.zeros((1, 2, 3, 2), np.float32), np.ones(3, np.float32)
    with pytest.raises(ValueError, match="spread and noise"):
        TorchSearchModel(made(CONTINUOUS), 0.9)
    with pytest.raises(ValueError, match="spread and noise"):
        EngineSearchModel(MuZeroEngine(made(CONTINUOUS), trained=False), 0.9, spread=spread)
    with pytest.raises(ValueError, match="spread and noise"):
        TorchSearchModel(made(), 0.9, spread=spread, noise=noise)


def test_what_is_not_covered_is_left_to_autograd() -> None:
    settings: dict[str, Any] = {
        "latent_size": 9,
        "hidden_sizes": (8,),
        "reward_support": REWARD,
        "value_support": VALUE,
    }
    assert within_reach(muzero_network(DISCRETE, activation="silu", **settings))
    assert not within_reach(muzero_network(DISCRETE, activation="elu", **settings))
    assert not within_reach(made().double())
    body = made()
    ValuePrefixNetwork(body, hidden_size=4, horizon=2)
    assert not within_reach(body)
    image = SpaceInfo((36, 36, 3), "uint8", "discrete", (), 3, (3,), (0,))
    assert not within_reach(muzero_network(image, activation="relu", channels=4, **settings))
    parts = (ObsPart("a", (3,), "float32"), ObsPart("b", (36, 36), "uint8"))
    mixed = SpaceInfo((1308,), "uint8", "discrete", (), 3, (3,), (0,), parts=parts)
    assert not within_reach(muzero_network(mixed, activation="relu", **settings))
    masked = SpaceInfo(
        (24,), "uint8", "discrete", (), 3, (3,), (0,), parts=(ObsPart("", (5,), "float32"),), mask_size=3
    )
    assert within_reach(muzero_network(masked, activation="relu", **settings))
