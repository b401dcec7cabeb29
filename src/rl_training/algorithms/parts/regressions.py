"""Weighted regression of a policy on given actions, and the policy heads that are trained by it.

Every regression is an `OutputObjective`: a loss of the network's outputs, in torch and as a gradient in closed form.
`costs` are the losses `[B]` of the single actions, from what either form reported; `held_out` are those of actions that
are not learned from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.off_policy import NetworkPolicy
from rl_training.algorithms.parts.policies import (
    CategoricalPolicy,
    ClippedGaussianPolicy,
    DeterministicPolicy,
    SquashedGaussianPolicy,
    allowed,
)
from rl_training.ops.distributions import (
    FORBIDDEN,
    Categorical,
    MultiCategorical,
    before_squashing,
    gaussian_log_prob,
    squashed_log_prob,
)
from rl_training.ops.kernels.heads import gaussian_backward, gaussian_forward
from rl_training.ops.kernels.likelihood import squashed_likelihood, squashed_likelihood_backward
from rl_training.types import Array


class SquaredError:
    """The squared error of tanh(outputs), averaged over its dimensions; reports the actions of the policy."""

    def loss(self, outputs: Tensor, action: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        own = outputs.tanh()
        return (weight * (own - action).square().mean(dim=-1)).mean(), own

    def gradient(self, outputs: Array, action: Array, weight: Array) -> tuple[Array, Array]:
        own = np.tanh(outputs)
        return (2.0 / own.size) * weight[:, None] * (own - action) * (1.0 - own * own), own

    def costs(self, own: Array, action: Array) -> Array:
        costs: Array = np.square(own - action).mean(axis=-1)
        return costs

    def held_out(self, policy: NetworkPolicy, rows: Array, action: Array) -> Array:
        return self.costs(np.tanh(policy.outputs(rows)), action)


class SquashedLikelihood:
    """Minus the log-densities of actions under a squashed Gaussian with outputs `[B, 2A]`; reports the log-densities.

    It suits actions that a squashed Gaussian drew. At the bounds, where clipped actions are, the density is unbounded:
    such actions pull the policy far more than others, and the fit elsewhere suffers.
    """

    def loss(self, params: Tensor, action: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = squashed_log_prob(params, action)
        return -(weight * log_prob).mean(), log_prob

    def gradient(self, params: Array, action: Array, weight: Array) -> tuple[Array, Array]:
        raw = before_squashing(torch.from_numpy(action)).numpy()
        log_prob, d_params = np.empty(len(raw), np.float32), np.empty_like(params)
        squashed_likelihood(params, raw, log_prob)
        squashed_likelihood_backward(params, raw, weight / -len(raw), d_params)
        return d_params, log_prob

    def costs(self, log_prob: Array, action: Array) -> Array:
        return -log_prob

    def held_out(self, policy: NetworkPolicy, rows: Array, action: Array) -> Array:
        with torch.inference_mode():
            params = policy.by_torch.tensor(rows)
            return -squashed_log_prob(params, policy.observer.tensor(action)).cpu().numpy()


class GaussianLikelihood:
    """Minus the log-densities of actions under a Gaussian around tanh(outputs); reports the log-densities."""

    def __init__(self, policy: ClippedGaussianPolicy) -> None:
        self._network = policy.network

    def loss(self, outputs: Tensor, action: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = gaussian_log_prob(outputs.tanh(), self._network.log_std, action)
        return -(weight * log_prob).mean(), log_prob

    def gradient(self, outputs: Array, action: Array, weight: Array) -> tuple[Array, Array]:
        log_std, grad = self._network.log_std.detach().numpy(), self._network.log_std.grad
        assert grad is not None
        mean = np.tanh(outputs)
        log_prob, entropy = np.empty((2, len(mean)), np.float32)
        precise, d_mean = action.astype(np.float64), mean.copy()
        gaussian_forward(mean, log_std, precise, log_prob, entropy)
        gaussian_backward(d_mean, log_std, precise, weight / -len(mean), 0.0, grad.numpy())
        return d_mean * (1.0 - mean * mean), log_prob

    def costs(self, log_prob: Array, action: Array) -> Array:
        return -log_prob

    def held_out(self, policy: NetworkPolicy, rows: Array, action: Array) -> Array:
        with torch.inference_mode():
            mean = policy.by_torch.tensor(rows).tanh()
            return -gaussian_log_prob(mean, self._network.log_std, policy.observer.tensor(action)).cpu().numpy()


class CategoricalLikelihood:
    """Minus the log-probabilities of choices with logits `[B, A]`, among the allowed ones of a mask.

    Actions are one choice `[B]` of `A`, or several `[B, K]`, independent of each other, of `counts` that add up to `A`.
    It reports the log-probabilities.
    """

    def __init__(self, choices: Categorical | MultiCategorical) -> None:
        self._choices = choices

    def loss(self, logits: Tensor, action: Tensor, weight: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        log_prob = self._log_prob(logits, action, mask)
        return -(weight * log_prob).mean(), log_prob

    def gradient(self, logits: Array, action: Array, weight: Array, mask: Array | None) -> tuple[Array, Array]:
        logits = allowed(logits, mask)
        slopes, log_prob, every = np.empty_like(logits), np.zeros(len(action), np.float32), np.arange(len(action))
        for (_, where), chosen in zip(self._choices.factors(), action.reshape(len(action), -1).T, strict=True):
            powers = np.exp(logits[:, where] - logits[:, where].max(axis=-1, keepdims=True))
            probability = powers / powers.sum(axis=-1, keepdims=True)
            log_prob += np.log(np.maximum(probability[every, chosen], np.finfo(np.float32).tiny))
            probability[every, chosen] -= 1.0
            slopes[:, where] = probability
        return slopes * (weight / len(action))[:, None], log_prob

    def costs(self, log_prob: Array, action: Array) -> Array:
        return -log_prob

    def held_out(self, policy: NetworkPolicy, rows: Array, action: Array) -> Array:
        mask, observer = policy.observer.mask(rows), policy.observer
        with torch.inference_mode():
            logits, allowed_ones = policy.by_torch.tensor(rows), None if mask is None else observer.tensor(mask)
            return -self._log_prob(logits, observer.tensor(action), allowed_ones).cpu().numpy()

    def _log_prob(self, logits: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        return self._choices.log_prob(logits if mask is None else torch.where(mask, logits, FORBIDDEN), action)


Regression = SquaredError | SquashedLikelihood | GaussianLikelihood | CategoricalLikelihood
SampledPolicy = ClippedGaussianPolicy | SquashedGaussianPolicy


class Head(NamedTuple):
    """A policy, how many outputs it needs for each action dimension, and what makes its regression."""

    policy: type[NetworkPolicy]
    outputs: int
    regression: Callable[..., Regression]


# The heads for continuous actions that are trained by likelihood; the setting `policy_head` names one.
HEADS = {
    "gaussian": Head(ClippedGaussianPolicy, 1, GaussianLikelihood),
    "squashed": Head(SquashedGaussianPolicy, 2, lambda policy: SquashedLikelihood()),
}
MEAN = Head(DeterministicPolicy, 1, lambda policy: SquaredError())
CHOICES = Head(CategoricalPolicy, 1, lambda policy: CategoricalLikelihood(policy.choices))
