"""The explicit engine of value prefixes against autograd and torch, in updates, walks and searches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.models.efficientzero import ValuePrefixNetwork
from rl_training.models.flat import FlatParameters
from rl_training.models.muzero import MuZeroNetwork, muzero_network, unroll
from rl_training.models.muzero_engine import MuZeroEngine
from rl_training.models.muzero_search import EngineSearchModel, TorchSearchModel
from rl_training.models.prefix_engine import PrefixEngine, engine_of, within_reach
from rl_training.ops.search import GumbelRule, Puct
from rl_training.ops.two_hot import expected
from rl_training.types import SpaceInfo
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
)

EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def prefixed(
    info: SpaceInfo = DISCRETE, hidden: tuple[int, ...] = (12,), activation: str = "relu", horizon: int = 3
) -> ValuePrefixNetwork:
    """A network whose sums are not silent."""
    network = ValuePrefixNetwork(made(info, hidden, activation), hidden_size=7, horizon=horizon)
    with torch.no_grad():
        for parameter in (*network.core.parameters(), *network.reward.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def assert_equal_unrolls(network: MuZeroNetwork, engine: MuZeroEngine, steps: int, batch: int, latent: bool) -> None:
    obs, actions = inputs(network.info, steps, batch, seed=batch)
    out, given, wanted = reference(network, obs, actions, latent)
    for parameter in network.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(float("nan"))  # every gradient must be written, none added to
    ours = engine.forward(obs, actions)
    for name in ("latent", "policy", "value", "reward"):
        theirs = getattr(out, name).detach().numpy()
        np.testing.assert_allclose(getattr(ours, name), theirs, rtol=1e-5, atol=3e-6, err_msg=name)
    engine.backward(*given)
    assert_equal_gradients(network, wanted)


@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("hidden", [(), (12,), (16, 11), (8, 12, 7)], ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@EACH_KIND
def test_results_and_gradients_equal_autograd(
    kind: str, activation: str, hidden: tuple[int, ...], horizon: int
) -> None:
    network = prefixed(KINDS[kind], hidden, activation, horizon)
    FlatParameters(network.parameters())
    engine = PrefixEngine(network, trained=True)
    for latent in (False, True):
        assert_equal_unrolls(network, engine, 5, 33, latent)


@pytest.mark.parametrize("horizon", [2, 5])
def test_batches_and_steps_may_change_between_calls(horizon: int) -> None:
    network = prefixed(horizon=horizon)
    FlatParameters(network.parameters())
    engine = PrefixEngine(network, trained=True)
    for steps, batch in ((2, 8), (7, 33), (1, 3), (3, 8), (2, 1)):
        assert_equal_unrolls(network, engine, steps, batch, latent=True)


def test_several_threads_compute_the_same() -> None:
    network = prefixed(CONTINUOUS, (16, 8), "silu", 2)
    FlatParameters(network.parameters())
    engine = PrefixEngine(network, trained=True)
    try:
        torch.set_num_threads(2)
        assert_equal_unrolls(network, engine, 5, 33, latent=False)
    finally:
        torch.set_num_threads(1)


def test_the_engine_sees_the_weights_of_now() -> None:
    network = prefixed()
    FlatParameters(network.parameters())
    engine = PrefixEngine(network, trained=True)
    obs, actions = inputs(DISCRETE, 4, 5)
    engine.forward(obs, actions)
    before = engine.step(engine.initial(obs)[0], actions[0])[1]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
        theirs = unroll(network, torch.from_numpy(obs), torch.from_numpy(actions))
    np.testing.assert_allclose(engine.forward(obs, actions).reward, theirs.reward.numpy(), rtol=1e-5, atol=1e-5)
    reward = engine.step(engine.initial(obs)[0], actions[0])[1]
    np.testing.assert_allclose(reward, expected(theirs.reward[0], REWARD).numpy(), rtol=1e-5, atol=1e-5)
    assert np.abs(reward - before).max() > 1e-3


# Acting and search


@pytest.mark.parametrize("horizon", [1, 2, 5])
@pytest.mark.parametrize("hidden", [(), (12,), (16, 11)], ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@EACH_KIND
def test_a_walk_equals_that_of_torch(kind: str, activation: str, hidden: tuple[int, ...], horizon: int) -> None:
    network = prefixed(KINDS[kind], hidden, activation, horizon)
    engine = PrefixEngine(network, trained=False)
    obs, actions = inputs(KINDS[kind], 7, 6)
    embedding, policy, value = engine.initial(obs)
    assert engine.memory_size == network.memory_size
    with torch.no_grad():
        state = network.start(network.represent(torch.from_numpy(obs)))
        outputs, logits = network.predict(state.latent)
        close(embedding, network.embed(state))
        close(policy, outputs)
        close(value, expected(logits, VALUE))
        for action in actions:
            before, kept = state, embedding.copy()
            state, sums = network.step(before, torch.from_numpy(action))
            outputs, logits = network.predict(state.latent)
            after, reward, policy, value = engine.step(embedding, action)
            np.testing.assert_array_equal(embedding, kept)  # the search still needs it
            close(after, network.embed(state))
            close(reward, network.reward_of(before, sums))
            close(policy, outputs)
            close(value, expected(logits, VALUE))
            embedding = after


def close(ours: np.ndarray, theirs: torch.Tensor) -> None:
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_rows_at_different_depths_step_side_by_side() -> None:
    engine = PrefixEngine(prefixed(horizon=2), trained=False)
    obs, actions = inputs(DISCRETE, 5, 1)
    walk, answers = [engine.initial(obs)[0]], []
    for action in actions:
        answers.append(engine.step(walk[-1], action))
        walk.append(answers[-1][0])
    together = engine.step(np.concatenate(walk[:-1]), actions[:, 0])
    for part, ours in enumerate(together):
        alone = np.concatenate([answer[part] for answer in answers])
        np.testing.assert_allclose(ours, alone, rtol=1e-5, atol=1e-6)
    assert together[0][:, -1].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0], "steps since the last reset"


@pytest.mark.parametrize("rule", [Puct(), GumbelRule(considered=3)], ids=str)
@EACH_KIND
def test_engine_and_torch_search_alike(kind: str, rule: Puct | GumbelRule) -> None:
    info = KINDS[kind]
    network = prefixed(info, (12,), "silu", 2)
    engine = PrefixEngine(network, trained=False)
    searcher, roots, sampling = searched(info, engine, rule)
    ours = searcher(EngineSearchModel(engine, 0.9, **sampling), roots)
    theirs = searcher(TorchSearchModel(network, 0.9, **sampling), roots)
    assert (ours.depth > 1.5).all()
    np.testing.assert_array_equal(ours.visits, theirs.visits)
    np.testing.assert_allclose(ours.q, theirs.q, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(ours.value, theirs.value, rtol=1e-4, atol=2e-5)


# What there is an engine for


def test_what_is_not_covered_is_left_to_autograd() -> None:
    def network_of(info: SpaceInfo, activation: str = "relu") -> ValuePrefixNetwork:
        body = muzero_network(
            info,
            latent_size=9,
            hidden_sizes=(8,),
            activation=activation,
            reward_support=REWARD,
            value_support=VALUE,
            channels=4,
        )
        return ValuePrefixNetwork(body, hidden_size=4, horizon=2)

    class Other(ValuePrefixNetwork):
        pass

    assert within_reach(made())
    assert within_reach(prefixed())
    assert within_reach(prefixed(hidden=()))
    assert within_reach(network_of(CONTINUOUS, "silu"))
    assert not within_reach(network_of(DISCRETE, "elu"))
    assert not within_reach(prefixed().double())
    assert not within_reach(Other(made(), hidden_size=4, horizon=2))
    assert not within_reach(prefixed().body), "without its reward layer it is half a model"
    assert not within_reach(network_of(SpaceInfo((36, 36, 3), "uint8", "discrete", (), 3, (3,), (0,))))
    unusual = prefixed()
    unusual.reward = nn.Sequential(unusual.reward)
    assert not within_reach(unusual)
    assert type(engine_of(made(), trained=False)) is MuZeroEngine
    assert type(engine_of(prefixed(), trained=False)) is PrefixEngine
