"""REDQ's update: which critics a target asks, what the actor climbs and when, and its steps against plain torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import CONTINUOUS, ENGINES, agent
from off_policy_reference import SoftReference, assert_same_weights, bootstrapped, tensor, transitions, weights_of
from rl_training.algorithms.off_policy import Minibatch
from rl_training.algorithms.parts.autograd import MEAN
from rl_training.algorithms.redq import SPEC, REDQConfig, redq_target
from rl_training.data.batches import Transitions
from rl_training.experiment.config import ConfigError, load_config
from rl_training.types import UserError

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def redq(**settings: Any) -> Any:
    small = {"learning_rate": 1e-2, "batch_size": 16, "tau": 0.3, "n_critics": 5, "policy_delay": 2}
    return agent("redq", CONTINUOUS, **(small | settings))


class Asked:
    """Critics whose values are their own numbers; notes which of them were asked."""

    count = 5

    def __init__(self) -> None:
        self.members: list[list[int]] = []

    def target(self, obs: Any, action: Any, members: Any) -> np.ndarray:
        self.members.append(sorted(int(member) for member in members))
        return np.repeat(np.asarray(members, np.float32)[:, None, None], len(obs), axis=1)


def test_the_target_is_the_least_of_a_new_subset_each_time_worked_by_hand() -> None:
    critics = Asked()
    cfg = REDQConfig(subset_size=3)
    learner: Any = SimpleNamespace(cfg=cfg, critics=critics, batch_rng=np.random.default_rng(0))
    column = np.zeros(2, np.float32)
    reward, discount = np.array([1.0, 2.0], np.float32), np.array([0.9, 0.9], np.float32)
    mini = Minibatch(column, column, reward, column, np.array([False, True]), discount, None)
    for _ in range(40):
        target = redq_target(learner, mini, column, np.array([0.5, 0.5], np.float32))
        least = min(critics.members[-1])
        np.testing.assert_allclose(target, [1 + 0.9 * (least - 0.5), 2.0], rtol=1e-6)
    assert all(len(set(members)) == 3 for members in critics.members), "each critic at most once"
    assert len({tuple(members) for members in critics.members}) == 10, "all 10 subsets of 3 out of 5 come up"


@EACH_ENGINE
def test_exactly_the_subset_is_asked_and_drawn_anew_for_each_update(engine: str) -> None:
    learner = redq(engine=engine, subset_size=2, batch_size=4)
    asked: list[tuple[int, ...]] = []
    target = learner.critics.target

    def watched(obs: Any, action: Any, members: Any = None) -> Any:
        values = target(obs, action, members)
        asked.append(tuple(sorted(members.tolist())))
        assert len(values) == 2
        return values

    learner.critics.target = watched
    learner.update(transitions(CONTINUOUS, 4 * 12))
    assert len(asked) == 12
    assert len(set(asked)) > 3


@EACH_ENGINE
def test_the_values_of_a_subset_are_those_of_its_members(engine: str) -> None:
    learner = redq(engine=engine)
    batch = transitions(CONTINUOUS, 16)
    everyone = learner.critics.target(batch.obs, batch.action).copy()
    some = learner.critics.target(batch.obs, batch.action, np.array([3, 0]))
    assert everyone.shape == (5, 16, 1)
    np.testing.assert_allclose(some, everyone[[3, 0]], rtol=1e-5, atol=1e-6)


def test_the_actor_climbs_the_mean_of_all_critics() -> None:
    values = torch.tensor([[[1.0], [5.0]], [[3.0], [2.0]], [[2.0], [2.0]]])
    torch.testing.assert_close(MEAN.value(values), torch.tensor([2.0, 3.0]))
    np.testing.assert_allclose(MEAN.gradient(values.numpy()), np.full((3, 2, 1), 1 / 6), rtol=1e-6)


@EACH_ENGINE
def test_the_actor_moves_once_in_its_delay_and_the_critics_always(engine: str) -> None:
    learner = redq(engine=engine, policy_delay=3)
    moves = []
    for count in range(1, 8):
        before = weights_of(learner)
        learner.update(transitions(CONTINUOUS, 16, count))
        moves.append({name for name, weights in weights_of(learner).items() if not torch.equal(weights, before[name])})
    critics, everything = {"critic", "slow critic"}, {"actor", "critic", "slow critic", "ent_coef"}
    assert moves == [critics, critics, everything, critics, critics, everything, critics]


def subset_target(reference: SoftReference, step: Transitions, action: Tensor, entropy_cost: Tensor) -> Tensor:
    values = reference.slow_critic(tensor(step.next_obs), action).squeeze(-1)
    chosen = reference.rng.choice(len(values), reference.cfg.subset_size, replace=False)
    return bootstrapped(step, torch.stack([values[member] for member in chosen]).amin(dim=0) - entropy_cost)


def mean_value(values: Tensor) -> Tensor:
    return values.squeeze(-1).mean(dim=0)


@EACH_ENGINE
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"subset_size": 1, "policy_delay": 1, "ent_coef": 0.2},
        {"subset_size": 5, "activation": "tanh"},
        {"n_critics": 10, "activation": "silu", "hidden_sizes": [8, 6]},
    ],
    ids=str,
)
def test_updates_equal_a_plain_reference_in_torch(engine: str, settings: dict[str, Any]) -> None:
    learner = redq(engine=engine, **settings)
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    reference = SoftReference(learner, subset_target, mean_value)
    for count in range(1, 6):
        batch = transitions(CONTINUOUS, 16, count)
        improve = count % learner.cfg.policy_delay == 0
        expected, metrics = reference.update(batch, improve=improve), learner.update(batch)
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=2e-3, abs=1e-4)
        assert ("actor_loss" in metrics) == improve
    assert_same_weights(weights_of(learner), reference.weights())
    assert learner.current("ent_coef") == pytest.approx(reference.log_ent_coef.exp().item(), rel=1e-4)


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    learner = redq(engine=engine)
    assert set(learner.update(transitions(CONTINUOUS, 16))) == {"critic_loss", "q_mean"}
    assert set(learner.update(transitions(CONTINUOUS, 16))) == {"critic_loss", "q_mean", "actor_loss", "entropy"}


def test_a_subset_that_is_larger_than_the_ensemble_is_refused() -> None:
    with pytest.raises(UserError, match=r"^subset_size=6: there are only n_critics=5 to choose from$"):
        redq(subset_size=6)


@pytest.mark.parametrize(
    ("key", "value"),
    [("subset_size", 0), ("policy_delay", 0), ("n_critics", 0), ("tau", 2), ("updates_per_step", 0.0), ("gamma", 1.1)],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "redq", "env_id": "none", key: value})


@pytest.mark.parametrize("key", ["noise_std", "epsilon", "n_quantiles", "top_quantiles_to_drop", "n_steps"])
def test_what_redq_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "redq", "env_id": "none", key: 1})


def test_the_defaults_are_the_papers() -> None:
    flat = load_config({"algo": "redq", "env_id": "none"}).flat()
    assert (flat["n_critics"], flat["subset_size"], flat["updates_per_step"], flat["policy_delay"]) == (10, 2, 20.0, 20)
    assert SPEC.config is REDQConfig
    assert SPEC.capabilities.actions == ("continuous",)
