"""PPG's phases: the auxiliary loss in closed form, its steps against plain torch, and what each phase may move."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conformance import CONTINUOUS, DISCRETE, ENGINES, SEVERAL, algorithm, chosen, played
from rl_training.algorithms.parts.objectives import EngineForm
from rl_training.algorithms.ppg import PPG, SPEC, PPGConfig, ppg_auxiliary_loss
from rl_training.data.phases import PhaseMemory
from rl_training.experiment.config import ConfigError, load_config
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.phasic import AuxiliaryEngine, PhasicActorCritic
from rl_training.ops.distributions import FORBIDDEN
from rl_training.runtime.train import build
from rl_training.testing import LinearPhasicActorCritic, differences, tiny_config
from rl_training.types import SpaceInfo, UserError

SPACES = pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS, SEVERAL], ids=["discrete", "continuous", "several"])
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
AUXILIARY_METRICS = {"auxiliary_value_loss", "clone_kl", "phase_value_loss", "n_aux_updates"}


def ppg(info: SpaceInfo = DISCRETE, **settings: Any) -> PPG:
    defaults: dict[str, Any] = {"aux_interval": 2, "batch_size": 1000, "aux_batch_size": 16, "n_aux_epochs": 2}
    made = algorithm("ppg", info, **(defaults | settings))
    assert isinstance(made, PPG)
    return made


def phase(learner: PPG, info: SpaceInfo, rollouts: int = 2) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for seed in range(rollouts):
        metrics = learner.update(played(learner, info, n_steps=10, num_envs=2, seed=seed))
    return metrics


def moved(learner: PPG, before: dict[str, Tensor]) -> set[str]:
    """The first words of the names of parameters that are not what they were."""
    after = learner.network.state_dict()
    return {name.removeprefix("heads.").split(".")[0] for name in after if not torch.equal(after[name], before[name])}


def test_the_auxiliary_loss_worked_by_hand() -> None:
    # Errors of the auxiliary head 1 and 3, of the value 2 and 0; KLs 0.1 and 0.3.
    target = torch.tensor([1.0, 2.0])
    loss = ppg_auxiliary_loss(
        target + torch.tensor([1.0, 3.0]),
        target + torch.tensor([2.0, 0.0]),
        target,
        torch.tensor([0.1, 0.3]),
        beta_clone=0.5,
    )
    assert loss.item() == pytest.approx(0.5 * (1 + 9) / 2 + 0.5 * 0.2 + 0.5 * 4 / 2)


def test_a_policy_phase_leaves_the_auxiliary_head_alone() -> None:
    learner = ppg(aux_interval=100)
    before = copy.deepcopy(learner.network.state_dict())
    metrics = phase(learner, DISCRETE, rollouts=3)
    assert moved(learner, before) == {"policy_torso", "policy_head", "value_torso", "value_head"}
    assert not AUXILIARY_METRICS & set(metrics)
    assert learner.phase.rollouts == 3


@EACH_ENGINE
def test_no_gradient_of_an_auxiliary_phase_is_left_for_the_next_policy_phase(engine: str) -> None:
    learner = ppg(engine=engine)
    phase(learner, DISCRETE)
    before = learner.network.auxiliary_head.weight.detach().clone()
    learner.update(played(learner, DISCRETE, n_steps=10, num_envs=2, seed=5))
    assert torch.equal(learner.network.auxiliary_head.weight, before)


@EACH_ENGINE
@SPACES
def test_an_auxiliary_phase_moves_everything(engine: str, info: SpaceInfo) -> None:
    learner = ppg(info, engine=engine, learning_rate=0.0, aux_learning_rate=1e-2)
    before = copy.deepcopy(learner.network.state_dict())
    metrics = phase(learner, info)
    everything = {name.removeprefix("heads.").split(".")[0] for name in before}
    assert moved(learner, before) == everything
    assert set(metrics) >= AUXILIARY_METRICS
    assert metrics["n_aux_updates"] == 2 * 3  # two epochs of 40 samples in minibatches of 16
    assert metrics["clone_kl"] > 0.0


def plain_phase(learner: PPG, memory: PhaseMemory) -> nn.Module:
    """One auxiliary phase by autograd and torch's own Adam and distributions, on a copy of the network."""
    network, cfg = copy.deepcopy(learner.network), learner.cfg
    obs, target = torch.from_numpy(memory.obs.copy()), torch.from_numpy(memory.target.copy())
    rng = copy.deepcopy(learner.batch_rng)
    optimizer = torch.optim.Adam(network.parameters(), lr=cfg.aux_learning_rate, eps=cfg.adam_eps)
    with torch.no_grad():
        old_params = network(obs)[0]
    for _ in range(cfg.n_aux_epochs):
        order = torch.from_numpy(rng.permutation(len(target)))
        for picked in order.split(cfg.aux_batch_size):
            params, value, auxiliary = network.auxiliary(obs[picked])
            old, new = (torch_distributions(learner, p) for p in (old_params[picked], params))
            kl = sum(
                torch.distributions.kl_divergence(a, b).reshape(len(picked), -1).sum(-1)
                for a, b in zip(old, new, strict=True)
            )
            error = 0.5 * (auxiliary - target[picked]).square().mean() + 0.5 * (value - target[picked]).square().mean()
            optimizer.zero_grad()
            (error + cfg.beta_clone * kl.mean()).backward()
            nn.utils.clip_grad_norm_(network.parameters(), cfg.max_grad_norm)
            optimizer.step()
    return network


def torch_distributions(learner: PPG, params: Tensor) -> list[torch.distributions.Distribution]:
    info = learner.policy.info
    if info.continuous:
        mean, log_std = params.chunk(2, dim=-1)
        return [torch.distributions.Normal(mean, log_std.exp())]
    return [torch.distributions.Categorical(logits=part) for part in params.split(list(info.action_counts), dim=-1)]


@EACH_ENGINE
@SPACES
def test_an_auxiliary_phase_equals_plain_torch(engine: str, info: SpaceInfo) -> None:
    # An epsilon of Adam above the rounding of gradients, which begin at 0 for the KL.
    rates = {"learning_rate": 0.0, "aux_learning_rate": 1e-2, "adam_eps": 1e-2}
    learner = ppg(info, engine=engine, beta_clone=0.7, max_grad_norm=0.3, **rates)
    learner.update(played(learner, info, n_steps=10, num_envs=2, seed=0))
    rollout = played(learner, info, n_steps=10, num_envs=2, seed=1)
    twin = copy.deepcopy(learner)
    twin.prepare(rollout)
    learner.batch_rng.permutation(20)  # what the policy phase draws
    expected = plain_phase(learner, twin.phase).state_dict()
    learner.batch_rng = copy.deepcopy(twin.batch_rng)
    learner.update(rollout)
    for name, tensor in learner.network.state_dict().items():
        assert torch.allclose(tensor, expected[name], atol=2e-6), name


@pytest.mark.parametrize("masked", [False, True])
@SPACES
def test_the_closed_form_of_the_clone_loss_equals_autograd(info: SpaceInfo, masked: bool) -> None:
    """Far from the old policy, where a KL has a gradient in every parameter."""
    learner = ppg(info, ortho_init=False)
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((7, 3)).astype(np.float32)
    old = rng.standard_normal((7, learner.distribution.param_size)).astype(np.float32)
    mask = None
    if info.continuous:
        old[:, info.action_size :] = old[0, info.action_size :]  # deviations are the same for all observations
    elif masked:
        mask = np.ones((7, info.action_size), np.bool_)
        mask[::2, 0] = False
        old[~mask] = FORBIDDEN
    params = learner.network(torch.from_numpy(obs))[0]
    if mask is not None:
        params = params.masked_fill(~torch.from_numpy(mask), FORBIDDEN)
    expected = learner.distribution.kl(torch.from_numpy(old), params).mean()
    learner.parameters.zero_grad()
    (0.3 * expected).backward()
    gradient = learner.parameters.grad.clone()
    learner.parameters.zero_grad()
    assert isinstance(learner.form, EngineForm)
    engine = AuxiliaryEngine(learner.network, learner.parameters)
    outputs, auxiliary = engine.forward(obs)
    assert learner.form.engine.clone_gradient(outputs, old, 0.3, mask) == pytest.approx(expected.item(), rel=1e-5)
    auxiliary[:] = 0.0
    engine.backward()
    assert torch.allclose(learner.parameters.grad, gradient, atol=1e-6)
    assert gradient.abs().max() > 1e-2


def test_the_policy_that_is_cloned_is_the_one_before_the_phase() -> None:
    """With an enormous weight on the KL, and none on anything else to gain, the policy stays what it was."""
    free, held = (
        ppg(beta_clone=beta, learning_rate=0.0, aux_learning_rate=1e-2, n_aux_epochs=20, ortho_init=False)
        for beta in (0.0, 100.0)
    )
    changes = []
    for learner in (free, held):
        obs = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
        before = learner.network(obs)[0].softmax(-1).detach()
        phase(learner, DISCRETE)
        changes.append((learner.network(obs)[0].softmax(-1) - before).abs().max().item())
    assert changes[1] < 0.3 * changes[0]


def test_auxiliary_phases_teach_the_policy_values() -> None:
    losses = []
    rates = {"learning_rate": 0.0, "aux_learning_rate": 1e-2, "gamma": 0.0}
    learner = ppg(n_aux_epochs=60, aux_interval=1, hidden_sizes=[64], **rates)
    for _ in range(3):
        learner.update(played(learner, DISCRETE, n_steps=20, num_envs=2, seed=0))
        losses.append(learner.aux_metrics["auxiliary_value_loss"])
    assert losses[2] < 0.5 * losses[0]


def test_a_phase_learns_from_the_rollouts_since_the_last_and_from_no_others() -> None:
    learner = ppg(aux_interval=2)
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    learner._auxiliary_phase = lambda obs, target: seen.append((obs.copy(), target.copy())) or {}  # type: ignore[method-assign,func-returns-value]
    rollouts = [played(learner, DISCRETE, n_steps=4, num_envs=2, seed=seed) for seed in range(5)]
    for rollout in rollouts:
        learner.update(rollout)
    assert [len(obs) for obs, _ in seen] == [16, 16]
    expected = [np.concatenate([rollouts[k].obs.reshape(8, 3) for k in pair]) for pair in ((0, 1), (2, 3))]
    assert all(np.array_equal(obs, wanted) for (obs, _), wanted in zip(seen, expected, strict=True))
    assert learner.phase.rollouts == 1


def test_policy_and_value_share_nothing_on_images_too() -> None:
    run = build(tiny_config("ppg", {"observations": "image"}))
    network = run.algorithm.network  # type: ignore[attr-defined]
    assert isinstance(network, PhasicActorCritic)
    params, value, auxiliary = network.auxiliary(torch.zeros(2, 36, 36, 1, dtype=torch.uint8))

    def reached(of: Tensor) -> set[int]:
        parameters = list(network.parameters())
        grads = torch.autograd.grad(of.sum(), parameters, allow_unused=True, retain_graph=True)
        return {index for index, grad in enumerate(grads) if grad is not None}

    assert not reached(params) & reached(value)
    assert len(reached(auxiliary) & reached(params)) > 6
    run.close()


class WithoutArgument(LinearPhasicActorCritic):
    def auxiliary(self) -> Any:  # type: ignore[override]
        return None


class OfColumns(LinearPhasicActorCritic):
    def auxiliary(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        params, value, extra = super().auxiliary(obs)
        return params, value[:, None], extra[:, None]


class OfTwo(LinearPhasicActorCritic):
    def auxiliary(self, obs: Tensor) -> Any:
        return super().auxiliary(obs)[:2]


class OneSided(PhasicActorCritic):
    """The package's own network with an opinion of its own."""

    def features(self, obs: Any) -> tuple[Tensor, Tensor, Tensor]:
        params, value, features = super().features(obs)
        return params + torch.tensor([50.0, 0.0, 0.0]), value, features


def one_sided(info: SpaceInfo, model: Any) -> OneSided:
    return OneSided(own_network(info, model).heads, None, orthogonal=True)


def own_network(info: SpaceInfo, model: Any) -> PhasicActorCritic:
    """What the package would have made."""
    mlps = MLPActorCritic(info.input_shape[0], info.action_size, model.shape(info), continuous=info.continuous)
    return PhasicActorCritic(mlps, None, orthogonal=model.ortho_init)


def test_a_function_that_makes_the_packages_own_network_changes_nothing() -> None:
    ends = []
    for model in ("auto", "test_ppg_update:own_network"):
        run = build(tiny_config("ppg", model=model))
        run.start()
        for _ in range(4):
            run.advance()
        assert run.algorithm.engine == "mlp"
        ends.append(run.algorithm.policy.policy_state())
        run.close()
    assert differences(*ends) == []


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("rl_training.testing:LinearSeparateActorCritic", r"needs a method auxiliary\(obs\) that returns .*\[B, 3\]"),
        ("test_ppg_update:WithoutArgument", "positional argument"),
        ("test_ppg_update:OfColumns", r"it returned \[\(2, 3\), \(2, 1\), \(2, 1\)\]"),
        ("test_ppg_update:OfTwo", r"it returned \[\(2, 3\), \(2,\)\]"),
    ],
)
def test_a_network_without_a_fitting_auxiliary_head_is_refused(model: str, words: str) -> None:
    with pytest.raises(UserError, match=f"^model='{model}': .*{words}"):
        build(tiny_config("ppg", model=model))


def test_networks_of_ones_own_are_used_as_they_are() -> None:
    run = build(tiny_config("ppg", model="rl_training.testing:LinearPhasicActorCritic"))
    assert isinstance(run.algorithm.network, LinearPhasicActorCritic)  # type: ignore[attr-defined]
    run.close()
    run = build(tiny_config("ppg", model="test_ppg_update:one_sided"))
    run.start()
    assert run.algorithm.engine == "autograd"
    obs = np.zeros((20, 3), np.float32)
    assert (chosen(run.algorithm, obs).action == 0).all()
    run.advance()
    run.advance()
    run.close()


def test_nothing_is_kept_of_rollouts_that_a_phase_has_learned_from() -> None:
    learner = ppg()
    phase(learner, DISCRETE, rollouts=1)
    assert [len(array.chunks()[0]) for array in learner.phase.arrays.values()] == [20, 20]
    phase(learner, DISCRETE, rollouts=1)
    assert [array.chunks() for array in learner.phase.arrays.values()] == [[], []]


@pytest.mark.parametrize(
    ("key", "value"),
    [("aux_interval", 0), ("n_aux_epochs", 0), ("aux_batch_size", 0), ("aux_learning_rate", -1e-3), ("beta_clone", -1)],
)
def test_invalid_hyperparameters_fail_fast(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key):
        load_config({"algo": "ppg", "env_id": "CartPole-v1", key: value})


def test_the_phases_are_the_papers() -> None:
    cfg = PPGConfig()
    assert (cfg.n_epochs, cfg.aux_interval, cfg.n_aux_epochs, cfg.beta_clone) == (1, 32, 6, 1.0)
    assert cfg.aux_learning_rate == 5e-4
    assert SPEC.config is PPGConfig
