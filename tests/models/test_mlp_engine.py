"""The fast path of small MLPs gives what autograd gives, for every head, and acts as torch acts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from conformance import chosen
from rl_training.algorithms.parts.objectives import AutogradForm, Batch
from rl_training.models.actor_critic_engine import ActorCriticEngine, CompiledActing, within_reach
from rl_training.models.flat import FlatParameters
from rl_training.models.mlp_actor_critic import MLPActorCritic, Shape
from rl_training.models.mlp_engine import MLPEngine
from rl_training.ops.distributions import FORBIDDEN, action_distribution
from rl_training.ops.kernels import acting
from rl_training.runtime.actors.actor import Steps
from rl_training.runtime.train import build
from rl_training.testing import tiny_config
from rl_training.types import SpaceInfo

KINDS = {
    "discrete": SpaceInfo((5,), "float32", "discrete", (), 3, (3,), (0,)),
    "multi_discrete": SpaceInfo((5,), "float32", "multi_discrete", (2,), 5, (3, 2), (0, 0)),
    "multi_binary": SpaceInfo((5,), "float32", "multi_binary", (2,), 4, (2, 2), (0, 0)),
    "continuous": SpaceInfo((5,), "float32", "continuous", (2,), 2, (), (), (-1.0, -1.0), (1.0, 1.0)),
}


def _network(info: SpaceInfo, activation: str) -> tuple[MLPActorCritic, FlatParameters]:
    torch.manual_seed(3)
    shape = Shape((16, 8), activation, True, (-0.3,) * info.action_size)
    network = MLPActorCritic(5, info.action_size, shape, continuous=info.continuous)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network, FlatParameters(network.parameters())


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("kind", KINDS)
def test_likelihoods_values_and_gradients_equal_autograd(kind: str, activation: str) -> None:
    info = KINDS[kind]
    network, flat = _network(info, activation)
    assert within_reach(network, info)
    engine = ActorCriticEngine(network, info)
    distribution = action_distribution(info)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(33, 5)).astype(np.float32)
    with torch.no_grad():
        action, _ = distribution.sample(network(torch.from_numpy(obs))[0].numpy(), rng)
    d_log_prob, d_value = rng.normal(size=(2, 33)).astype(np.float32)
    d_entropy = 0.37

    params, value = network(torch.from_numpy(obs))
    log_prob, entropy = distribution.log_prob(params, torch.from_numpy(action)), distribution.entropy(params)
    wanted = (log_prob * torch.from_numpy(d_log_prob)).sum() + d_entropy * entropy.sum()
    (wanted + (value * torch.from_numpy(d_value)).sum()).backward()
    expected = flat.grad.clone()

    flat.grad.fill_(float("nan"))  # every gradient must be written, none added to
    ours = engine.evaluate(obs, action)
    for array, tensor in zip(ours, (log_prob, entropy, value), strict=True):
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=2e-5, atol=2e-6)
    engine.backward(d_log_prob, d_entropy, d_value)
    torch.testing.assert_close(flat.grad, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize("kind", ["tanh", "relu", "silu"])
def test_stacked_mlps_and_the_gradient_of_the_input_equal_autograd(stack: tuple[int, ...], kind: str) -> None:
    sizes, rows = [4, 7, 6, 2], 9
    torch.manual_seed(0)
    weights = [torch.randn(*stack, o, i) * 0.5 for i, o in pairwise(sizes)]
    biases = [torch.randn(*stack, o) for o in sizes[1:]]
    leaves = [tensor.requires_grad_() for tensor in (*weights, *biases)]
    x = torch.randn(*stack, rows, sizes[0], requires_grad=True)
    function = {"tanh": torch.tanh, "relu": torch.relu, "silu": torch.nn.functional.silu}[kind]
    h: torch.Tensor = x
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        h = h @ weight.transpose(-1, -2) + bias.unsqueeze(-2)
        h = function(h) if layer < 2 else h
    d_output = torch.randn_like(h)
    h.backward(d_output)

    layers = [(w.detach().numpy(), b.detach().numpy()) for w, b in zip(weights, biases, strict=True)]
    gradients = [(np.full_like(w, np.nan), np.full_like(b, np.nan)) for w, b in layers]
    engine = MLPEngine(layers, {"tanh": acting.TANH, "relu": acting.RELU, "silu": acting.SILU}[kind], gradients)
    np.testing.assert_allclose(engine.forward(x.detach().numpy()), h.detach().numpy(), rtol=2e-5, atol=2e-6)
    assert x.grad is not None
    d_input = engine.input_gradient(d_output.numpy(), columns=3)
    np.testing.assert_allclose(d_input, x.grad.numpy()[..., :3], rtol=2e-4, atol=2e-5)
    assert all(np.isnan(array).all() for pair in gradients for array in pair), "it wrote gradients of parameters"
    direction = [(np.random.default_rng(1).normal(size=w.shape).astype(np.float32), b + 1.0) for w, b in layers]
    tangent = engine.tangent(direction).copy()
    assert all(np.isnan(array).all() for pair in gradients for array in pair), "it wrote gradients of parameters"
    engine.backward(d_output.numpy())
    # What a derivative says of a direction is the same whichever way it is taken.
    along = sum(
        float((g * d).sum()) for ends in zip(gradients, direction, strict=True) for g, d in zip(*ends, strict=True)
    )
    assert along == pytest.approx(float((tangent * d_output.numpy()).sum()), rel=1e-3)
    for ours, leaf in zip([w for w, _ in gradients] + [b for _, b in gradients], leaves, strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(ours, leaf.grad.numpy(), rtol=2e-4, atol=2e-5)


def test_a_batch_of_another_size_does_not_see_the_last_one() -> None:
    network, _ = _network(KINDS["discrete"], "tanh")
    engine = ActorCriticEngine(network, KINDS["discrete"])
    obs = np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32)
    whole = [array.copy() for array in engine.evaluate(obs, np.zeros(20, np.int64))]
    part = [array.copy() for array in engine.evaluate(obs[:7], np.zeros(7, np.int64))]
    again = engine.evaluate(obs, np.zeros(20, np.int64))
    for a, b, c in zip(whole, part, again, strict=True):
        np.testing.assert_allclose(a[:7], b, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize("rows", [1, 3, 4, 8, 13])
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_the_acting_kernel_equals_torch_for_any_number_of_rows(rows: int, activation: str) -> None:
    network, flat = _network(KINDS["discrete"], activation)
    acting_engine = CompiledActing(network, flat.data, KINDS["discrete"])
    obs = (3.0 * np.random.default_rng(rows).normal(size=(rows, 5))).astype(np.float32)
    params, value = acting_engine.outputs(obs)
    with torch.no_grad():
        expected = network(torch.from_numpy(obs))
    np.testing.assert_allclose(params, expected[0].numpy(), rtol=1e-4, atol=3e-6)
    np.testing.assert_allclose(value, expected[1].numpy(), rtol=1e-4, atol=3e-6)


def test_the_acting_kernel_reads_weights_as_they_are_now() -> None:
    network, flat = _network(KINDS["discrete"], "tanh")
    acting_engine = CompiledActing(network, flat.data, KINDS["discrete"])
    obs = np.ones((2, 5), np.float32)
    before = acting_engine.outputs(obs)[0].copy()
    with torch.no_grad():
        network.policy_head.bias.add_(1.0)
    np.testing.assert_allclose(acting_engine.outputs(obs)[0], before + 1.0, rtol=1e-5)


def test_the_fast_tanh_is_tanh() -> None:
    x = np.linspace(-12.0, 12.0, 4001, dtype=np.float32)
    flat = np.array([1.0, 0.0, 1.0, 0.0], np.float32)  # two layers of one neuron that pass on what they get
    offsets, sizes = np.array([[0, 1], [2, 3]]), np.array([1, 1, 1])
    ours = acting.mlp_rows(flat, offsets, sizes, acting.TANH, x[:, None])[:, 0]
    np.testing.assert_allclose(ours, np.tanh(x.astype(np.float64)), atol=6e-7)


def test_observations_in_columns_need_no_second_kernel() -> None:
    network, flat = _network(KINDS["discrete"], "tanh")
    compiled = CompiledActing(network, flat.data, KINDS["discrete"])
    obs = np.random.default_rng(2).normal(size=(6, 5)).astype(np.float32)
    params, value = compiled.outputs(obs)
    kernels = len(acting.mlp_rows.signatures)  # type: ignore[attr-defined]
    for rows in (np.asfortranarray(obs), np.repeat(obs, 2, axis=1)[:, ::2]):
        assert not rows.flags.c_contiguous
        again = compiled.outputs(rows)
        np.testing.assert_array_equal(again[0], params)
        np.testing.assert_array_equal(again[1], value)
    assert len(acting.mlp_rows.signatures) == kernels  # type: ignore[attr-defined]


def test_rows_of_another_width_are_refused() -> None:
    network, flat = _network(KINDS["discrete"], "tanh")
    compiled = CompiledActing(network, flat.data, KINDS["discrete"])
    with pytest.raises(ValueError, match="not as wide as the inputs"):
        compiled.outputs(np.zeros((2, 4), np.float32))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_logit_that_is_nan_shows_in_the_log_probability(place: int) -> None:
    logits = np.array([[0.5, 2.0, -1.0]], np.float32)
    logits[0, place] = np.nan
    assert np.isnan(acting.highest(logits[0]))
    action, log_prob = acting.sample_categorical(logits, np.array([3]), np.array([[0.9]]))
    assert action.tolist() == [[0]]
    assert np.isnan(log_prob).all()


@pytest.mark.parametrize("kind", KINDS)
def test_both_paths_draw_from_the_same_distribution(kind: str) -> None:
    """The same stream gives the same actions and log-probabilities through the kernel and through torch."""
    info = KINDS[kind]
    network, flat = _network(info, "tanh")
    acting_engine = CompiledActing(network, flat.data, info)
    distribution = action_distribution(info)
    obs = np.random.default_rng(5).normal(size=(4000, 5)).astype(np.float32)
    with torch.no_grad():
        params, _ = network(torch.from_numpy(obs))
    action, log_prob = acting_engine.draw(acting_engine.outputs(obs)[0], np.random.default_rng(7))
    exact = distribution.log_prob(params, torch.from_numpy(action)).numpy()
    np.testing.assert_allclose(log_prob, exact, rtol=1e-4, atol=1e-5)
    other, _ = distribution.sample(params.numpy(), np.random.default_rng(8))
    if info.continuous:
        noise = (action - other) / np.exp(params[:, info.action_size :].numpy())
        assert abs(noise.mean()) < 0.05  # a difference of two standard normals
        assert abs(noise.std() - np.sqrt(2.0)) < 0.05
    else:
        for k, count in enumerate(info.action_counts):
            ours, theirs = np.reshape(action, (4000, -1))[:, k], np.reshape(other, (4000, -1))[:, k]
            share = np.bincount(ours, minlength=count) / 4000, np.bincount(theirs, minlength=count) / 4000
            np.testing.assert_allclose(*share, atol=0.04)


def _gradient(algo: str, engine: str, env: dict[str, Any], **settings: Any) -> torch.Tensor:
    """The gradient of one update's first (or only) minibatch, on the same data for both engines."""
    run = build(tiny_config(algo, env, engine=engine, max_grad_norm=1e9, ent_coef=0.02, **settings))
    run.start()
    algorithm: Any = run.algorithm
    rng = np.random.default_rng(11)
    info = run.info
    masked = bool(info.mask_size)
    obs = np.stack([step.obs for step in run.source.gather(8, Steps())])
    rows = obs.reshape(-1, *info.obs_shape)
    action = chosen(algorithm, rows).action
    column = rng.normal(size=(5, len(rows))).astype(np.float32)
    data = Batch(rows, action, *column[1:])
    assert (algorithm.engine == "mlp") == (engine == "auto")
    assert masked == bool(env.get("masked"))
    algorithm.gradient(data)
    run.close()
    return algorithm.parameters.grad.clone()


@pytest.mark.parametrize("env", [{"actions": "discrete"}, {"actions": "continuous"}, {"masked": True}], ids=str)
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo", {}),
        ("ppo", {"clip_range_vf": 0.1}),
        ("ppo", {"normalize_advantage": False}),
        ("a2c", {}),
        ("a2c", {"normalize_advantage": True}),
    ],
    ids=str,
)
def test_the_gradient_of_an_update_is_the_same_on_both_engines(
    algo: str, settings: dict[str, Any], env: dict[str, Any]
) -> None:
    fast, reference = (_gradient(algo, engine, env, **settings) for engine in ("auto", "autograd"))
    assert reference.abs().max() > 1e-3
    torch.testing.assert_close(fast, reference, rtol=1e-3, atol=2e-5)


def test_what_the_engine_does_not_cover_is_left_to_autograd() -> None:
    info = KINDS["discrete"]
    assert not within_reach(_network(info, "elu")[0], info)
    assert not within_reach(_network(info, "tanh")[0].double(), info)
    sde = MLPActorCritic(5, 2, Shape((4,), "tanh", True, (0.0, 0.0), True), continuous=True)
    assert not within_reach(sde, KINDS["continuous"])
    for settings in ({"activation": "elu"}, {"model": "rl_training.testing:LinearActorCritic"}):
        run = build(tiny_config("ppo", **settings))
        run.close()
        assert run.algorithm.engine == "autograd"
        assert isinstance(run.algorithm.form, AutogradForm)  # type: ignore[attr-defined]


def test_forbidden_choices_get_no_gradient() -> None:
    info = KINDS["multi_discrete"]
    network, _ = _network(info, "tanh")
    engine = ActorCriticEngine(network, info)
    mask = np.array([[True, False, True, False, True]] * 6)
    obs = np.random.default_rng(2).normal(size=(6, 5)).astype(np.float32)
    action = np.tile([2, 1], (6, 1))
    log_prob, entropy, _ = engine.evaluate(obs, action, mask)
    with torch.no_grad():
        params = network(torch.from_numpy(obs))[0].masked_fill(~torch.from_numpy(mask), FORBIDDEN)
    distribution = action_distribution(info)
    np.testing.assert_allclose(log_prob, distribution.log_prob(params, torch.from_numpy(action)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(entropy, distribution.entropy(params), rtol=1e-5, atol=1e-6)
    engine.backward(np.ones(6, np.float32), 0.5, np.zeros(6, np.float32))
    grad = network.policy_head.bias.grad
    assert grad is not None
    assert torch.all(grad[~torch.from_numpy(mask[0])] == 0)
    assert torch.any(grad[torch.from_numpy(mask[0])] != 0)


def test_several_threads_compute_the_same() -> None:
    rng = np.random.default_rng(0)
    sizes = [(6, 4), (5, 6), (1, 5)]
    layers = [
        (rng.normal(size=(2, *size)).astype(np.float32), rng.normal(size=(2, size[0])).astype(np.float32))
        for size in sizes
    ]
    x, d_output = rng.normal(size=(9, 4)).astype(np.float32), rng.normal(size=(2, 9, 1)).astype(np.float32)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            gradients = [(np.zeros_like(weight), np.zeros_like(bias)) for weight, bias in layers]
            engine = MLPEngine(layers, acting.RELU, gradients)
            output = engine.forward(x).copy()
            engine.backward(d_output)
            results.append([output, engine.input_gradient(d_output, 4), *(a for pair in gradients for a in pair)])
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert np.abs(one).max() > 0.0
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
