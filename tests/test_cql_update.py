"""CQL's update: what is not in the data is worth less, by an integral that is exact; and plain torch beside it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from conformance import CONTINUOUS, DISCRETE, ENGINES, agent, boxed
from off_policy_reference import MASKED, acted, assert_same_weights, tensor, transitions, weights_of
from offline_reference import CQLReference, DiscreteCQLReference
from rl_training.algorithms.cql import SPEC, CQLConfig, draw_actions
from rl_training.algorithms.off_policy import Minibatch
from rl_training.algorithms.parts.discrete_q import discrete_gap
from rl_training.experiment.config import ConfigError, load_config
from rl_training.ops.distributions import squashed_log_prob
from rl_training.ops.value import conservative_gap
from rl_training.runtime.envs.make import describe_spaces
from rl_training.types import SpaceInfo, UserError

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
ONE_NUMBER = describe_spaces(boxed(3), gym.spaces.Box(-1.0, 1.0, (1,), np.float32), "one number")
RATES = {"learning_rate": 1e-2, "actor_learning_rate": 1e-2}


def cql(info: SpaceInfo = CONTINUOUS, **settings: Any) -> Any:
    return agent("cql", info, **(RATES | {"batch_size": 16, "tau": 0.3} | settings))


def minibatch(step: Any) -> Minibatch:
    return Minibatch(step.obs, step.action, step.reward, step.next_obs, step.terminated, step.discount, weight=None)


# The gap


def test_the_gap_worked_by_hand() -> None:
    """Two critics, one state, two samples that were drawn with densities 1/2 and 1/4."""
    value, sampled = torch.tensor([[1.0], [0.0]]), torch.tensor([[[0.0, 1.0]], [[0.0, 0.0]]])
    log_density = torch.tensor([[0.5, 0.25]]).log()
    expected = [math.log((2.0 + 4.0 * math.e) / 2.0) - 1.0, math.log((2.0 + 4.0) / 2.0)]
    np.testing.assert_allclose(conservative_gap(value, sampled, log_density).numpy(), expected, rtol=1e-6)


@EACH_ENGINE
def test_the_gap_is_the_logarithm_of_the_integral_by_quadrature(engine: str) -> None:
    """Uniform actions, the policy's, and those of the policy at the next state: all are estimates of one integral."""
    learner = cql(ONE_NUMBER, engine=engine)
    learner.learners["critic"].parameters.data.mul_(4.0)  # steep enough to matter
    step = transitions(ONE_NUMBER, 4, 2)
    drawn = draw_actions(learner, minibatch(step), 20_000)
    assert drawn.action.shape == (4, 60_000, 1)
    grid = torch.linspace(-1.0, 1.0, 4001)
    critic = learner.learners["critic"].module
    for row in range(4):
        obs = tensor(step.obs[row : row + 1])
        with torch.no_grad():
            curve = critic(obs.expand(4001, 3), grid[:, None]).squeeze(-1).double().numpy()
            sampled = critic(obs.expand(60_000, 3), tensor(drawn.action[row])).squeeze(-1)
        exact = np.log(np.trapezoid(np.exp(curve), grid.double().numpy(), axis=1))
        assert np.ptp(curve) > 0.3
        # Each kind alone, and all together.
        for part in (slice(0, 20_000), slice(20_000, 40_000), slice(40_000, 60_000), slice(None)):
            density = tensor(drawn.log_density[row : row + 1, part])
            found = conservative_gap(torch.zeros(2, 1), sampled[:, None, part], density)
            np.testing.assert_allclose(found.numpy(), exact, atol=0.03)


@EACH_ENGINE
def test_drawn_actions_have_the_densities_with_which_they_were_drawn(engine: str) -> None:
    learner, step = cql(engine=engine), transitions(CONTINUOUS, 5)
    drawn = draw_actions(learner, minibatch(step), 3)
    np.testing.assert_allclose(drawn.log_density[:, :3], math.log(0.25))
    assert (np.abs(drawn.action) <= 1.0).all()
    actor = learner.learners["actor"].module
    for part, rows in ((slice(3, 6), step.obs), (slice(6, 9), step.next_obs)):
        with torch.no_grad():
            params = actor(tensor(rows)).repeat_interleave(3, dim=0)
            expected = squashed_log_prob(params, tensor(drawn.action[:, part].reshape(15, 2)))
        np.testing.assert_allclose(drawn.log_density[:, part].ravel(), expected.numpy(), rtol=1e-2, atol=1e-2)


# What is not in the data


def bandit_values(cql_alpha: float, engine: str) -> np.ndarray:
    """Critics' values of [-0.9, ..., 0.9] after data of actions in [0, 1], all of which pay 1."""
    learner = cql(
        ONE_NUMBER, engine=engine, cql_alpha=cql_alpha, cql_samples=5, batch_size=32, hidden_sizes=[32], ent_coef=0.1
    )
    rng = np.random.default_rng(0)
    for seed in range(200):
        batch = transitions(ONE_NUMBER, 32, seed)
        action = rng.uniform(0.0, 1.0, (32, 1)).astype(np.float32)
        learner.update(replace(batch, action=action, reward=np.ones(32, np.float32), terminated=np.ones(32, bool)))
    actions = np.linspace(-0.9, 0.9, 19, dtype=np.float32)[:, None]
    obs = transitions(ONE_NUMBER, 50, 999).obs
    values = [learner.critics.online(obs, np.repeat(one[None], 50, axis=0)).mean() for one in actions]
    return np.array(values)


@EACH_ENGINE
def test_values_fall_outside_of_the_data(engine: str) -> None:
    values = bandit_values(1.0, engine)
    outside, inside = values[:8], values[11:]
    assert outside.max() < inside.min() - 0.2, values
    np.testing.assert_allclose(inside.mean(), 1.0, atol=0.4)


def test_without_conservatism_they_do_not() -> None:
    values = bandit_values(0.0, "auto")
    np.testing.assert_allclose(values, 1.0, atol=0.2)


# Against SAC


@EACH_ENGINE
def test_without_conservatism_a_step_is_sacs_to_the_bit(engine: str) -> None:
    learner = cql(engine=engine, cql_alpha=0.0, backup_entropy=True)
    sac = agent("sac", CONTINUOUS, engine=engine, learning_rate=1e-2, batch_size=16, tau=0.3)
    for seed in range(4):
        batch = transitions(CONTINUOUS, 16, seed)
        assert learner.update(batch) == sac.update(batch)
    assert learner.current("ent_coef") == sac.current("ent_coef")
    for name, expected in weights_of(sac).items():
        assert torch.equal(weights_of(learner)[name], expected), name


@EACH_ENGINE
def test_targets_value_no_entropy_unless_they_are_told_to(engine: str) -> None:
    batch = transitions(CONTINUOUS, 16)
    losses = [
        cql(engine=engine, ent_coef=ent_coef, backup_entropy=backup).update(batch)["critic_loss"]
        for backup in (False, True)
        for ent_coef in (0.0, 5.0)
    ]
    assert losses[0] == losses[1] == losses[2] != losses[3]


# Against plain torch


@EACH_ENGINE
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cql_alpha": 1.0, "cql_samples": 1, "n_critics": 3, "ent_coef": 0.2, "backup_entropy": True},
        {"cql_target_gap": 0.3, "actor_learning_rate": 3e-3, "activation": "tanh"},
        {"cql_target_gap": 9.0, "hidden_sizes": [8, 6], "ent_coef": "auto_0.1"},
    ],
    ids=str,
)
def test_updates_equal_a_plain_reference_in_torch(engine: str, settings: dict[str, Any]) -> None:
    learner = cql(engine=engine, **{"cql_samples": 4, **settings})
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    reference, before = CQLReference(learner), weights_of(learner)
    for seed in range(4):
        batch = transitions(CONTINUOUS, 16, seed)
        expected, metrics = reference.update(batch), learner.update(batch)
        expected |= {"conservative_gap": reference.gap}
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=2e-3, abs=1e-3)
    after = weights_of(learner)
    for name, weights in before.items():
        assert (after[name] - weights).abs().max() > 1e-3, name
    assert_same_weights(after, reference.weights())
    assert learner.current("ent_coef") == pytest.approx(reference.log_ent_coef.exp().item(), rel=1e-4)
    if learner.cfg.cql_target_gap is not None:
        torch.testing.assert_close(after["cql_factor"][0], reference.log_factor.detach(), rtol=1e-3, atol=1e-5)


# The work


def test_critics_and_policy_are_asked_once_for_all_samples() -> None:
    """The fit is one call of the critics, the actor's step another; the policy is called at s and s' once, however many
    actions are drawn.
    """
    learner = cql(engine="autograd", cql_samples=7)
    asked: list[tuple[str, int]] = []
    for name in ("actor", "critic"):
        module = learner.learners[name].module
        module.register_forward_hook(lambda _, inputs, given, name=name: asked.append((name, len(inputs[0]))))
    learner.update(transitions(CONTINUOUS, 16))
    rows = 16 * (1 + 3 * 7)
    assert asked == [("actor", 16)] * 3 + [("critic", rows), ("actor", 16), ("critic", 16)]


def test_the_engine_goes_through_the_critics_once_for_each_block_of_states() -> None:
    learner, asked = cql(cql_samples=7), []
    forward = learner.critics._mlps.forward
    learner.critics._mlps.forward = lambda x: asked.append(len(x)) or forward(x)
    learner.set_hyperparameters(batch_size=40)
    learner.update(transitions(CONTINUOUS, 40))
    assert asked == [32 * 22, 8 * 22, 40]


# The Lagrange form


@EACH_ENGINE
@pytest.mark.parametrize("info", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
@pytest.mark.parametrize(("wanted", "direction"), [(-50.0, 1.0), (50.0, -1.0)])
def test_the_factor_rises_while_the_gap_is_too_wide_and_falls_while_it_is_too_narrow(
    engine: str, info: SpaceInfo, wanted: float, direction: float
) -> None:
    learner = cql(info, engine=engine, cql_target_gap=wanted, learning_rate=0.1)
    first = learner.update(transitions(info, 16))
    second = learner.update(transitions(info, 16))
    assert first["conservative_weight"] == 5.0
    # The first step of Adam is as long as its learning rate, whatever the gradient.
    assert second["conservative_weight"] == pytest.approx(5.0 * math.exp(direction * 0.1), rel=1e-5)


def test_the_factor_brings_the_gap_to_its_target() -> None:
    """All choices pay nothing, which pulls the gap to log 4; their shares in the data allow one of 0.94."""
    learner = cql(DISCRETE, cql_alpha=1.0, cql_target_gap=1.15, learning_rate=1e-2, batch_size=64)
    gaps = []
    for seed in range(400):
        batch = transitions(DISCRETE, 64, seed)
        action = np.random.default_rng(seed).choice(4, 64, p=[0.7, 0.1, 0.1, 0.1])
        batch = replace(batch, action=action, terminated=np.ones(64, bool), reward=np.zeros(64, np.float32))
        gaps.append(learner.update(batch)["conservative_gap"])
    assert gaps[0] > 1.3
    assert np.mean(gaps[-100:]) == pytest.approx(1.15, abs=0.03)


# Choices


def test_the_gap_of_choices_worked_by_hand() -> None:
    values, choice = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 2.0]]), torch.tensor([1, 2])
    expected = (math.log(3.0) + math.log(math.e + 1.0 + math.e**2) - 2.0) / 2.0
    assert discrete_gap(values, choice).item() == pytest.approx(expected)


def test_the_gap_leaves_out_forbidden_choices() -> None:
    """By hand: the powers are 1 (the choice that was made), 1.977 and 1.873; the last one is forbidden."""
    values, choice = torch.tensor([[1.0, 1.977, 1.873]]).log(), torch.tensor([0])
    mask = torch.tensor([[True, True, False]])
    assert discrete_gap(values, choice).item() == pytest.approx(1.579, abs=5e-4)
    assert discrete_gap(values, choice, mask).item() == pytest.approx(1.091, abs=5e-4)


@EACH_ENGINE
def test_forbidden_choices_have_no_part_in_the_gap_of_an_update(engine: str) -> None:
    """Neither in its value nor in its gradient, whatever their values are."""
    learner, batch = cql(MASKED, engine=engine), transitions(MASKED, 32)
    masks = batch.obs[:, -4:].astype(bool)
    masks[:, 3] = False
    masks[:, 0] = True
    batch.obs[:, -4:] = masks
    batch = replace(batch, action=np.zeros(32, np.int64), reward=np.zeros(32, np.float32))
    ones = np.ones(32, np.float32)
    plain = learner.q.differentiate(batch.obs, batch.action, batch.reward, ones, 4.0)
    bias = learner.learners["network"].module.layers.head.bias
    assert bias.grad is not None
    assert bias.grad[3] == 0.0
    with torch.no_grad():
        bias[3] += 5.0
    again = learner.q.differentiate(batch.obs, batch.action, batch.reward, ones, 4.0)
    assert again.gap == pytest.approx(plain.gap, rel=1e-6)
    logits = np.where(masks, learner.q.online(batch.obs), -np.inf).astype(np.float64)
    expected = (np.log(np.exp(logits).sum(axis=1)) - logits[:, 0]).mean()
    assert plain.gap == pytest.approx(expected, rel=1e-5)


@EACH_ENGINE
@pytest.mark.parametrize("settings", [{}, {"cql_alpha": 0.5, "activation": "tanh"}, {"cql_alpha": 0.0}], ids=str)
def test_choices_are_learned_as_a_plain_reference_does(engine: str, settings: dict[str, Any]) -> None:
    learner = cql(DISCRETE, engine=engine, **settings)
    reference = DiscreteCQLReference(learner)
    for seed in range(5):
        batch = transitions(DISCRETE, 16, seed)
        expected, metrics = reference.update(batch), learner.update(batch)
        if not learner.cfg.cql_alpha:
            del expected["conservative_gap"]  # which does not count
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert_same_weights(weights_of(learner), reference.weights())


@EACH_ENGINE
def test_without_conservatism_choices_are_those_of_double_q_learning(engine: str) -> None:
    learner = cql(DISCRETE, engine=engine, cql_alpha=0.0)
    dqn = agent(
        "dqn",
        DISCRETE,
        engine=engine,
        learning_rate=1e-2,
        batch_size=16,
        tau=0.3,
        target_update_interval=1,
        max_grad_norm=1e9,
    )
    for seed in range(4):
        batch = transitions(DISCRETE, 16, seed)
        assert learner.update(batch)["loss"] == dqn.update(batch)["loss"]
    for name, expected in weights_of(dqn).items():
        assert torch.equal(weights_of(learner)[name], expected), name


@EACH_ENGINE
def test_choices_that_the_data_does_not_have_are_not_made(engine: str) -> None:
    """Choice 0 pays 1, and 1 pays 0.8; of 2 and 3, about which nothing is known, nothing is believed."""
    learner = cql(DISCRETE, engine=engine, cql_alpha=1.0, batch_size=32)
    for seed in range(150):
        batch = transitions(DISCRETE, 32, seed)
        action = np.arange(32) % 2
        reward = np.where(action == 0, 1.0, 0.8).astype(np.float32)
        learner.update(replace(batch, action=action, reward=reward, terminated=np.ones(32, bool)))
    values = learner.q.online(transitions(DISCRETE, 64, 999).obs)
    assert (values[:, 2:].max(axis=1) < values[:, :2].min(axis=1) - 0.2).mean() > 0.9


def test_forbidden_choices_are_neither_made_nor_bootstrapped_from() -> None:
    learner = cql(MASKED, epsilon=0.5)
    batch = transitions(MASKED, 100)
    masks = batch.obs[:, -4:].astype(bool)
    for explore in (False, True):
        assert masks[np.arange(100), acted(learner, batch.obs, explore=explore)].all()


# What is reported, and mistakes


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    names = {"critic_loss", "q_mean", "conservative_gap", "conservative_weight", "actor_loss", "entropy"}
    assert set(cql(engine=engine).update(transitions(CONTINUOUS, 16))) == names
    names = {"loss", "q_mean", "conservative_gap", "conservative_weight"}
    assert set(cql(DISCRETE, engine=engine).update(transitions(DISCRETE, 16))) == names


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("cql_alpha", -1.0, "must be at least 0"),
        ("cql_samples", 0, "must be at least 1"),
        ("cql_target_gap", "low", "must be a number"),
        ("actor_learning_rate", -1.0, "must be at least 0"),
        ("epsilon", 1.5, "must be at most 1"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as complaint:
        load_config({"algo": "cql", "env_id": "none", key: value})
    assert f"{key}={value!r}: {words}" in str(complaint.value)


@pytest.mark.parametrize("key", ["alpha", "min_q_weight", "noise_std", "policy_delay", "validation_fraction"])
def test_what_cql_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "cql", "env_id": "none", key: 1})


def test_the_spec_says_what_cql_is() -> None:
    assert (SPEC.name, SPEC.family, SPEC.config) == ("cql", "offline", CQLConfig)
    defaults = {name: field.default for name, field in CQLConfig.model_fields.items()}
    expected = {"cql_alpha": 5.0, "cql_samples": 10, "backup_entropy": False, "cql_target_gap": None}
    assert expected.items() <= defaults.items()
    assert SPEC.capabilities.actions == ("continuous", "discrete")


def test_an_entropy_coefficient_of_choices_is_refused() -> None:
    with pytest.raises(UserError, match=r"ent_coef=0\.2: has no effect on discrete actions"):
        cql(DISCRETE, ent_coef=0.2)
