"""IQL's update: exact expectiles, weights within their limit, the order V, policy, Q; and plain torch beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conformance import CONTINUOUS, ENGINES, agent
from off_policy_reference import acted, assert_learns_like, tensor, transitions
from offline_reference import IQLReference, gaussian_cost, squared_error
from rl_training.algorithms.iql import SPEC, ExpectileRegression, IQLConfig, iql_weights
from rl_training.algorithms.parts.policies import LOG_STD_RANGE
from rl_training.experiment.config import ConfigError, load_config
from rl_training.ops.value import expectile_loss

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
NAMES = {
    "value_loss",
    "actor_loss",
    "critic_loss",
    "q_mean",
    "advantage_mean",
    "advantage_weight_mean",
    "effective_sample_size",
    "weight_clip_fraction",
}


def iql(**settings: Any) -> Any:
    rates = {"learning_rate": 1e-2, "actor_learning_rate": 1e-2}
    return agent("iql", CONTINUOUS, **(rates | {"batch_size": 16, "tau": 0.3} | settings))


# Expectiles


def exact_expectile(values: np.ndarray, expectile: float) -> float:
    """Where the pull from above equals the pull from below, by halving."""
    low, high = values.min(), values.max()
    for _ in range(200):
        middle = (low + high) / 2.0
        above, below = np.clip(values - middle, 0.0, None).sum(), np.clip(middle - values, 0.0, None).sum()
        low, high = (middle, high) if expectile * above > (1.0 - expectile) * below else (low, middle)
    return float(middle)


def test_the_loss_worked_by_hand() -> None:
    value, target = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, 0.0])
    assert expectile_loss(value, target, 0.7).item() == pytest.approx((0.7 * 4.0 + 0.3 * 1.0) / 3.0)


@EACH_ENGINE
@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.7, 0.9])
def test_v_reaches_the_exact_expectile_of_a_fixed_table(engine: str, expectile: float) -> None:
    """Two states, each with its own values of five actions."""
    learner = iql(engine=engine, hidden_sizes=[])
    table = np.array([[0.0, 1.0, 2.0, 3.0, 10.0], [-4.0, -1.0, 0.0, 0.5, 1.0]], np.float32)
    obs = np.repeat(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], np.float32), 5, axis=0)
    for step in range(600):
        rate = 0.1 if step < 350 else 0.01
        learner.values.fit(obs, ExpectileRegression(expectile), table.ravel(), learning_rate=rate)
    expected = [exact_expectile(row, expectile) for row in table]
    np.testing.assert_allclose(learner.values.outputs(obs)[[0, 5], 0], expected, atol=0.01)
    if expectile == 0.5:
        np.testing.assert_allclose(expected, table.mean(axis=1), atol=1e-6)


# Weights


@pytest.mark.parametrize("beta", [0.0, 0.5, 3.0, 1e6])
def test_weights_are_exponentials_and_never_above_their_limit(beta: float) -> None:
    advantage = np.random.default_rng(0).normal(0.0, 3.0, 1000).astype(np.float32)
    found = iql_weights(advantage, beta, 100.0)
    with np.errstate(over="ignore"):
        expected = np.minimum(np.exp(beta * advantage.astype(np.float64)), 100.0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-30)
    assert found.max() <= 100.0 * (1.0 + 1e-6)
    assert found.dtype == np.float32


@EACH_ENGINE
def test_the_limit_is_reached_and_reported(engine: str) -> None:
    metrics = iql(engine=engine, beta=1000.0, max_weight=2.0, expectile=0.5).update(transitions(CONTINUOUS, 16))
    assert 0.0 < metrics["weight_clip_fraction"] < 1.0
    # Weights are next to nothing or at the limit.
    assert metrics["advantage_weight_mean"] == pytest.approx(2.0 * metrics["weight_clip_fraction"], rel=0.05)
    assert metrics["effective_sample_size"] == pytest.approx(16.0 * metrics["weight_clip_fraction"], rel=0.05)


# The order


def frozen(module: torch.nn.Module) -> Callable[..., torch.Tensor]:
    """What a network gives as it is when it is asked, without its last axis and without a gradient."""

    def asked(*inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            given: torch.Tensor = module(*inputs).squeeze(-1)
        return given

    return asked


@EACH_ENGINE
def test_the_policy_and_q_learn_from_the_new_v_and_the_slow_q(engine: str) -> None:
    """With steps so large that any other order would give other numbers."""
    learner = iql(engine=engine, learning_rate=0.3, actor_learning_rate=0.0)
    batch = transitions(CONTINUOUS, 16)
    obs, action, next_obs = tensor(batch.obs), tensor(batch.action), tensor(batch.next_obs)
    values, critics = (frozen(learner.learners[name].module) for name in ("value", "critic"))
    judged = critics(obs, action).amin(dim=0)  # the slow copy is still the same
    old_v, old_next, old_q = values(obs), values(next_obs), critics(obs, action)
    metrics = learner.update(batch)
    new_v, new_next = values(obs), values(next_obs)
    found, before = metrics["advantage_mean"], (judged - old_v).mean().item()
    assert found == pytest.approx((judged - new_v).mean().item(), rel=1e-4)
    assert abs(found - before) > 0.05, "the old V would have given something else"
    losses = []
    for bootstrap in (new_next, old_next):
        alive = torch.from_numpy(~batch.terminated)
        target = tensor(batch.reward) + tensor(batch.discount) * alive * bootstrap
        losses.append((0.5 * (old_q - target) ** 2).mean(dim=1).sum().item())
    assert metrics["critic_loss"] == pytest.approx(losses[0], rel=1e-4)
    assert abs(losses[0] - losses[1]) > 0.05


@EACH_ENGINE
def test_v_and_the_weights_come_from_the_slow_critics(engine: str) -> None:
    plain, changed = iql(engine=engine), iql(engine=engine)
    changed.learners["critic"].parameters.data.zero_()
    batch = transitions(CONTINUOUS, 16)
    first, second = plain.update(batch), changed.update(batch)
    same = {"value_loss", "actor_loss", "advantage_mean", "advantage_weight_mean"}
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
    assert first["critic_loss"] != second["critic_loss"]


# Against plain torch


@EACH_ENGINE
@pytest.mark.parametrize("head", ["gaussian", "deterministic"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"expectile": 0.9, "beta": 10.0, "max_weight": 1.5, "n_critics": 3},
        {"beta": 0.5, "actor_learning_rate": 3e-3, "activation": "tanh", "hidden_sizes": [8, 6]},
    ],
    ids=str,
)
def test_updates_equal_a_plain_reference_in_torch(engine: str, head: str, settings: dict[str, Any]) -> None:
    learner = iql(engine=engine, policy_head=head, **settings)
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    reference = IQLReference(learner, gaussian_cost if head == "gaussian" else squared_error)
    assert_learns_like(learner, reference, CONTINUOUS)


# The policy


def log_std_of(learner: Any) -> torch.Tensor:
    deviation: torch.Tensor = learner.learners["actor"].module.log_std.detach()
    return deviation


@EACH_ENGINE
def test_the_deviation_is_the_same_everywhere_starts_at_one_and_stays_in_its_range(engine: str) -> None:
    learner = iql(engine=engine, beta=0.0, actor_learning_rate=1.0)
    np.testing.assert_array_equal(log_std_of(learner), 0.0)
    learner.learners["actor"].parameters.data.zero_()  # a mean of 0, from which balanced actions do not pull it
    batch = transitions(CONTINUOUS, 16)
    calm = replace(batch, action=np.zeros_like(batch.action))
    for _ in range(30):
        learner.update(calm)
    np.testing.assert_array_equal(log_std_of(learner), LOG_STD_RANGE[0])
    wild = replace(batch, obs=np.zeros_like(batch.obs), action=calm.action + np.array([[1.0], [-1.0]] * 8, np.float32))
    for _ in range(60):  # it is not stuck at its limit
        learner.update(wild)
    assert (log_std_of(learner) > 0.0).all()
    assert (log_std_of(learner) <= LOG_STD_RANGE[1]).all()


@EACH_ENGINE
def test_actions_are_clipped_and_not_squashed(engine: str) -> None:
    learner = iql(engine=engine)
    obs = np.repeat(transitions(CONTINUOUS, 1).obs, 20_000, axis=0)
    best, drawn = acted(learner, obs, explore=False), acted(learner, obs, explore=True)
    assert (np.abs(best) < 1.0).all()
    assert np.abs(drawn).max() == 1.0
    inside = np.abs(drawn) < 1.0
    # A unit Gaussian around the mean, cut off at both ends.
    for column in range(2):
        below = (drawn[:, column] < best[0, column]).mean()
        assert below == pytest.approx(0.5, abs=0.015)
    assert 0.5 < inside.mean() < 0.9


@EACH_ENGINE
def test_a_policy_without_deviation_is_noisy_only_when_it_explores(engine: str) -> None:
    learner = iql(engine=engine, policy_head="deterministic", noise_std=0.2)
    obs = np.repeat(transitions(CONTINUOUS, 1).obs, 5000, axis=0)
    best, drawn = acted(learner, obs, explore=False), acted(learner, obs, explore=True)
    np.testing.assert_array_equal(best, best[:1].repeat(5000, axis=0))
    np.testing.assert_allclose((drawn - best).std(axis=0), 0.2, rtol=0.05)


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    assert set(iql(engine=engine).update(transitions(CONTINUOUS, 16))) == NAMES


# Mistakes


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("expectile", 0.0, "must be above 0"),
        ("expectile", 1.0, "must be below 1"),
        ("beta", -1.0, "must be at least 0"),
        ("max_weight", 0.0, "must be above 0"),
        ("actor_learning_rate", -1.0, "must be at least 0"),
        ("policy_head", "soft", "must be one of gaussian, deterministic"),
        ("noise_std", -0.1, "must be at least 0"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as complaint:
        load_config({"algo": "iql", "env_id": "none", key: value})
    assert f"{key}={value!r}: {words}" in str(complaint.value)


@pytest.mark.parametrize("key", ["ent_coef", "awac_lambda", "policy_delay", "alpha", "validation_fraction"])
def test_what_iql_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "iql", "env_id": "none", key: 1})


def test_the_actors_rate_takes_the_cosine_of_the_paper() -> None:
    config = load_config(
        {"algo": "iql", "env_id": "none", "actor_learning_rate_schedule": "cosine", "total_updates": 100}
    )
    assert config.run.total_timesteps == 100
    curve = config.controls["actor_learning_rate"]
    assert curve.at(50, 100) == pytest.approx(1.5e-4)
    assert curve.at(200, 100) == 0.0, "beyond its end it stays there: it is no wave"


def test_the_spec_says_what_iql_is() -> None:
    assert (SPEC.name, SPEC.family, SPEC.config) == ("iql", "offline", IQLConfig)
    defaults = {name: field.default for name, field in IQLConfig.model_fields.items()}
    expected = {"expectile": 0.7, "beta": 3.0, "max_weight": 100.0, "tau": 0.005, "learning_rate": 3e-4}
    assert expected.items() <= defaults.items()
    assert defaults["normalize_obs"] is False
    assert SPEC.capabilities.actions == ("continuous",)
