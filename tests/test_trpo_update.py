"""TRPO's update: its step against an exact solution, its trust region, and what each of its phases may move."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conformance import CONTINUOUS, DISCRETE, ENGINES, SEVERAL, algorithm, full_reference, played
from rl_training.algorithms.base import ModelConfig
from rl_training.algorithms.parts.surrogates import AutogradSurrogate, ClosedFormSurrogate, PolicyChange
from rl_training.algorithms.trpo import SPEC, TRPO, TRPOConfig
from rl_training.data.rollout import Rollout
from rl_training.experiment.config import ConfigError, load_config
from rl_training.runtime.train import Run, build
from rl_training.testing import tiny_config
from rl_training.types import SpaceInfo, UserError

METRICS = {
    "policy_loss",
    "value_loss",
    "entropy",
    "kl",
    "step_fraction",
    "accepted",
    "grad_norm",
    "cg_residual",
    "explained_variance",
    "n_updates",
}
SPACES = pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS, SEVERAL], ids=["discrete", "continuous", "several"])
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def trpo(info: SpaceInfo = DISCRETE, **settings: Any) -> TRPO:
    learner = algorithm("trpo", info, **settings)
    assert isinstance(learner, TRPO)
    return learner


def rollout_of(learner: TRPO, info: SpaceInfo, seed: int = 0, n_steps: int = 16) -> Rollout:
    return played(learner, info, n_steps=n_steps, num_envs=2, seed=seed)


def bits(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


class Shared(nn.Module):
    """A network of one's own whose policy and value look through the same layer, and one that nobody uses."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__()
        self.eyes = nn.Linear(info.input_shape[0], 8)
        self.judge = nn.Linear(8, 1)
        self.unused = nn.Linear(2, 2)
        self.hand = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, info.action_size))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.eyes(obs).tanh()
        return self.hand(seen), self.judge(seen).squeeze(-1)


class FrozenEyes(Shared):
    """The same, where the layer of both is not to be trained."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__(info, config)
        self.eyes.requires_grad_(False)


class FrozenPolicy(Shared):
    """The same, where nothing is left of the policy to be trained."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__(info, config)
        self.eyes.requires_grad_(False)
        self.hand.requires_grad_(False)


def started(env: Mapping[str, Any], **settings: Any) -> Run:
    run = build(tiny_config("trpo", env, **settings))
    run.start()
    return run


def exact_step(learner: TRPO, data: dict[str, Tensor], activation: str) -> dict[str, Tensor]:
    """Appendix C in double precision: a dense Fisher matrix by the KL's second derivative, and a direct solution."""
    cfg, distribution = learner.cfg, learner.distribution
    named_leaves = learner.network.named_parameters()
    policy = {name: leaf.detach().double() for name, leaf in named_leaves if not name.startswith("value")}
    shapes = {name: leaf.shape for name, leaf in policy.items()}
    start = torch.cat([leaf.reshape(-1) for leaf in policy.values()])
    advantage = data["advantage"].double()
    if cfg.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def named(flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def outputs(flat: Tensor) -> Tensor:
        part = named(flat)
        hidden = data["obs"].double() @ part["policy_torso.0.weight"].T + part["policy_torso.0.bias"]
        hidden = hidden.tanh() if activation == "tanh" else hidden * hidden.sigmoid()
        params = hidden @ part["policy_head.weight"].T + part["policy_head.bias"]
        return torch.cat([params, part["log_std"].expand_as(params)], dim=-1) if "log_std" in part else params

    def log_prob(flat: Tensor) -> Tensor:
        return distribution.log_prob(outputs(flat), data["action"])

    def objective(flat: Tensor) -> Tensor:
        ratio = (log_prob(flat) - log_prob(start)).exp()
        return (ratio * advantage).mean() + cfg.ent_coef * distribution.entropy(outputs(flat)).mean()

    def kl(flat: Tensor) -> Tensor:
        return distribution.kl(outputs(start), outputs(flat)).mean()

    gradient = torch.autograd.functional.jacobian(objective, start)
    matrix = torch.autograd.functional.hessian(kl, start) + cfg.cg_damping * torch.eye(len(start), dtype=torch.float64)
    direction = torch.linalg.solve(matrix, gradient)
    step = direction * (2.0 * cfg.target_kl / (direction @ matrix @ direction)).sqrt()
    for exponent in range(cfg.line_search_max_iter):
        moved = start + cfg.line_search_shrinking_factor**exponent * step
        if kl(moved) <= cfg.target_kl and objective(moved) > objective(start):
            return named(moved)
    return named(start)


@EACH_ENGINE
@SPACES
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ent_coef": 0.3, "gamma": 0.8, "gae_lambda": 0.6, "cg_damping": 0.02},
        {"normalize_advantage": False, "activation": "silu"},
        {"target_kl": 0.5, "line_search_shrinking_factor": 0.5},
    ],
    ids=str,
)
def test_three_steps_of_the_policy_equal_exact_ones(info: SpaceInfo, engine: str, settings: dict[str, Any]) -> None:
    learner = trpo(info, engine=engine, cg_max_steps=100, **settings)
    for seed in range(3):
        before = learner.policy_group.data.clone()
        rollout = rollout_of(learner, info, seed)
        expected = exact_step(learner, full_reference(learner, rollout), settings.get("activation", "tanh"))
        assert learner.update(rollout)["accepted"] == 1.0
        assert (learner.policy_group.data - before).abs().max() > 1e-2
        given = dict(learner.network.named_parameters())
        for name, leaf in expected.items():
            torch.testing.assert_close(given[name].detach().double(), leaf, rtol=1e-3, atol=2e-4)


@EACH_ENGINE
def test_the_critic_is_fitted_by_adam_in_shuffled_minibatches(engine: str) -> None:
    settings = {"n_critic_updates": 3, "batch_size": 10, "learning_rate": 1e-2}
    learner = trpo(engine=engine, **settings)
    network, shuffles = copy.deepcopy(learner.network), copy.deepcopy(learner.batch_rng)
    critic = [leaf for name, leaf in network.named_parameters() if name.startswith("value")]
    optimiser = torch.optim.Adam(critic, lr=1e-2, eps=1e-5, foreach=False)
    for seed in range(2):
        rollout = rollout_of(learner, DISCRETE, seed)
        data, losses = full_reference(learner, rollout), []
        for _ in range(3):
            for rows in torch.from_numpy(shuffles.permutation(32)).split(10):
                loss = 0.5 * (network(data["obs"][rows])[1] - data["target"][rows]).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.append(2.0 * loss.item())  # the mean squared error is reported
        assert learner.update(rollout)["value_loss"] == pytest.approx(np.mean(losses), rel=1e-3)
    given = dict(learner.network.named_parameters())
    for name, leaf in network.named_parameters():
        if name.startswith("value"):
            torch.testing.assert_close(given[name], leaf, rtol=1e-3, atol=1e-4)


@EACH_ENGINE
@SPACES
@pytest.mark.parametrize("target_kl", [0.01, 1.0])
def test_every_accepted_step_stays_within_the_trust_region(info: SpaceInfo, engine: str, target_kl: float) -> None:
    learner = trpo(info, engine=engine, target_kl=target_kl, cg_damping=1e-3, n_critic_updates=1)
    accepted = shortened = 0
    updates = 30 if engine == "auto" else 8
    for seed in range(updates):
        rollout = rollout_of(learner, info, seed)
        obs = torch.from_numpy(rollout.obs.reshape(-1, 3))
        old = copy.deepcopy(learner.network)
        metrics = learner.update(rollout)
        with torch.no_grad():
            kl = learner.distribution.kl(old(obs)[0].double(), learner.network(obs)[0].double()).mean().item()
        assert metrics["kl"] == pytest.approx(kl, rel=1e-3, abs=1e-7)
        assert kl <= target_kl * (1.0 + 1e-4)
        accepted += metrics["accepted"] == 1.0
        shortened += 0.0 < metrics["step_fraction"] < 1.0
    assert accepted >= 0.7 * updates
    assert shortened > 0 or target_kl == 0.01


@EACH_ENGINE
@SPACES
def test_a_failed_line_search_leaves_the_policy_as_it_was_to_the_bit(
    info: SpaceInfo, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = trpo(info, engine=engine)
    learner.update(rollout_of(learner, info))
    before, critic = bits({"policy": learner.policy_group.data}), learner.optimizer.parameters.data.clone()
    steps = learner.optimizer.state_dict()["count"].item()
    visited = set()

    def refuse(surrogate: Any) -> PolicyChange:
        visited.add(learner.policy_group.data.numpy().tobytes())
        return PolicyChange(-1e9, 0.0, 1e9)

    for form in (AutogradSurrogate, ClosedFormSurrogate):
        monkeypatch.setattr(form, "measure", refuse)
    metrics = learner.update(rollout_of(learner, info, seed=1))
    assert len(visited) == 10
    assert before["policy"] not in visited
    assert bits({"policy": learner.policy_group.data}) == before
    assert (metrics["accepted"], metrics["step_fraction"], metrics["kl"]) == (0.0, 0.0, 0.0)
    assert learner.optimizer.state_dict()["count"].item() == 2 * steps
    assert not torch.equal(learner.optimizer.parameters.data, critic)


@EACH_ENGINE
def test_a_step_that_gains_nothing_is_refused(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = trpo(engine=engine)
    before = bits({"policy": learner.policy_group.data})
    for form in (AutogradSurrogate, ClosedFormSurrogate):
        monkeypatch.setattr(form, "measure", lambda surrogate: PolicyChange(surrogate.start.policy_loss, 0.0, 0.0))
    assert learner.update(rollout_of(learner, DISCRETE))["accepted"] == 0.0
    assert bits({"policy": learner.policy_group.data}) == before


@EACH_ENGINE
@SPACES
def test_each_phase_moves_its_own_parameters_alone(info: SpaceInfo, engine: str) -> None:
    for frozen in ({"learning_rate": 0.0}, {"target_kl": 0.0}):
        learner = trpo(info, engine=engine, **frozen)
        before = bits(learner.network.state_dict())
        for seed in range(2):
            learner.update(rollout_of(learner, info, seed))
        after = bits(learner.network.state_dict())
        moved = {name for name in before if before[name] != after[name]}
        value = {name for name in before if name.startswith("value")}
        assert moved == (value if "target_kl" in frozen else before.keys() - value)


@pytest.mark.parametrize("observations", ["image", "dict"])
@pytest.mark.parametrize("frozen", [{"learning_rate": 0.0}, {"target_kl": 0.0}], ids=str)
def test_a_shared_encoder_is_the_policys(observations: str, frozen: dict[str, float]) -> None:
    run = started({"observations": observations}, **frozen)
    network = run.algorithm.network  # type: ignore[attr-defined]
    before = bits(network.state_dict())
    run.advance()
    after = bits(network.state_dict())
    run.close()
    value = {name for name in before if name.startswith("heads.value")}
    assert value < before.keys()
    expected = value if "target_kl" in frozen else before.keys() - value
    assert {name for name in before if before[name] != after[name]} == expected


@pytest.mark.parametrize("frozen", [{"learning_rate": 0.0}, {"target_kl": 0.0}], ids=str)
@pytest.mark.parametrize("model", ["Shared", "FrozenEyes"])
def test_the_parts_of_a_network_of_ones_own_are_found(model: str, frozen: dict[str, float]) -> None:
    run = started({}, model=f"test_trpo_update:{model}", **frozen)
    network = run.algorithm.network  # type: ignore[attr-defined]
    before = bits(network.state_dict())
    run.advance()
    run.advance()
    after = bits(network.state_dict())
    run.close()
    policy = {"eyes", "hand.1"} if model == "Shared" else {"hand.1"}
    parts = {"judge"} if "target_kl" in frozen else policy
    assert {name.rsplit(".", 1)[0] for name in before if before[name] != after[name]} == parts


def test_the_policy_whose_kl_is_measured_is_the_one_that_acts() -> None:
    """The network has a dropout, which acting leaves out; so must the KL."""
    run = started({}, model="test_trpo_update:Shared", n_steps=20)
    learner: Any = run.algorithm
    old = copy.deepcopy(learner.network).eval()
    run.advance()
    obs = torch.from_numpy(run.loop.rollout.obs.reshape(-1, 3))  # type: ignore[attr-defined]
    with torch.no_grad():
        kl = learner.distribution.kl(old(obs)[0], learner.network.eval()(obs)[0]).mean().item()
    run.close()
    assert run.metrics["accepted"] == 1.0
    assert run.metrics["kl"] == pytest.approx(kl, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "who"), [("rl_training.testing:LinearActorCritic", "value"), ("test_trpo_update:FrozenPolicy", "policy")]
)
def test_a_network_without_parameters_for_both_is_refused(model: str, who: str) -> None:
    wanted = f"model='{model}': trpo trains policy and value separately, so each needs .*; the {who} has none"
    with pytest.raises(UserError, match=wanted):
        build(tiny_config("trpo", model=model))


def test_state_dependent_noise_stays_within_the_trust_region() -> None:
    run = started({"actions": "continuous"}, use_sde=True, n_steps=20, normalize_obs=False)
    learner: Any = run.algorithm
    assert learner.engine == "autograd"
    for _ in range(5):
        old = copy.deepcopy(learner.network)
        run.advance()
        obs = torch.from_numpy(run.loop.rollout.obs.reshape(-1, 3))  # type: ignore[attr-defined]
        with torch.no_grad():
            kl = learner.distribution.kl(old(obs)[0], learner.network(obs)[0]).mean().item()
        assert run.metrics["kl"] == pytest.approx(kl, rel=1e-3, abs=1e-7)
        assert kl <= 0.01
        assert run.metrics["accepted"] == 1.0
    run.close()


@EACH_ENGINE
@SPACES
@pytest.mark.parametrize("normalize", [False, True])
def test_a_batch_of_one_sample_gives_no_nan(info: SpaceInfo, engine: str, normalize: bool) -> None:
    learner = trpo(info, num_envs=1, engine=engine, normalize_advantage=normalize)
    metrics = learner.update(played(learner, info, n_steps=1, num_envs=1))
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert torch.isfinite(learner.parameters.data).all()
    assert metrics["accepted"] == 1.0


@EACH_ENGINE
def test_nothing_to_gain_is_no_step(engine: str) -> None:
    learner = trpo(engine=engine, gamma=0.0, learning_rate=0.0)
    rollout = rollout_of(learner, DISCRETE)
    rollout.reward[:] = rollout.records["value"]
    before = bits({"policy": learner.policy_group.data})
    metrics = learner.update(rollout)
    assert (metrics["accepted"], metrics["grad_norm"], metrics["kl"]) == (0.0, 0.0, 0.0)
    assert bits({"policy": learner.policy_group.data}) == before


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    learner = trpo(engine=engine)
    for count in (1, 2):
        metrics = learner.update(rollout_of(learner, DISCRETE))
        assert set(metrics) == METRICS
        assert metrics["n_updates"] == learner.n_updates == count


@EACH_ENGINE
def test_the_entropy_bonus_flattens_the_policy(engine: str) -> None:
    """With nothing to gain, only the bonus is left to learn from: the policy becomes uniform."""
    learner = trpo(engine=engine, ent_coef=1.0, ortho_init=False, gamma=0.0, learning_rate=0.0)
    obs = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)

    def entropy() -> float:
        with torch.no_grad():
            return learner.distribution.entropy(learner.network(torch.from_numpy(obs))[0]).mean().item()

    before = entropy()
    for seed in range(15):
        rollout = rollout_of(learner, DISCRETE, seed)
        rollout.reward[:] = rollout.records["value"]
        learner.update(rollout)
    assert before < np.log(4) - 0.01
    assert entropy() == pytest.approx(np.log(4), abs=2e-3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target_kl", -0.01),
        ("target_kl", None),
        ("cg_max_steps", 0),
        ("cg_damping", -0.1),
        ("line_search_shrinking_factor", 1.0),
        ("line_search_shrinking_factor", 0.0),
        ("line_search_max_iter", 0),
        ("n_critic_updates", 0),
        ("batch_size", 0),
        ("learning_rate", -1e-3),
        ("ent_coef", -0.01),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "trpo", "env_id": "none", key: value})


@pytest.mark.parametrize("key", ["vf_coef", "max_grad_norm", "clip_coef", "n_epochs"])
def test_what_trpo_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "trpo", "env_id": "none", key: 1})


def test_the_spec_says_what_trpo_is() -> None:
    assert SPEC.name == "trpo"
    assert SPEC.config is TRPOConfig
    assert {"discrete", "continuous"} <= set(SPEC.capabilities.actions)


def test_a_run_that_diverged_is_told_what_to_lower() -> None:
    run = build(tiny_config("trpo", {"actions": "continuous"}, target_kl=1e30, line_search_max_iter=1))
    run.start()
    assert str(run.diverged("kl", float("nan"))).endswith("(kl is nan); lower target_kl or learning_rate")
    run.close()
