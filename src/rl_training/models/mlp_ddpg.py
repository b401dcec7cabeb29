"""The networks of the deterministic actor-critics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from rl_training.models.ensemble import CriticEnsemble, StackedMLP
from rl_training.models.heads import MLPNetwork
from rl_training.models.trunk import EncoderShape
from rl_training.types import SpaceInfo


@dataclass(frozen=True)
class CriticShape:
    """Sizes of the actor and the critics, and their encoder of images.

    Critics, and the value of a state if there is one, have the widths of the actor unless they have their own.
    """

    hidden_sizes: Sequence[int]
    activation: str
    n_critics: int
    n_quantiles: int = 1
    image_encoder: str = "nature"
    critic_sizes: Sequence[int] | None = None
    value_sizes: Sequence[int] | None = None
    encoder_sizes: Sequence[int] = ()

    def network(self, info: SpaceInfo, outputs: int, sizes: Sequence[int] | None = None) -> MLPNetwork:
        """A network from observations to some numbers."""
        return MLPNetwork(
            info,
            outputs,
            self.hidden_sizes if sizes is None else sizes,
            self.activation,
            image_encoder=self.image_encoder,
            encoder_sizes=self.encoder_sizes,
        )


def mlp_critics(info: SpaceInfo, shape: CriticShape) -> CriticEnsemble:
    """An ensemble of critics, behind an encoder of their own for images and Dict observations."""
    encoder, features = EncoderShape(shape.image_encoder, shape.encoder_sizes, shape.activation).build(info)
    inputs = features + info.action_size
    sizes = shape.hidden_sizes if shape.critic_sizes is None else shape.critic_sizes
    members = StackedMLP(shape.n_critics, inputs, sizes, shape.n_quantiles, shape.activation)
    return CriticEnsemble(encoder, members)


class MLPDDPGModel(nn.Module):
    """`actor(obs)` returns actions `[B, A]` before the tanh squashing; `critic(obs, action)` `[critics, B, 1]`."""

    def __init__(self, info: SpaceInfo, shape: CriticShape) -> None:
        super().__init__()
        self.actor = shape.network(info, info.action_size)
        self.critic = mlp_critics(info, shape)
