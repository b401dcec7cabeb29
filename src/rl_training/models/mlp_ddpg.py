"""The networks of the deterministic actor-critics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from rl_training.models.encoders import encoder_for
from rl_training.models.ensemble import CriticEnsemble, StackedMLP
from rl_training.models.heads import MLPNetwork
from rl_training.types import SpaceInfo


@dataclass(frozen=True)
class CriticShape:
    """Sizes of the actor and the critics, and their encoder of images."""

    hidden_sizes: Sequence[int]
    activation: str
    n_critics: int
    n_quantiles: int = 1
    image_encoder: str = "nature"

    def network(self, info: SpaceInfo, outputs: int) -> MLPNetwork:
        """A network of this shape from observations to some numbers."""
        return MLPNetwork(info, outputs, self.hidden_sizes, self.activation, image_encoder=self.image_encoder)


def mlp_critics(info: SpaceInfo, shape: CriticShape) -> CriticEnsemble:
    """An ensemble of critics, behind an encoder of their own for images and Dict observations."""
    encoder = encoder_for(info, orthogonal=False, image_encoder=shape.image_encoder)
    features = math.prod(info.input_shape) if encoder is None else encoder.features
    inputs = features + info.action_size
    members = StackedMLP(shape.n_critics, inputs, shape.hidden_sizes, shape.n_quantiles, shape.activation)
    return CriticEnsemble(encoder, members)


class MLPDDPGModel(nn.Module):
    """`actor(obs)` returns actions `[B, A]` before the tanh squashing; `critic(obs, action)` `[critics, B, 1]`."""

    def __init__(self, info: SpaceInfo, shape: CriticShape) -> None:
        super().__init__()
        self.actor = shape.network(info, info.action_size)
        self.critic = mlp_critics(info, shape)
