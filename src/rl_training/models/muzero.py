"""Networks of MuZero: a representation of observations, dynamics of what follows actions, and a prediction.

`represent(obs)` returns latents `[B, *latent_shape]`; `dynamics(latent, action)` returns the next latents, and the
logits of the reward on the way there; `predict(latent)` returns the policy's parameters (logits, or `[mean, log_std]`
of a Gaussian before its tanh) and the logits of the value. Rewards and values are distributions over a `Support`.
Latents are scaled to [0, 1], row by row. Discrete actions are `[B]` integers, continuous ones `[B, d]` in [-1, 1].

A network whose dynamics remember more than the latent sets `memory_size`, and overrides `step` and `reward_of`.
Updates (`unroll`) and search walk through the model by these alone, so that both see the same rewards.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from rl_training.models.encoders import Observations, encoder_for, halvings
from rl_training.models.torso import ACTIVATIONS, MLP, linear
from rl_training.ops.images import ImageLayout
from rl_training.ops.two_hot import Support, expected
from rl_training.types import SpaceInfo

# A range of latents below this is widened by it.
SMALLEST_RANGE = 1e-5
_CONVOLUTIONS = 4
_HEAD_CHANNELS = 16

# Widths of hidden layers: of all networks, or of `representation`, `dynamics` and `prediction`.
Sizes = Sequence[int] | Mapping[str, Sequence[int]]

T = TypeVar("T")


@dataclass(frozen=True)
class Unrolled(Generic[T]):
    """What a model says of K steps ahead: at K + 1 latents, and on the K steps between them."""

    latent: T  # [K + 1, B, *latent_shape]
    policy: T  # [K + 1, B, P]
    value: T  # [K + 1, B, bins]
    reward: T  # [K, B, bins]


class State(NamedTuple):
    """Where a walk through the model is: its latent, and what the dynamics remember besides, `[B, memory_size]`."""

    latent: Tensor
    memory: Tensor


class MuZeroNetwork(nn.Module, ABC):
    """The base of all networks of MuZero; `reward` is the last layer of the rewards' logits."""

    memory_size = 0
    reward: nn.Module

    def __init__(
        self, info: SpaceInfo, latent_shape: tuple[int, ...], reward_support: Support, value_support: Support
    ) -> None:
        super().__init__()
        if info.action_kind not in ("discrete", "continuous"):
            raise ValueError(f"{info.action_kind} actions: the model takes discrete or continuous ones")
        self.info = info
        self.latent_shape = latent_shape
        self.reward_support, self.value_support = reward_support, value_support
        self.policy_size = info.action_size * (2 if info.continuous else 1)

    @abstractmethod
    def represent(self, obs: Observations) -> Tensor:
        """The latents `[B, *latent_shape]` of observations."""

    @abstractmethod
    def dynamics(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The latents after actions, and the logits of the rewards `[B, bins]`."""

    @abstractmethod
    def predict(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """The policy's parameters `[B, P]` and the logits of the values `[B, bins]`."""

    def start(self, latent: Tensor) -> State:
        """Where a walk begins."""
        return State(latent, latent.new_zeros(len(latent), self.memory_size))

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor]:
        """Where an action leads, and the logits of the categorical that is learned about the reward."""
        latent, logits = self.dynamics(state.latent, action)
        return State(latent, state.memory), logits

    def reward_of(self, before: State, logits: Tensor) -> Tensor:
        """The reward `[B]` of a step, from where it began and the logits that it returned."""
        return expected(logits, self.reward_support)

    @property
    def latent_size(self) -> int:
        """How many numbers a search keeps of a state."""
        return math.prod(self.latent_shape) + self.memory_size

    def embed(self, state: State) -> Tensor:
        """States as rows `[B, latent_size]`, as a search keeps them."""
        return torch.cat([state.latent.flatten(1), state.memory], dim=1)

    def state_of(self, embedding: Tensor) -> State:
        """The inverse of `embed`."""
        size = math.prod(self.latent_shape)
        return State(embedding[:, :size].reshape(-1, *self.latent_shape), embedding[:, size:])

    def action_columns(self, action: Tensor) -> Tensor:
        """Actions as the dynamics see them, `[B, action_size]`: one-hot, or as they are."""
        if self.info.continuous:
            return action.float()
        return nn.functional.one_hot(action.long(), self.info.action_size).float()


class MLPMuZero(MuZeroNetwork):
    """Fully connected layers: on vectors, or on an encoding of Dict observations."""

    def __init__(
        self,
        info: SpaceInfo,
        *,
        latent_size: int,
        hidden_sizes: Sizes,
        activation: str,
        reward_support: Support,
        value_support: Support,
    ) -> None:
        super().__init__(info, (latent_size,), reward_support, value_support)
        self.encoder = encoder_for(info, orthogonal=False)
        inputs = math.prod(info.input_shape) if self.encoder is None else self.encoder.features
        self.representation = MLP(inputs, _widths(hidden_sizes, "representation"), activation, orthogonal=False)
        self.first_latent = linear(self.representation.features, latent_size, gain=None)
        moving = latent_size + info.action_size
        self.transition = MLP(moving, _widths(hidden_sizes, "dynamics"), activation, orthogonal=False)
        self.next_latent = linear(self.transition.features, latent_size, gain=None)
        self.reward: nn.Module = _silent(self.transition.features, reward_support.bins)
        self.prediction = MLP(latent_size, _widths(hidden_sizes, "prediction"), activation, orthogonal=False)
        self.policy = linear(self.prediction.features, self.policy_size, gain=None)
        self.value = _silent(self.prediction.features, value_support.bins)

    def hidden_layers(self) -> list[nn.Linear]:
        """The layers that have an activation."""
        torsos = (self.representation, self.transition, self.prediction)
        return [layer for torso in torsos for layer in torso if isinstance(layer, nn.Linear)]

    def represent(self, obs: Observations) -> Tensor:
        inputs = obs if self.encoder is None else self.encoder(obs)
        return min_max(self.first_latent(self.representation(inputs)))

    def dynamics(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        features = self.transition(torch.cat([latent, self.action_columns(action)], dim=1))
        return min_max(self.next_latent(features)), self.reward(features)

    def predict(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        features = self.prediction(latent)
        return self.policy(features), self.value(features)


class ConvMuZero(MuZeroNetwork):
    """Convolutions with residual blocks on images: latents are images of a 16th of their height and width, or 3 pixels.

    Images are `[C, H, W]`, `[H, W, C]` or `[H, W]`, and may be stacked: frames become channels. Actions enter the
    dynamics as constant planes. Layers are normalised within each row, so that a row's result never depends on the
    batch around it: search and updates see the same function.
    """

    def __init__(
        self,
        info: SpaceInfo,
        *,
        channels: int,
        blocks: int,
        hidden_sizes: Sizes,
        activation: str,
        reward_support: Support,
        value_support: Support,
    ) -> None:
        image = ImageLayout(info.input_shape)
        # Four convolutions halve the image, rounded up.
        strides, sides = halvings(image.height, image.width, _CONVOLUTIONS)
        super().__init__(info, (channels, *sides), reward_support, value_support)
        self._image = image

        def residuals() -> list[nn.Module]:
            return [_Residual(channels, activation) for _ in range(blocks)]

        def features(network: str) -> _Features:
            return _Features(self.latent_shape, _widths(hidden_sizes, network), activation)

        half = max(channels // 2, 1)
        self.representation = nn.Sequential(
            _convolution(image.channels, half, activation, stride=strides[0]),
            _convolution(half, channels, activation, stride=strides[1]),
            _convolution(channels, channels, activation, stride=strides[2]),
            *residuals(),
            _convolution(channels, channels, activation, stride=strides[3]),
            *residuals(),
        )
        self.entry = _convolution(channels + info.action_size, channels, activation)
        self.transition = nn.Sequential(*residuals())
        of_networks = [features(network) for network in ("dynamics", "prediction", "prediction")]
        self.reward_features, self.policy_features, self.value_features = of_networks
        self.reward: nn.Module = _silent(self.reward_features.features, reward_support.bins)
        self.prediction = nn.Sequential(*residuals())
        self.policy = linear(self.policy_features.features, self.policy_size, gain=None)
        self.value = _silent(self.value_features.features, value_support.bins)

    def represent(self, obs: Observations) -> Tensor:
        assert isinstance(obs, Tensor)
        # With a pixel's channels side by side, convolutions are faster on a CPU.
        planes = self._image.planes(obs).to(torch.float32, memory_format=torch.channels_last)
        return min_max(self.representation(planes.mul(1.0 / 255.0)))

    def dynamics(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        planes = self.action_columns(action)[:, :, None, None].expand(-1, -1, *latent.shape[2:])
        inputs = torch.cat([latent, planes], dim=1).contiguous(memory_format=torch.channels_last)
        after = min_max(self.transition(latent + self.entry(inputs)))
        return after, self.reward(self.reward_features(after))

    def predict(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.prediction(latent)
        return self.policy(self.policy_features(shared)), self.value(self.value_features(shared))


class _Features(nn.Module):
    """Latent images `[B, C, h, w]` as features `[B, features]`: few channels, then fully connected layers."""

    def __init__(self, shape: tuple[int, ...], hidden_sizes: Sequence[int], activation: str) -> None:
        super().__init__()
        self.squeeze = _convolution(shape[0], _HEAD_CHANNELS, activation, kernel=1)
        self.torso = MLP(_HEAD_CHANNELS * shape[1] * shape[2], hidden_sizes, activation, orthogonal=False)
        self.features = self.torso.features

    def forward(self, latent: Tensor) -> Tensor:
        features: Tensor = self.torso(self.squeeze(latent))
        return features


class _Residual(nn.Module):
    """Two convolutions around which their input is added."""

    def __init__(self, channels: int, activation: str) -> None:
        super().__init__()
        self.first = _convolution(channels, channels, activation)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.GroupNorm(1, channels))
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x + self.second(self.first(x)))  # type: ignore[no-any-return]


def _convolution(
    inputs: int, outputs: int, activation: str, *, stride: int | tuple[int, int] = 1, kernel: int = 3
) -> nn.Sequential:
    """A convolution, normalised over all channels and pixels of a row, and its activation."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(layer, nn.GroupNorm(1, outputs), ACTIVATIONS[activation]())


def _silent(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer that returns zeros before it has learned."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def min_max(x: Tensor) -> Tensor:
    """Every row shifted and scaled to [0, 1]: its range is divided out, plus 1e-5 where it is below that."""
    axes = tuple(range(1, x.dim()))
    lowest = x.amin(axes, keepdim=True)
    scale = x.amax(axes, keepdim=True) - lowest
    scale = torch.where(scale < SMALLEST_RANGE, scale + SMALLEST_RANGE, scale)
    return (x - lowest) / scale


def _widths(sizes: Sizes, network: str) -> Sequence[int]:
    return sizes[network] if isinstance(sizes, Mapping) else sizes


def half_gradient(x: Tensor) -> Tensor:
    """The same numbers; half the gradient."""
    return 0.5 * x + 0.5 * x.detach()


def unroll(network: MuZeroNetwork, obs: Observations, actions: Tensor) -> Unrolled[Tensor]:
    """What the model says of observations `[B, ...]` and of the K actions `[K, B, ...]` that follow.

    Where the dynamics produced a latent, the gradient that comes back from the next step is halved, so that the first
    steps of a long unroll are not dominated by the later ones (Schrittwieser et al. 2020). What predictions send back
    is not.
    """
    state = network.start(network.represent(obs))
    latents, rewards = [state.latent], []
    for action in actions:
        state, logits = network.step(state, action)
        latents.append(state.latent)
        rewards.append(logits)
        state = state._replace(latent=half_gradient(state.latent))
    latent = torch.stack(latents)
    policy, value = (outputs.view(*latent.shape[:2], -1) for outputs in network.predict(latent.flatten(0, 1)))
    return Unrolled(latent, policy, value, torch.stack(rewards))


def muzero_network(
    info: SpaceInfo,
    *,
    latent_size: int,
    hidden_sizes: Sizes,
    activation: str,
    reward_support: Support,
    value_support: Support,
    channels: int = 32,
    blocks: int = 1,
) -> MuZeroNetwork:
    """The network for these spaces; `channels` and `blocks` are those of images, `latent_size` that of all others."""
    if info.obs_kind == "image":
        return ConvMuZero(
            info,
            channels=channels,
            blocks=blocks,
            hidden_sizes=hidden_sizes,
            activation=activation,
            reward_support=reward_support,
            value_support=value_support,
        )
    return MLPMuZero(
        info,
        latent_size=latent_size,
        hidden_sizes=hidden_sizes,
        activation=activation,
        reward_support=reward_support,
        value_support=value_support,
    )
