"""The networks of the on-policy algorithms: `forward(obs)` returns policy parameters `[B, P]` and values `[B]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rl_training.models.torso import MLP, linear


@dataclass(frozen=True)
class Shape:
    """Sizes and initialisation of the MLPs of an actor-critic; `log_std_init` has an entry for each action.

    The value has the widths of the policy unless it has its own.
    """

    hidden_sizes: Sequence[int]
    activation: str
    orthogonal: bool
    log_std_init: Sequence[float]
    state_dependent_noise: bool = False
    value_sizes: Sequence[int] | None = None


class MLPActorCritic(nn.Module):
    """Separate MLPs for policy and value.

    Continuous actions have a learned log standard deviation, the same for all observations; with state-dependent
    noise (gSDE, Raffin et al. 2022) there is one for every feature of the policy, and an action's variance is
    sum_j h_j(s)^2 sigma_ja^2.
    """

    def __init__(self, inputs: int, action_size: int, shape: Shape, *, continuous: bool) -> None:
        super().__init__()
        orthogonal = shape.orthogonal
        self.policy_torso = MLP(inputs, shape.hidden_sizes, shape.activation, orthogonal=orthogonal)
        value_sizes = shape.hidden_sizes if shape.value_sizes is None else shape.value_sizes
        self.value_torso = MLP(inputs, value_sizes, shape.activation, orthogonal=orthogonal)
        # A small gain starts the policy near uniform; see Andrychowicz et al. 2021, section 3.2.
        self.policy_head = linear(self.policy_torso.features, action_size, gain=0.01 if orthogonal else None)
        self.value_head = linear(self.value_torso.features, 1, gain=1.0 if orthogonal else None)
        self.state_dependent_noise = continuous and shape.state_dependent_noise
        self.log_std: nn.Parameter | None = None
        if continuous:
            rows = (self.policy_torso.features,) if self.state_dependent_noise else ()
            self.log_std = nn.Parameter(torch.tensor(shape.log_std_init).expand(*rows, action_size).clone())

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        params, value, _ = self.features(obs)
        return params, value

    def features(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Policy parameters, values, and the policy's features, which state-dependent noise is computed from."""
        params, features = self.policy(obs)
        return params, self.value(obs), features

    def policy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Policy parameters, and the features that they are computed from."""
        features = self.policy_torso(obs)
        params = self.policy_head(features)
        if self.log_std is None:
            return params, features
        if self.state_dependent_noise:
            # Detached: the noise adapts to the features, the features do not adapt to the noise.
            variance = features.detach().square() @ (2.0 * self.log_std).exp()
            log_std = 0.5 * (variance + 1e-6).log()
        else:
            log_std = self.log_std.expand_as(params)
        return torch.cat([params, log_std], dim=-1), features

    def value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.value_head(self.value_torso(obs)).squeeze(-1)
        return value


class EncodedActorCritic(nn.Module):
    """One encoder for policy and value, or one for each, and their MLPs behind it."""

    def __init__(self, encoder: nn.Module, heads: MLPActorCritic, value_encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = heads
        self.value_encoder = value_encoder

    @property
    def log_std(self) -> nn.Parameter | None:
        return self.heads.log_std

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        params, value, _ = self.features(obs)
        return params, value

    def features(self, obs: Tensor | Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        encoded = self.encoder(obs)
        params, features = self.heads.policy(encoded)
        return params, self.heads.value(encoded if self.value_encoder is None else self.value_encoder(obs)), features
