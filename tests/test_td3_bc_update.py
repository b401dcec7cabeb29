"""TD3+BC's update: an actor that stays near the data, in a scale that rewards do not change; and plain torch beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import CONTINUOUS, ENGINES, agent
from off_policy_reference import acted, assert_same_weights, transitions, weights_of
from offline_reference import TD3BCReference
from rl_training.algorithms.parts.autograd import FIRST
from rl_training.algorithms.td3_bc import SPEC, AnchoredActorLoss, TD3BCConfig
from rl_training.experiment.config import ConfigError, load_config

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def td3_bc(**settings: Any) -> Any:
    return agent("td3_bc", CONTINUOUS, **({"learning_rate": 1e-2, "batch_size": 16, "tau": 0.3} | settings))


def improved(learner: Any, batch: Any, alpha: float, learning_rate: float) -> None:
    """One step of the actor."""
    learner.improvement.deterministic(batch.obs, batch.action, FIRST, AnchoredActorLoss(alpha))
    learner.actor.learner.descend(learning_rate)


def actor_gradient(learner: Any, batch: Any, alpha: float) -> Tensor:
    """That of one step of the actor, which is not taken."""
    improved(learner, batch, alpha, 0.0)
    gradient: Tensor = learner.actor.learner.parameters.grad.clone()
    return gradient


# The actor's loss


def test_the_loss_worked_by_hand() -> None:
    """The mean of |Q| is 2, so lambda is alpha / 2; squares are averaged over samples and dimensions."""
    value = torch.tensor([3.0, -1.0], requires_grad=True)
    action, anchor = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    loss = AnchoredActorLoss(2.5).loss(value, action, anchor)
    assert loss.item() == pytest.approx(-1.25 * 1.0 + (1.0 + 4.0) / 4.0)
    (gradient,) = torch.autograd.grad(loss, value)
    np.testing.assert_allclose(gradient.numpy(), -1.25 / 2, rtol=1e-6, err_msg="lambda has no gradient")


def test_values_of_zero_have_no_weight_instead_of_an_infinite_one() -> None:
    action = torch.zeros(2, 1, requires_grad=True)
    loss = AnchoredActorLoss(2.5).loss(0.0 * action.sum(dim=1), action, torch.ones(2, 1))
    (gradient,) = torch.autograd.grad(loss, action)
    np.testing.assert_array_equal(gradient.numpy(), -1.0)


@EACH_ENGINE
def test_ten_times_the_values_leave_the_actors_gradient_as_it_was(engine: str) -> None:
    """As rewards of ten times the size do, once critics have learned them."""
    learner, batch = td3_bc(engine=engine, hidden_sizes=[]), transitions(CONTINUOUS, 16)
    before = actor_gradient(learner, batch, 2.5)
    learner.critics.learner.parameters.data.mul_(10.0)  # of one linear layer each
    torch.testing.assert_close(actor_gradient(learner, batch, 2.5), before, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(actor_gradient(learner, batch, 25.0), before, rtol=0.1)


@EACH_ENGINE
def test_ten_times_the_rewards_lead_to_the_same_actor(engine: str) -> None:
    """Linear critics of a bandit, whose targets are the rewards."""
    runs = []
    for scale in (1.0, 10.0):
        learner = td3_bc(engine=engine, hidden_sizes=[], policy_delay=1, normalize_obs=False)
        with torch.no_grad():
            learner.critics.learner.parameters.data.mul_(scale)
        for seed in range(20):
            batch = transitions(CONTINUOUS, 16, seed)
            batch = replace(batch, reward=scale * batch.reward, terminated=np.ones(16, bool))
            learner.critics.differentiate(batch.obs, batch.action, batch.reward)
            critics = learner.critics.learner.parameters
            critics.data.sub_(critics.grad, alpha=0.1)  # plain descent, whose steps are of the rewards' size
            improved(learner, batch, 2.5, 1e-2)
        runs.append(weights_of(learner)["actor"])
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-3, atol=1e-4)


@EACH_ENGINE
def test_without_alpha_a_step_is_that_of_behaviour_cloning(engine: str) -> None:
    learner, clone = td3_bc(engine=engine, alpha=0.0, policy_delay=1), agent("bc", CONTINUOUS, engine=engine)
    clone.learners["actor"].parameters.data.copy_(learner.learners["actor"].parameters.data)
    clone.set_hyperparameters(learning_rate=1e-2, batch_size=16)
    for seed in range(4):
        batch = transitions(CONTINUOUS, 16, seed)
        assert learner.update(batch)["actor_loss"] == pytest.approx(clone.update(batch)["loss"], rel=1e-5)
        torch.testing.assert_close(weights_of(learner)["actor"], weights_of(clone)["actor"], rtol=1e-5, atol=1e-6)


@EACH_ENGINE
def test_a_larger_alpha_counts_values_more_and_the_data_less(engine: str) -> None:
    """The data does -0.5, and the critics like large actions."""
    far = []
    for alpha in (0.0, 2.5, 50.0):
        learner = td3_bc(engine=engine, alpha=alpha, policy_delay=1, normalize_obs=False)
        batch = transitions(CONTINUOUS, 16)
        batch = replace(batch, action=np.full_like(batch.action, -0.5))
        learner.learners["critic"].parameters.data.zero_()
        module = learner.learners["critic"].module.members
        with torch.no_grad():  # Q = relu(1 + a_1 + a_2) + 1
            module.weights[0][:, 0, :2] = 1.0
            module.biases[0][:, 0] = 1.0
            module.weights[1][:, 0, 0] = 1.0
            module.biases[1][:] = 1.0
        for _ in range(200):
            improved(learner, batch, alpha, 1e-2)
        far.append(float(acted(learner, batch.obs, explore=False).mean()))
    assert far[0] == pytest.approx(-0.5, abs=0.01)
    assert far[0] + 0.1 < far[1] < far[2] - 0.1
    assert far[2] > 0.9


# Against plain torch


@EACH_ENGINE
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": 20.0, "policy_delay": 1, "target_policy_noise": 1.0, "n_critics": 3},
        {"alpha": 0.5, "policy_delay": 3, "activation": "tanh", "hidden_sizes": [8, 6]},
    ],
    ids=str,
)
def test_updates_equal_a_plain_reference_in_torch(engine: str, settings: dict[str, Any]) -> None:
    learner = td3_bc(engine=engine, **settings)
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    cfg, reference, before = learner.cfg, TD3BCReference(learner), weights_of(learner)
    for count in range(1, 7):
        batch = transitions(CONTINUOUS, 16, count)
        improve = count % cfg.policy_delay == 0
        expected = reference.update(
            batch, improve=improve, noise_std=cfg.target_policy_noise, clip=cfg.target_noise_clip
        )
        metrics = learner.update(batch)
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-5)
        assert ("actor_loss" in metrics) == improve
    after = weights_of(learner)
    for name, weights in before.items():
        assert (after[name] - weights).abs().max() > 1e-3, name
    assert_same_weights(after, reference.weights())


# The scale of observations


@EACH_ENGINE
def test_observations_are_scaled_by_the_datasets_mean_and_a_slightly_wider_deviation(engine: str) -> None:
    obs = np.random.default_rng(0).normal([5.0, -1.0, 3.0], [2.0, 0.1, 0.0], (500, 3)).astype(np.float32)
    learner = td3_bc(engine=engine)
    learner.observer.fit(obs)
    expected = (obs - obs.mean(axis=0)) / (obs.std(axis=0) + 1e-3)
    np.testing.assert_allclose(learner.observer.scaled(obs), expected, rtol=1e-3, atol=1e-3)
    plain = td3_bc(engine=engine, normalize_obs=False)
    action = [acted(one, rows, explore=False) for one, rows in ((learner, obs), (plain, expected))]
    np.testing.assert_allclose(*action, atol=1e-3)
    assert plain.observer.normalizer is None


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    learner = td3_bc(engine=engine)
    assert set(learner.update(transitions(CONTINUOUS, 16))) == {"critic_loss", "q_mean"}
    assert set(learner.update(transitions(CONTINUOUS, 16))) == {"critic_loss", "q_mean", "actor_loss"}


# Mistakes


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("alpha", -0.1, "must be at least 0"),
        ("policy_delay", 0, "must be at least 1"),
        ("target_policy_noise", -0.2, "must be at least 0"),
        ("noise_std", -0.1, "must be at least 0"),
        ("learning_rate", -1e-3, "must be at least 0"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as complaint:
        load_config({"algo": "td3_bc", "env_id": "none", key: value})
    assert f"{key}={value!r}: {words}" in str(complaint.value)


@pytest.mark.parametrize("key", ["ent_coef", "awac_lambda", "beta", "validation_fraction"])
def test_what_td3_bc_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "td3_bc", "env_id": "none", key: 1})


def test_the_spec_says_what_td3_bc_is() -> None:
    assert (SPEC.name, SPEC.family, SPEC.config) == ("td3_bc", "offline", TD3BCConfig)
    defaults = {name: field.default for name, field in TD3BCConfig.model_fields.items()}
    expected = {"alpha": 2.5, "learning_rate": 3e-4, "tau": 0.005, "gamma": 0.99, "batch_size": 256}
    expected |= {"policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5, "normalize_obs": "auto"}
    assert expected.items() <= defaults.items()
    assert SPEC.capabilities.actions == ("continuous",)
