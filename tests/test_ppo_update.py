"""PPO's update: its loss in closed form, its steps against a plain torch reference, and the traps around them."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import (
    CONTINUOUS,
    DISCRETE,
    ENGINES,
    PPO_METRICS,
    SEVERAL,
    ContinuousBandit,
    algorithm,
    built,
    full_reference,
    played,
)
from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from rl_training.algorithms.parts.objectives import Batch
from rl_training.algorithms.ppo import SPEC, PPOConfig, ppo_loss
from rl_training.experiment.config import ConfigError, load_config
from rl_training.ops.distributions import Categorical, DiagonalGaussian
from rl_training.ops.value import clipped_value_loss, value_loss
from rl_training.types import SpaceInfo

SPACES = pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS, SEVERAL], ids=["discrete", "continuous", "several"])
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def ppo(info: SpaceInfo = DISCRETE, **settings: Any) -> OnPolicyAlgorithm:
    defaults: dict[str, Any] = {"n_epochs": 1, "batch_size": 1000, "learning_rate": 1e-2}
    return algorithm("ppo", info, **(defaults | settings))


def weights(learner: OnPolicyAlgorithm) -> Tensor:
    return learner.parameters.data.clone()


def tensors(learner: OnPolicyAlgorithm, batch: Batch[np.ndarray]) -> Batch[Tensor]:
    """A prepared batch as a network takes it; vectors need no unpacking."""
    return batch.map(learner.observer.tensor)


def counted(learner: OnPolicyAlgorithm) -> list[float]:
    """The learning rate of every optimiser step that will be made from now on."""
    steps: list[float] = []
    original = learner.optimizer.step

    def step(learning_rate: float) -> None:
        steps.append(learning_rate)
        original(learning_rate)

    learner.optimizer.step = step  # type: ignore[method-assign]
    return steps


def shuffles(learner: OnPolicyAlgorithm) -> list[np.ndarray]:
    """The order of samples of every epoch that will be begun from now on."""
    orders: list[np.ndarray] = []
    draw = learner.batch_rng

    class Watched(np.random.Generator):
        def permutation(self, *args: Any, **kwargs: Any) -> Any:
            orders.append(draw.permutation(*args, **kwargs))
            return orders[-1]

    learner.batch_rng = Watched(np.random.PCG64(0))
    return orders


def test_the_loss_worked_by_hand() -> None:
    # Ratios 1.5 and 0.5, both with the advantage 2: min(3, 2.4) and min(1, 1.6). Entropies 0.3 and 0.5.
    cfg = PPOConfig(clip_coef=0.2, vf_coef=0.25, ent_coef=0.1)
    log_ratio = torch.tensor([1.5, 0.5]).log()
    loss, policy = ppo_loss(log_ratio, torch.tensor([2.0, 2.0]), torch.tensor([0.3, 0.5]), torch.tensor(8.0), cfg)
    assert policy.item() == pytest.approx(-(2.4 + 1.0) / 2)
    assert loss.item() == pytest.approx(-1.7 + 0.25 * 8.0 - 0.1 * 0.4)


@pytest.mark.parametrize("clip_range_vf", [None, 0.3])
@pytest.mark.parametrize("continuous", [False, True])
def test_the_gradient_of_the_loss_equals_finite_differences(continuous: bool, clip_range_vf: float | None) -> None:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    distribution = DiagonalGaussian(2) if continuous else Categorical(4)
    action = normal(6, 2) if continuous else torch.tensor([0, 1, 2, 3, 0, 1])
    params, value = normal(6, 4), normal(6)
    old = distribution.log_prob(params, action) + 0.3 * normal(6)
    advantage, target, old_value = normal(6), normal(6), normal(6)
    cfg = PPOConfig(clip_coef=0.2, vf_coef=0.7, ent_coef=0.05, clip_range_vf=clip_range_vf)

    def loss(at_params: Tensor, at_value: Tensor) -> Tensor:
        if cfg.clip_range_vf is None:
            error = value_loss(at_value, target)
        else:
            error = clipped_value_loss(at_value, old_value, target, cfg.clip_range_vf)
        log_ratio = distribution.log_prob(at_params, action) - old
        return ppo_loss(log_ratio, advantage, distribution.entropy(at_params), error, cfg)[0]

    params.requires_grad_()
    value.requires_grad_()
    loss(params, value).backward()
    step = 1e-6
    for variable in (params, value):
        for index in np.ndindex(*variable.shape):
            shift = torch.zeros_like(variable)
            shift[index] = step
            with torch.no_grad():
                if variable is params:
                    slope = (loss(params + shift, value) - loss(params - shift, value)) / (2 * step)
                else:
                    slope = (loss(params, value + shift) - loss(params, value - shift)) / (2 * step)
            assert variable.grad is not None
            assert variable.grad[index].item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-8)


@EACH_ENGINE
@SPACES
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ent_coef": 0.1, "vf_coef": 0.9, "gamma": 0.8, "gae_lambda": 0.6},
        {"normalize_advantage": False, "max_grad_norm": 0.05},
        {"clip_range_vf": 0.02, "clip_coef": 0.02},
        {"activation": "relu"},
    ],
    ids=str,
)
def test_an_update_equals_a_plain_reference_in_torch(info: SpaceInfo, engine: str, settings: dict[str, Any]) -> None:
    learner = ppo(info, engine=engine, n_epochs=4, adam_eps=1e-3, **settings)
    rollout = played(learner, info, n_steps=12, num_envs=2)
    cfg, data = learner.cfg, full_reference(learner, rollout)
    assert isinstance(cfg, PPOConfig)
    network = copy.deepcopy(learner.network)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2, eps=1e-3, foreach=False)
    advantage = data["advantage"]
    if cfg.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    seen: list[dict[str, float]] = []
    for _ in range(cfg.n_epochs):
        params, value = network(data["obs"])
        ratio = (learner.distribution.log_prob(params, data["action"]) - data["log_prob"]).exp()
        inside = ratio.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef)
        policy_loss = -torch.minimum(ratio * advantage, inside * advantage).mean()
        squares = (value - data["target"]).square()
        if cfg.clip_range_vf is not None:
            kept = data["value"] + (value - data["value"]).clamp(-cfg.clip_range_vf, cfg.clip_range_vf)
            squares = torch.maximum(squares, (kept - data["target"]).square())
        entropy = learner.distribution.entropy(params).mean()
        optimiser.zero_grad()
        (policy_loss + cfg.vf_coef * squares.mean() - cfg.ent_coef * entropy).backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), cfg.max_grad_norm, foreach=False)
        optimiser.step()
        seen.append(
            {
                "policy_loss": policy_loss.item(),
                "value_loss": squares.mean().item(),
                "entropy": entropy.item(),
                "approx_kl": (ratio - 1 - ratio.log()).mean().item(),
                "clip_fraction": (ratio != inside).float().mean().item(),
                "grad_norm": norm.item(),
            }
        )
    before = weights(learner)
    metrics = learner.update(rollout)
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    assert (weights(learner) - before).abs().max() > 1e-2
    torch.testing.assert_close(weights(learner), expected, rtol=1e-3, atol=2e-5)
    for name in seen[0]:
        mean = np.mean([row[name] for row in seen])
        assert metrics[name] == pytest.approx(mean, rel=1e-3, abs=2e-5), name
    assert metrics["clip_fraction"] > 0 or cfg.clip_coef > 0.1


@EACH_ENGINE
@SPACES
def test_the_ratio_of_the_first_minibatch_is_one(info: SpaceInfo, engine: str) -> None:
    learner = ppo(info, engine=engine, log_std_init=-1.0)
    rollout = played(learner, info, n_steps=32, num_envs=4)
    batch = tensors(learner, learner.prepare(rollout))
    with torch.no_grad():
        params, _ = learner.network(batch.obs)
        log_ratio = learner.distribution.log_prob(params, batch.action) - batch.log_prob
    assert log_ratio.abs().max().item() < 1e-5
    metrics = learner.update(rollout)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0


@EACH_ENGINE
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_first_ratio_is_one_in_the_real_loop_with_moving_observation_statistics(env_id: str, engine: str) -> None:
    run = built("ppo", None, env_id=env_id, engine=engine, normalize_obs=True, total_timesteps=1000, n_steps=16)
    learner = run.algorithm
    largest: list[float] = []
    prepare = learner.prepare

    def watched(rollout: Any) -> Any:
        prepared = prepare(rollout)
        batch = tensors(learner, prepared)
        with torch.no_grad():
            log_prob = learner.distribution.log_prob(learner.network(batch.obs)[0], batch.action)
        largest.append((log_prob - batch.log_prob).abs().max().item())
        return prepared

    learner.prepare = watched
    for _ in range(3):
        run.advance()
    assert len(largest) == 3
    assert max(largest) < 1e-5
    run.close()


def test_the_raw_sample_is_learned_from_while_the_clipped_one_is_sent() -> None:
    run = built("ppo", ContinuousBandit, num_envs=1, n_steps=64, log_std_init=0.5, total_timesteps=64)
    run.advance()
    stored = run.loop.rollout.action[:, 0, 0]
    assert (np.abs(stored) > 1.0).sum() > 10
    # The bounds are -2 and 6: a policy's -1 and 1.
    sent = -2.0 + (np.clip(stored.astype(np.float64), -1.0, 1.0) + 1.0) * 4.0
    np.testing.assert_allclose(run.source.collector.envs.envs[0].unwrapped.received, sent, rtol=1e-6)
    run.close()


@EACH_ENGINE
def test_value_clipping_is_off_unless_asked_for_and_takes_the_larger_error(engine: str) -> None:
    assert PPOConfig().clip_range_vf is None
    plain, clipped = ppo(engine=engine, n_epochs=6), ppo(engine=engine, n_epochs=6, clip_range_vf=1e-3)
    rollout = played(plain, DISCRETE, n_steps=16, num_envs=2)
    # The first steps move values away from the old ones by more than they may: learning from them ends there.
    first, second = plain.update(rollout)["value_loss"], clipped.update(rollout)["value_loss"]
    assert second > first


@EACH_ENGINE
@pytest.mark.parametrize("batch_size", [1000, 7])
def test_target_kl_stops_before_the_step_that_would_go_too_far(engine: str, batch_size: int) -> None:
    settings = {"engine": engine, "batch_size": batch_size}
    stopped, single = ppo(n_epochs=5, target_kl=1e-6, **settings), ppo(n_epochs=1, **settings)
    steps, orders = counted(stopped), shuffles(stopped)
    rollout = played(stopped, DISCRETE, n_steps=8, num_envs=2)
    metrics = stopped.update(rollout)
    # The first minibatch has no KL, and the second one has more than allowed: exactly one step was made.
    assert len(steps) == 1
    # With one minibatch in an epoch the second one is in the second epoch; none is begun after it.
    assert len(orders) == (2 if batch_size == 1000 else 1)
    assert metrics["n_updates"] == metrics["minibatch_updates"] == stopped.n_updates == 1
    assert metrics["approx_kl"] > 1e-7, "the KL that stopped the update is among what is reported"
    if batch_size == 1000:
        single.update(rollout)
        torch.testing.assert_close(weights(stopped), weights(single), rtol=0, atol=0)


@EACH_ENGINE
def test_target_kl_is_compared_with_one_and_a_half_times_its_value(engine: str) -> None:
    free = ppo(n_epochs=2, engine=engine)
    rollout = played(free, DISCRETE, n_steps=16, num_envs=2)
    # The mean over both epochs, of which the first has none.
    kl = 2 * free.update(rollout)["approx_kl"]
    assert kl > 1e-4
    just_above, just_below = kl / 1.5 * 1.01, kl / 1.5 * 0.99
    for target, expected in ((just_above, 2), (just_below, 1)):
        learner = ppo(n_epochs=2, engine=engine, target_kl=target)
        assert learner.update(rollout)["n_updates"] == expected


@EACH_ENGINE
def test_n_updates_counts_optimiser_steps_over_all_updates(engine: str) -> None:
    learner = ppo(n_epochs=3, batch_size=5, engine=engine)
    steps = counted(learner)
    for round_number in (1, 2):
        metrics = learner.update(played(learner, DISCRETE, n_steps=8, num_envs=2, seed=round_number))
        # Sixteen samples in minibatches of 5, 5, 5 and 1.
        assert metrics["minibatch_updates"] == 3 * 4
        assert metrics["n_updates"] == learner.n_updates == len(steps) == round_number * 3 * 4
    assert set(steps) == {1e-2}


@EACH_ENGINE
@SPACES
@pytest.mark.parametrize(("n_steps", "batch_size"), [(1, 64), (3, 1), (5, 4)])
def test_a_minibatch_of_one_sample_gives_no_nan(info: SpaceInfo, engine: str, n_steps: int, batch_size: int) -> None:
    learner = ppo(info, num_envs=1, engine=engine, batch_size=batch_size, n_epochs=2)
    before = weights(learner)
    metrics = learner.update(played(learner, info, n_steps=n_steps, num_envs=1))
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert torch.isfinite(weights(learner)).all()
    assert (weights(learner) != before).any()


@EACH_ENGINE
def test_advantages_are_standardised_in_every_minibatch_and_only_if_asked(engine: str) -> None:
    # Without learning every ratio stays one, so the policy loss is minus the mean advantage that was used.
    scaled = ppo(engine=engine, learning_rate=0.0, batch_size=10)
    rollout = played(scaled, DISCRETE, n_steps=8, num_envs=2)
    assert scaled.update(rollout)["policy_loss"] == pytest.approx(0.0, abs=1e-6)
    plain = ppo(engine=engine, learning_rate=0.0, normalize_advantage=False)
    mean = float(full_reference(plain, rollout)["advantage"].mean())
    assert abs(mean) > 1e-3
    assert plain.update(rollout)["policy_loss"] == pytest.approx(-mean, rel=1e-4)


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    learner = ppo(engine=engine)
    assert set(learner.update(played(learner, DISCRETE, n_steps=8, num_envs=2))) == PPO_METRICS
    learner = ppo(engine=engine, target_kl=1e-30, clip_range_vf=0.2)
    assert set(learner.update(played(learner, DISCRETE, n_steps=8, num_envs=2))) == PPO_METRICS


@EACH_ENGINE
def test_metrics_of_an_untouched_policy_worked_by_hand(engine: str) -> None:
    learner = ppo(engine=engine, learning_rate=0.0, normalize_advantage=False)
    rollout = played(learner, DISCRETE, n_steps=8, num_envs=2)
    data = full_reference(learner, rollout)
    params, value = learner.network(data["obs"])
    metrics = learner.update(rollout)
    assert metrics["entropy"] == pytest.approx(learner.distribution.entropy(params).mean().item(), rel=1e-5)
    assert metrics["value_loss"] == pytest.approx((value - data["target"]).square().mean().item(), rel=1e-4)
    unexplained = np.var((data["target"] - data["value"]).numpy()) / np.var(data["target"].numpy())
    assert metrics["explained_variance"] == pytest.approx(1 - unexplained, abs=1e-4)


@EACH_ENGINE
def test_every_sample_is_used_once_in_every_epoch(engine: str) -> None:
    learner = ppo(n_epochs=3, batch_size=4, engine=engine)
    orders = shuffles(learner)
    learner.update(played(learner, DISCRETE, n_steps=8, num_envs=2))
    assert len(orders) == 3
    assert all(sorted(order.tolist()) == list(range(16)) for order in orders)
    assert not (orders[0] == orders[1]).all()


def test_rows_that_a_reset_produced_are_not_learned_from() -> None:
    clean, dirty = ppo(num_envs=1), ppo(num_envs=1)
    rollout = played(clean, DISCRETE, n_steps=8, num_envs=1)
    marked = copy.deepcopy(rollout)
    marked.real[3] = False
    assert len(clean.prepare(rollout)) == 8
    assert len(dirty.prepare(marked)) == 7
    kept = [t for t in range(8) if t != 3]
    np.testing.assert_array_equal(dirty.prepare(marked).obs, rollout.obs[kept, 0])
    np.testing.assert_array_equal(dirty.prepare(marked).action, rollout.action[kept, 0])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", -1e-3),
        ("gamma", 1.01),
        ("gamma", -0.1),
        ("gae_lambda", 1.5),
        ("ent_coef", -0.01),
        ("vf_coef", -0.5),
        ("max_grad_norm", 0.0),
        ("clip_coef", -0.2),
        ("clip_range_vf", 0.0),
        ("target_kl", -0.01),
        ("batch_size", 0),
        ("n_epochs", 0),
        ("n_steps", 0),
        ("adam_eps", 0.0),
        ("obs_clip", 0.0),
        ("learning_rate", "fast"),
        ("n_epochs", 1.5),
        ("gamma", float("nan")),
        ("gamma", float("inf")),
        ("normalize_advantage", "sometimes"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "ppo", "env_id": "none", key: value})


def test_the_spec_says_what_ppo_is() -> None:
    assert SPEC.name == "ppo"
    assert SPEC.config is PPOConfig
    assert {"discrete", "continuous"} <= set(SPEC.capabilities.actions)


def log_std(learner: OnPolicyAlgorithm) -> Tensor:
    (found,) = [leaf for name, leaf in learner.network.named_parameters() if name.endswith("log_std")]
    return found.detach()


WIDE = replace(CONTINUOUS, action_low=(-3.0, -0.5), action_high=(3.0, 0.5))


@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo", "ppg", "recurrent_ppo", "gail"])
@pytest.mark.parametrize("use_sde", [False, True])
def test_the_first_deviation_is_one_unit_of_the_environment_and_at_most_1(algo: str, use_sde: bool) -> None:
    """A range of 6 is mapped to [-1, 1], so one unit is 1/3 there; a range of 1 would need a deviation of 2."""
    if use_sde and algo == "recurrent_ppo":
        return  # it has no state-dependent noise
    settings = {"use_sde": True} if use_sde else {}
    for given, deviations in (({}, [1 / 3, 1.0]), ({"log_std_init": 0.5}, [math.exp(0.5)] * 2)):
        learner = algorithm(algo, WIDE, **settings, **given)
        found = learner.policy.from_network(log_std(learner).exp().numpy()).reshape(-1, 2)
        np.testing.assert_allclose(found, np.tile(deviations, (len(found), 1)), rtol=1e-6)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@EACH_ENGINE
def test_vf_coef_weighs_the_mean_squared_error(algo: str, engine: str) -> None:
    """The gradient of the value's last bias is vf_coef * 2 * mean(value - target), as in Stable-Baselines3."""
    learner = algorithm(algo, DISCRETE, engine=engine, vf_coef=0.7, ent_coef=0.0)
    data = learner.prepare(played(learner, DISCRETE, n_steps=8, num_envs=2))
    learner.gradient(data)
    found = learner.network.value_head.bias.grad.item()
    assert found == pytest.approx(0.7 * 2.0 * float(np.mean(data.value - data.target)), rel=1e-4)
