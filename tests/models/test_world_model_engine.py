"""One update of Dreamer by the engine against the same update by autograd: gradients, metrics and states."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from dreams import cfg_of, draws_for, engine_of, rows_of, sequences_for, trained
from rl_training.algorithms.dreamer import dreamer_loss
from rl_training.algorithms.parts.dreams import AutogradDreamer, Draws, SequenceBatch, dream
from rl_training.algorithms.parts.dreams_engine import EngineDreamer, EngineFollowing, dreamer_form
from rl_training.algorithms.parts.observer import Observer
from rl_training.models import rssm_engine, rssm_engine_heads, rssm_engine_layers
from rl_training.models.rssm import SIZES, WorldSize, WorldState
from rl_training.models.rssm_engine_acting import ActingDreamer
from rl_training.models.rssm_heads import ContinueHead, NumberHead, PolicyHead, action_columns
from rl_training.models.rssm_layers import OutputMLP
from rl_training.models.world_model import DreamerNetwork
from rl_training.models.world_model_engine import within_reach
from rl_training.ops.latents import index_of, one_hot
from rl_training.ops.observations import layout, row_bytes
from rl_training.ops.symexp import SymexpPoints
from rl_training.types import ObsPart, UserError
from worlds import SMALL, SPACES, actions_for, loud, network_for, space, uniforms

PARTS = layout((ObsPart("numbers", (2, 3), "float32"), ObsPart("more", (4,), "float32")))
KINDS = {name: SPACES[name] for name in SPACES if name.startswith(("vector", "masked"))} | {
    "two vectors": space((row_bytes(PARTS, 0),), "uint8", parts=PARTS)
}
EVERY_KIND = pytest.mark.parametrize("name", KINDS)


def exactly(model: AutogradDreamer, batch: SequenceBatch, draws: Draws, cfg: Any) -> tuple[Any, Any, list[Any]]:
    """What autograd says in float64: figures, states, and the gradients of all parameters."""
    twin = copy.copy(model)
    twin.network, twin.scale = copy.deepcopy(model.network).double(), copy.deepcopy(model.scale)
    slow: Any = copy.deepcopy(model.slow.module).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)  # networks make floats of what they are given
        rows, noise = twin.sequences(batch), twin.noise(draws)
        before = WorldState(*(part.double() for part in rows.before))
        rows = rows._replace(reward=rows.reward.double(), before=before)
        noise = type(noise)(*(part.double() if part.is_floating_point() else part for part in noise))
        loss, found, state = dreamer_loss(twin.network, slow, twin.scale, rows, noise, cfg)
    assert loss.dtype == torch.float64
    parameters = list(twin.network.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return {name: float(value.detach()) for name, value in found.items()}, state, list(gradients)


def assert_equal_updates(
    engine: EngineDreamer, model: AutogradDreamer, batch: SequenceBatch, draws: Draws, cfg: Any, threads: int = 1
) -> None:
    """Each tensor's gradient is within 1e-5 of its own norm; metrics and states are equal too."""
    found, state, wanted = exactly(model, batch, draws, cfg)
    engine.learner.parameters.grad.fill_(float("nan"))  # every gradient must be written, none added to
    try:
        torch.set_num_threads(threads)
        outcome = engine.differentiate(batch, draws, cfg)
    finally:
        torch.set_num_threads(1)
    whole = float(torch.cat([d.flatten() for d in wanted]).norm())
    for (name, parameter), d in zip(engine.network.named_parameters(), wanted, strict=True):
        assert parameter.grad is not None
        error, size = float((parameter.grad - d).norm()), float(d.norm())
        assert error <= 1e-5 * size + 1e-9 * whole, (name, error, size, whole)
    np.testing.assert_allclose(outcome.deter, state.deter.detach(), atol=3e-6)
    np.testing.assert_array_equal(outcome.stoch, index_of(state.stoch))
    assert outcome.stoch.dtype == np.uint8
    assert outcome.metrics.keys() == found.keys()
    for name, value in found.items():
        assert outcome.metrics[name] == pytest.approx(value, rel=2e-5, abs=2e-5), name


@EVERY_KIND
def test_an_update_equals_autograd_for_all_spaces(name: str) -> None:
    model = trained(KINDS[name])
    assert_equal_updates(engine_of(model), model, sequences_for(model), draws_for(model), cfg_of(free_nats=0.1))


SETTINGS: dict[str, dict[str, Any]] = {
    "values do not teach states": {"replay_value_grad": False},
    "all divergences are free": {"free_nats": 100.0},
    "none is": {"free_nats": 0.0},
    "other weights": {
        "reconstruction_coef": 0.7,
        "reward_coef": 1.3,
        "continue_coef": 0.4,
        "dynamics_coef": 0.6,
        "representation_coef": 1.7,
        "policy_coef": 2.5,
        "value_coef": 0.3,
        "replay_value_coef": 1.9,
        "slow_value_coef": 0.2,
        "entropy_coef": 0.8,
    },
    "other returns": {"gamma": 0.7, "return_lambda": 0.4},
    "no slow value": {"slow_value_coef": 0.0, "entropy_coef": 0.0},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["vector, multi-discrete", "vector, continuous"])
def test_an_update_equals_autograd_for_all_settings(name: str, setting: str) -> None:
    model = trained(KINDS[name])
    cfg = cfg_of(**{"free_nats": 0.1} | SETTINGS[setting])
    assert_equal_updates(engine_of(model), model, sequences_for(model), draws_for(model), cfg)


@pytest.mark.parametrize(
    ("size", "bins"),
    [
        (WorldSize(deter=16, hidden=9, classes=3, units=7, depth=2, stoch=5, blocks=1), 2),
        (WorldSize(deter=40, hidden=16, classes=4, units=33, depth=2, stoch=6, blocks=5), 64),
        (SIZES["xxs"], 255),
    ],
)
def test_an_update_equals_autograd_for_all_sizes(size: WorldSize, bins: int) -> None:
    model = trained(KINDS["vector"], loudness=0.1, size=size, support=SymexpPoints(bins, 2.0))
    assert_equal_updates(engine_of(model), model, sequences_for(model), draws_for(model), cfg_of(free_nats=0.1))


@pytest.mark.parametrize("name", ["vector", "vector, continuous"])
def test_an_update_of_many_rows_equals_autograd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a few rows were many: blocks of them, and products by panels, also of 255 bins."""
    monkeypatch.setattr(rssm_engine_layers, "_MANY", 1)
    monkeypatch.setattr(rssm_engine_heads, "_NEAR", 7)
    monkeypatch.setattr(rssm_engine, "_NEAR", 5)
    model = trained(KINDS[name], loudness=0.1, size=SIZES["xxs"], support=SymexpPoints(255, 2.0))
    assert_equal_updates(engine_of(model), model, sequences_for(model), draws_for(model), cfg_of(free_nats=0.1))


@pytest.mark.parametrize("unimix", [0.0, 0.3])
@pytest.mark.parametrize("name", ["vector", "masked, multi-discrete"])
def test_the_uniform_share_may_be_another(name: str, unimix: float) -> None:
    model = trained(KINDS[name], unimix=unimix)
    assert_equal_updates(engine_of(model), model, sequences_for(model), draws_for(model), cfg_of(free_nats=0.1))


def test_a_fresh_network_is_silent_in_both_forms() -> None:
    model = trained(KINDS["vector"], fresh=True)
    engine = engine_of(model)
    assert_equal_updates(engine, model, sequences_for(model), draws_for(model), cfg_of())
    assert engine.differentiate(sequences_for(model), draws_for(model), cfg_of()).metrics["value"] == 0.0


def test_shapes_and_starts_may_change_between_updates() -> None:
    model = trained(KINDS["vector, continuous"])
    engine, cfg = engine_of(model), cfg_of(free_nats=0.1)
    for steps, rows, horizon, starts in ((4, 3, 5, None), (6, 4, 2, [3, 17, 8]), (4, 5, 1, [0]), (5, 3, 4, [14, 2])):
        batch = sequences_for(model, steps=steps, rows=rows, seed=steps)
        draws = draws_for(model, steps=steps, rows=rows, horizon=horizon, starts=starts, seed=rows)
        model.scale.bounds = engine.scale.bounds.copy()
        assert_equal_updates(engine, model, batch, draws, cfg)


def test_the_scale_of_returns_moves_alike() -> None:
    model = trained(KINDS["vector"], loudness=0.6)
    engine, cfg = engine_of(model), cfg_of(free_nats=0.1)
    batch, draws = sequences_for(model), draws_for(model)
    for _ in range(200):
        model.scale.update(np.linspace(-40.0, 40.0, 9))
    engine.scale.bounds = model.scale.bounds.copy()
    assert engine.scale.scale > 2.0
    assert_equal_updates(engine, model, batch, draws, cfg)
    model.differentiate(batch, draws, cfg)
    np.testing.assert_allclose(engine.scale.bounds, model.scale.bounds, rtol=1e-5)


def test_the_engine_sees_the_weights_of_now_and_those_of_the_slow_value() -> None:
    model = trained(KINDS["vector"])
    engine, cfg = engine_of(model), cfg_of(free_nats=0.1)
    batch, draws = sequences_for(model), draws_for(model)
    engine.differentiate(batch, draws, cfg)
    for form in (engine, model):
        with torch.no_grad():
            form.learner.parameters.data.mul_(1.1)
            form.slow.weights.data.mul_(0.7)
    model.scale.bounds = engine.scale.bounds.copy()
    assert_equal_updates(engine, model, batch, draws, cfg)


def test_several_threads_compute_the_same() -> None:
    model = trained(KINDS["masked"])
    cfg = cfg_of(free_nats=0.1)
    assert_equal_updates(engine_of(model), model, sequences_for(model), draws_for(model), cfg, threads=2)


def test_learning_is_the_same_in_both_forms() -> None:
    model = trained(KINDS["vector, continuous"], loudness=0.1)
    engine, cfg = engine_of(model), cfg_of()
    for seed in range(5):
        batch, draws = sequences_for(model, seed=seed), draws_for(model, seed=seed)
        for form in (engine, model):
            form.differentiate(batch, draws, cfg)
            form.descend(cfg)
    ours, theirs = engine.learner.parameters.data, model.learner.parameters.data
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@EVERY_KIND
def test_dreams_are_those_of_torch(name: str) -> None:
    model = trained(KINDS[name])
    engine, cfg = engine_of(model), cfg_of()
    batch, draws = sequences_for(model), draws_for(model, starts=[5, 1, 10])
    outcome = engine.differentiate(batch, draws, cfg)
    with torch.no_grad():
        start = WorldState(
            torch.from_numpy(outcome.deter).flatten(0, 1)[draws.starts],
            one_hot(torch.from_numpy(outcome.stoch), SMALL.classes).flatten(0, 1)[draws.starts],
        )
        theirs = dream(model.network, start, model.noise(draws))
    ours = engine.engine.states[outcome.deter.shape[0] * outcome.deter.shape[1] :]
    np.testing.assert_allclose(ours, theirs.features.flatten(0, 1), atol=5e-6)


# Acting


@pytest.mark.parametrize("greedy", [False, True])
@EVERY_KIND
def test_acting_equals_torch(name: str, greedy: bool) -> None:
    info = KINDS[name]
    network = trained(info).network
    observer = Observer(info, torch.device("cpu"), normalize=False, clip=10.0)
    follow, world = EngineFollowing(network, observer), network.world
    for rows, seed in ((3, 0), (8, 1), (1, 2)):
        rng = np.random.default_rng(seed)
        deter = rng.normal(size=(rows, SMALL.deter)).astype(np.float32)
        stoch = rng.integers(SMALL.classes + 1, size=(rows, SMALL.stoch)).astype(np.uint8)
        columns, uniform = action_columns(info, actions_for(info, rows, seed=seed)), uniforms(rows, SMALL.stoch)
        obs = rows_of(info, rows, seed=seed)
        mask = observer.mask(obs)
        with torch.no_grad():
            before = WorldState(torch.from_numpy(deter), one_hot(torch.from_numpy(stoch), SMALL.classes))
            after = world.rssm.advance(before, columns)
            posterior = world.rssm.posterior(after, world.encoder(observer.tensors(obs)))
            latent = one_hot(posterior.argmax(dim=-1), SMALL.classes) if greedy else world.rssm.draw(posterior, uniform)
            features = WorldState(after, latent).features
            params = network.policy(features, None if mask is None else torch.from_numpy(mask))
        drawn = None if greedy else uniform.numpy()
        ours, index, said = follow(obs, deter, stoch, columns.numpy(), drawn)
        np.testing.assert_allclose(ours, after, atol=2e-6)
        np.testing.assert_array_equal(index, index_of(latent))
        np.testing.assert_allclose(said, params, rtol=2e-6, atol=2e-6)


def test_acting_sees_the_weights_of_now() -> None:
    network = trained(KINDS["vector, continuous"]).network
    acting = ActingDreamer(network)
    deter, stoch = np.zeros((1, SMALL.deter), np.float32), np.zeros((1, SMALL.stoch), np.uint8)
    given = (np.ones((1, 5), np.float32), deter, stoch, np.zeros((1, 2), np.float32), None)
    before = acting.follow(*given)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(0.5)
    after = acting.follow(*given)
    assert not np.allclose(before[0], after[0])
    assert not np.allclose(before[2], after[2])


# What it can compute


def test_what_is_within_reach() -> None:
    assert all(within_reach(network_for(info)) for info in KINDS.values())
    assert not within_reach(network_for(SPACES["image"]))
    assert not within_reach(network_for(SPACES["dict"]))
    assert not within_reach(network_for(SPACES["vector"], support=None))
    assert not within_reach(network_for(SPACES["vector"]).double())
    assert not within_reach(torch.nn.Linear(2, 2))


def test_networks_with_parts_of_their_own_are_not() -> None:
    class Own(DreamerNetwork):
        pass

    class Head(PolicyHead):
        pass

    info = SPACES["vector"]
    assert not within_reach(Own(info, SMALL))
    other = network_for(info)
    other.policy = Head(info, SMALL.features, 1, SMALL.units, unimix=0.01)
    assert not within_reach(other)
    deeper = network_for(info)
    deeper.world.rssm.posterior_head = OutputMLP(
        SMALL.deter + SMALL.units, 2, SMALL.hidden, SMALL.stoch * SMALL.classes
    )
    assert not within_reach(deeper)
    wider = network_for(info)
    wider.world.reward = NumberHead(SMALL.features, 1, SMALL.units + 1, wider.value.support)
    assert not within_reach(wider)


def test_policies_that_learn_through_the_model_are_left_to_autograd() -> None:
    network = network_for(SPACES["vector"])
    assert dreamer_form(network, cfg_of()) == "mlp"
    assert dreamer_form(network, cfg_of(actor_gradient="pathwise")) == "autograd"
    assert dreamer_form(network_for(SPACES["image"]), cfg_of()) == "autograd"


def test_depths_of_heads_may_be_others() -> None:
    model = trained(KINDS["vector"])
    model.network.policy = PolicyHead(KINDS["vector"], SMALL.features, 1, SMALL.units, unimix=0.01)
    model.network.world.reward = NumberHead(SMALL.features, 3, SMALL.units, model.network.value.support)
    model.network.world.continues = ContinueHead(SMALL.features, 2, SMALL.units)
    loud(model.network, 0.3)
    assert within_reach(model.network)
    assert_equal_updates(engine_of(model), model, sequences_for(model), draws_for(model), cfg_of(free_nats=0.1))


def test_weights_that_are_no_numbers_reach_the_gradients() -> None:
    model = trained(KINDS["vector, continuous"])
    engine = engine_of(model)
    with torch.no_grad():
        engine.network.world.rssm.core.gates.weight[0, 0, 0] = float("nan")
    engine.differentiate(sequences_for(model), draws_for(model), cfg_of())
    with pytest.raises(UserError, match="diverged"):
        engine.descend(cfg_of())
