"""The networks of Dreamer for every kind of spaces: encoders, decoders, heads, the policy, and where gradients end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.models.flat import FlatLaProp, Learner
from rl_training.models.rssm import SIZES, Observed, WorldState
from rl_training.models.rssm_heads import pathwise_columns, sample_action
from rl_training.models.rssm_observations import halved_conv
from rl_training.models.world_model import DreamerNetwork
from rl_training.ops.distributions import action_distribution
from rl_training.ops.images import ImageLayout
from rl_training.ops.latents import kl_losses
from rl_training.ops.observations import Unpacker, pack
from rl_training.ops.returns import lambda_return
from rl_training.ops.symexp import symexp_target_entropy, symlog
from rl_training.types import ObsPart, SpaceInfo
from worlds import (
    ROWS,
    SMALL,
    SPACES,
    STEPS,
    actions_for,
    followed,
    loud,
    network_for,
    noise_for,
    observations,
    space,
    uniforms,
)

T, B = STEPS, ROWS
EVERY_SPACE = pytest.mark.parametrize("name", SPACES)
EVERY_ACTION = pytest.mark.parametrize(
    "name", ["vector", "vector, continuous", "vector, multi-discrete", "vector, multi-binary"]
)


def model_losses(network: DreamerNetwork, seen: Observed, obs: object) -> dict[str, Tensor]:
    """Everything that teaches the world model, and the value of real states."""
    world, features = network.world, seen.state.features
    dynamics, representation, _ = kl_losses(seen.posterior, world.rssm.prior(seen.state.deter), 0.0)
    losses = {f"obs {name}": loss for name, loss in world.decoder.losses(world.decoder(seen.state), obs).items()}
    lead = features.shape[:-1]
    losses |= {"dynamics": dynamics, "representation": representation}
    losses["reward"] = world.reward.loss(world.reward(features), torch.full(lead, 2.0))
    losses["continues"] = world.continues.loss(world.continues(features), torch.full(lead, 0.99))
    if world.legal is not None:
        losses["legal"] = world.legal.loss(world.legal(features), torch.ones(*lead, world.info.action_size))
    return losses


@EVERY_SPACE
def test_shapes_and_gradients_for_every_kind_of_spaces(name: str) -> None:
    info = SPACES[name]
    network = loud(network_for(info))
    seen = followed(network)
    obs = observations(info, T, B, seed=0)
    losses = model_losses(network, seen, obs)
    assert all(loss.shape == (T, B) for loss in losses.values())
    features = seen.state.features
    assert features.shape == (T, B, SMALL.features)
    params = network.policy(features)
    assert params.shape == (T, B, action_distribution(info).param_size)
    values = network.value(features)
    assert values.shape == (T, B, 255)
    (torch.stack(list(losses.values())).sum() + params.sum().square() + values.square().sum()).backward()
    for title, parameter in network.named_parameters():
        assert parameter.grad is not None, title
        assert parameter.grad.isfinite().all(), title
        assert parameter.grad.abs().sum() > 0.0, title
    assert (network.world.legal is not None) == (info.mask_size > 0)


@EVERY_SPACE
def test_what_is_decoded_has_the_shape_of_what_was_observed(name: str) -> None:
    info = SPACES[name]
    network = network_for(info)
    seen, obs = followed(network), observations(info, T, B, seed=0)
    decoder = network.world.decoder
    shown = decoder.observations(decoder(seen.state))
    for part in info.arrays:
        original = obs[part.name] if isinstance(obs, dict) else obs
        assert shown[part.name].shape == original.shape
        assert shown[part.name].dtype == original.dtype
    # One step without the axis of time, as a policy sees it.
    one = {key: value[0] for key, value in obs.items()} if isinstance(obs, dict) else obs[0]
    torch.testing.assert_close(network.world.encoder(one), network.world.encoder(obs)[0])
    state = WorldState(seen.state.deter[0], seen.state.stoch[0])
    for key, decoded in decoder(state).items():
        torch.testing.assert_close(decoded, decoder(seen.state)[key][0])


@EVERY_SPACE
def test_a_perfect_decoder_has_no_loss_and_shows_the_observation(name: str) -> None:
    """What the loss compares with and what is shown are the same thing, there and back."""
    info = SPACES[name]
    obs = observations(info, T, B, seed=0)
    decoder = network_for(info).world.decoder
    perfect = {}
    for part in info.arrays:
        value = obs[part.name] if isinstance(obs, dict) else obs
        if part.kind == "vector":
            perfect[part.name] = symlog(value.reshape(T, B, -1))
        else:
            channels_last = len(part.shape) >= 3 and part.shape[-1] < part.shape[-3]
            planes = value.movedim(-1, -3) if channels_last else value
            perfect[part.name] = planes.reshape(T, B, -1, *planes.shape[-2:]) / 255.0
    for loss in decoder.losses(perfect, obs).values():
        assert loss.max() < 1e-6
    for part in info.arrays:
        value = obs[part.name] if isinstance(obs, dict) else obs
        torch.testing.assert_close(decoder.observations(perfect)[part.name], value, rtol=1e-4, atol=1e-4)


def test_losses_of_observations_worked_by_hand() -> None:
    info = space((2,))
    decoder = network_for(info).world.decoder
    obs = torch.tensor([[math.e - 1.0, -(math.e**2 - 1.0)]])
    # On the compressed scale the numbers are 1 and -2: (0 - 1)^2 + (1 + 2)^2.
    torch.testing.assert_close(decoder.losses({"": torch.tensor([[0.0, 1.0]])}, obs)[""], torch.tensor([10.0]))
    info = space((16, 16, 3), "uint8")
    decoder = network_for(info).world.decoder
    obs = torch.full((1, 16, 16, 3), 255, dtype=torch.uint8)
    torch.testing.assert_close(
        decoder.losses({"": torch.full((1, 3, 16, 16), 0.5)}, obs)[""], torch.tensor([0.25 * 768.0])
    )


def test_large_numbers_are_compressed_before_they_are_encoded() -> None:
    encoder = network_for(space((3,))).world.encoder
    assert encoder.vector is not None
    obs = torch.tensor([[1e6, -3.0, 0.0]])
    torch.testing.assert_close(encoder(obs), encoder.vector(symlog(obs)))


def test_a_packed_observation_is_understood() -> None:
    info = SPACES["dict"]
    obs = observations(info, 2)
    rows = np.stack([pack({key: value[k].numpy() for key, value in obs.items()}, None, info.parts, 0) for k in (0, 1)])
    unpacked = {key: torch.from_numpy(np.array(array)) for key, array in Unpacker(info).inputs(rows).items()}
    encoder = network_for(info).world.encoder
    torch.testing.assert_close(encoder(unpacked), encoder(obs))


@pytest.mark.parametrize(
    ("shape", "tokens"), [((84, 84), 6 * 6 * 8), ((3, 40, 64), 3 * 4 * 8), ((64, 65, 3), 4 * 5 * 8), ((7, 7, 3), 8)]
)
def test_images_of_other_sizes_are_filled_up_to_multiples_of_16(shape: tuple[int, ...], tokens: int) -> None:
    info = space(shape, "uint8")
    network = loud(network_for(info))
    encoder, decoder = network.world.encoder, network.world.decoder
    obs = observations(info, 2)
    assert encoder(obs).shape == (2, tokens)
    # The border is grey, which is 0 to the network: an image that is grey there already is the same.
    layout = ImageLayout(shape)
    planes = layout.planes(obs) / 255.0
    wide = torch.full((2, planes.shape[1], *(-(-side // 16) * 16 for side in planes.shape[2:])), 0.5)
    wide[..., : planes.shape[2], : planes.shape[3]] = planes
    torch.testing.assert_close(encoder(obs), layers_of(encoder, wide), rtol=1e-4, atol=1e-4)
    decoded = decoder(WorldState(torch.randn(2, 24), torch.randn(2, 3, 5)))
    assert decoded[""].shape == planes.shape
    assert decoder.observations(decoded)[""].shape == (2, *shape)
    assert decoder.losses(decoded, obs)[""].shape == (2,)


def layers_of(encoder: Any, planes: Tensor) -> Tensor:
    """The layers of an image encoder alone."""
    x = planes - 0.5
    for layer in encoder.images[0].layers:
        x = layer(x, halved_conv)
    return x.flatten(1)


def normed(x: Tensor, scale: Tensor) -> Tensor:
    """The norm over channels and the activation, of `[N, C, H, W]`."""
    x = x / (x.square().mean(1, keepdim=True) + 1e-4).sqrt() * scale[:, None, None]
    return x * torch.sigmoid(x)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_encoded_step_by_step_as_it_is_written(channels: int) -> None:
    network = loud(network_for(space((32, 48, channels), "uint8")))
    weights = dict(network.world.encoder.images[0].named_parameters())
    obs = observations(network.world.info, 5)
    x = obs.permute(0, 3, 1, 2) / 255.0 - 0.5
    for k in range(4):
        weight = weights[f"layers.{k}.conv.weight"]
        assert weight.shape[2:] == (5, 5)
        x = nn.functional.conv2d(x, weight, weights[f"layers.{k}.conv.bias"], padding=2)
        x = x.unflatten(2, (-1, 2)).unflatten(4, (-1, 2)).amax((3, 5))
        x = normed(x, weights[f"layers.{k}.norm.weight"])
    assert x.shape[1:] == (8, 2, 3)
    torch.testing.assert_close(network.world.encoder(obs), x.flatten(1), rtol=1e-4, atol=1e-5)


def test_images_are_decoded_step_by_step_as_it_is_written() -> None:
    network = loud(network_for(space((32, 48, 3), "uint8")))
    decoder = network.world.decoder
    weights = dict(decoder.images[0].named_parameters())
    state = WorldState(torch.randn(5, 24), torch.randn(5, 3, 5))
    # Eight channels in four blocks: each block of what is remembered speaks of two channels.
    own = torch.einsum("nbi,boi->nbo", state.deter.view(5, 4, 6), weights["from_deter.weight"])
    inner = state.stoch.flatten(1) @ weights["stoch_in.linear.weight"].T + weights["stoch_in.linear.bias"]
    inner = normed(inner[..., None, None], weights["stoch_in.norm.weight"])[..., 0, 0]
    shared = inner @ weights["from_stoch.weight"].T + weights["from_stoch.bias"] + weights["from_deter.bias"]
    x = normed((own.flatten(1) + shared).view(5, 8, 2, 3), weights["norm.weight"])
    for k in range(3):
        x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        x = nn.functional.conv2d(x, weights[f"layers.{k}.conv.weight"], weights[f"layers.{k}.conv.bias"], padding=2)
        x = normed(x, weights[f"layers.{k}.norm.weight"])
    x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    x = torch.sigmoid(nn.functional.conv2d(x, weights["out.weight"], weights["out.bias"], padding=2))
    assert x.shape[1:] == (3, 32, 48)
    torch.testing.assert_close(decoder(state)[""], x, rtol=1e-4, atol=1e-5)


def test_the_tokens_of_an_image_of_the_paper() -> None:
    """Four convolutions halve 64 pixels to 4; the last has four times the depth in channels."""
    encoder = network_for(space((64, 64, 3), "uint8"), SIZES["1m"]).world.encoder
    assert encoder.tokens == 4 * 4 * 16


def test_the_smallest_model_of_the_paper_has_as_many_weights_as_its_own() -> None:
    # Walker from its state: 24 numbers, 6 actions. The paper's code makes 640,867 weights of it.
    walker = SpaceInfo((24,), "float32", "continuous", (6,), 6, (), (), (-1.0,) * 6, (1.0,) * 6)
    network = network_for(walker, SIZES["1m"])
    assert sum(parameter.numel() for parameter in network.parameters()) == 640_867


# Where gradients end


def dreamed(network: DreamerNetwork, start: WorldState, horizon: int) -> tuple[Tensor, Tensor]:
    """Features `[H + 1, N, F]` and the actions `[H, N, ...]` between them."""
    state, features, actions = start, [start.features], []
    info, rows = network.world.info, len(start.deter)
    with torch.no_grad():
        for t in range(horizon):
            actions.append(sample_action(info, network.policy(state.features), noise_for(info, rows, seed=t)))
            state = network.world.imagine(state, actions[-1], uniforms(rows, SMALL.stoch, seed=t))
            features.append(state.features)
    return torch.stack(features), torch.stack(actions)


@EVERY_ACTION
def test_behaviour_teaches_policy_and_value_alone(name: str) -> None:
    """A policy's likelihood ratio and a value's regression on dreams leave the world model as it is."""
    info = SPACES[name]
    network = loud(network_for(info))
    last = followed(network).last.detached()
    features, actions = dreamed(network, last, 5)
    assert not features.requires_grad
    logits = network.value(features)
    value = network.value.mean(logits).detach()
    reward = network.world.reward.mean(network.world.reward(features)).detach()
    discount = torch.sigmoid(network.world.continues(features)).detach()
    returns = lambda_return(reward, value, discount, 0.95)
    log_prob = action_distribution(info).log_prob(network.policy(features[:-1]), actions)
    loss = -(log_prob * (returns - value[:-1])).mean() + network.value.loss(logits[:-1], returns).mean()
    parameters = dict(network.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    for title, gradient in zip(parameters, gradients, strict=True):
        if title.startswith("world."):
            assert gradient is None, title
        else:
            assert gradient is not None, title
            assert gradient.any(), title


@EVERY_ACTION
def test_a_policy_can_learn_through_the_model(name: str) -> None:
    info = SPACES[name]
    network = loud(network_for(info))
    state = followed(network).last.detached()
    columns = pathwise_columns(info, network.policy(state.features), noise_for(info, B))
    after, _ = network.world.rssm.imagine(state, columns, uniforms(B, SMALL.stoch))
    loss = network.world.reward(after.features).square().sum()
    gradients = torch.autograd.grad(loss, list(network.policy.parameters()))
    assert all(gradient.any() for gradient in gradients)


def test_a_dream_is_the_same_for_the_same_noise() -> None:
    network = network_for(SPACES["vector, multi-discrete"])
    last = followed(network).last.detached()
    one, other = dreamed(network, last, 4), dreamed(network, last, 4)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def test_observing_takes_stored_actions() -> None:
    network = network_for(SPACES["vector"])
    world = network.world
    obs, actions, noise = observations(world.info, T, B), actions_for(world.info, T, B), uniforms(T, B, SMALL.stoch)
    first = torch.zeros(T, B, dtype=torch.bool)
    ours = world.observe(world.rssm.initial(B), actions, obs, first, noise)
    columns = nn.functional.one_hot(actions, 3).float()
    theirs = world.rssm.observe(world.rssm.initial(B), columns, world.encoder(obs), first, noise)
    assert torch.equal(ours.state.features, theirs.state.features)


@pytest.mark.parametrize("name", ["vector", "vector, continuous"])
def test_a_reward_that_depends_on_the_action_alone_is_learned(name: str) -> None:
    """Only the action before a state says its reward here: a model that pairs them wrongly can learn nothing."""
    info = SPACES[name]
    network = network_for(info)
    world = network.world
    learner = Learner(network, make=lambda flat, weights: FlatLaProp(flat, weights.sizes, warmup=10))
    prizes = torch.tensor([-1.0, 0.5, 3.0])
    steps, rows = 2, 32
    first = torch.zeros(steps, rows, dtype=torch.bool)
    divergences = []
    for update in range(140):
        action = actions_for(info, steps, rows, seed=update)
        arm = actions_for(SPACES["vector"], steps, rows, seed=update)
        if info.continuous:  # near one of three places: between them the reward would have to jump
            action[..., 0] = 0.8 * (arm - 1) + 0.1 * action[..., 0].clamp(-2.0, 2.0)
        reward = prizes[arm]
        obs = observations(info, steps, rows, seed=update) * 0.0
        noise = uniforms(steps, rows, SMALL.stoch, seed=update)
        seen = world.observe(world.rssm.initial(rows), action, obs, first, noise)
        loss = world.reward.loss(world.reward(seen.state.features), reward)
        divergences.append(float((loss - symexp_target_entropy(reward, world.reward.support)).detach().mean()))
        learner.differentiate(loss.mean())
        learner.descend(2e-2)
    assert divergences[0] > 4.0
    assert np.mean(divergences[-10:]) < 0.01  # at most 0.0026 with five other seeds


def test_the_parts_of_an_observation() -> None:
    assert SPACES["vector"].arrays == (ObsPart("", (2, 3), "float32"),)
    assert SPACES["masked"].arrays == (ObsPart("", (5,), "float32"),)
    assert [part.name for part in SPACES["dict"].arrays] == ["numbers", "more", "a.view", "other view"]
