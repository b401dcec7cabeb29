"""An MLP with an output layer, for observations of any kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from rl_training.models.encoders import encoder_for
from rl_training.models.torso import MLP, linear
from rl_training.types import SpaceInfo


class MLPNetwork(nn.Module):
    """`outputs` numbers for every observation: an MLP, behind an encoder for images and Dict observations."""

    def __init__(
        self,
        info: SpaceInfo,
        outputs: int,
        hidden_sizes: Sequence[int],
        activation: str,
        *,
        image_encoder: str = "nature",
    ) -> None:
        super().__init__()
        self.encoder = encoder_for(info, orthogonal=False, image_encoder=image_encoder)
        inputs = math.prod(info.input_shape) if self.encoder is None else self.encoder.features
        self.torso = MLP(inputs, hidden_sizes, activation, orthogonal=False)
        self.head = linear(self.torso.features, outputs, gain=None)

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        features = obs if self.encoder is None else self.encoder(obs)
        values: Tensor = self.head(self.torso(features))
        return values
