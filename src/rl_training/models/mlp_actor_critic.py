"""The default network of the on-policy algorithms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.torso import MLP, linear
from rl_training.types import SpaceInfo


class MLPActorCritic(nn.Module):
    """Separate MLPs for policy and value; `forward(obs)` gives policy parameters `[B, P]` and values `[B]`.

    Continuous actions have a learned log standard deviation that does not depend on the observation.
    """

    def __init__(
        self,
        info: SpaceInfo,
        *,
        hidden_sizes: Sequence[int],
        activation: str,
        orthogonal: bool,
        log_std_init: float,
    ) -> None:
        super().__init__()
        inputs = math.prod(info.obs_shape)
        self.policy_torso = MLP(inputs, hidden_sizes, activation, orthogonal=orthogonal)
        self.value_torso = MLP(inputs, hidden_sizes, activation, orthogonal=orthogonal)
        # A small gain starts the policy near uniform; see Andrychowicz et al. 2021, section 3.2.
        self.policy_head = linear(self.policy_torso.features, info.action_size, gain=0.01 if orthogonal else None)
        self.value_head = linear(self.value_torso.features, 1, gain=1.0 if orthogonal else None)
        self.log_std: nn.Parameter | None = None
        if info.action_kind == "continuous":
            self.log_std = nn.Parameter(torch.full((info.action_size,), log_std_init))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        params = self.policy_head(self.policy_torso(obs))
        if self.log_std is not None:
            params = torch.cat([params, self.log_std.expand_as(params)], dim=-1)
        return params, self.value_head(self.value_torso(obs)).squeeze(-1)
