"""Action distributions as functions of a policy's output `[B, param_size]`.

Sampling is NumPy (it happens while acting, on small arrays, from an explicit stream); likelihoods and entropies are
torch (they are differentiated). The two agree: a test holds the log-probabilities of both sides together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.types import Array, SpaceInfo

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """What an on-policy algorithm needs to know of a distribution."""

    @property
    def param_size(self) -> int:
        """How many numbers the policy network gives per observation."""

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions and their log-probabilities `[B]`."""

    def mode(self, params: Array) -> Array:
        """The likeliest actions."""

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """`[B]`"""

    def entropy(self, params: Tensor) -> Tensor:
        """`[B]`"""


@dataclass(frozen=True)
class Categorical:
    """Params are the logits of `size` actions."""

    size: int

    @property
    def param_size(self) -> int:
        return self.size

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        shifted = params - params.max(axis=-1, keepdims=True)
        weights = np.exp(shifted)
        cumulative = weights.cumsum(axis=-1)
        threshold = rng.random(len(params)) * cumulative[:, -1]
        # The last action takes what rounding leaves over, so an index is always in range.
        action = np.minimum((cumulative <= threshold[:, None]).sum(axis=-1), self.size - 1)
        log_prob = shifted[np.arange(len(params)), action] - np.log(cumulative[:, -1])
        return action, log_prob.astype(np.float32)

    def mode(self, params: Array) -> Array:
        mode: Array = params.argmax(axis=-1)
        return mode

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return params.log_softmax(dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        log_probs = params.log_softmax(dim=-1)
        return -(log_probs.exp() * log_probs).sum(dim=-1)


@dataclass(frozen=True)
class DiagonalGaussian:
    """Params are the means, then the log standard deviations, of `size` independent actions.

    Samples are not squashed: the log-probability is that of the raw sample, and only the copy that is sent to the
    environment is clipped.
    """

    size: int

    @property
    def param_size(self) -> int:
        return 2 * self.size

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        mean, log_std = params[:, : self.size], params[:, self.size :]
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        action = mean + np.exp(log_std) * noise
        log_prob = -(0.5 * noise * noise + log_std).sum(axis=-1) - self.size * LOG_SQRT_2PI
        return action, log_prob.astype(np.float32)

    def mode(self, params: Array) -> Array:
        return params[:, : self.size]

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        mean, log_std = params[..., : self.size], params[..., self.size :]
        noise = (action - mean) * torch.exp(-log_std)
        return -(0.5 * noise.square() + log_std).sum(dim=-1) - self.size * LOG_SQRT_2PI

    def entropy(self, params: Tensor) -> Tensor:
        return params[..., self.size :].sum(dim=-1) + self.size * (0.5 + LOG_SQRT_2PI)


def action_distribution(info: SpaceInfo) -> Distribution:
    """The distribution that fits an action space."""
    return Categorical(info.action_size) if info.action_kind == "discrete" else DiagonalGaussian(info.action_size)
