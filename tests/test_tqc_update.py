"""TQC's update: which quantiles are kept, the quantile Huber loss, and its steps against plain torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conformance import CONTINUOUS, ENGINES, agent
from off_policy_reference import (
    SoftReference,
    assert_learns_like,
    bootstrapped,
    step_down,
    tensor,
    transitions,
)
from rl_training.algorithms.off_policy import Minibatch
from rl_training.algorithms.tqc import SPEC, TQCConfig, tqc_target
from rl_training.data.batches import Transitions
from rl_training.experiment.config import ConfigError, load_config
from rl_training.ops.kernels.td import quantile_huber_gradient
from rl_training.ops.value import quantile_huber_loss
from rl_training.types import UserError

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def tqc(**settings: Any) -> Any:
    small = {"learning_rate": 1e-2, "batch_size": 16, "tau": 0.3, "n_quantiles": 5}
    return agent("tqc", CONTINUOUS, **(small | settings))


# Truncation


def goals(judged: Any, drop: int, *, terminated: bool = False, cost: float = 0.0) -> list[float]:
    """The samples that critics would regress on, for one transition of reward 0 and discount 1."""
    values = np.asarray(judged, np.float32)[:, None, :]
    learner: Any = SimpleNamespace(
        cfg=TQCConfig(top_quantiles_to_drop=drop), critics=SimpleNamespace(target=lambda obs, action: values)
    )
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    mini = Minibatch(zero, zero, zero, zero, np.array([terminated]), one, None)
    (samples,) = tqc_target(learner, mini, zero, np.array([cost], np.float32))
    return list(samples)


@pytest.mark.parametrize(
    ("drop", "kept"),
    [(0, [-1.0, 1.0, 2.0, 5.0, 7.0, 9.0]), (1, [-1.0, 1.0, 2.0, 5.0]), (2, [-1.0, 1.0])],
)
def test_the_highest_quantiles_of_the_pool_are_dropped_so_many_for_each_critic(drop: int, kept: list[float]) -> None:
    """Those that go may all be of one critic: here both of the highest are the second one's."""
    assert goals([[5.0, 1.0, 2.0], [9.0, -1.0, 7.0]], drop) == kept


def test_the_samples_of_a_target_worked_by_hand() -> None:
    assert goals([[5.0, 1.0]], 1, cost=0.25) == [0.75]
    assert goals([[5.0, 1.0]], 0, cost=0.25, terminated=True) == [0.0, 0.0]


@EACH_ENGINE
@pytest.mark.parametrize(("n_critics", "drop", "samples"), [(2, 2, 6), (3, 1, 12), (2, 0, 10)])
def test_critics_regress_on_what_is_left(engine: str, n_critics: int, drop: int, samples: int) -> None:
    learner = tqc(engine=engine, n_critics=n_critics, top_quantiles_to_drop=drop)
    shapes = []
    fit = learner.critics.fit
    learner.critics.fit = lambda obs, action, target, rate: (
        shapes.append(target.shape),
        fit(obs, action, target, rate),
    )[1]
    learner.update(transitions(CONTINUOUS, 16))
    assert shapes == [(16, samples)]


# The loss


def test_the_quantile_huber_loss_worked_by_hand() -> None:
    quantiles = torch.tensor([[[0.0, 2.0]]])  # of the fractions 1/4 and 3/4
    target = torch.tensor([[0.5, 4.0]])
    # Errors of the first 0.5 and 4, above it; of the second -1.5, below it, and 2.
    first = 0.25 * 0.125 + 0.25 * 3.5
    second = 0.25 * 1.0 + 0.75 * 1.5
    assert quantile_huber_loss(quantiles, target).item() == pytest.approx((first + second) / 4)


def test_critics_are_summed_and_all_else_is_averaged() -> None:
    quantiles, target = torch.randn(1, 6, 5), torch.randn(6, 4)
    once = quantile_huber_loss(quantiles, target)
    torch.testing.assert_close(quantile_huber_loss(quantiles.repeat(3, 1, 1), target), 3 * once)
    torch.testing.assert_close(quantile_huber_loss(quantiles.repeat(1, 2, 1), target.repeat(2, 1)), once)


def test_the_loss_is_least_at_the_quantiles_of_the_target() -> None:
    """Of 1, 2, ..., 100 the fractions 1/4 and 3/4 are 25 and 75, but for the parabola's width."""
    quantiles = torch.zeros(1, 1, 2, requires_grad=True)
    target = torch.arange(1.0, 101.0)[None]
    for _ in range(400):
        loss = quantile_huber_loss(quantiles, target)
        (gradient,) = torch.autograd.grad(loss, quantiles)
        with torch.no_grad():
            quantiles -= 100.0 * gradient
    np.testing.assert_allclose(quantiles.detach().numpy().reshape(-1), [25.5, 75.5], atol=1.0)


@given(st.integers(0, 10_000))
def test_the_closed_form_gradient_is_that_of_the_loss(seed: int) -> None:
    rng = np.random.default_rng(seed)
    members, rows, count, samples = rng.integers(1, 5, 4)
    quantiles = (2.0 * rng.standard_normal((members, rows, count))).astype(np.float32)
    target = (2.0 * rng.standard_normal((rows, samples))).astype(np.float32)
    leaf = torch.from_numpy(quantiles.copy()).requires_grad_()
    expected = quantile_huber_loss(leaf, torch.from_numpy(target))
    expected.backward()
    assert leaf.grad is not None
    gradient = np.full_like(quantiles, np.nan)
    loss, mean = quantile_huber_gradient(quantiles, target, gradient)
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert mean == pytest.approx(float(quantiles.mean()), rel=1e-3, abs=1e-5)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


# Against plain torch


def truncated_target(reference: SoftReference, step: Transitions, action: Tensor, entropy_cost: Tensor) -> Tensor:
    values = reference.slow_critic(tensor(step.next_obs), action)
    kept = []
    for row in range(values.shape[1]):
        pool = sorted(values[:, row].reshape(-1).tolist())
        kept.append(pool[: len(pool) - reference.cfg.top_quantiles_to_drop * len(values)])
    return bootstrapped(step, torch.tensor(kept) - entropy_cost[:, None])


def mean_quantile(values: Tensor) -> Tensor:
    return values.mean(dim=-1).mean(dim=0)


class QuantileReference(SoftReference):
    def fit(self, step: Transitions, target: Tensor) -> float:
        """Quantile regression by loops over critics and quantiles."""
        values = self.critic(tensor(step.obs), tensor(step.action))
        count = values.shape[-1]
        loss = torch.zeros(())
        for critic in values:
            for n in range(count):
                error = target - critic[:, n : n + 1]
                huber = torch.where(error.abs() <= 1.0, 0.5 * error**2, error.abs() - 0.5)
                fraction = (n + 0.5) / count
                loss = loss + (torch.where(error < 0.0, 1.0 - fraction, fraction) * huber).mean() / count
        step_down(self.critic_adam, loss)
        return loss.item()


@EACH_ENGINE
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"top_quantiles_to_drop": 0, "ent_coef": 0.2, "n_critics": 3},
        {"top_quantiles_to_drop": 4, "activation": "tanh"},
        {"n_quantiles": 1, "top_quantiles_to_drop": 0, "activation": "silu", "hidden_sizes": [8, 6]},
    ],
    ids=str,
)
def test_updates_equal_a_plain_reference_in_torch(engine: str, settings: dict[str, Any]) -> None:
    learner = tqc(engine=engine, **settings)
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    reference = QuantileReference(learner, truncated_target, mean_quantile)
    assert_learns_like(learner, reference, CONTINUOUS, updates=4)
    assert learner.current("ent_coef") == pytest.approx(reference.log_ent_coef.exp().item(), rel=1e-4)


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    metrics = tqc(engine=engine).update(transitions(CONTINUOUS, 16))
    assert set(metrics) == {"critic_loss", "q_mean", "actor_loss", "entropy"}


# Mistakes


@pytest.mark.parametrize("drop", [5, 9])
def test_at_least_one_quantile_has_to_stay(drop: int) -> None:
    with pytest.raises(UserError, match=rf"^top_quantiles_to_drop={drop}: must be below n_quantiles=5$"):
        tqc(top_quantiles_to_drop=drop)


@pytest.mark.parametrize(
    ("key", "value"),
    [("top_quantiles_to_drop", -1), ("n_quantiles", 0), ("n_critics", 0), ("tau", 2), ("learning_rate", -1.0)],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "tqc", "env_id": "none", key: value})


@pytest.mark.parametrize("key", ["noise_std", "epsilon", "policy_delay", "subset_size", "n_steps"])
def test_what_tqc_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "tqc", "env_id": "none", key: 1})


def test_the_spec_says_what_tqc_is() -> None:
    assert SPEC.name == "tqc"
    assert SPEC.config is TQCConfig
    assert SPEC.capabilities.actions == ("continuous",)
