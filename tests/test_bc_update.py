"""Behaviour cloning's update against plain torch; what it converges to; how it judges what it does not learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from conformance import CONTINUOUS, DISCRETE, ENGINES, FACTORED, agent, built
from off_policy_reference import MASKED, acted, assert_same_weights, rows_of, transitions, weights_of
from offline_reference import (
    ImitationReference,
    choice_cost,
    factored_cost,
    gaussian_cost,
    squared_error,
    squashed_density,
)
from rl_training.algorithms.bc import SPEC, BCConfig
from rl_training.experiment.config import ConfigError, load_config
from rl_training.testing import TinyEnv
from rl_training.types import SpaceInfo

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
SQUASHED = {"loss": "likelihood", "policy_head": "squashed"}
KINDS: dict[str, tuple[SpaceInfo, dict[str, Any], Callable[..., Any]]] = {
    "squares": (CONTINUOUS, {"loss": "mse"}, squared_error),
    "likelihood": (CONTINUOUS, {"loss": "likelihood"}, gaussian_cost),
    "squashed": (CONTINUOUS, SQUASHED, lambda actor, obs, a: -squashed_density(actor(obs), a)),
    "choices": (DISCRETE, {}, choice_cost),
    "several choices": (FACTORED, {}, factored_cost),
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def bc(info: SpaceInfo = CONTINUOUS, **settings: Any) -> Any:
    return agent("bc", info, **({"learning_rate": 1e-2, "batch_size": 16} | settings))


# Against plain torch


@EACH_ENGINE
@EACH_KIND
@pytest.mark.parametrize("settings", [{}, {"activation": "tanh", "hidden_sizes": [8, 6]}], ids=str)
def test_updates_equal_a_plain_reference_in_torch(engine: str, kind: str, settings: dict[str, Any]) -> None:
    info, own, cost = KINDS[kind]
    learner = bc(info, engine=engine, **own, **settings)
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    reference, before = ImitationReference(learner, cost), weights_of(learner)
    for seed in range(5):
        batch = transitions(info, 16, seed)
        assert learner.update(batch) == pytest.approx(reference.update(batch), rel=1e-3, abs=1e-5)
    assert (weights_of(learner)["actor"] - before["actor"]).abs().max() > 1e-3
    assert_same_weights(weights_of(learner), reference.weights())


@EACH_KIND
def test_rewards_and_what_comes_next_mean_nothing(kind: str) -> None:
    info, own, _ = KINDS[kind]
    batch, other = transitions(info, 16), transitions(info, 16, 9)
    changed = replace(batch, reward=other.reward, next_obs=other.next_obs, terminated=other.terminated)
    plain, told = bc(info, **own), bc(info, **own)
    assert plain.update(batch) == told.update(changed)
    assert torch.equal(weights_of(plain)["actor"], weights_of(told)["actor"])


# What it converges to


def constant(info: SpaceInfo, action: np.ndarray) -> Any:
    """Transitions that all show the same and do what they are told."""
    batch = transitions(info, len(action))
    return replace(batch, obs=np.ones_like(batch.obs), action=action)


def taught(learner: Any, batch: Any, updates: int = 600) -> Any:
    for _ in range(updates):
        learner.update(batch)
    return learner


def test_squares_lead_to_the_mean_of_the_actions() -> None:
    action = np.random.default_rng(0).uniform(-0.9, 0.3, (64, 2)).astype(np.float32)
    learner = taught(bc(batch_size=64), constant(CONTINUOUS, action))
    found = acted(learner, np.ones((1, 3), np.float32), explore=False)
    np.testing.assert_allclose(found[0], action.mean(axis=0), atol=2e-3)
    np.testing.assert_array_equal(found, acted(learner, np.ones((1, 3), np.float32), explore=True))


def test_squashed_likelihood_leads_to_the_spread_of_the_actions_too() -> None:
    raw = np.random.default_rng(0).normal([0.4, -0.6], [0.2, 0.7], (512, 2))
    learner = taught(bc(**SQUASHED, batch_size=512), constant(CONTINUOUS, np.tanh(raw).astype(np.float32)))
    obs = np.ones((4000, 3), np.float32)
    np.testing.assert_allclose(acted(learner, obs, explore=False)[0], np.tanh(raw.mean(axis=0)), atol=0.01)
    drawn = np.arctanh(acted(learner, obs, explore=True).clip(-0.999999, 0.999999))
    np.testing.assert_allclose(drawn.mean(axis=0), raw.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(drawn.std(axis=0), raw.std(axis=0), rtol=0.06)


def test_gaussian_likelihood_leads_to_the_spread_of_the_actions_too() -> None:
    action = np.random.default_rng(0).normal([0.2, -0.3], [0.2, 0.3], (512, 2)).clip(-1.0, 1.0).astype(np.float32)
    learner = taught(bc(loss="likelihood", batch_size=512), constant(CONTINUOUS, action))
    obs = np.ones((4000, 3), np.float32)
    np.testing.assert_allclose(acted(learner, obs, explore=False)[0], action.mean(axis=0), atol=5e-3)
    drawn = acted(learner, obs, explore=True)
    np.testing.assert_allclose(drawn.mean(axis=0), action.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(drawn.std(axis=0), action.std(axis=0), rtol=0.06)


def test_choices_lead_to_their_shares() -> None:
    action = np.array([0] * 10 + [1] * 40 + [3] * 14)
    learner = taught(bc(DISCRETE, batch_size=64), constant(DISCRETE, action))
    obs = np.ones((5000, 3), np.float32)
    assert (acted(learner, obs, explore=False) == 1).all()
    shares = np.bincount(acted(learner, obs, explore=True), minlength=4) / 5000
    np.testing.assert_allclose(shares, np.array([10, 40, 0, 14]) / 64, atol=0.03)


@EACH_ENGINE
def test_forbidden_choices_are_neither_taken_nor_pushed(engine: str) -> None:
    """Their logits get no gradient, and what was done is judged among what was allowed."""
    learner = bc(MASKED, engine=engine)
    batch = transitions(MASKED, 200)
    masks = batch.obs[:, -4:].astype(bool)
    batch = replace(batch, action=masks.argmax(axis=1))
    for explore in (False, True):
        assert masks[np.arange(200), acted(learner, batch.obs, explore=explore)].all()
    alone = masks.sum(axis=1) == 1
    assert alone.sum() > 5
    before = weights_of(learner)["actor"]
    assert learner.update(rows_of(batch, alone))["loss"] == pytest.approx(0.0, abs=1e-6)
    assert torch.equal(weights_of(learner)["actor"], before), "where there is no choice there is nothing to learn"


# Judging


@EACH_ENGINE
@EACH_KIND
def test_what_is_held_out_is_judged_by_the_same_loss_and_changes_nothing(engine: str, kind: str) -> None:
    info, own, _ = KINDS[kind]
    learner, batch = bc(info, engine=engine, **own), transitions(info, 16, 3)
    learner.observer.fit(batch.obs)
    before = weights_of(learner)["actor"]
    judged = learner.validation_loss(batch.obs, batch.action)
    assert torch.equal(weights_of(learner)["actor"], before)
    assert learner.update(batch)["loss"] == pytest.approx(judged, rel=1e-4)


class Forgetful(nn.Module):
    """A network of one's own that forgets half of what it sees while it learns."""

    def __init__(self, info: SpaceInfo, config: Any) -> None:
        super().__init__()
        outputs = info.action_size * (2 if config.policy_head == "squashed" else 1)
        self.layers = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, outputs))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        given: torch.Tensor = self.layers(obs)
        return given


@pytest.mark.parametrize(
    ("actions", "settings"),
    [("continuous", {"loss": "likelihood"}), ("continuous", SQUASHED), ("discrete", {"loss": "mse"})],
    ids=str,
)
def test_judging_does_not_draw_what_a_users_network_draws_to_learn(actions: str, settings: dict[str, Any]) -> None:
    run = built(
        "bc",
        lambda: TinyEnv(actions=actions),
        dataset="rl_training.testing:tiny_dataset",
        model="test_bc_update:Forgetful",
        **settings,
    )
    run.advance()  # puts the network into its learning mode
    run.close()
    dataset, learner = run.loop.dataset, run.algorithm
    assert learner.validation_loss(dataset.obs, dataset.action) == learner.validation_loss(dataset.obs, dataset.action)


# Mistakes


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("learning_rate", -1e-3, "must be at least 0"),
        ("batch_size", 0, "must be at least 1"),
        ("loss", "l1", "must be one of mse, likelihood"),
        ("policy_head", "soft", "must be one of gaussian, squashed"),
        ("validation_fraction", 1.0, "must be below 1"),
        ("validation_fraction", -0.1, "must be at least 0"),
        ("top_return_fraction", 0.0, "must be above 0"),
        ("top_return_fraction", 1.5, "must be at most 1"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as complaint:
        load_config({"algo": "bc", "env_id": "none", key: value})
    assert f"{key}={value!r}: {words}" in str(complaint.value)


@pytest.mark.parametrize("key", ["gamma", "tau", "ent_coef", "online", "start_from", "reward_scale", "done_means"])
def test_what_bc_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "bc", "env_id": "none", key: 1})


def test_the_spec_says_what_bc_is() -> None:
    assert (SPEC.name, SPEC.family, SPEC.config) == ("bc", "offline", BCConfig)
    assert SPEC.capabilities.offline
    assert SPEC.capabilities.actions == ("continuous", "discrete", "multi_discrete", "multi_binary")
