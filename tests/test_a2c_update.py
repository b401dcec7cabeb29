"""A2C's update: its loss in closed form and its step against a plain torch reference."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import CONTINUOUS, DISCRETE, ENGINES, SEVERAL, algorithm, full_reference, played
from rl_training.algorithms.a2c import SPEC, A2CConfig, a2c_loss
from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from rl_training.experiment.config import ConfigError, load_config
from rl_training.ops.distributions import Categorical, DiagonalGaussian
from rl_training.ops.value import value_loss
from rl_training.types import SpaceInfo

METRICS = {"policy_loss", "value_loss", "entropy", "grad_norm", "explained_variance", "n_updates"}
SPACES = pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS, SEVERAL], ids=["discrete", "continuous", "several"])
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def a2c(info: SpaceInfo = DISCRETE, **settings: Any) -> OnPolicyAlgorithm:
    return algorithm("a2c", info, **({"learning_rate": 1e-2} | settings))


def test_the_loss_worked_by_hand() -> None:
    cfg = A2CConfig(vf_coef=0.25, ent_coef=0.1)
    log_prob, advantage = torch.tensor([-1.0, -2.0]), torch.tensor([3.0, -1.0])
    loss, policy = a2c_loss(log_prob, advantage, torch.tensor([0.3, 0.5]), torch.tensor(8.0), cfg)
    assert policy.item() == pytest.approx(-(-3.0 + 2.0) / 2)
    assert loss.item() == pytest.approx(0.5 + 0.25 * 8.0 - 0.1 * 0.4)


@pytest.mark.parametrize("continuous", [False, True])
def test_the_gradient_of_the_loss_equals_finite_differences(continuous: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    distribution = DiagonalGaussian(2) if continuous else Categorical(4)
    action = normal(5, 2) if continuous else torch.tensor([0, 1, 2, 3, 0])
    variables = [normal(5, 4), normal(5)]
    advantage, target = normal(5), normal(5)
    cfg = A2CConfig(vf_coef=0.7, ent_coef=0.05)

    def loss(params: Tensor, value: Tensor) -> Tensor:
        log_prob, entropy = distribution.log_prob(params, action), distribution.entropy(params)
        return a2c_loss(log_prob, advantage, entropy, value_loss(value, target), cfg)[0]

    for variable in variables:
        variable.requires_grad_()
    loss(*variables).backward()
    step = 1e-6
    for which, variable in enumerate(variables):
        for index in np.ndindex(*variable.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = [item.detach().clone() for item in variables]
                moved[which][index] += sign * step
                ends.append(loss(*moved).item())
            assert variable.grad is not None
            assert variable.grad[index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-8)


@EACH_ENGINE
@SPACES
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ent_coef": 0.1, "vf_coef": 0.9, "gamma": 0.8, "gae_lambda": 0.6},
        {"normalize_advantage": True, "max_grad_norm": 0.05},
        {"activation": "silu"},
    ],
    ids=str,
)
def test_three_updates_equal_a_plain_reference_in_torch(info: SpaceInfo, engine: str, settings: dict[str, Any]) -> None:
    learner = a2c(info, engine=engine, rms_eps=1e-3, **settings)
    cfg = learner.cfg
    network = copy.deepcopy(learner.network)
    optimiser = torch.optim.RMSprop(network.parameters(), lr=1e-2, eps=1e-3, alpha=0.99, foreach=False)
    before = learner.parameters.data.clone()
    for seed in range(3):
        rollout = played(learner, info, n_steps=6, num_envs=2, seed=seed)
        data = full_reference(learner, rollout)
        advantage = data["advantage"]
        if cfg.normalize_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        params, value = network(data["obs"])
        log_prob = learner.distribution.log_prob(params, data["action"])
        error = (value - data["target"]).square().mean()
        entropy = learner.distribution.entropy(params).mean()
        optimiser.zero_grad()
        (-(log_prob * advantage).mean() + cfg.vf_coef * error - cfg.ent_coef * entropy).backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), cfg.max_grad_norm, foreach=False)
        optimiser.step()
        metrics = learner.update(rollout)
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
        assert metrics["value_loss"] == pytest.approx(error.item(), rel=1e-3)
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    assert (learner.parameters.data - before).abs().max() > 1e-2
    torch.testing.assert_close(learner.parameters.data, expected, rtol=1e-3, atol=5e-5)


@EACH_ENGINE
def test_an_update_is_one_optimiser_step(engine: str) -> None:
    learner = a2c(engine=engine)
    steps: list[float] = []
    original = learner.optimizer.step
    learner.optimizer.step = lambda rate: (steps.append(rate), original(rate))[1]  # type: ignore[func-returns-value]
    for round_number in (1, 2, 3):
        metrics = learner.update(played(learner, DISCRETE, n_steps=5, num_envs=2))
        assert metrics["n_updates"] == learner.n_updates == len(steps) == round_number
    assert steps == [1e-2] * 3


@EACH_ENGINE
@SPACES
@pytest.mark.parametrize("normalize", [False, True])
def test_a_batch_of_one_sample_gives_no_nan(info: SpaceInfo, engine: str, normalize: bool) -> None:
    learner = a2c(info, num_envs=1, engine=engine, normalize_advantage=normalize)
    before = learner.parameters.data.clone()
    metrics = learner.update(played(learner, info, n_steps=1, num_envs=1))
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert torch.isfinite(learner.parameters.data).all()
    assert (learner.parameters.data != before).any()


@EACH_ENGINE
def test_advantages_are_standardised_only_if_asked(engine: str) -> None:
    plain, scaled = a2c(engine=engine), a2c(engine=engine, normalize_advantage=True)
    rollout = played(plain, DISCRETE, n_steps=8, num_envs=2)
    data = full_reference(plain, rollout)
    advantage = data["advantage"]
    expected = -(data["log_prob"] * advantage).mean().item()
    assert plain.update(rollout)["policy_loss"] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    expected = -(data["log_prob"] * advantage).mean().item()
    assert scaled.update(rollout)["policy_loss"] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert A2CConfig().normalize_advantage is False


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    learner = a2c(engine=engine)
    assert set(learner.update(played(learner, DISCRETE, n_steps=5, num_envs=2))) == METRICS


@EACH_ENGINE
def test_the_entropy_bonus_flattens_the_policy(engine: str) -> None:
    """With nothing to gain, only the bonus is left to learn from: the policy becomes uniform."""
    learner = a2c(engine=engine, ent_coef=1.0, ortho_init=False)
    obs = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)

    def entropy() -> float:
        with torch.no_grad():
            return learner.distribution.entropy(learner.network(torch.from_numpy(obs))[0]).mean().item()

    before = entropy()
    for seed in range(60):
        rollout = played(learner, DISCRETE, n_steps=5, num_envs=2, seed=seed)
        rollout.reward[:] = 0.0
        learner.update(rollout)
    assert before < entropy() <= np.log(4) + 1e-6
    assert entropy() == pytest.approx(np.log(4), abs=5e-3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", -1e-3),
        ("gamma", 1.01),
        ("gae_lambda", -0.5),
        ("ent_coef", -0.01),
        ("vf_coef", -0.5),
        ("max_grad_norm", 0.0),
        ("rms_alpha", 1.0),
        ("rms_eps", 0.0),
        ("n_steps", 0),
        ("reward_scale_clip", 0.0),
        ("learning_rate", None),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "a2c", "env_id": "none", key: value})


@pytest.mark.parametrize("key", ["clip_coef", "clip_range", "n_epochs", "batch_size", "target_kl"])
def test_what_a2c_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "a2c", "env_id": "none", key: 1})


def test_the_spec_says_what_a2c_is() -> None:
    assert SPEC.name == "a2c"
    assert SPEC.config is A2CConfig
    assert {"discrete", "continuous"} <= set(SPEC.capabilities.actions)
