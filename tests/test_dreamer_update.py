"""Dreamer's losses against closed forms and brute force, where their gradients end, and what an update does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dreams import EVERY_SPACE, cfg_of, draws_for, engine_of, sequences_for, trained
from rl_training.algorithms.dreamer import (
    behaviour_losses,
    dreamer_loss,
    policy_loss,
    replay_value_loss,
    value_loss,
    world_losses,
)
from rl_training.algorithms.parts.dreams import Dream, Noise, dream
from rl_training.models.normalizers import ReturnScale
from rl_training.models.rssm import WorldState
from rl_training.models.world_model import DreamerNetwork
from rl_training.ops.distributions import action_distribution
from rl_training.ops.latents import categorical_kl
from rl_training.ops.symexp import symexp_target_entropy
from rl_training.types import UserError
from worlds import SPACES

T, B, H = 4, 3, 5


def gradients(loss: Tensor, network: DreamerNetwork) -> dict[str, bool]:
    """Which parameters a loss has a gradient of that is not 0."""
    named = dict(network.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=True)
    return {name: grad is not None and bool(grad.any()) for name, grad in zip(named, found, strict=True)}


def roots(found: dict[str, bool]) -> set[str]:
    """The parts of the network that learn."""
    return {
        ".".join(name.split(".")[:2]) if name.startswith("world") else name.split(".")[0]
        for name in found
        if found[name]
    }


# The world model


def test_the_losses_of_the_model_are_those_of_its_parts() -> None:
    model = trained(SPACES["vector"])
    world, cfg = model.network.world, cfg_of(gamma=0.9, free_nats=0.0)
    rows, noise = model.sequences(sequences_for(model)), model.noise(draws_for(model))
    seen = world.observe(rows.before, rows.previous_action, rows.obs, rows.first, noise.posterior)
    losses, divergence = world_losses(world, seen, rows, cfg)
    assert losses.keys() == {"reconstruction", "reward", "continue", "dynamics", "representation"}
    assert all(loss.shape == (T, B) for loss in losses.values())
    assert rows.last.sum() > rows.terminal.sum() > 0
    for t, b in np.ndindex(T, B):
        features = torch.cat([seen.state.deter[t, b], seen.state.stoch[t, b].flatten()])
        # A terminal state does not go on; any other does with the probability gamma, the last of its episode too.
        goes_on = 0.0 if rows.terminal[t, b] else 0.9
        p = torch.sigmoid(world.continues(features))
        torch.testing.assert_close(losses["continue"][t, b], -goes_on * p.log() - (1.0 - goes_on) * (1.0 - p).log())
        prior = world.rssm.prior(seen.state.deter[t, b])
        kl = categorical_kl(seen.posterior[t, b], prior)
        for name in ("dynamics", "representation"):
            torch.testing.assert_close(losses[name][t, b], kl)
        torch.testing.assert_close(divergence[t, b], kl.detach())
        target = rows.obs[t, b].sign() * rows.obs[t, b].abs().log1p()
        decoded = world.decoder(WorldState(seen.state.deter[t, b], seen.state.stoch[t, b]))[""]
        torch.testing.assert_close(losses["reconstruction"][t, b], (decoded - target.flatten()).square().sum())


def test_free_nats_bound_both_divergences() -> None:
    model = trained(SPACES["vector"], loudness=0.02)
    rows, noise = model.sequences(sequences_for(model)), model.noise(draws_for(model))
    world = model.network.world
    seen = world.observe(rows.before, rows.previous_action, rows.obs, rows.first, noise.posterior)
    losses, divergence = world_losses(world, seen, rows, cfg_of(free_nats=1.0))
    assert divergence.max() < 1.0
    for name in ("dynamics", "representation"):
        assert (losses[name] == 1.0).all()
        assert not any(gradients(losses[name].sum(), model.network).values())


def test_masks_are_learned_where_there_are_any() -> None:
    model = trained(SPACES["masked"])
    rows, noise = model.sequences(sequences_for(model)), model.noise(draws_for(model))
    world = model.network.world
    seen = world.observe(rows.before, rows.previous_action, rows.obs, rows.first, noise.posterior)
    losses, _ = world_losses(world, seen, rows, cfg_of())
    assert rows.mask is not None
    assert world.legal is not None
    assert not rows.mask.all()
    p = torch.sigmoid(world.legal(seen.state.features))
    expected = -torch.where(rows.mask, p.log(), (1.0 - p).log()).sum(dim=-1)
    torch.testing.assert_close(losses["legal"], expected)


# Dreams


def follow(network: DreamerNetwork, start: WorldState, noise: Noise) -> Dream:
    with torch.no_grad():
        return dream(network, start, noise)


@EVERY_SPACE
def test_a_dream_follows_the_policy_in_the_model(name: str) -> None:
    model = trained(SPACES[name])
    network, noise = model.network, model.noise(draws_for(model))
    start = states(network, noise)
    dreamt = follow(network, start, noise)
    assert dreamt.features.shape == (H + 1, T * B, network.world.rssm.size.features)
    torch.testing.assert_close(dreamt.features[0], start.features)
    state = start
    for t in range(H):
        state = network.world.imagine(state, dreamt.action[t], noise.prior[t])
        torch.testing.assert_close(dreamt.features[t + 1], state.features)
    if network.world.info.mask_size:
        assert dreamt.mask is not None
        params = network.policy(dreamt.features[:-1], dreamt.mask)
        # What the model takes for forbidden is never done.
        assert action_distribution(network.world.info).log_prob(params, dreamt.action).min() > -20.0


def states(network: DreamerNetwork, noise: Noise, seed: int = 5) -> WorldState:
    generator = torch.Generator().manual_seed(seed)
    size, rows = network.world.rssm.size, noise.prior.shape[1]
    index = torch.randint(size.classes, (rows, size.stoch), generator=generator)
    return WorldState(
        torch.randn(rows, size.deter, generator=generator), nn.functional.one_hot(index, size.classes).float()
    )


@EVERY_SPACE
def test_the_losses_of_dreams_by_brute_force(name: str) -> None:
    """Returns step by step, with the discount of the next state; weights with that of the first."""
    model = trained(SPACES[name])
    network, slow, noise = model.network, model.slow.module, model.noise(draws_for(model))
    cfg, scale = cfg_of(entropy_coef=0.3, return_lambda=0.8, slow_value_coef=0.7), ReturnScale()
    start = states(network, noise)
    losses, figures = behaviour_losses(network, slow, scale, start, noise, cfg)
    dreamt, world = follow(network, start, noise), network.world
    reward = world.reward.mean(world.reward(dreamt.features)).detach().numpy()
    going = torch.sigmoid(world.continues(dreamt.features)).detach().numpy()
    logits = network.value(dreamt.features)
    value = network.value.mean(logits).detach().numpy()
    returns = np.zeros((H, T * B))
    for n in range(T * B):
        following = value[H, n]
        for t in reversed(range(H)):
            following = reward[t + 1, n] + going[t + 1, n] * (0.2 * value[t + 1, n] + 0.8 * following)
            returns[t, n] = following
    spread = 0.01 * (np.percentile(returns, 95) - np.percentile(returns, 5))
    assert scale.scale == pytest.approx(max(1.0, spread), rel=1e-4)
    distribution = action_distribution(world.info)
    params = network.policy(dreamt.features[:-1], dreamt.mask)
    likelihood = distribution.log_prob(params, dreamt.action).detach().numpy()
    entropy = distribution.entropy(params).detach().numpy()
    weight = np.stack([going[: t + 1].prod(axis=0) for t in range(H)])
    policy = -weight * (likelihood * (returns - value[:-1]) / scale.scale + 0.3 * entropy)
    np.testing.assert_allclose(losses["policy"].detach().numpy(), policy, rtol=2e-3, atol=2e-4)
    targets = torch.from_numpy(returns.astype(np.float32)), slow.mean(slow(dreamt.features[:-1]))
    close, slowly = (network.value.loss(logits[:-1], target).detach().numpy() for target in targets)
    np.testing.assert_allclose(losses["value"].detach().numpy(), weight * (close + 0.7 * slowly), rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(figures["imagined_return"].numpy(), returns[0], rtol=1e-3, atol=1e-4)


def test_advantages_are_divided_by_the_scale_and_not_centred() -> None:
    model = trained(SPACES["vector"])
    network, slow, noise = model.network, model.slow.module, model.noise(draws_for(model))
    scale = ReturnScale()
    scale.bounds = np.array([-500.0, 500.0])
    start, cfg = states(network, noise), cfg_of(entropy_coef=0.0)
    wide = behaviour_losses(network, slow, scale, start, noise, cfg)[0]["policy"]
    assert 985.0 < scale.scale < 995.0
    narrow = behaviour_losses(network, slow, ReturnScale(smallest=1e9), start, noise, cfg)[0]["policy"]
    torch.testing.assert_close(wide * scale.scale, narrow * 1e9, rtol=1e-3, atol=1e-4)


def test_the_policy_loss_is_the_likelihood_weighted_by_the_advantage() -> None:
    model = trained(SPACES["vector"])
    network, noise = model.network, model.noise(draws_for(model))
    dreamt = follow(network, states(network, noise), noise)
    advantage = torch.randn(H, T * B)
    loss, entropy = policy_loss(network, dreamt, advantage, advantage, cfg_of(entropy_coef=0.0))
    logits = network.policy(dreamt.features[:-1])
    chosen = logits.gather(-1, dreamt.action.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss, -chosen * advantage)
    torch.testing.assert_close(entropy, -(logits.exp() * logits).sum(dim=-1))


# Values of what was really seen


def test_the_returns_of_real_rows_by_brute_force() -> None:
    model = trained(SPACES["vector"])
    network, slow, cfg = model.network, model.slow.module, cfg_of(gamma=0.9, return_lambda=0.8, slow_value_coef=0.5)
    last = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], bool)
    terminal = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]], bool)
    rows = model.sequences(replace(sequences_for(model), last=last, terminal=terminal))
    features = torch.randn(T, B, network.world.rssm.size.features)
    starts, imagined = torch.tensor([1, 5, 11]), torch.tensor([3.0, -2.0, 7.0])
    loss, returns = replay_value_loss(network, slow, features, rows, starts, imagined, cfg)
    value = network.value.mean(network.value(features)).detach().numpy()
    boot = value.copy()
    for start, number in zip(starts.tolist(), imagined.tolist(), strict=True):
        boot[start // B, start % B] = number
    reward = rows.reward.numpy()
    expected = np.zeros((T - 1, B))
    for b in range(B):
        following = boot[T - 1, b]
        for t in reversed(range(T - 1)):
            share = 0.0 if last[t + 1, b] else 0.8
            rest = 0.0 if terminal[t + 1, b] else 0.9 * ((1.0 - share) * boot[t + 1, b] + share * following)
            following = expected[t, b] = reward[t + 1, b] + rest
    np.testing.assert_allclose(returns.numpy(), expected, rtol=1e-4, atol=1e-5)
    logits = network.value(features[:-1])
    slow_value = slow.mean(slow(features[:-1]))
    each = network.value.loss(logits, returns) + 0.5 * network.value.loss(logits, slow_value)
    torch.testing.assert_close(loss, each * torch.from_numpy(~last[:-1]))
    assert (loss[1, 1], loss[2, 2]) == (0.0, 0.0)


def test_a_value_learns_its_target_and_stays_close_to_the_slow_one() -> None:
    model = trained(SPACES["vector"])
    network, slow = model.network, model.slow.module
    features = torch.randn(6, network.world.rssm.size.features)
    logits, target = network.value(features), torch.linspace(-3.0, 9.0, 6)
    alone = value_loss(network.value, logits, target, slow, features, cfg_of(slow_value_coef=0.0))
    torch.testing.assert_close(alone, network.value.loss(logits, target))
    both = value_loss(network.value, logits, target, slow, features, cfg_of(slow_value_coef=2.0))
    torch.testing.assert_close(both, alone + 2.0 * network.value.loss(logits, slow.mean(slow(features))))


# Where gradients end


@EVERY_SPACE
@pytest.mark.parametrize("actor_gradient", ["reinforce", "pathwise"])
def test_dreams_teach_policy_and_value_alone(name: str, actor_gradient: str) -> None:
    model = trained(SPACES[name])
    network, slow, noise = model.network, model.slow.module, model.noise(draws_for(model))
    cfg = cfg_of(actor_gradient=actor_gradient)
    losses, _ = behaviour_losses(network, slow, ReturnScale(), states(network, noise), noise, cfg)
    assert roots(gradients(losses["policy"].sum(), network)) == {"policy"}
    assert roots(gradients(losses["value"].sum(), network)) == {"value"}
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("grad", [True, False])
def test_real_values_teach_the_model_only_if_asked(grad: bool) -> None:
    model = trained(SPACES["vector"])
    network, slow = model.network, model.slow.module
    rows, noise = model.sequences(sequences_for(model)), model.noise(draws_for(model))
    seen = network.world.observe(rows.before, rows.previous_action, rows.obs, rows.first, noise.posterior)
    imagined = torch.zeros(len(noise.starts))
    cfg = cfg_of(replay_value_grad=grad)
    loss, _ = replay_value_loss(network, slow, seen.state.features, rows, noise.starts, imagined, cfg)
    model_parts = {"world.encoder", "world.rssm"} if grad else set()
    assert roots(gradients(loss.sum(), network)) == {"value"} | model_parts


def test_the_model_learns_nothing_from_policy_and_value() -> None:
    model = trained(SPACES["dict"])
    rows, noise = model.sequences(sequences_for(model)), model.noise(draws_for(model))
    world = model.network.world
    seen = world.observe(rows.before, rows.previous_action, rows.obs, rows.first, noise.posterior)
    losses, _ = world_losses(world, seen, rows, cfg_of(free_nats=0.0))
    shared = {"world.encoder", "world.rssm"}
    own = {"reconstruction": {"world.decoder"}, "reward": {"world.reward"}, "continue": {"world.continues"}}
    for name, loss in losses.items():
        assert roots(gradients(loss.sum(), model.network)) - own.get(name, set()) <= shared, name
        assert own.get(name, set()) <= roots(gradients(loss.sum(), model.network)), name


def test_a_pathwise_policy_learns_what_raises_the_return() -> None:
    """The gradient of one step of a dream is the slope of its return, found by differences."""
    model = trained(SPACES["vector, continuous"])
    network, slow, draws = model.network.double(), model.slow.module.double(), draws_for(model, starts=[0], horizon=1)
    # A latent has a gradient that differences do not see: here only what is remembered says anything.
    for head in (network.world.reward, network.world.continues, network.value):
        head.torso[0].linear.weight.data[:, network.world.rssm.size.deter :] = 0.0
    noise = Noise(*(number.double() if number.is_floating_point() else number for number in model.noise(draws)))
    noise = noise._replace(action=noise.action * 0.0)  # larger actions than 1 count as 1, whatever their gradient
    start = WorldState(*(part.double() for part in states(network, noise)))
    cfg, bias = cfg_of(actor_gradient="pathwise", entropy_coef=0.0), network.policy.out.bias

    def policy_loss_with(shift: float) -> Tensor:
        bias.data[0] += shift
        losses, _ = behaviour_losses(network, slow, ReturnScale(), start, noise, cfg)
        bias.data[0] -= shift
        return losses["policy"].sum()

    (grad,) = torch.autograd.grad(policy_loss_with(0.0), [bias])
    slope = (policy_loss_with(1e-6) - policy_loss_with(-1e-6)).detach() / 2e-6
    assert abs(float(slope)) > 1e-6
    torch.testing.assert_close(grad[0], slope, rtol=1e-5, atol=1e-9)


# An update


def test_the_loss_is_the_weighted_sum_of_its_parts() -> None:
    model = trained(SPACES["masked"])
    rows, noise = model.sequences(sequences_for(model)), model.noise(draws_for(model))
    weights = {
        "reconstruction": 0.1, "reward": 0.2, "continue": 0.3, "dynamics": 0.4, "representation": 0.5,
        "policy": 0.6, "value": 0.7, "replay_value": 0.8,
    }  # fmt: skip
    cfg = cfg_of(**{f"{name}_coef": weight for name, weight in weights.items()})
    loss, found, state = dreamer_loss(model.network, model.slow.module, ReturnScale(), rows, noise, cfg)
    numbers = {name: float(figure.detach()) for name, figure in found.items()}
    expected = sum(weight * numbers[f"{name}_loss"] for name, weight in weights.items())
    assert numbers["loss"] == float(loss.detach()) == pytest.approx(expected + 0.3 * numbers["legal_loss"], rel=1e-5)
    assert state.deter.shape[:2] == (T, B)
    assert {"kl", "entropy", "return_scale", "imagined_return", "replayed_return"} <= found.keys()


def test_sampled_starts_are_where_they_say() -> None:
    """A dream from row 5 of windows of 3 starts at t = 1 of the third window, and depends on no other row."""
    batch, draws = sequences_for(trained(SPACES["vector"])), draws_for(trained(SPACES["vector"]), starts=[5])

    def imagined(changed: tuple[int, int] | None) -> float:
        action = batch.previous_action.copy()
        if changed is not None:
            action[changed] = (action[changed] + 1) % 3
        model = trained(SPACES["vector"])
        return model.differentiate(replace(batch, previous_action=action), draws, cfg_of()).metrics["imagined_return"]

    assert imagined((1, 2)) != imagined(None)
    assert imagined((2, 2)) == imagined((1, 0)) == imagined((1, 1)) == imagined(None)


@EVERY_SPACE
def test_an_update_changes_every_tensor(name: str) -> None:
    model = trained(SPACES[name])
    before = {key: value.detach().clone() for key, value in model.network.named_parameters()}
    cfg = cfg_of(free_nats=0.0)
    for _ in range(2):  # the first has a learning rate of 0
        model.differentiate(sequences_for(model), draws_for(model), cfg)
        norm = model.descend(cfg)
    assert norm > 0.0
    for key, parameter in model.network.named_parameters():
        assert not torch.equal(before[key], parameter), key


def test_the_first_update_of_a_warm_up_changes_nothing_but_the_slow_value() -> None:
    model = trained(SPACES["vector"])
    weights, slow = model.learner.weights.data.clone(), model.slow.weights.data.clone()
    value = model.learner.weights.part_of(model.network.value).clone()
    cfg = cfg_of(tau=0.25)
    model.differentiate(sequences_for(model), draws_for(model), cfg)
    model.descend(cfg)
    assert torch.equal(weights, model.learner.weights.data)
    torch.testing.assert_close(model.slow.weights.data, 0.75 * slow + 0.25 * value)


def test_the_states_of_the_rows_are_those_of_the_model() -> None:
    model = trained(SPACES["vector"])
    batch, draws = sequences_for(model), draws_for(model)
    rows, noise = model.sequences(batch), model.noise(draws)
    with torch.no_grad():
        seen = model.network.world.observe(rows.before, rows.previous_action, rows.obs, rows.first, noise.posterior)
    outcome = model.differentiate(batch, draws, cfg_of())
    np.testing.assert_array_equal(outcome.deter, seen.state.deter.numpy())
    np.testing.assert_array_equal(outcome.stoch, seen.state.stoch.argmax(dim=-1).numpy())
    assert outcome.stoch.dtype == np.uint8


def test_a_row_that_begins_an_episode_forgets_what_was_before_it() -> None:
    """Neither the state and the action before a window nor what it says earlier reach beyond such a row."""
    model = trained(SPACES["vector"])
    batch, draws = sequences_for(model), draws_for(model)
    first = np.zeros_like(batch.first)
    first[2] = True
    found = model.differentiate(replace(batch, first=first), draws, cfg_of())
    other = replace(batch, first=first, deter=batch.deter + 1.0, obs=batch.obs.copy())
    other.obs[:2] += 3.0
    other.previous_action[2] = (other.previous_action[2] + 1) % 3
    again = trained(SPACES["vector"]).differentiate(other, draws, cfg_of())
    assert not np.array_equal(found.deter[1], again.deter[1])
    np.testing.assert_array_equal(found.deter[2:], again.deter[2:])


@pytest.mark.parametrize("name", ["world.rssm.core.gates.weight", "policy.out.bias"])
def test_a_gradient_that_is_no_number_is_refused_by_its_name(name: str) -> None:
    model = trained(SPACES["vector"])
    model.differentiate(sequences_for(model), draws_for(model), cfg_of())
    gradient = dict(model.network.named_parameters())[name].grad
    assert gradient is not None
    gradient.view(-1)[0] = math.nan
    before = model.learner.weights.data.clone()
    with pytest.raises(UserError, match=rf"the gradient of {name} is not finite.*lower learning_rate"):
        model.descend(cfg_of())
    assert torch.equal(before, model.learner.weights.data)


def test_the_ratio_of_gradients_is_the_config_s() -> None:
    model = trained(SPACES["vector"])
    model.differentiate(sequences_for(model), draws_for(model), cfg_of())
    cfg = cfg_of(max_grad_ratio=1e-4)
    model.descend(cfg)
    for (name, parameter), (_, grad) in zip(
        model.network.named_parameters(), model.learner.weights.views_of(model.learner.parameters.grad), strict=True
    ):
        assert grad.norm() <= 1e-4 * max(float(parameter.detach().norm()), 1e-3) * 1.001, name


def test_gaussian_heads_learn_by_squared_errors() -> None:
    model = trained(SPACES["vector"], support=None)
    rows, noise = model.sequences(sequences_for(model)), model.noise(draws_for(model))
    world = model.network.world
    seen = world.observe(rows.before, rows.previous_action, rows.obs, rows.first, noise.posterior)
    losses, _ = world_losses(world, seen, rows, cfg_of())
    said = world.reward(seen.state.features).squeeze(-1)
    torch.testing.assert_close(losses["reward"], 0.5 * (said - rows.reward).square())
    outcome = model.differentiate(sequences_for(model), draws_for(model), cfg_of())
    assert all(math.isfinite(number) for number in outcome.metrics.values())


def test_a_reward_that_follows_from_the_action_is_learned() -> None:
    """Whole updates on windows in which the action alone says the next row's reward."""
    model = engine_of(trained(SPACES["vector"], fresh=True))
    cfg = cfg_of(learning_rate=1e-2, imagination_horizon=1)
    prizes = np.array([-1.0, 0.5, 3.0], np.float32)
    divergences = []
    for update in range(200):
        batch = sequences_for(model, seed=update, rows=16)
        first = np.zeros_like(batch.first)
        reward = prizes[batch.previous_action]
        batch = replace(batch, first=first, obs=batch.obs * 0.0, reward=reward)
        draws = draws_for(model, seed=update, rows=16, starts=[0, 1], horizon=1)
        loss = model.differentiate(batch, draws, cfg).metrics["reward_loss"]
        own = symexp_target_entropy(torch.from_numpy(reward), model.network.world.reward.support)
        divergences.append(loss - float(own.mean()))
        model.descend(cfg)
    assert divergences[0] > 4.0
    assert np.mean(divergences[-10:]) < 0.01
