"""Encoders with hidden layers behind them: what a policy and its values may have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from rl_training.models.encoders import encoder_for
from rl_training.models.torso import MLP
from rl_training.types import SpaceInfo


@dataclass(frozen=True)
class EncoderShape:
    """The network of images, the widths of the hidden layers behind it and their activation."""

    image_encoder: str = "nature"
    hidden_sizes: Sequence[int] = ()
    activation: str = "relu"
    orthogonal: bool = False

    def build(self, info: SpaceInfo) -> tuple[nn.Module | None, int]:
        """The encoder, None for vectors without hidden layers; and how many numbers an MLP behind it reads."""
        encoder = encoder_for(info, orthogonal=self.orthogonal, image_encoder=self.image_encoder)
        features = math.prod(info.input_shape) if encoder is None else encoder.features
        if not self.hidden_sizes:
            return encoder, features
        layers = MLP(features, self.hidden_sizes, self.activation, orthogonal=self.orthogonal)
        return nn.Sequential(*([] if encoder is None else [encoder]), layers), layers.features
