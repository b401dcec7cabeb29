"""SAC's update: its target and actor loss by hand, its entropy coefficient, and its steps against plain torch."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import CONTINUOUS, ENGINES, agent
from off_policy_reference import (
    SoftReference,
    acted,
    assert_learns_like,
    bootstrapped,
    tensor,
    transitions,
    weights_of,
)
from rl_training.algorithms.off_policy import Minibatch
from rl_training.algorithms.parts.autograd import LEAST
from rl_training.algorithms.sac import SPEC, SACConfig, SoftActorLoss, sac_target
from rl_training.data.batches import Transitions
from rl_training.experiment.config import ConfigError, load_config

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def sac(**settings: Any) -> Any:
    return agent("sac", CONTINUOUS, **({"learning_rate": 1e-2, "batch_size": 16, "tau": 0.3} | settings))


# By hand


def test_the_target_is_the_least_value_minus_the_cost_of_certainty_worked_by_hand() -> None:
    judged = np.array([[[1.0], [5.0], [4.0]], [[3.0], [2.0], [9.0]]], np.float32)
    learner: Any = SimpleNamespace(critics=SimpleNamespace(target=lambda obs, action: judged))
    column = np.zeros(3, np.float32)
    discount = np.array([0.9, 0.9, 0.81], np.float32)
    reward = np.array([1.0, 2.0, 3.0], np.float32)
    mini = Minibatch(column, column, reward, column, np.array([False, True, False]), discount, None)
    target = sac_target(learner, mini, column, np.array([0.5, 0.5, -0.5], np.float32))
    np.testing.assert_allclose(target, [1 + 0.9 * (1.0 - 0.5), 2.0, 3 + 0.81 * (4.0 + 0.5)], rtol=1e-6)


def test_the_actors_loss_worked_by_hand() -> None:
    values = torch.tensor([[[1.0], [5.0]], [[3.0], [2.0]]])
    torch.testing.assert_close(LEAST.value(values), torch.tensor([1.0, 2.0]))
    loss = SoftActorLoss(0.5).loss(LEAST.value(values), torch.tensor([-1.0, 3.0]))
    assert loss.item() == pytest.approx(((-0.5 - 1.0) + (1.5 - 2.0)) / 2)
    # Only the least value of each row pulls.
    np.testing.assert_array_equal(LEAST.gradient(values.numpy())[..., 0], [[0.5, 0.0], [0.0, 0.5]])


# Against plain torch


def least_target(reference: SoftReference, step: Transitions, action: Tensor, entropy_cost: Tensor) -> Tensor:
    values = reference.slow_critic(tensor(step.next_obs), action).squeeze(-1)
    return bootstrapped(step, torch.stack(list(values)).amin(dim=0) - entropy_cost)


def least_value(values: Tensor) -> Tensor:
    return values.squeeze(-1).amin(dim=0)


@EACH_ENGINE
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ent_coef": 0.2, "n_critics": 3},
        {"ent_coef": 0.0, "activation": "tanh"},
        {"ent_coef": "auto_0.1", "target_entropy": 1.5, "activation": "silu", "hidden_sizes": [8, 6]},
    ],
    ids=str,
)
def test_updates_equal_a_plain_reference_in_torch(engine: str, settings: dict[str, Any]) -> None:
    learner = sac(engine=engine, **settings)
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    reference = SoftReference(learner, least_target, least_value)
    assert_learns_like(learner, reference, CONTINUOUS, updates=4)
    assert learner.current("ent_coef") == pytest.approx(reference.log_ent_coef.exp().item(), rel=1e-4)


# The entropy coefficient


@EACH_ENGINE
def test_a_learned_coefficient_rises_while_the_entropy_is_too_low_and_falls_while_it_is_too_high(engine: str) -> None:
    for wanted, direction in ((50.0, 1.0), (-50.0, -1.0)):
        learner = sac(engine=engine, target_entropy=wanted, learning_rate=0.1)
        assert learner.current("ent_coef") == 1.0
        learner.update(transitions(CONTINUOUS, 16))
        # The first step of Adam is as long as its learning rate, whatever the gradient.
        assert learner.current("ent_coef") == pytest.approx(math.exp(direction * 0.1), rel=1e-5)


def test_a_learned_coefficient_brings_the_entropy_to_its_target() -> None:
    """A reward for small actions pulls towards certainty; the coefficient finds the balance."""
    learner = sac(target_entropy=0.5, batch_size=32, hidden_sizes=[16])
    entropies = []
    for seed in range(400):
        batch = transitions(CONTINUOUS, 32, seed)
        calm = -(batch.action**2).sum(axis=1)
        entropies.append(learner.update(replace(batch, reward=calm, terminated=np.ones(32, np.bool_)))["entropy"])
    assert entropies[0] > 0.9
    assert np.mean(entropies[-100:]) == pytest.approx(0.5, abs=0.1)


def test_without_a_target_the_entropy_aims_at_minus_the_number_of_actions() -> None:
    batch = transitions(CONTINUOUS, 16)
    plain, told, other = sac(), sac(target_entropy=-2.0), sac(target_entropy=5.0)
    for learner in (plain, told, other):
        for _ in range(3):
            learner.update(batch)
    assert plain.current("ent_coef") == told.current("ent_coef") != other.current("ent_coef")


def test_where_a_coefficient_starts_and_whether_it_moves() -> None:
    for given, start, moves in (("auto", 1.0, True), ("auto_0.1", 0.1, True), (0.1, 0.1, False), (0, 0.0, False)):
        learner = sac(ent_coef=given)
        assert learner.current("ent_coef") == pytest.approx(start)
        learner.update(transitions(CONTINUOUS, 16))
        assert (learner.current("ent_coef") != pytest.approx(start)) == moves
        assert ("ent_coef" in learner.learners) == moves


@EACH_ENGINE
def test_a_fixed_coefficient_can_be_set_and_is_used_from_then_on(engine: str) -> None:
    """As a schedule does before every phase of learning."""
    changed, fixed = sac(engine=engine, ent_coef=0.1), sac(engine=engine, ent_coef=0.7)
    changed.set_hyperparameters(ent_coef=0.7)
    for learner in (changed, fixed):
        learner.update(transitions(CONTINUOUS, 16))
    assert changed.current("ent_coef") == 0.7
    assert torch.equal(weights_of(changed)["critic"], weights_of(fixed)["critic"])
    assert torch.equal(weights_of(changed)["actor"], weights_of(fixed)["actor"])


# Acting


@EACH_ENGINE
def test_the_best_action_is_tanh_of_the_mean_and_others_are_spread_by_the_deviation(engine: str) -> None:
    learner = sac(engine=engine)
    obs = np.repeat(np.ones((1, 3), np.float32), 4000, axis=0)
    with torch.no_grad():
        mean, log_std = learner.learners["actor"].module(torch.ones(1, 3))[0].chunk(2)
    best = acted(learner, obs, explore=False)
    np.testing.assert_allclose(best, np.tile(mean.tanh().numpy(), (4000, 1)), atol=1e-6)
    raw = np.arctanh(np.clip(acted(learner, obs, explore=True).astype(np.float64), -1 + 1e-7, 1 - 1e-7))
    np.testing.assert_allclose(raw.mean(axis=0), mean.numpy(), atol=0.1)
    np.testing.assert_allclose(raw.std(axis=0), log_std.exp().numpy(), rtol=0.1)


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    metrics = sac(engine=engine).update(transitions(CONTINUOUS, 16))
    assert set(metrics) == {"critic_loss", "q_mean", "actor_loss", "entropy"}


# Mistakes


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("ent_coef", -1, "is neither a number of at least 0, nor 'auto'"),
        ("ent_coef", "auto_x", "nor 'auto', nor 'auto_' and a number above 0"),
        ("ent_coef", "auto_0", "nor 'auto', nor 'auto_' and a number above 0"),
        ("ent_coef", "auto_-1", "nor 'auto', nor 'auto_' and a number above 0"),
        ("ent_coef", "auto_", "nor 'auto', nor 'auto_' and a number above 0"),
        ("ent_coef", "automatic", "nor 'auto', nor 'auto_' and a number above 0"),
        ("ent_coef", "auto_inf", "nor 'auto', nor 'auto_' and a number above 0"),
        ("ent_coef", True, "must be a number"),
        ("tau", 2, "must be at most 1"),
        ("learning_rate", -1e-3, "must be at least 0"),
        ("target_entropy", "low", "must be a number"),
        ("n_critics", 0, "must be at least 1"),
        ("batch_size", 0, "must be at least 1"),
        ("n_step", 0, "must be at least 1"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as complaint:
        load_config({"algo": "sac", "env_id": "none", key: value})
    message = str(complaint.value)
    assert message.startswith(f"config: {key}")
    assert repr(value) in message
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"ent_coef_schedule": 0.1}, "ent_coef='auto' is learned; give a number to schedule"),
        ({"ent_coef": "auto_0.5", "ent_coef_warmup_steps": 5}, "ent_coef='auto_0.5' is learned"),
        ({"ent_coef": 0.1, "ent_coef_schedule": -0.1}, "it reaches -0.1, but ent_coef must be at least 0"),
    ],
)
def test_a_schedule_of_the_coefficient_needs_numbers_above_0(schedule: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as complaint:
        load_config({"algo": "sac", "env_id": "none", "total_timesteps": 10, **schedule})
    assert words in str(complaint.value)


@pytest.mark.parametrize("key", ["noise_std", "epsilon", "policy_delay", "subset_size", "n_quantiles", "n_steps"])
def test_what_sac_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "sac", "env_id": "none", key: 1})


def test_the_spec_says_what_sac_is() -> None:
    assert SPEC.name == "sac"
    assert SPEC.config is SACConfig
    assert SPEC.capabilities.actions == ("continuous",)
