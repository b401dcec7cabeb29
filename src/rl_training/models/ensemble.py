"""Several networks of one shape, evaluated together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rl_training.models.torso import ACTIVATIONS


class StackedMLP(nn.Module):
    """`members` MLPs of equal shape, each initialised by itself: `[N, in]` to `[members, N, out]`.

    Layers are stacked as `[members, out, in]`, so that all members are one batched product.
    """

    def __init__(self, members: int, inputs: int, hidden_sizes: Sequence[int], outputs: int, activation: str) -> None:
        super().__init__()
        sizes = [inputs, *hidden_sizes, outputs]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for before, after in pairwise(sizes):
            bound = 1.0 / math.sqrt(before)  # as torch initialises a single linear layer
            self.weights.append(nn.Parameter(torch.empty(members, after, before).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(members, after).uniform_(-bound, bound)))
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(len(self.weights[0]), *x.shape)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
            if layer < last:
                x = self.activation(x)
        return x


class CriticEnsemble(nn.Module):
    """Action values `[members, B, outputs]` of observations and actions `[B, A]`, behind an encoder if there is one."""

    def __init__(self, encoder: nn.Module | None, members: StackedMLP) -> None:
        super().__init__()
        self.encoder = encoder
        self.members = members

    def forward(self, obs: Tensor | Mapping[str, Tensor], action: Tensor) -> Tensor:
        if self.encoder is not None:
            features = self.encoder(obs)
        else:
            assert isinstance(obs, Tensor)
            features = obs.flatten(1).float()
        # Actions first: the order of the rows in the replay buffer.
        values: Tensor = self.members(torch.cat([action, features], dim=-1))
        return values
