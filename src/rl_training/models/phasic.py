"""The network of phasic policy gradient, whose policy has an auxiliary value head, and its engine."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from rl_training.models.encoders import Observations
from rl_training.models.flat import FlatParameters
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_engine import MLPEngine, gradients_of, kind_of, views_of
from rl_training.models.torso import linear
from rl_training.types import Array


class PhasicActorCritic(nn.Module):
    """Separate policy and value networks, each with its own encoder, and an auxiliary value head on the policy.

    `forward(obs)` returns policy parameters `[B, P]` and values `[B]`; `auxiliary(obs)` returns both, and the values
    `[B]` of the policy's auxiliary head. If the value has no encoder of its own, it reads that of the policy; its
    gradient goes back through it in `auxiliary` only (the paper's variant of a single network).
    """

    def __init__(
        self, heads: MLPActorCritic, encoders: tuple[nn.Module, nn.Module | None] | None, *, orthogonal: bool
    ) -> None:
        super().__init__()
        self.heads = heads
        self.encoded = encoders is not None
        self.policy_encoder, self.value_encoder = encoders or (nn.Identity(), nn.Identity())
        self.auxiliary_head = linear(heads.policy_torso.features, 1, gain=1.0 if orthogonal else None)

    @property
    def log_std(self) -> nn.Parameter | None:
        return self.heads.log_std

    def forward(self, obs: Observations) -> tuple[Tensor, Tensor]:
        params, value, _ = self.features(obs)
        return params, value

    def features(self, obs: Observations) -> tuple[Tensor, Tensor, Tensor]:
        """Policy parameters, values, and the policy's features, which state-dependent noise is computed from."""
        return self._features(obs, through=False)

    def auxiliary(self, obs: Observations) -> tuple[Tensor, Tensor, Tensor]:
        params, value, features = self._features(obs, through=True)
        return params, value, self.auxiliary_head(features).squeeze(-1)

    def _features(self, obs: Observations, *, through: bool) -> tuple[Tensor, Tensor, Tensor]:
        """`through`: whether the gradient of values goes through an encoder that is the policy's too."""
        encoded = self.policy_encoder(obs)
        params, features = self.heads.policy(encoded)
        if self.value_encoder is not None:
            encoded = self.value_encoder(obs)
        elif not through:
            encoded = encoded.detach()
        return params, self.heads.value(encoded), features

    def engine_parameters(self) -> list[nn.Parameter]:
        """All parameters, with those of the policy's two heads side by side: the engine treats them as one layer."""
        heads = (self.heads.policy_head, self.auxiliary_head)
        together: list[Any] = [*(head.weight for head in heads), *(head.bias for head in heads)]
        return [*together, *(parameter for parameter in self.parameters() if parameter not in set(together))]


class AuxiliaryEngine:
    """The policy's MLP with both of its heads, without autograd; its parameters are ordered by `engine_parameters`."""

    def __init__(self, network: PhasicActorCritic, parameters: FlatParameters) -> None:
        head, extra = network.heads.policy_head, network.auxiliary_head
        torso = network.heads.policy_torso
        hidden = [layer for layer in torso if isinstance(layer, nn.Linear)]
        layers, gradients = views_of(hidden), gradients_of(hidden)
        for flat, pairs in ((parameters.data.numpy(), layers), (parameters.grad.numpy(), gradients)):
            weight, bias = (
                flat[one.storage_offset() : one.storage_offset() + one.numel() + other.numel()]
                for one, other in ((head.weight, extra.weight), (head.bias, extra.bias))
            )
            pairs.append((weight.reshape(-1, head.in_features), bias))
        self._mlp = MLPEngine(layers, kind_of(torso), gradients)
        self._output: Array = np.zeros(0)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Policy outputs `[N, A]` and auxiliary values `[N]`; overwrite them with their gradients for `backward`."""
        self._output = self._mlp.forward(x.reshape(len(x), -1))
        return self._output[:, :-1], self._output[:, -1]

    def backward(self) -> None:
        self._mlp.backward(self._output)
