"""AWAC's update: targets without entropy, both weightings, the pure loss, its gradient; and plain torch beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conformance import CONTINUOUS, ENGINES, agent
from off_policy_reference import acted, assert_learns_like, flat, tensor, transitions
from offline_reference import AWAC_METRICS, AWACReference
from rl_training.algorithms.awac import SPEC, AWACConfig, awac_loss, awac_target, awac_weights
from rl_training.algorithms.off_policy import Minibatch
from rl_training.data.batches import Transitions
from rl_training.experiment.config import ConfigError, load_config

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
EACH_HEAD = pytest.mark.parametrize("head", ["gaussian", "squashed"])


def awac(**settings: Any) -> Any:
    return agent("awac", CONTINUOUS, **({"learning_rate": 1e-2, "batch_size": 16, "tau": 0.3} | settings))


def minibatch(step: Transitions) -> Minibatch:
    return Minibatch(step.obs, step.action, step.reward, step.next_obs, step.terminated, step.discount, weight=None)


# The target


def set_policy(learner: Any, head: str, log_std: float) -> None:
    """A policy that is the same everywhere: the raw mean 0.3, and this deviation."""
    actor = learner.learners["actor"].module
    layer = actor.head if head == "squashed" else actor.network.head
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([0.3, 0.3] + ([log_std, log_std] if head == "squashed" else [])))
        if head == "gaussian":
            actor.log_std.fill_(log_std)


@EACH_ENGINE
@EACH_HEAD
@pytest.mark.parametrize("log_std", [-2.0, 0.5])
def test_the_target_is_the_expected_value_of_the_next_action_and_nothing_else(
    engine: str, head: str, log_std: float
) -> None:
    """The entropy of this policy is far from 0, so any leak of it would be seen."""
    learner = awac(engine=engine, policy_head=head)
    set_policy(learner, head, log_std)
    one = transitions(CONTINUOUS, 1, 5)
    columns = {name: np.repeat(getattr(one, name), 20_000, axis=0) for name in ("obs", "action", "reward", "next_obs")}
    discount = np.full(20_000, 0.9, np.float32)
    for terminated in (False, True):
        mini = Minibatch(**columns, terminated=np.full(20_000, terminated), discount=discount, weight=None)
        found = awac_target(learner, mini).mean()
        rng = np.random.default_rng(3)
        noise = np.exp(log_std) * rng.standard_normal((20_000, 2))
        action = np.tanh(0.3 + noise) if head == "squashed" else (np.tanh(0.3) + noise).clip(-1.0, 1.0)
        action = action.astype(np.float32)
        with torch.no_grad():
            values = learner.followers["critic"].module(tensor(columns["next_obs"]), tensor(action))
        least = values.squeeze(-1).amin(dim=0).mean().item()
        assert found == pytest.approx(one.reward[0] + (0.0 if terminated else 0.9 * least), abs=0.01)


@EACH_ENGINE
def test_the_slow_critics_judge_the_next_action(engine: str) -> None:
    learner, mini = awac(engine=engine), minibatch(transitions(CONTINUOUS, 16))
    learner.batch_rng.bit_generator.state = (state := learner.batch_rng.bit_generator.state)
    before = awac_target(learner, mini)
    learner.learners["critic"].parameters.data.zero_()
    learner.batch_rng.bit_generator.state = state
    np.testing.assert_array_equal(awac_target(learner, mini), before)
    learner.followers["critic"].weights.data.zero_()
    np.testing.assert_array_equal(awac_target(learner, mini), mini.reward)


# The loss, against NumPy


def loss_inputs(rows: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values, targets, values of the policy's own actions, and log-densities."""
    rng = np.random.default_rng(0)
    shapes = ((2, rows), (rows,), (2, rows), (rows,))
    values, target, own, log_prob = (torch.from_numpy(2.0 * rng.standard_normal(shape)) for shape in shapes)
    return values, target, own, log_prob


@pytest.mark.parametrize("weighting", ["clipped", "softmax"])
@pytest.mark.parametrize("awac_lambda", [0.3, 2.0])
def test_the_loss_and_its_metrics_equal_numpys(weighting: str, awac_lambda: float) -> None:
    inputs = loss_inputs()
    critic_loss, actor_loss, metrics = awac_loss(*inputs, awac_lambda=awac_lambda, weighting=weighting, max_weight=4.0)
    values, target, own, log_prob = (array.numpy() for array in inputs)
    advantage = values.min(axis=0) - own.min(axis=0)
    powers = np.exp(advantage / awac_lambda)
    weight = np.minimum(powers, 4.0) if weighting == "clipped" else powers / powers.mean()
    expected = {
        "critic_loss": sum((0.5 * (values[k] - target) ** 2).mean() for k in (0, 1)),
        "actor_loss": -(weight * log_prob).mean(),
        "target_q_mean": target.mean(),
        "advantage_mean": advantage.mean(),
        "advantage_weight_mean": weight.mean(),
        "behavior_logprob_mean": log_prob.mean(),
        "effective_sample_size": weight.sum() ** 2 / (weight**2).sum(),
        "weight_clip_fraction": (powers >= 4.0).mean() if weighting == "clipped" else 0.0,
    }
    assert set(metrics) == AWAC_METRICS
    assert metrics == pytest.approx(expected, rel=1e-6)
    assert (critic_loss.item(), actor_loss.item()) == pytest.approx((expected["critic_loss"], expected["actor_loss"]))
    if weighting == "clipped":
        assert 0.0 < metrics["weight_clip_fraction"] < 1.0
    assert 1.0 < metrics["effective_sample_size"] < 12.0


def test_there_is_no_gradient_through_the_weights() -> None:
    values, target, own, log_prob = (array.requires_grad_() for array in loss_inputs())
    _, actor_loss, _ = awac_loss(values, target, own, log_prob, awac_lambda=1.0)
    found = torch.autograd.grad(actor_loss, (values, own, log_prob), allow_unused=True)
    assert found[0] is None
    assert found[1] is None
    assert found[2] is not None
    assert (found[2] < 0.0).all(), "every action is made more likely, in proportion to its weight"
    for weighting in ("clipped", "softmax"):
        weight = awac_weights(values[0] - own[0], awac_lambda=1.0, weighting=weighting, max_weight=4.0)
        assert not weight.requires_grad


def test_a_better_action_is_repeated_more() -> None:
    log_prob = torch.zeros(3, requires_grad=True)
    values = torch.tensor([[-1.0, 0.0, 1.0]])
    for weighting in ("clipped", "softmax"):
        _, loss, _ = awac_loss(
            values, torch.zeros(3), torch.zeros(1, 3), log_prob, awac_lambda=1.0, weighting=weighting
        )
        (gradient,) = torch.autograd.grad(loss, log_prob)
        pull = -gradient.numpy()
        np.testing.assert_allclose(pull[1:] / pull[:-1], np.e, rtol=1e-5)


@EACH_ENGINE
@EACH_HEAD
@pytest.mark.parametrize("weighting", ["clipped", "softmax"])
def test_what_an_update_applies_is_the_gradient_of_the_loss(engine: str, head: str, weighting: str) -> None:
    learner = awac(engine=engine, policy_head=head, weighting=weighting, normalize_obs=False)
    batch = transitions(CONTINUOUS, 16, 2)
    reference = AWACReference(learner)
    actor, critic = reference.actor, reference.critic
    obs, action = tensor(batch.obs), tensor(batch.action)
    state = learner.batch_rng.bit_generator.state
    target = awac_target(learner, minibatch(batch))
    noise = learner.batch_rng.standard_normal((16, 2), dtype=np.float32)
    learner.batch_rng.bit_generator.state = state
    own = reference.drawn(obs, tensor(noise)).detach()
    critic_loss, actor_loss, metrics = awac_loss(
        critic(obs, action).squeeze(-1),
        tensor(target),
        critic(obs, own).squeeze(-1),
        reference.log_prob(obs, action),
        awac_lambda=learner.cfg.awac_lambda,
        weighting=weighting,
    )
    critic_loss.backward()
    actor_loss.backward()
    assert learner.update(batch) == pytest.approx(metrics, rel=1e-3, abs=1e-5)
    for name, module in (("actor", actor), ("critic", critic)):
        expected = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
        found = learner.learners[name].parameters.grad
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
        assert found.abs().max() > 1e-3


# Against plain torch


@EACH_ENGINE
@EACH_HEAD
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"awac_lambda": 0.05, "max_weight": 2.0, "n_critics": 3},
        {"weighting": "softmax", "awac_lambda": 0.1, "activation": "tanh"},
    ],
    ids=str,
)
def test_updates_equal_a_plain_reference_in_torch(engine: str, head: str, settings: dict[str, Any]) -> None:
    learner = awac(engine=engine, policy_head=head, **settings)
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    reference = AWACReference(learner)
    assert_learns_like(learner, reference, CONTINUOUS)


@EACH_ENGINE
def test_the_weights_are_those_of_the_critics_before_their_step(engine: str) -> None:
    """With a rate so high that it would be seen."""
    learner = awac(engine=engine, learning_rate=0.5, awac_lambda=1.0)
    batch = transitions(CONTINUOUS, 16)
    first = awac(engine=engine, learning_rate=0.0, awac_lambda=1.0)
    assert learner.update(batch)["advantage_weight_mean"] == first.update(batch)["advantage_weight_mean"]


@EACH_HEAD
def test_the_policy_repeats_the_better_of_two_actions(head: str) -> None:
    """A bandit whose data has both: +0.5 pays 1, -0.5 pays nothing. Imitation alone would end at 0."""
    learner = awac(policy_head=head, awac_lambda=0.1, batch_size=32, hidden_sizes=[16], normalize_obs=False)
    sides = np.where(np.arange(32)[:, None] % 2, 0.5, -0.5).repeat(2, axis=1).astype(np.float32)
    batch = transitions(CONTINUOUS, 32)
    batch = replace(batch, action=sides, reward=(sides[:, 0] > 0.0).astype(np.float32), terminated=np.ones(32, bool))
    for _ in range(400):
        metrics = learner.update(batch)
    np.testing.assert_allclose(acted(learner, batch.obs, explore=False), 0.5, atol=0.1)
    assert metrics["target_q_mean"] == 0.5
    if head == "squashed":  # the deviation of the other one is still shrinking: its own actions differ in value
        assert metrics["effective_sample_size"] == pytest.approx(16.0, abs=1.0)
    assert metrics["effective_sample_size"] < 17.0


# The model


def test_the_squashed_policy_is_sacs_and_its_model_knows_densities() -> None:
    learner = awac(policy_head="squashed")
    actor: nn.Module = learner.learners["actor"].module
    sac = agent("sac", CONTINUOUS)
    assert [p.shape for p in actor.parameters()] == [p.shape for p in sac.learners["actor"].module.parameters()]
    assert torch.equal(flat(actor), flat(sac.learners["actor"].module))


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    assert set(awac(engine=engine).update(transitions(CONTINUOUS, 16))) == AWAC_METRICS


# Mistakes


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"awac_lambda": 0.0}, "awac_lambda=0.0"),
        ({"awac_lambda": -1.0}, "awac_lambda=-1.0"),
        ({"awac_lambda": float("nan")}, "awac_lambda=nan"),
        ({"awac_lambda": 1.0, "max_weight": 0.0}, "max_weight=0.0"),
        ({"awac_lambda": 1.0, "weighting": "clip"}, "weighting='clip': must be 'clipped' or 'softmax'"),
    ],
    ids=str,
)
def test_the_loss_refuses_invalid_hyperparameters(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        awac_loss(*loss_inputs(), **settings)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("awac_lambda", 0.0, "must be above 0"),
        ("awac_lambda", -1.0, "must be above 0"),
        ("max_weight", 0, "must be above 0"),
        ("weighting", "clip", "must be one of clipped, softmax"),
        ("tau", 2, "must be at most 1"),
        ("n_critics", 0, "must be at least 1"),
        ("policy_head", "soft", "must be one of gaussian, squashed"),
        ("offline_fraction", 1.5, "must be at most 1"),
        ("reward_scale", 0, "must be above 0, or one of auto, return_range"),
        ("reward_scale", "range", "must be a number, or one of auto, return_range"),
        ("normalize_obs", 3, "must be true or false, or one of auto"),
        ("reward_clip", -1.0, "must be above 0"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as complaint:
        load_config({"algo": "awac", "env_id": "none", key: value})
    assert f"{key}={value!r}: {words}" in str(complaint.value)
    assert "\n" not in str(complaint.value)


@pytest.mark.parametrize("key", ["ent_coef", "noise_std", "epsilon", "policy_delay", "beta", "validation_fraction"])
def test_what_awac_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "awac", "env_id": "none", key: 1})


def test_the_spec_says_what_awac_is() -> None:
    assert (SPEC.name, SPEC.family, SPEC.config) == ("awac", "offline", AWACConfig)
    defaults = {name: field.default for name, field in AWACConfig.model_fields.items()}
    assert (defaults["weighting"], defaults["max_weight"]) == ("clipped", 100.0)
    assert defaults["awac_lambda"] == pytest.approx(1 / 3)
    assert SPEC.capabilities.actions == ("continuous",)
