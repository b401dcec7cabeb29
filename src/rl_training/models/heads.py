"""An MLP with an output layer, for observations of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_training.models.torso import MLP, linear
from rl_training.models.trunk import EncoderShape
from rl_training.types import SpaceInfo


class MLPNetwork(nn.Module):
    """`outputs` numbers for every observation: an MLP, behind an encoder for images and Dict observations.

    One that does not `learns_encoder` reads features that another network learns, from a copy of its encoder.
    """

    def __init__(
        self,
        info: SpaceInfo,
        outputs: int,
        hidden_sizes: Sequence[int],
        activation: str,
        *,
        image_encoder: str = "nature",
        encoder_sizes: Sequence[int] = (),
    ) -> None:
        """`encoder_sizes` are the widths of hidden layers that belong to the encoder."""
        super().__init__()
        self.encoder, inputs = EncoderShape(image_encoder, encoder_sizes, activation).build(info)
        self.learns_encoder = True
        self.torso = MLP(inputs, hidden_sizes, activation, orthogonal=False)
        self.head = linear(self.torso.features, outputs, gain=None)

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        if self.encoder is None:
            features = obs
        elif self.learns_encoder:
            features = self.encoder(obs)
        else:
            with torch.no_grad():
                features = self.encoder(obs)
        values: Tensor = self.head(self.torso(features))
        return values
