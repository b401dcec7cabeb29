"""TD3's update: smoothed targets, the least of two critics, delayed actors; against a plain reference in torch."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conformance import CONTINUOUS, ENGINES, agent
from off_policy_reference import DeterministicReference, assert_same_weights, rows_of, transitions, weights_of
from rl_training.algorithms.td3 import SPEC, TD3Config, smoothed
from rl_training.experiment.config import ConfigError, load_config

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def td3(**settings: Any) -> Any:
    return agent("td3", CONTINUOUS, **({"learning_rate": 1e-2, "batch_size": 16, "tau": 0.3} | settings))


def smoothing(action: Any, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """What becomes of slow actions, and the standard normal noise that it was made of."""
    learner: Any = SimpleNamespace(cfg=TD3Config(**settings), batch_rng=np.random.default_rng(3))
    noise = copy.deepcopy(learner.batch_rng).standard_normal(np.shape(action), dtype=np.float32)
    return smoothed(learner, np.asarray(action, np.float32)), noise


def test_noise_on_target_actions_is_scaled() -> None:
    action = np.zeros((500, 2))
    found, noise = smoothing(action, target_policy_noise=0.1, target_noise_clip=9.0)
    np.testing.assert_allclose(found, 0.1 * noise, rtol=1e-6)
    found, _ = smoothing(action, target_policy_noise=0.0)
    np.testing.assert_array_equal(found, action)


def test_noise_on_target_actions_is_clipped_and_then_the_action_too() -> None:
    action = np.full((500, 1), 0.9)
    found, noise = smoothing(action, target_policy_noise=2.0, target_noise_clip=0.3)
    np.testing.assert_allclose(found, np.minimum(0.9 + np.clip(2.0 * noise, -0.3, 0.3), 1.0), rtol=1e-6)
    assert found.min() == pytest.approx(0.6)
    assert found.max() == 1.0
    assert ((found > 0.6001) & (found < 0.9999)).any()


@EACH_ENGINE
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"policy_delay": 1, "target_policy_noise": 1.0, "target_noise_clip": 0.1},
        {"policy_delay": 3, "n_critics": 3, "activation": "silu"},
        {"activation": "tanh", "hidden_sizes": [8, 6], "target_policy_noise": 0.0},
    ],
    ids=str,
)
def test_updates_equal_a_plain_reference_in_torch(engine: str, settings: dict[str, Any]) -> None:
    learner = td3(engine=engine, **settings)
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    cfg, reference = learner.cfg, DeterministicReference(learner)
    for count in range(1, 7):
        batch = transitions(CONTINUOUS, 16, count)
        improve = count % cfg.policy_delay == 0
        expected = reference.update(
            batch, improve=improve, noise_std=cfg.target_policy_noise, clip=cfg.target_noise_clip
        )
        metrics = learner.update(batch)
        if not cfg.target_policy_noise:  # drawn all the same
            reference.noise(batch.action)
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-3)
        assert ("actor_loss" in metrics) == improve
    assert_same_weights(weights_of(learner), reference.weights())


@EACH_ENGINE
def test_actor_and_slow_copies_move_together_once_in_their_delay(engine: str) -> None:
    learner = td3(engine=engine, policy_delay=3)
    moves = []
    for count in range(1, 8):
        before = weights_of(learner)
        learner.update(transitions(CONTINUOUS, 16, count))
        moves.append({name for name, weights in weights_of(learner).items() if not torch.equal(weights, before[name])})
    alone, together = {"critic"}, {"actor", "critic", "slow actor", "slow critic"}
    assert moves == [alone, alone, together, alone, alone, together, alone]


@EACH_ENGINE
def test_the_delay_counts_updates_and_not_calls(engine: str) -> None:
    """Minibatches that were drawn together count one by one: of five, the third brings the actor's only step."""
    together, apart = (td3(engine=engine, policy_delay=3, batch_size=8, target_policy_noise=0.0) for _ in range(2))
    metrics = together.update(transitions(CONTINUOUS, 40))
    batch = transitions(CONTINUOUS, 40)
    for start in range(0, 40, 8):
        apart.update(rows_of(batch, slice(start, start + 8)))
    assert together.n_updates == apart.n_updates == 5
    assert float(together.learners["actor"].optimizer.count) == 1.0
    assert float(together.learners["critic"].optimizer.count) == 5.0
    assert "actor_loss" in metrics
    for name, weights in weights_of(apart).items():
        assert torch.equal(weights_of(together)[name], weights), name


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    learner = td3(engine=engine)
    assert set(learner.update(transitions(CONTINUOUS, 16))) == {"critic_loss", "q_mean"}
    assert set(learner.update(transitions(CONTINUOUS, 16))) == {"critic_loss", "q_mean", "actor_loss"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", -1e-3),
        ("tau", 2),
        ("policy_delay", 0),
        ("target_policy_noise", -0.2),
        ("target_noise_clip", -0.5),
        ("noise_std", -0.1),
        ("n_critics", 0),
        ("n_step", 0),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "td3", "env_id": "none", key: value})


@pytest.mark.parametrize("key", ["ent_coef", "epsilon", "subset_size", "n_quantiles", "n_steps"])
def test_what_td3_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "td3", "env_id": "none", key: 1})


def test_the_spec_says_what_td3_is() -> None:
    assert SPEC.name == "td3"
    assert SPEC.config is TD3Config
    assert SPEC.model.model_fields["n_critics"].default == 2
    assert SPEC.capabilities.actions == ("continuous",)
