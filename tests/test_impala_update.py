"""IMPALA's update: its loss by hand, V-trace of rollouts of older policies, and its step against plain torch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from conformance import CONTINUOUS, DISCRETE, ENGINES, SEVERAL, agent, algorithm, chosen, played
from older_policies import move, network_says, older, plain_vtrace
from rl_training.algorithms.impala import IMPALA, SPEC, IMPALAConfig, impala_loss
from rl_training.algorithms.parts.objectives import EngineForm
from rl_training.algorithms.parts.recurrent_policy import RecurrentPolicy
from rl_training.data.rollout import Rollout
from rl_training.experiment.config import ConfigError, load_config
from rl_training.ops.value import value_loss
from rl_training.runtime.train import Run, build
from rl_training.testing import check_settings_are_live, check_trains, tiny_config
from rl_training.types import SpaceInfo, Step, UserError
from stepwise import step_by_step

METRICS = {
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "rho_mean",
    "grad_norm",
    "explained_variance",
    "n_updates",
}
SPACES = pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS, SEVERAL], ids=["discrete", "continuous", "several"])
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
EACH_RNN = pytest.mark.parametrize("rnn", ["lstm", "gru"])
OFF_POLICY = {"gamma": 0.9, "rho_bar": 1.3, "c_bar": 0.8, "pg_rho_bar": 1.1, "vtrace_lambda": 0.9, "ent_coef": 0.05}


def impala(info: SpaceInfo = DISCRETE, **settings: Any) -> IMPALA:
    learner = algorithm("impala", info, **({"learning_rate": 1e-2} | settings))
    assert isinstance(learner, IMPALA)
    return learner


def test_the_loss_worked_by_hand() -> None:
    cfg = IMPALAConfig(vf_coef=0.25, ent_coef=0.1, pg_rho_bar=1.5)
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    behaviour = log_prob.detach() - torch.tensor([2.0, 0.5]).log()  # pi / mu is 2, then 0.5
    advantage = torch.tensor([3.0, -1.0])
    loss, policy = impala_loss(log_prob, behaviour, advantage, torch.tensor([0.3, 0.5]), torch.tensor(8.0), cfg)
    # -(1.5 * 3 * (-1) + 0.5 * (-1) * (-2)) / 2
    assert policy.item() == pytest.approx(1.75)
    assert loss.item() == pytest.approx(1.75 + 0.25 * 8.0 - 0.1 * 0.4)
    loss.backward()
    assert log_prob.grad is not None
    # The weight is a constant: no gradient flows through it.
    assert log_prob.grad.tolist() == pytest.approx([-1.5 * 3.0 / 2, 0.5 / 2])


@EACH_ENGINE
@SPACES
def test_the_update_learns_from_vtrace_of_the_learners_own_values(info: SpaceInfo, engine: str) -> None:
    learner = impala(info, num_envs=3, engine=engine, **OFF_POLICY)
    rollout = older(learner, info)
    log_prob, value, next_value = network_says(learner, rollout)
    assert np.abs(log_prob - rollout.records["log_prob"]).max() > 0.3
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    target, advantage = plain_vtrace(rollout, log_prob, value, next_value, learner.cfg)
    data = learner.prepare(rollout)
    np.testing.assert_allclose(data.value, value.flatten(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data.target, target.flatten(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(data.advantage, advantage.flatten(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(data.log_prob, rollout.records["log_prob"].flatten())


@EACH_ENGINE
@SPACES
@pytest.mark.parametrize(
    "settings",
    [
        {},
        OFF_POLICY | {"vf_coef": 0.9},
        {"normalize_advantage": True, "max_grad_norm": 0.05},
        {"optimizer": "adam", "adam_eps": 1e-3},
    ],
    ids=["defaults", "off_policy", "clipped", "adam"],
)
def test_three_updates_equal_a_plain_reference_in_torch(info: SpaceInfo, engine: str, settings: dict[str, Any]) -> None:
    learner = impala(info, num_envs=3, engine=engine, rms_eps=1e-3, **settings)
    assert isinstance(learner.form, EngineForm) == (engine == "auto")
    cfg = learner.cfg
    network: Any = copy.deepcopy(learner.network)
    optimiser: torch.optim.Optimizer = torch.optim.RMSprop(network.parameters(), lr=1e-2, eps=1e-3, foreach=False)
    if cfg.optimizer_type == "adam":
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-2, eps=1e-3, foreach=False)
    for seed in range(3):
        rollout = older(learner, info, seed=seed)
        with torch.no_grad():  # the learner was moved
            for own, other in zip(network.parameters(), learner.network.parameters(), strict=True):
                own.copy_(other)
        target, advantage = plain_vtrace(rollout, *network_says(learner, rollout), cfg)
        targets, weights = (torch.from_numpy(array.astype(np.float32).flatten()) for array in (target, advantage))
        rows, action, mu = (
            torch.from_numpy(column.reshape(-1, *column.shape[2:]))
            for column in (rollout.obs, rollout.action, rollout.records["log_prob"])
        )
        if cfg.normalize_advantage:
            weights = (weights - weights.mean()) / (weights.std() + 1e-8)
        params, value = network(rows)
        log_prob = learner.distribution.log_prob(params, action)
        rho = (log_prob.detach() - mu).exp().clamp(max=cfg.pg_rho_bar)
        error = (value - targets).square().mean()
        entropy = learner.distribution.entropy(params).mean()
        optimiser.zero_grad()
        (-(rho * weights * log_prob).mean() + cfg.vf_coef * error - cfg.ent_coef * entropy).backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), cfg.max_grad_norm, foreach=False)
        optimiser.step()
        metrics = learner.update(rollout)
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
        assert metrics["value_loss"] == pytest.approx(error.item(), rel=1e-3)
        assert metrics["rho_mean"] == pytest.approx(rho.mean().item(), rel=1e-4)
        expected = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
        torch.testing.assert_close(learner.parameters.data, expected, rtol=1e-3, atol=1e-4)


@EACH_ENGINE
@SPACES
def test_on_its_own_rollouts_it_is_a2c(info: SpaceInfo, engine: str) -> None:
    """With pi = mu and a decay of 1, V-trace is the advantage of A2C."""
    shared = {"learning_rate": 1e-2, "ent_coef": 0.02, "max_grad_norm": 0.5, "engine": engine}
    learner, a2c = impala(info, **shared), algorithm("a2c", info, gae_lambda=1.0, **shared)
    a2c.parameters.data.copy_(learner.parameters.data)
    for seed in range(3):
        rollout = played(a2c, info, n_steps=6, num_envs=2, seed=seed)
        found, expected = learner.update(rollout), a2c.update(rollout)
        assert found["rho_mean"] == pytest.approx(1.0, abs=1e-5)
        assert found["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        assert found["policy_loss"] == pytest.approx(expected["policy_loss"], rel=1e-4, abs=1e-5)
        torch.testing.assert_close(learner.parameters.data, a2c.parameters.data, rtol=1e-4, atol=1e-5)
        learner.parameters.data.copy_(a2c.parameters.data)


@EACH_ENGINE
def test_only_a_termination_is_worth_nothing_after_it(engine: str) -> None:
    """The last row and a truncation bootstrap from their own successors, a termination from nothing."""
    learner = impala(num_envs=3, engine=engine, gamma=0.9)
    rng = np.random.default_rng(0)
    rollout = Rollout(1, 3, DISCRETE, learner.policy.records(DISCRETE))
    obs, successor = rng.standard_normal((2, 3, 3)).astype(np.float32)
    act = chosen(learner, obs)
    over = np.eye(3, dtype=np.bool_)
    reward = np.ones(3, np.float32)
    rollout.add(Step(obs, act.action, reward, successor, over[0], over[1], np.ones(3, np.bool_), act.records))
    worth = chosen(learner, successor).records["value"]
    data = learner.prepare(rollout)
    np.testing.assert_allclose(data.target, [1.0, 1.0 + 0.9 * worth[1], 1.0 + 0.9 * worth[2]], rtol=1e-5)
    np.testing.assert_allclose(data.advantage, data.target - data.value, rtol=1e-4, atol=1e-6)


@EACH_ENGINE
def test_an_advantage_does_not_reach_beyond_a_truncation(engine: str) -> None:
    """What follows a truncated step is another episode: its v must not stand in for the successor's value."""
    learner = impala(num_envs=1, engine=engine, gamma=0.9)
    rollout = played(learner, DISCRETE, n_steps=4, num_envs=1)
    rollout.terminated[:] = False
    rollout.truncated[:] = [[False], [True], [False], [False]]
    rollout._truncations = [(1, 0, rollout.obs[3, 0].copy())]
    before = learner.prepare(rollout)
    rollout.reward[2:] += 100.0
    after = learner.prepare(rollout)
    np.testing.assert_array_equal(after.advantage[:2], before.advantage[:2])
    np.testing.assert_array_equal(after.target[:2], before.target[:2])
    value = network_says(learner, rollout)[1][:, 0]
    assert before.advantage[1] == pytest.approx(rollout.reward[1, 0] + 0.9 * value[3] - value[1], rel=1e-4)


@EACH_ENGINE
@pytest.mark.parametrize("rnn", ["none", "gru"])
@pytest.mark.parametrize("actions", ["discrete", "multi_discrete", "multi_binary"])
def test_behaviour_probabilities_are_those_after_masks(actions: str, rnn: str, engine: str) -> None:
    """If only one side were masked, a policy that has not changed would seem to have."""
    run = build(tiny_config("impala", {"actions": actions, "masked": True}, engine=engine, rnn=rnn, ortho_init=False))
    run.start()
    run.advance()
    run.close()
    assert run.metrics["rho_mean"] == pytest.approx(1.0, abs=1e-5)
    assert run.metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_rows_are_scaled_by_the_learners_statistics() -> None:
    learner = impala(num_envs=3, normalize_obs=True)
    learner.observer.update(np.random.default_rng(1).standard_normal((50, 3)).astype(np.float32) * 3.0 + 1.0)
    rollout = older(learner, DISCRETE)
    learner.observer.update(np.full((500, 3), 5.0, np.float32))  # newer than those that acted
    expected = learner.observer.scaled(rollout.obs)
    before = learner.observer.normalizer.moments.count  # type: ignore[union-attr]
    data = learner.prepare(rollout)
    np.testing.assert_array_equal(data.obs, expected.reshape(-1, 3))
    assert learner.observer.normalizer.moments.count == before + 21  # type: ignore[union-attr]
    with torch.no_grad():
        value = learner.network(torch.from_numpy(data.obs))[1].numpy()
    np.testing.assert_allclose(data.value, value, rtol=1e-5, atol=1e-5)


def test_rewards_are_scaled_by_the_returns_of_their_own_environments() -> None:
    learner = impala(num_envs=6, normalize_reward=True)
    assert learner.reward_normalizer is not None
    rollout = older(learner, DISCRETE, num_envs=2)
    rollout.envs = slice(2, 4)
    learner.reward_normalizer.running[:] = 100.0
    rollout.terminated[:] = rollout.truncated[:] = False
    rollout._truncations.clear()
    learner.prepare(rollout)
    running = learner.reward_normalizer.running
    assert (running[[0, 1, 4, 5]] == 100.0).all()
    assert (running[2:4] < 100.0).all()


def gathered(env: dict[str, Any] | None = None, **settings: Any) -> tuple[Run, IMPALA, Rollout]:
    """A run and its second rollout, from which nothing was learned; then the learner moves on."""
    settings = {"n_steps": 11, "num_envs": 5, "ortho_init": False, "time_limit": 4, "max_grad_norm": 1e9} | settings
    run = build(tiny_config("impala", env, **settings))
    run.start()
    learner = run.algorithm
    assert isinstance(learner, IMPALA)
    learner.update = lambda batch: {}  # type: ignore[method-assign]
    for _ in range(2):
        run.advance()
    del learner.update
    run.close()
    rollout: Rollout = run.loop.rollout  # type: ignore[attr-defined]
    assert rollout.records["state"][0].any()
    move(learner)
    return run, learner, rollout


@EACH_ENGINE
@EACH_RNN
@pytest.mark.parametrize("shared_core", [False, True])
@pytest.mark.parametrize(
    "env", [{"actions": "discrete"}, {"actions": "continuous"}, {"actions": "multi_discrete", "masked": True}], ids=str
)
def test_gradients_flow_through_the_rollout_from_its_first_recorded_state(
    env: dict[str, Any], rnn: str, engine: str, shared_core: bool
) -> None:
    _, learner, rollout = gathered(env, rnn=rnn, engine=engine, shared_core=shared_core, **OFF_POLICY)
    assert isinstance(learner.policy, RecurrentPolicy)
    cfg = learner.cfg
    # Of the worker's states only those of the first rows and of episodes' starts may count.
    later = np.ones(rollout.real.shape, np.bool_)
    later[0] = False
    rollout.records["state"][later & ~rollout.starts] = np.nan
    params, value = step_by_step(learner, rollout, length=11)
    action, mu = (
        torch.from_numpy(column.reshape(-1, *column.shape[2:]))
        for column in (learner.policy.to_network(rollout.action), rollout.records["log_prob"])
    )
    data = learner.prepare(rollout)
    mini = learner.reader.whole(data)
    log_prob = learner.distribution.log_prob(params, action)
    np.testing.assert_allclose(data.value, value.detach(), rtol=1e-4, atol=1e-5)
    entropy, error = learner.distribution.entropy(params), value_loss(value, torch.from_numpy(data.target))
    loss, policy = impala_loss(log_prob, mu, torch.from_numpy(data.advantage), entropy, error, cfg)
    learner.parameters.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    expected = learner.parameters.grad.clone()
    seen = learner.gradient(mini)
    assert seen[:3] == pytest.approx([policy.item(), error.item(), entropy.mean().item()], rel=1e-4, abs=1e-5)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(learner.parameters.grad, expected, rtol=2e-3, atol=1e-5)


@EACH_RNN
def test_the_successor_of_a_truncated_step_is_valued_with_the_learners_memory(rnn: str) -> None:
    _, learner, rollout = gathered(rnn=rnn)
    judged = learner.reader.judge(rollout)
    rows, envs = rollout.bootstrap_places()
    assert rollout.truncated.any()
    for place, (t, b, obs) in enumerate(zip(rows, envs, rollout.bootstrap_obs(), strict=True)):
        carry: Any = rollout.records["state"][0, b][None]
        for row in range(t + 1):
            carry = np.zeros_like(carry) if rollout.starts[row, b] else carry
            carry = chosen(learner, rollout.obs[row, b][None], carry, explore=False).carry
        assert judged.bootstrap[place] == pytest.approx(chosen(learner, obs[None], carry).records["value"][0], abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_setting_is_alive_with_a_recurrent_core_too(engine: str) -> None:
    check_settings_are_live("impala", engine=engine, rnn="lstm")


@pytest.mark.parametrize("rnn", ["lstm", "gru"])
def test_every_space_trains_with_a_recurrent_core_too(rnn: str) -> None:
    check_trains("impala", rnn=rnn)


@EACH_ENGINE
def test_an_update_is_one_optimiser_step(engine: str) -> None:
    learner = impala(engine=engine)
    for count in (1, 2, 3):
        assert learner.update(played(learner, DISCRETE, n_steps=5, num_envs=2))["n_updates"] == count


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    learner = impala(engine=engine)
    assert set(learner.update(played(learner, DISCRETE, n_steps=5, num_envs=2))) == METRICS


@EACH_ENGINE
@SPACES
def test_a_policy_that_has_moved_far_gives_no_nan(info: SpaceInfo, engine: str) -> None:
    """Where pi / mu overflows, it is truncated like any other that is too large."""
    learner = impala(info, engine=engine)
    rollout = played(learner, info, n_steps=5, num_envs=2)
    rollout.records["log_prob"][:2] = -200.0
    rollout.records["log_prob"][2:] = 200.0
    metrics = learner.update(rollout)
    assert torch.isfinite(learner.parameters.data).all()
    assert metrics["rho_mean"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", -1e-3),
        ("gamma", 1.01),
        ("vtrace_lambda", 1.1),
        ("rho_bar", 0.0),
        ("c_bar", -0.1),
        ("pg_rho_bar", 0.0),
        ("ent_coef", -0.01),
        ("vf_coef", -0.5),
        ("max_grad_norm", 0.0),
        ("rms_alpha", 1.0),
        ("rms_eps", 0.0),
        ("adam_eps", 0.0),
        ("n_steps", 0),
        ("rnn_hidden_size", 0),
        ("rnn", "elman"),
        ("optimizer_type", "sgd"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "impala", "env_id": "none", key: value})


@pytest.mark.parametrize("key", ["clip_coef", "n_epochs", "batch_size", "gae_lambda", "sequence_length"])
def test_what_impala_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "impala", "env_id": "none", key: 1})


@EACH_RNN
def test_noise_that_depends_on_the_state_and_a_core_are_one_clear_error(rnn: str) -> None:
    with pytest.raises(UserError, match=f"use_sde=True, rnn='{rnn}': state-dependent exploration needs rnn=none"):
        agent("impala", CONTINUOUS, use_sde=True, rnn=rnn)


@pytest.mark.parametrize("name", ["rho_bar", "c_bar", "pg_rho_bar", "vtrace_lambda"])
def test_the_limits_of_the_correction_take_schedules(name: str) -> None:
    config = load_config({"algo": "impala", "env_id": "none", name: 1.0, f"{name}_schedule": 0.5})
    assert config.controls[name].at(50, 100) == pytest.approx(0.75)


def test_the_spec_says_what_impala_is() -> None:
    assert (SPEC.name, SPEC.family, SPEC.config) == ("impala", "actor_learner", IMPALAConfig)
    assert IMPALAConfig(ent_coef=0.3).ent_coef == 0.3
