"""DDPG's update: its target by hand, and its steps against a plain reference in torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conformance import CONTINUOUS, ENGINES, agent
from off_policy_reference import DeterministicReference, acted, assert_learns_like, transitions, weights_of
from rl_training.algorithms.ddpg import SPEC, DDPGConfig
from rl_training.experiment.config import ConfigError, load_config
from rl_training.ops.value import ensemble_value_loss, td_target

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def ddpg(**settings: Any) -> Any:
    return agent("ddpg", CONTINUOUS, **({"learning_rate": 1e-2, "batch_size": 16, "tau": 0.3} | settings))


def test_the_target_worked_by_hand() -> None:
    reward, discount = np.array([1.0, 2.0, 3.0]), np.array([0.9, 0.9, 0.729])
    target = td_target(reward, discount, np.array([False, True, False]), np.array([10.0, 10.0, -10.0]))
    np.testing.assert_allclose(target, [10.0, 2.0, 3.0 - 7.29])


def test_the_critics_loss_worked_by_hand() -> None:
    """Half the mean squared error of each critic, summed over the critics."""
    values, target = torch.tensor([[1.0, 2.0], [5.0, 0.0]]), torch.tensor([2.0, 4.0])
    assert ensemble_value_loss(values, target).item() == pytest.approx(0.5 * (1 + 4) / 2 + 0.5 * (9 + 16) / 2)


@EACH_ENGINE
@pytest.mark.parametrize(
    "settings", [{}, {"n_critics": 2}, {"activation": "tanh"}, {"activation": "silu", "hidden_sizes": [8, 6]}], ids=str
)
def test_updates_equal_a_plain_reference_in_torch(engine: str, settings: dict[str, Any]) -> None:
    learner = ddpg(engine=engine, **settings)
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    reference = DeterministicReference(learner)
    assert_learns_like(learner, reference, CONTINUOUS, updates=4)


@EACH_ENGINE
def test_a_truncated_step_is_learned_from_as_any_other_and_a_terminated_one_is_not(engine: str) -> None:
    batch = transitions(CONTINUOUS, 16)

    def learned(**flags: Any) -> torch.Tensor:
        learner = ddpg(engine=engine)
        learner.update(replace(batch, **flags))
        return weights_of(learner)["critic"]

    nothing, all_of_them = np.zeros(16, np.bool_), np.ones(16, np.bool_)
    plain = learned(terminated=nothing, truncated=nothing)
    assert torch.equal(plain, learned(terminated=nothing, truncated=all_of_them))
    assert not torch.equal(plain, learned(terminated=all_of_them, truncated=nothing))


@EACH_ENGINE
def test_everything_moves_at_every_update(engine: str) -> None:
    learner = ddpg(engine=engine)
    for seed in range(3):
        before = weights_of(learner)
        learner.update(transitions(CONTINUOUS, 16, seed))
        moved = {name for name, weights in weights_of(learner).items() if not torch.equal(weights, before[name])}
        assert moved == {"actor", "critic", "slow actor", "slow critic"}


@EACH_ENGINE
@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0])
def test_slow_copies_follow_by_tau(engine: str, tau: float) -> None:
    learner = ddpg(engine=engine, tau=tau)
    before = weights_of(learner)
    learner.update(transitions(CONTINUOUS, 16))
    after = weights_of(learner)
    for name in ("actor", "critic"):
        expected = (1 - tau) * before[f"slow {name}"] + tau * after[name]
        torch.testing.assert_close(after[f"slow {name}"], expected, rtol=1e-6, atol=1e-7)


@EACH_ENGINE
def test_noise_is_added_to_what_the_actor_says_and_stays_inside(engine: str) -> None:
    learner = ddpg(engine=engine, noise_std=0.2)
    obs = np.repeat(np.ones((1, 3), np.float32), 4000, axis=0)
    best = acted(learner, obs, explore=False)
    assert (best == best[0]).all()
    noise = acted(learner, obs, explore=True) - best
    np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=0.02)
    np.testing.assert_allclose(noise.std(axis=0), 0.2, atol=0.02)
    learner.noise_std = 50.0
    wild = acted(learner, obs, explore=True)
    assert wild.min() == -1.0
    assert wild.max() == 1.0
    learner.noise_std = 0.0
    np.testing.assert_array_equal(acted(learner, obs, explore=True), best)


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    assert set(ddpg(engine=engine).update(transitions(CONTINUOUS, 16))) == {"critic_loss", "q_mean", "actor_loss"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", -1e-3),
        ("gamma", -0.1),
        ("batch_size", 0),
        ("tau", 2),
        ("n_step", 0),
        ("noise_std", -0.1),
        ("n_critics", 0),
        ("obs_clip", 0.0),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "ddpg", "env_id": "none", key: value})


@pytest.mark.parametrize("key", ["ent_coef", "epsilon", "policy_delay", "target_policy_noise", "n_steps"])
def test_what_ddpg_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "ddpg", "env_id": "none", key: 1})


def test_the_spec_says_what_ddpg_is() -> None:
    assert SPEC.name == "ddpg"
    assert SPEC.config is DDPGConfig
    assert SPEC.model.model_fields["n_critics"].default == 1
    assert SPEC.capabilities.actions == ("continuous",)
