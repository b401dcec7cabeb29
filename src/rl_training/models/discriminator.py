"""The discriminator network: it tells demonstrated steps from the policy's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.encoders import encoder_for
from rl_training.models.torso import MLP, linear
from rl_training.types import Array, SpaceInfo

# Ends are rare, so an end flag that is scaled by its deviation is large: it gets the bound of normalized inputs.
_END_FLAG = 10.0


def action_numbers(action: Array, info: SpaceInfo) -> Array:
    """Actions as numbers `[N, action_size]`: continuous ones clipped to [-1, 1], discrete ones one-hot."""
    if info.continuous:
        return np.clip(action, -1.0, 1.0)
    choices = action.reshape(len(action), -1)
    factors = [np.eye(count, dtype=np.float32)[choices[:, k]] for k, count in enumerate(info.action_counts)]
    return np.concatenate(factors, axis=1)


class Discriminator(nn.Module):
    """The logit of "this step is the expert's", from an observation, an action, and whether the episode is over.

    For a step after the end the other inputs are 0. The head starts at 0, so at first all logits are 0.
    """

    def __init__(
        self, info: SpaceInfo, hidden_sizes: Sequence[int], activation: str, *, image_encoder: str = "nature"
    ) -> None:
        super().__init__()
        self.encoder = encoder_for(info, orthogonal=False, image_encoder=image_encoder)
        features = math.prod(info.input_shape) if self.encoder is None else self.encoder.features
        self._width = features + info.action_size + 1
        self.torso = MLP(self._width, hidden_sizes, activation, orthogonal=True)
        self.head = linear(self.torso.features, 1, gain=0.0)

    def inputs(self, obs: Tensor | Mapping[str, Tensor], action: Tensor, over: Tensor) -> Tensor:
        """The MLP's inputs `[B, F]`: features of `obs`, numbers of actions `[B, A]`, and `over` `[B]` of 0 or 1."""
        features = self.encoder(obs) if self.encoder is not None else obs
        assert isinstance(features, Tensor)
        seen = torch.cat([features.flatten(1).float(), action], dim=-1)
        over = over.unsqueeze(-1)
        return torch.cat([seen * (1.0 - over), _END_FLAG * over], dim=-1)

    def logits(self, inputs: Tensor) -> Tensor:
        """The logits `[B]` of what `inputs` returned."""
        logits: Tensor = self.head(self.torso(inputs)).squeeze(-1)
        return logits

    def after_the_end(self) -> Tensor:
        """The logit of a step after the end."""
        inputs = self.head.weight.new_zeros(1, self._width)
        inputs[:, -1] = _END_FLAG
        return self.logits(inputs)[0]

    def forward(self, obs: Tensor | Mapping[str, Tensor], action: Tensor, over: Tensor) -> Tensor:
        return self.logits(self.inputs(obs, action, over))
