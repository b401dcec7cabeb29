"""APPO's update: its loss by hand, its anchor, the target network of IMPACT, and the penalty that adapts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import CONTINUOUS, DISCRETE, ENGINES, PPO_METRICS, SEVERAL, agent, algorithm, played
from older_policies import move, network_says, older, plain_vtrace
from rl_training.algorithms.appo import APPO, SPEC, APPOConfig, adapted, appo_loss
from rl_training.algorithms.parts.objectives import EngineForm
from rl_training.algorithms.parts.recurrent_policy import RecurrentPolicy
from rl_training.data.rollout import Rollout
from rl_training.experiment.config import ConfigError, load_config
from rl_training.ops.value import value_loss
from rl_training.runtime.train import build
from rl_training.testing import check_resumes, check_settings_are_live, check_trains, tiny_config
from rl_training.types import SpaceInfo, UserError
from stepwise import step_by_step

SPACES = pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS, SEVERAL], ids=["discrete", "continuous", "several"])
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
OFF_POLICY = {"gamma": 0.9, "rho_bar": 1.3, "c_bar": 0.8, "vtrace_lambda": 0.9}


def appo(info: SpaceInfo = DISCRETE, **settings: Any) -> APPO:
    learner = algorithm("appo", info, **({"learning_rate": 1e-2, "num_envs": 3} | settings))
    assert isinstance(learner, APPO)
    return learner


def test_the_loss_worked_by_hand() -> None:
    cfg = APPOConfig(clip_coef=0.2, vf_coef=0.25, ent_coef=0.1, kl_coef=0.5)
    ratio, advantage = torch.tensor([2.0, 0.5]), torch.tensor([3.0, -1.0])
    loss, policy = appo_loss(ratio.log(), advantage, torch.tensor([0.3, 0.5]), torch.tensor(8.0), cfg)
    # min(6, 3.6) and min(-0.5, -0.8); KL is r - 1 - log r.
    assert policy.item() == pytest.approx(-(3.6 - 0.8) / 2)
    kl = (1.0 - np.log(2.0) - 0.5 + np.log(2.0)) / 2
    assert loss.item() == pytest.approx(-1.4 + 0.25 * 8.0 - 0.1 * 0.4 + 0.5 * kl)


def test_the_gradient_of_the_loss_equals_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    log_ratio, value, advantage, target = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    cfg = APPOConfig(clip_coef=0.3, kl_coef=0.4, vf_coef=0.7)

    def loss(log_ratio: Tensor, value: Tensor) -> Tensor:
        return appo_loss(log_ratio, advantage, torch.zeros(6), value_loss(value, target), cfg)[0]

    variables = [log_ratio.clone().requires_grad_(), value.clone().requires_grad_()]
    loss(*variables).backward()  # type: ignore[no-untyped-call]
    for which, variable in enumerate(variables):
        for index in range(6):
            ends = []
            for sign in (1.0, -1.0):
                moved = [item.detach().clone() for item in variables]
                moved[which][index] += sign * 1e-6
                ends.append(loss(*moved).item())
            assert variable.grad is not None
            assert variable.grad[index].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-8)


@EACH_ENGINE
@SPACES
@pytest.mark.parametrize("kl_coef", [0.0, 0.7])
def test_the_gradient_of_an_update_is_that_of_the_readable_loss(info: SpaceInfo, engine: str, kl_coef: float) -> None:
    learner = appo(info, engine=engine, kl_coef=kl_coef, ent_coef=0.05, clip_coef=0.3, **OFF_POLICY)
    assert isinstance(learner.form, EngineForm) == (engine == "auto")
    data = learner.prepare(older(learner, info))
    params, value = learner.network(torch.from_numpy(data.obs))
    log_ratio = learner.distribution.log_prob(params, torch.from_numpy(data.action)) - torch.from_numpy(data.log_prob)
    advantage = torch.from_numpy(data.advantage)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    error, entropy = value_loss(value, torch.from_numpy(data.target)), learner.distribution.entropy(params)
    loss, policy = appo_loss(log_ratio, advantage, entropy, error, learner.cfg)
    learner.parameters.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    expected = learner.parameters.grad.clone()
    seen = learner.gradient(data)
    assert seen[:2] == pytest.approx([policy.item(), error.item()], rel=1e-3, abs=1e-5)
    assert 0.0 < seen[4] < 1.0
    torch.testing.assert_close(learner.parameters.grad, expected, rtol=1e-3, atol=1e-5)


@EACH_ENGINE
@SPACES
def test_the_ratio_is_anchored_at_the_policy_that_acted(info: SpaceInfo, engine: str) -> None:
    """Advantages are V-trace's without pi / mu, which is in the ratio already."""
    learner = appo(info, engine=engine, **OFF_POLICY)
    rollout = older(learner, info)
    log_prob, value, next_value = network_says(learner, rollout)
    target, advantage = plain_vtrace(rollout, log_prob, value, next_value, learner.cfg)
    data = learner.prepare(rollout)
    np.testing.assert_array_equal(data.log_prob, rollout.records["log_prob"].flatten())
    np.testing.assert_allclose(data.value, value.flatten(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data.target, target.flatten(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(data.advantage, advantage.flatten(), rtol=1e-4, atol=1e-4)
    assert learner.target is None


@EACH_ENGINE
def test_the_anchor_does_not_move_with_the_learner(engine: str) -> None:
    """An update may leave the policy that acted by the clip, however many updates came in between."""
    learner = appo(engine=engine)
    rollout = played(learner, DISCRETE, n_steps=7, num_envs=3)
    for seed in range(3):
        move(learner, seed)
        np.testing.assert_array_equal(learner.prepare(rollout).log_prob, rollout.records["log_prob"].flatten())


@EACH_ENGINE
@SPACES
def test_a_target_network_stands_between_learner_and_behaviour(info: SpaceInfo, engine: str) -> None:
    learner = appo(info, engine=engine, target_update_interval=2, target_ratio_bar=1.2, **OFF_POLICY)
    assert learner.target is not None
    rollout = older(learner, info)
    learner.target.copy()
    move(learner, 1)
    log_prob, _, _ = network_says(learner, rollout, learner.target.policy.network)
    _, value, next_value = network_says(learner, rollout)
    behaviour = rollout.records["log_prob"]
    # Ratios of V-trace are pi_target / mu; values are the learner's.
    target, advantage = plain_vtrace(rollout, log_prob, value, next_value, learner.cfg)
    data = learner.prepare(rollout)
    np.testing.assert_allclose(data.target, target.flatten(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(data.advantage, advantage.flatten(), rtol=1e-4, atol=1e-4)
    # r = clip(mu / pi_target, 0, 1.2) pi / mu
    current = network_says(learner, rollout)[0]
    weight = np.exp(behaviour - log_prob)
    assert (weight > 1.2).any()
    assert (weight < 1.2).any()
    expected = weight.clip(0.0, 1.2) * np.exp(current - behaviour)
    np.testing.assert_allclose(np.exp(current.flatten() - data.log_prob), expected.flatten(), rtol=1e-4)


@EACH_ENGINE
def test_the_target_network_is_copied_every_so_many_updates(engine: str) -> None:
    learner = appo(engine=engine, target_update_interval=3, n_epochs=2, batch_size=5, normalize_obs=True)
    assert learner.target is not None
    first = learner.parameters.data.clone()
    for count in range(1, 8):
        learner.update(played(learner, DISCRETE, n_steps=5, num_envs=3, seed=count))
        if count % 3 == 0:
            first = learner.parameters.data.clone()
            scale = learner.observer.scaled(np.ones((1, 3), np.float32))
            np.testing.assert_array_equal(learner.target.policy.observer.scaled(np.ones((1, 3), np.float32)), scale)
        torch.testing.assert_close(learner.target.policy.weights.data, first, rtol=0, atol=0)
    assert not torch.equal(learner.target.policy.weights.data, learner.parameters.data)


def test_a_target_network_that_a_run_did_not_have_before_begins_as_a_copy() -> None:
    old, new = appo(), appo(target_update_interval=2)
    move(old)
    new.load_state_dict(old.state_dict())
    assert new.target is not None
    torch.testing.assert_close(new.target.policy.weights.data, old.parameters.data, rtol=0, atol=0)


def test_a_target_that_is_the_learners_own_latest_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="target_update_interval=1: must be"):
        load_config({"algo": "appo", "env_id": "none", "target_update_interval": 1})


def test_the_penalty_adapts_worked_by_hand() -> None:
    assert adapted(1.0, 0.021, 0.01) == 1.5
    assert adapted(1.0, 0.0049, 0.01) == 0.5
    assert adapted(2.0, 0.01, 0.01) == adapted(2.0, 0.02, 0.01) == adapted(2.0, 0.005, 0.01) == 2.0


@EACH_ENGINE
def test_the_penalty_follows_the_kl(engine: str) -> None:
    learner = appo(engine=engine, kl_coef=0.2, kl_target=1e3, n_epochs=1)
    for count in range(1, 4):
        learner.update(played(learner, DISCRETE, n_steps=5, num_envs=3))
        assert learner.current("kl_coef") == pytest.approx(0.2 * 0.5**count)
    learner.set_hyperparameters(kl_target=1e-9, kl_coef=0.4)
    learner.update(older(learner, DISCRETE, n_steps=5))
    assert learner.current("kl_coef") == pytest.approx(0.4 * 0.5**3 * 1.5)
    again = appo(engine=engine, kl_coef=0.4, kl_target=1.0)
    again.load_state_dict(learner.state_dict())
    assert again.current("kl_coef") == learner.current("kl_coef")


@EACH_ENGINE
def test_the_penalty_that_is_used_is_the_adapted_one(engine: str) -> None:
    plain, factored = (appo(engine=engine, kl_coef=coef, kl_target=0.1) for coef in (0.6, 0.2))
    factored.parameters.data.copy_(plain.parameters.data)
    factored.kl_factor = 3.0
    rollout = played(plain, DISCRETE, n_steps=7, num_envs=3)
    rollout.records["log_prob"] += np.float32(0.5)
    for learner in (plain, factored):
        learner.update(rollout)
    torch.testing.assert_close(factored.parameters.data, plain.parameters.data, rtol=1e-5, atol=1e-6)


def test_a_target_for_a_penalty_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"kl_target=0\.01: adapts kl_coef, which is 0"):
        appo(kl_target=0.01)


def test_a_penalty_keeps_the_policy_nearer() -> None:
    kls = []
    for kl_coef in (0.0, 10.0):
        learner = appo(kl_coef=kl_coef, n_epochs=20, clip_coef=10.0, learning_rate=3e-3)
        kls.append(learner.update(played(learner, DISCRETE, n_steps=20, num_envs=3))["approx_kl"])
    assert kls[1] < 0.5 * kls[0]


@EACH_ENGINE
@SPACES
def test_on_its_own_rollouts_it_is_ppo(info: SpaceInfo, engine: str) -> None:
    """With pi = mu and a decay of 1, V-trace is GAE; minibatches are drawn alike."""
    shared = {"learning_rate": 1e-2, "n_epochs": 2, "batch_size": 5, "ent_coef": 0.02, "num_envs": 2, "engine": engine}
    learner, ppo = appo(info, **shared), algorithm("ppo", info, gae_lambda=1.0, **shared)
    ppo.parameters.data.copy_(learner.parameters.data)
    rollout = played(ppo, info, n_steps=6, num_envs=2)
    found, expected = learner.update(rollout), ppo.update(rollout)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    torch.testing.assert_close(learner.parameters.data, ppo.parameters.data, rtol=1e-3, atol=1e-4)


@EACH_ENGINE
def test_vtrace_is_computed_once_per_update(engine: str) -> None:
    learner = appo(engine=engine, n_epochs=4, batch_size=5)
    calls: list[int] = []
    judge = learner.reader.judge
    learner.reader.judge = lambda rollout: (calls.append(1), judge(rollout))[1]  # type: ignore
    metrics = learner.update(played(learner, DISCRETE, n_steps=5, num_envs=3))
    assert len(calls) == 1
    assert metrics["minibatch_updates"] == metrics["n_updates"] == 12.0


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    learner = appo(engine=engine)
    assert set(learner.update(played(learner, DISCRETE, n_steps=5, num_envs=3))) == PPO_METRICS


@EACH_ENGINE
@pytest.mark.parametrize("rnn", ["lstm", "gru"])
@pytest.mark.parametrize("interval", [None, 2])
def test_a_recurrent_policy_is_trained_from_the_first_recorded_states(
    rnn: str, engine: str, interval: int | None
) -> None:
    settings = {"n_steps": 11, "num_envs": 5, "ortho_init": False, "time_limit": 4, "batch_size": 1000, "n_epochs": 1}
    run = build(tiny_config("appo", engine=engine, rnn=rnn, target_update_interval=interval, **settings))
    run.start()
    learner = run.algorithm
    assert isinstance(learner, APPO)
    assert isinstance(learner.policy, RecurrentPolicy)
    learner.update = lambda batch: {}  # type: ignore[method-assign]
    for _ in range(2):
        run.advance()
    del learner.update
    run.close()
    rollout: Rollout = run.loop.rollout  # type: ignore[attr-defined]
    move(learner)
    later = np.ones(rollout.real.shape, np.bool_)
    later[0] = False
    rollout.records["state"][later & ~rollout.starts] = np.nan
    params, value = step_by_step(learner, rollout, length=11)
    (mini,) = learner.minibatches(data := learner.prepare(rollout))
    assert np.isfinite(data.advantage).all()
    log_ratio = learner.distribution.log_prob(params, torch.from_numpy(data.action)) - torch.from_numpy(data.log_prob)
    advantage = torch.from_numpy(data.advantage)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    error, entropy = value_loss(value, torch.from_numpy(data.target)), learner.distribution.entropy(params)
    loss, _ = appo_loss(log_ratio, advantage, entropy, error, learner.cfg)
    learner.parameters.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    expected = learner.parameters.grad.clone()
    learner.gradient(mini)
    torch.testing.assert_close(learner.parameters.grad, expected, rtol=2e-3, atol=1e-5)


@EACH_ENGINE
@pytest.mark.parametrize("settings", [{"rnn": "lstm"}, {"target_update_interval": None}], ids=str)
def test_every_setting_is_alive_in_other_forms_too(settings: dict[str, Any], engine: str) -> None:
    check_settings_are_live("appo", engine=engine, **settings)


@pytest.mark.parametrize(
    "settings", [{"rnn": "gru"}, {"rnn": "lstm", "target_update_interval": None}, {"kl_coef": 0.2, "kl_target": 0.01}]
)
def test_every_space_trains_and_resumes_in_other_forms_too(settings: dict[str, Any]) -> None:
    if "kl_target" not in settings:
        check_trains("appo", **settings)
    check_resumes("appo", **settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", -1e-3),
        ("gamma", 1.01),
        ("vtrace_lambda", -0.1),
        ("rho_bar", 0.0),
        ("c_bar", -0.1),
        ("ent_coef", -0.01),
        ("clip_coef", -0.1),
        ("kl_coef", -0.1),
        ("kl_target", 0.0),
        ("target_ratio_bar", 0.0),
        ("batch_size", 0),
        ("n_epochs", 0),
        ("max_grad_norm", 0.0),
        ("adam_eps", 0.0),
        ("rnn", "elman"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "appo", "env_id": "none", key: value})


@pytest.mark.parametrize("key", ["gae_lambda", "pg_rho_bar", "target_kl", "clip_range_vf", "optimizer"])
def test_what_appo_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "appo", "env_id": "none", key: 1})


def test_the_clip_has_the_name_of_stable_baselines_too() -> None:
    assert load_config({"algo": "appo", "env_id": "none", "clip_range": 0.3}).algorithm == APPOConfig(clip_coef=0.3)


def test_noise_that_depends_on_the_state_and_a_core_are_one_clear_error() -> None:
    with pytest.raises(UserError, match="use_sde=True, rnn='gru': state-dependent exploration needs rnn=none"):
        agent("appo", CONTINUOUS, use_sde=True, rnn="gru")


def test_the_spec_says_what_appo_is() -> None:
    assert (SPEC.name, SPEC.family, SPEC.config) == ("appo", "actor_learner", APPOConfig)
