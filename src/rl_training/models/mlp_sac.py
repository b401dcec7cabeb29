"""The networks of the soft actor-critics."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from rl_training.models.mlp_ddpg import CriticShape, mlp_critics
from rl_training.ops.distributions import squashed_log_prob
from rl_training.types import SpaceInfo


class MLPSACModel(nn.Module):
    """`actor(obs)` returns means and log deviations `[B, 2A]` of actions before the tanh squashing.

    `critic(obs, action)` returns `[critics, B, quantiles]`; a single quantile is a plain value.
    """

    def __init__(self, info: SpaceInfo, shape: CriticShape) -> None:
        super().__init__()
        self.actor = shape.network(info, 2 * info.action_size)
        self.critic = mlp_critics(info, shape)

    def action_logprobs(self, obs: Tensor | Mapping[str, Tensor], actions: Tensor) -> Tensor:
        """The log-density `[B]` of actions `[B, A]` in [-1, 1] under the policy."""
        return squashed_log_prob(self.actor(obs), actions)
