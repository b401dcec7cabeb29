"""GAIL's update: rewards and losses in closed form, its steps against plain torch, and the traps around them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conformance import CONTINUOUS, DISCRETE, ENGINES, PPO_METRICS, SEVERAL, agent, boxed, chosen, played
from rl_training.algorithms.gail import (
    GAIL,
    SPEC,
    RewardForm,
    absorbed_value,
    imitation_reward,
)
from rl_training.algorithms.parts.discriminators import discriminator_loss, gradient_penalty
from rl_training.algorithms.ppo import PPO
from rl_training.data.datasets.demonstrations import Occupancy, of_rollout
from rl_training.data.rollout import Rollout
from rl_training.experiment.config import ConfigError, load_config
from rl_training.models.discriminator import Discriminator, action_numbers
from rl_training.runtime.envs.make import describe_spaces
from rl_training.testing import differences
from rl_training.types import Metrics, SpaceInfo

FORMS: tuple[RewardForm, ...] = ("gail", "log_d", "airl", "fairl")
METRICS = PPO_METRICS | {
    "discriminator_loss",
    "discriminator_accuracy",
    "expert_accuracy",
    "policy_accuracy",
    "expert_logit_mean",
    "policy_logit_mean",
    "gradient_penalty",
    "imitation_reward_mean",
    "absorbing_reward",
}
SPACES = pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS, SEVERAL], ids=["discrete", "continuous", "several"])


def demonstrations(info: SpaceInfo, *, over: float = 0.25) -> Occupancy:
    """Noise that looks different from what `played` gives."""
    rng = np.random.default_rng(5)
    shape, dtype = info.stored_action
    action = rng.uniform(-1.0, 1.0, (40, *shape)) if info.continuous else rng.integers(0, 2, (40, *shape))
    return Occupancy(rng.normal(1.0, 0.5, (40, *info.obs_shape)).astype(np.float32), action.astype(dtype), over)


def gail(info: SpaceInfo = DISCRETE, *, over: float = 0.25, reward_clip: float | None = None, **settings: Any) -> GAIL:
    small = {"n_epochs": 2, "batch_size": 16, "disc_batch_size": 32, "disc_hidden_sizes": [8], "learning_rate": 1e-2}
    made = agent("gail", info, **(small | settings))
    assert isinstance(made, GAIL)
    made.demonstrate(demonstrations(info, over=over), reward_clip=reward_clip)
    return made


def gathered(learner: GAIL, info: SpaceInfo = DISCRETE, *, seed: int = 0) -> Rollout:
    return played(learner, info, n_steps=16, num_envs=2, seed=seed)


def logits(learner: GAIL, rollout: Rollout, info: SpaceInfo = DISCRETE) -> np.ndarray:
    """What the discriminator says of a rollout's steps, computed by hand."""
    moments = learner.discriminator.observer.normalizer.moments  # type: ignore[union-attr]
    rows = rollout.obs.reshape(-1, *info.obs_shape)
    scaled = np.clip((rows - moments.mean) / np.sqrt(moments.var + 1e-8), -10.0, 10.0)
    action = action_numbers(rollout.action.reshape(-1, *rollout.action.shape[2:]), info)
    inputs = np.concatenate([scaled, action, np.zeros((len(rows), 1))], axis=1).astype(np.float32)
    with torch.no_grad():
        logits = plain(learner.discriminator.network)(torch.from_numpy(inputs)).squeeze(-1).numpy()
        return logits.reshape(rollout.reward.shape)


def plain(judge: Discriminator) -> nn.Sequential:
    """The discriminator's MLP as torch's own layers, which are copies."""
    return nn.Sequential(*copy.deepcopy(list(judge.torso)), copy.deepcopy(judge.head))


@pytest.mark.parametrize(
    ("form", "of"),
    [
        ("gail", lambda d: -math.log(1.0 - d)),
        ("log_d", math.log),
        ("airl", lambda d: math.log(d) - math.log(1.0 - d)),
        ("fairl", lambda d: -(math.log(d) - math.log(1.0 - d)) * d / (1.0 - d)),
    ],
)
def test_each_form_of_the_reward_is_what_its_paper_says_of_d(form: RewardForm, of: Callable[[float], float]) -> None:
    logit = np.linspace(-8.0, 8.0, 33)
    chance = 1.0 / (1.0 + np.exp(-logit))
    np.testing.assert_allclose(imitation_reward(logit, form), [of(d) for d in chance], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_rewards_of_certain_steps_are_finite_and_signed(form: RewardForm) -> None:
    reward = imitation_reward(np.array([-500.0, 0.0, 500.0], np.float32), form)
    assert np.isfinite(reward).all()
    if form == "gail":
        assert (reward >= 0.0).all()
    if form == "log_d":
        assert (reward <= 0.0).all()


def test_the_discriminators_loss_is_both_sides_cross_entropy() -> None:
    """-log s(1) / 2 - log s(0) / 2 of the expert's, -log(1 - s(-2)) of the policy's."""
    loss = discriminator_loss(torch.tensor([1.0, 0.0]), torch.tensor([-2.0]))
    sigmoid = lambda x: 1.0 / (1.0 + math.exp(-x))  # noqa: E731
    expected = -0.5 * math.log(sigmoid(1.0)) - 0.5 * math.log(0.5) - math.log(1.0 - sigmoid(-2.0))
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_the_gradient_penalty_of_a_linear_function_is_known() -> None:
    """A slope of (3, 4) everywhere has a norm of 5: (5 - 1)^2. Its gradient is 2 (5 - 1) w / |w|."""
    layer = nn.Linear(2, 1)
    nn.init.constant_(layer.bias, 7.0)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0]]))
    penalty = gradient_penalty(lambda x: layer(x).squeeze(-1), torch.randn(6, 2))
    penalty.backward()
    assert penalty.item() == pytest.approx(16.0, rel=1e-6)
    assert layer.weight.grad is not None
    np.testing.assert_allclose(layer.weight.grad.numpy(), [[4.8, 6.4]], rtol=1e-5)


def test_the_gradient_penalty_of_a_flat_function_is_a_number() -> None:
    """Where the discriminator starts: the norm of no slope has no gradient of its own, which must not become NaN."""
    layer = nn.Linear(2, 1)
    nn.init.zeros_(layer.weight)
    penalty = gradient_penalty(lambda x: layer(x).squeeze(-1), torch.randn(3, 2))
    penalty.backward()
    assert penalty.item() == pytest.approx(1.0, abs=1e-5)
    assert layer.weight.grad is not None
    assert torch.isfinite(layer.weight.grad).all()


def test_a_step_of_the_discriminator_is_that_of_plain_torch() -> None:
    learner = gail(disc_updates=3, disc_learning_rate=0.01, gradient_penalty_coef=2.0)
    rollout = gathered(learner)
    network = plain(learner.discriminator.network)
    adam = torch.optim.Adam(network.parameters(), lr=0.01, eps=1e-8)
    rng = copy.deepcopy(learner.batch_rng)
    expert, own = demonstrations(DISCRETE), of_rollout(rollout)
    seen = np.concatenate([expert.obs, own.obs]).astype(np.float64)
    deviation = np.sqrt(seen.var(axis=0) + 1e-8)

    def drawn(side: Occupancy) -> Tensor:
        index, over = rng.integers(len(side.obs), size=32), rng.random(32) < side.over
        numbers = np.concatenate([(side.obs[index] - seen.mean(axis=0)) / deviation, np.eye(4)[side.action[index]]], 1)
        numbers[over] = 0.0
        return torch.from_numpy(np.concatenate([numbers, 10.0 * over[:, None]], axis=1).astype(np.float32))

    for _ in range(3):
        real, made = drawn(expert), drawn(own)
        share = torch.from_numpy(rng.random((32, 1), dtype=np.float32))
        between = (share * real + (1.0 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(network(between).sum(), between, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1.0) ** 2).mean() if slope.abs().max() > 0.0 else torch.zeros(())
        ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
        error = nn.functional.binary_cross_entropy_with_logits
        adam.zero_grad()
        (error(network(real), ones) + error(network(made), zeros) + 2.0 * penalty).backward()
        adam.step()
    learner.update(rollout)
    for ours, theirs in zip(plain(learner.discriminator.network).parameters(), network.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=2e-5)


@SPACES
@pytest.mark.parametrize("form", FORMS)
def test_ppo_learns_from_the_discriminators_rewards_and_from_no_others(
    info: SpaceInfo, form: RewardForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PPO alone, given a rollout with rewards that are computed by hand, comes to the same weights."""
    learner = gail(info, reward_form=form, absorbing=False)
    other = agent("ppo", info, n_epochs=2, batch_size=16, learning_rate=1e-2)
    assert differences(learner.policy.policy_state(), other.policy.policy_state()) == []
    rollout = gathered(learner, info)
    twin = copy.deepcopy(rollout)
    original = PPO.update

    def update(self: PPO, batch: Rollout) -> Metrics:
        other.batch_rng = copy.deepcopy(self.batch_rng)  # the discriminator has drawn from it by then
        return original(self, batch)

    monkeypatch.setattr(PPO, "update", update)
    metrics = learner.update(rollout)
    monkeypatch.undo()
    twin.reward[...] = imitation_reward(logits(learner, twin, info), form)
    assert metrics["imitation_reward_mean"] == pytest.approx(float(twin.reward.mean()), abs=1e-5)
    other.update(twin)
    np.testing.assert_allclose(learner.parameters.data, other.parameters.data, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_rewards_of_the_environment_change_nothing(engine: str) -> None:
    learners = [gail(engine=engine) for _ in range(2)]
    for factor, learner in zip((1.0, -1e9), learners, strict=True):
        for seed in range(2):
            rollout = gathered(learner, seed=seed)
            rollout.reward *= factor
            learner.update(rollout)
    assert differences(learners[0].state_dict(), learners[1].state_dict()) == []


@pytest.mark.parametrize("form", FORMS)
def test_an_end_is_worth_what_comes_after_it(form: RewardForm) -> None:
    """A terminated step gets what the absorbing state's reward sums up to; a truncated one goes on by itself."""
    learner = gail(reward_form=form, gamma=0.9)
    rollout = gathered(learner)
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    metrics = learner.update(rollout)
    reward = imitation_reward(logits(learner, rollout), form)
    after = np.zeros((1, 3 + 4 + 1), np.float32)
    after[0, -1] = 10.0
    with torch.no_grad():
        logit = plain(learner.discriminator.network)(torch.from_numpy(after)).numpy()
        lasting = float(imitation_reward(logit, form)[0, 0])
    brute = sum(0.9**k * lasting for k in range(1, 500))
    assert metrics["absorbing_reward"] == pytest.approx(lasting, abs=1e-6)
    assert brute == pytest.approx(absorbed_value(lasting, 0.9), rel=1e-6)
    np.testing.assert_allclose(rollout.reward, reward + rollout.terminated * brute, atol=1e-5)


def test_without_absorbing_states_nothing_follows_an_end() -> None:
    learner = gail(absorbing=False)
    rollout = gathered(learner)
    metrics = learner.update(rollout)
    np.testing.assert_allclose(rollout.reward, imitation_reward(logits(learner, rollout), "gail"), atol=1e-5)
    assert METRICS - set(metrics) == {"absorbing_reward"}


@pytest.mark.parametrize("absorbing", [True, False])
def test_only_with_absorbing_states_does_the_discriminator_see_ends(absorbing: bool) -> None:
    """The weights behind the input that says so move if it is ever other than 0."""
    learner = gail(absorbing=absorbing, gradient_penalty_coef=0.0)  # which pulls on all weights
    before = plain(learner.discriminator.network)[0].weight[:, -1]
    learner.update(gathered(learner))
    assert torch.equal(before, plain(learner.discriminator.network)[0].weight[:, -1]) is not absorbing


def test_steps_after_the_end_are_as_frequent_as_ends() -> None:
    """Those whose episodes end less often than demonstrated ones are told so: the state after the end is expert's."""
    rewards = []
    for over in (0.5, 0.0):
        learner = gail(over=over, disc_updates=100, disc_learning_rate=0.01, gradient_penalty_coef=0.1)
        rewards.append(learner.update(gathered(learner))["absorbing_reward"])
    assert rewards[0] > math.log(2.0) > rewards[1]


def test_of_a_step_after_the_end_nothing_else_is_seen() -> None:
    judge = Discriminator(DISCRETE, (8,), "tanh")
    nn.init.normal_(judge.head.weight)
    obs, action, over = torch.randn(5, 3), torch.randn(5, 4), torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0])
    given = judge(obs, action, over)
    assert given[over == 1.0].tolist() == pytest.approx([judge.after_the_end().item()] * 3, abs=1e-6)
    assert abs(given[2] - given[3]).item() > 1e-3


def test_at_first_nobody_can_be_told_from_anybody() -> None:
    learner = gail(disc_learning_rate=0.0)
    metrics = learner.update(gathered(learner))
    assert metrics["discriminator_loss"] == pytest.approx(2.0 * math.log(2.0), rel=1e-6)
    assert (metrics["expert_logit_mean"], metrics["policy_logit_mean"]) == (0.0, 0.0)
    assert metrics["imitation_reward_mean"] == pytest.approx(math.log(2.0), rel=1e-6)


def test_a_discriminator_that_is_trained_tells_the_two_apart() -> None:
    learner = gail(disc_updates=100, disc_learning_rate=0.01, gradient_penalty_coef=0.01)
    learner.update(gathered(learner))
    metrics = learner.update(gathered(learner, seed=1))
    assert metrics["expert_accuracy"] > 0.8
    assert metrics["policy_accuracy"] > 0.8
    expected = (metrics["expert_accuracy"] + metrics["policy_accuracy"]) / 2.0
    assert metrics["discriminator_accuracy"] == pytest.approx(expected)
    assert metrics["expert_logit_mean"] > 0.5 > -0.5 > metrics["policy_logit_mean"]


def test_the_gradient_penalty_keeps_slopes_near_one() -> None:
    seen = {}
    for weight in (0.0, 10.0):
        learner = gail(disc_updates=100, disc_learning_rate=0.01, gradient_penalty_coef=weight)
        learner.update(gathered(learner))
        seen[weight] = learner.update(gathered(learner, seed=1))["gradient_penalty"]
    assert seen[10.0] < 0.05 < 0.5 < seen[0.0]


def test_rewards_stay_within_their_clip() -> None:
    learner = gail(reward_clip=0.3, gamma=0.5)
    rollout = gathered(learner)
    metrics = learner.update(rollout)  # logits near 0: log 2 otherwise
    assert rollout.reward[~rollout.terminated] == pytest.approx(0.3)
    assert metrics["absorbing_reward"] == pytest.approx(0.3)
    assert rollout.reward[rollout.terminated] == pytest.approx(0.6)


def test_actions_are_seen_as_the_environment_gets_them() -> None:
    binary = describe_spaces(boxed(3), gym.spaces.MultiBinary(2), "binary")
    assert action_numbers(np.array([3, 0]), DISCRETE).tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]
    assert action_numbers(np.array([[1, 2]]), SEVERAL).tolist() == [[0, 1, 0, 0, 1, 0]]
    assert action_numbers(np.array([[1, 0]]), binary).tolist() == [[0, 1, 1, 0]]
    # What is outside of the bounds never reaches the environment: its size must not give the policy away.
    assert action_numbers(np.array([[-5.2, 0.5]]), CONTINUOUS).tolist() == [[-1.0, 0.5]]


@SPACES
@pytest.mark.parametrize("engine", ENGINES)
def test_a_warm_start_is_maximum_likelihood(info: SpaceInfo, engine: str) -> None:
    learner = gail(info, engine=engine, bc_updates=1, batch_size=500, learning_rate=1e-3, adam_eps=1e-8)
    expert = demonstrations(info)
    network = copy.deepcopy(learner.network)
    index = copy.deepcopy(learner.batch_rng).integers(40, size=500)
    params, _ = network(torch.from_numpy(expert.obs[index]))
    loss = -learner.distribution.log_prob(params, torch.from_numpy(expert.action[index])).mean()
    names = [name for name, _ in network.named_parameters() if not name.startswith("value")]
    wanted = torch.autograd.grad(loss, [dict(network.named_parameters())[name] for name in names])
    assert learner.imitate() == pytest.approx([-loss.item()], abs=1e-5)
    size = max(1.0, float(torch.cat([grad.flatten() for grad in wanted]).norm()) / learner.cfg.max_grad_norm)
    for name, gradient in zip(names, wanted, strict=True):
        grad = dict(learner.network.named_parameters())[name].grad
        assert grad is not None
        np.testing.assert_allclose(grad.numpy(), gradient.numpy() / size, atol=2e-6)
    before, after = network.state_dict(), learner.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("value"))


def test_a_warm_start_makes_demonstrated_actions_likely_under_the_scale_of_their_observations() -> None:
    learner = gail(bc_updates=300, normalize_obs=True)
    fixed = demonstrations(DISCRETE)
    learner.demonstrate(Occupancy(100.0 * fixed.obs, (fixed.obs[:, 0] > 1.0).astype(np.int64), 0.0))
    learner.imitate()
    action = chosen(learner, 100.0 * fixed.obs, explore=False).action
    assert (action == (fixed.obs[:, 0] > 1.0)).mean() > 0.95


@pytest.mark.parametrize("engine", ENGINES)
def test_a_warm_start_leaves_no_trace_in_ppos_optimiser(engine: str) -> None:
    """It does not move the value: counted as its steps, they would make the first ones that do three times as long."""
    learner = gail(engine=engine, bc_updates=200, adam_eps=1e-8)
    learner.imitate()
    assert learner.n_updates == 0
    assert not any(tensor.any() for tensor in learner.optimizer.state_dict().values())
    learner.set_hyperparameters(n_epochs=1, batch_size=32, learning_rate=1e-3)
    before = {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}
    learner.update(gathered(learner))
    moved = {name: float((learner.network.state_dict()[name] - old).abs().max()) for name, old in before.items()}
    assert learner.n_updates == 1
    # Adam's first step is as long as the learning rate.
    assert all(moved[name] == pytest.approx(1e-3, rel=1e-2) for name in moved if name.startswith("value"))


def test_without_a_warm_start_the_policy_begins_as_it_was_made() -> None:
    learner = gail(normalize_obs=True)
    assert learner.imitate() == []
    assert differences(learner.policy.policy_state(), gail(normalize_obs=True).policy.policy_state()) == []


def test_metric_names_are_stable() -> None:
    learner = gail()
    assert set(learner.update(gathered(learner))) == METRICS


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"reward_form": "wasserstein"}, "reward_form='wasserstein': must be one of gail, log_d, airl, fairl"),
        ({"disc_learning_rate": -1e-3}, r"disc_learning_rate=-0\.001: must be at least 0"),
        ({"disc_updates": 0}, "disc_updates=0: must be at least 1"),
        ({"disc_batch_size": 0}, "disc_batch_size=0"),
        ({"gradient_penalty_coef": -1.0}, r"gradient_penalty_coef=-1\.0"),
        ({"gradient_penalty": 1.0}, "gradient_penalty: unknown key; did you mean 'gradient_penalty_coef'"),
        ({"bc_updates": -1}, "bc_updates=-1"),
        ({"demonstrations": 0}, "demonstrations=0: must be at least 1"),
        ({"subsample": 0}, "subsample=0: must be at least 1"),
        ({"disc_hidden_sizes": [0]}, "disc_hidden_sizes"),
        ({"reward_clip": 0.0}, r"reward_clip=0\.0"),
    ],
)
def test_bad_hyperparameters_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config({"algo": "gail", "env_id": "CartPole-v1", **settings})


def test_the_spec_says_what_it_can() -> None:
    assert (SPEC.name, SPEC.family) == ("gail", "imitation")
    assert SPEC.capabilities == agent_capabilities("ppo")


def agent_capabilities(algo: str) -> Any:
    return load_config({"algo": algo, "env_id": "none"}).spec.capabilities
