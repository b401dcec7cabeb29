"""What is said of a world model's states: silent heads, bounded policies, masks, and actions made of given noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rl_training.models.rssm_heads import action_columns, noise_size, pathwise_columns, sample_action
from rl_training.ops.distributions import action_distribution
from rl_training.ops.symexp import SymexpPoints
from worlds import ROWS, SMALL, SPACES, STEPS, followed, loud, network_for, noise_for, uniforms

T, B = STEPS, ROWS
EVERY_SPACE = pytest.mark.parametrize("name", SPACES)
EVERY_ACTION = pytest.mark.parametrize(
    "name", ["vector", "vector, continuous", "vector, multi-discrete", "vector, multi-binary"]
)


@EVERY_SPACE
def test_rewards_and_values_are_exactly_0_before_learning(name: str) -> None:
    network = network_for(SPACES[name])
    features = followed(network).state.features
    for head in (network.world.reward, network.value):
        logits = head(features)
        assert not logits.any()
        assert torch.equal(head.mean(logits), torch.zeros(T, B))


def test_the_support_of_the_heads_can_be_chosen() -> None:
    network = network_for(SPACES["vector"], support=SymexpPoints(41, 5.0))
    assert network.value(followed(network).state.features).shape == (T, B, 41)


def test_continuation_learns_a_discounted_target() -> None:
    head = network_for(SPACES["vector"]).world.continues
    logit = torch.tensor([0.0, math.log(0.99 / 0.01)])
    wanted = torch.tensor([math.log(2.0), -(0.99 * math.log(0.99) + 0.01 * math.log(0.01))])
    torch.testing.assert_close(head.loss(logit, torch.full((2,), 0.99)), wanted)


def test_a_dreamed_mask_always_allows_something_of_every_choice() -> None:
    network = network_for(SPACES["masked, multi-discrete"])
    legal = network.world.legal
    assert legal is not None
    logits = torch.tensor([[1.0, -1.0, 2.0, -3.0, 0.5], [-1.0, -3.0, -2.0, -5.0, -4.0]])
    assert legal.mask(logits).int().tolist() == [[1, 0, 1, 0, 1], [1, 0, 0, 0, 1]]
    loss = legal.loss(torch.zeros(1, 5), torch.tensor([[True, False, True, True, False]]))
    torch.testing.assert_close(loss, torch.tensor([5.0 * math.log(2.0)]))


@EVERY_ACTION
def test_a_policy_starts_close_to_uniform_and_to_the_middle(name: str) -> None:
    info = SPACES[name]
    network = network_for(info)
    params = network.policy(followed(network).state.features)
    if info.continuous:
        mean, log_std = params.chunk(2, dim=-1)
        assert mean.abs().max() < 0.1
        # 0.9 sigmoid(2) + 0.1
        torch.testing.assert_close(log_std.exp(), torch.full((T, B, 2), 0.8927), rtol=0.0, atol=0.02)
    else:
        for factor, count in zip(params.split(info.action_counts, dim=-1), info.action_counts, strict=True):
            torch.testing.assert_close(factor.exp(), torch.full_like(factor, 1.0 / count), rtol=0.1, atol=0.0)


def test_a_gaussian_stays_within_its_bounds() -> None:
    info = SPACES["vector, continuous"]
    network = network_for(info)
    nn.init.zeros_(network.policy.out.weight)
    with torch.no_grad():
        network.policy.out.bias.copy_(torch.tensor([100.0, -100.0, 100.0, -100.0]))
    mean, log_std = network.policy(torch.zeros(SMALL.features)).chunk(2)
    torch.testing.assert_close(mean, torch.tensor([1.0, -1.0]))
    torch.testing.assert_close(log_std.exp(), torch.tensor([1.0, 0.1]))


def test_every_choice_has_its_uniform_share() -> None:
    network = network_for(SPACES["vector, multi-discrete"], unimix=0.03)
    with torch.no_grad():
        network.policy.out.bias.copy_(torch.tensor([1000.0, 0.0, 0.0, 0.0, 1000.0]))
    probabilities = network.policy(torch.zeros(SMALL.features)).exp()
    torch.testing.assert_close(probabilities, torch.tensor([0.98, 0.01, 0.01, 0.015, 0.985]))


@pytest.mark.parametrize("name", ["masked", "masked, multi-discrete"])
def test_forbidden_choices_are_never_taken(name: str) -> None:
    info = SPACES[name]
    network = loud(network_for(info))
    features = followed(network).state.features.detach()
    mask = uniforms(T, B, info.action_size, seed=5) < 0.4
    for start, count in zip((0, 3), info.action_counts, strict=False):
        mask[..., start : start + count][..., 0] |= ~mask[..., start : start + count].any(-1)
    params = network.policy(features, mask)
    assert (params.exp()[~mask] == 0.0).all()
    for seed in range(30):
        action = sample_action(info, params, noise_for(info, T, B, seed=seed))
        taken = action_columns(info, action).bool()
        assert (mask | ~taken).all()
    likelihood = action_distribution(info).log_prob(params, action)
    assert likelihood.isfinite().all()
    gradients = torch.autograd.grad(likelihood.sum(), list(network.policy.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert torch.equal(network.policy(features, torch.ones_like(mask)).argmax(-1), network.policy(features).argmax(-1))


@EVERY_ACTION
def test_actions_are_stored_and_seen_in_their_form(name: str) -> None:
    info = SPACES[name]
    network = loud(network_for(info))
    params = network.policy(followed(network).state.features)
    noise = noise_for(info, T, B)
    assert noise.shape == (T, B, noise_size(info))
    action = sample_action(info, params, noise)
    assert action.shape == (T, B, *info.stored_action.shape)
    assert str(action.dtype) == f"torch.{info.stored_action.dtype}"
    columns = action_columns(info, action)
    assert columns.shape == (T, B, info.action_size)
    if not info.continuous:
        assert torch.equal(columns.sum(-1), torch.full((T, B), float(len(info.action_counts))))
    # The same noise gives the same actions, other noise others; a single row is drawn as in a batch.
    assert torch.equal(action, sample_action(info, params, noise))
    assert not torch.equal(action, sample_action(info, params, noise_for(info, T, B, seed=1)))
    assert torch.equal(action[1], sample_action(info, params[1], noise[1]))
    # The other way to the same columns has a gradient.
    through = pathwise_columns(info, params, noise)
    torch.testing.assert_close(through, columns)
    assert through.requires_grad
    assert not columns.requires_grad


def test_choices_worked_by_hand() -> None:
    info = SPACES["vector, multi-discrete"]
    params = torch.tensor([0.2, 0.3, 0.5, 0.9, 0.1]).log()
    assert sample_action(info, params, torch.tensor([0.6, 0.95])).tolist() == [2, 1]
    assert action_columns(info, torch.tensor([2, 1])).tolist() == [0, 0, 1, 0, 1]
    assert action_columns(SPACES["vector"], torch.tensor([[1], [0]])).tolist() == [[[0, 1, 0]], [[1, 0, 0]]]


def test_continuous_actions_have_the_moments_of_their_parameters() -> None:
    info = SPACES["vector, continuous"]
    params = torch.tensor([0.5, -0.2, math.log(0.3), math.log(0.9)]).expand(20_000, 4)
    action = sample_action(info, params, noise_for(info, 20_000))
    torch.testing.assert_close(action.mean(0), torch.tensor([0.5, -0.2]), rtol=0.0, atol=0.02)
    torch.testing.assert_close(action.std(0), torch.tensor([0.3, 0.9]), rtol=0.02, atol=0.0)
