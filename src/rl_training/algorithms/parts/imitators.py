"""Actors that only ever learn to repeat what somebody did.

Both forms of each, as in `critics.py`: for autograd, and for the MLP engine. A test holds them equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.off_policy import flat_rows
from rl_training.algorithms.parts.actors import Actor
from rl_training.algorithms.parts.networks import Networks
from rl_training.algorithms.parts.observer import Observer
from rl_training.ops.distributions import FORBIDDEN, Categorical, gaussian_log_prob
from rl_training.ops.kernels.likelihood import gaussian_likelihood, gaussian_likelihood_backward
from rl_training.ops.policy import imitation_loss
from rl_training.types import Array

# Of the log deviations that are the same for all observations (Kostrikov et al. 2022).
LOG_STD_RANGE = (-5.0, 2.0)


class WithDeviation(nn.Module):
    """A network that gives means, and log deviations that are the same for every observation."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.log_std = nn.Parameter(torch.zeros(size))

    def forward(self, obs: Any) -> Tensor:
        mean: Tensor = self.network(obs)
        return mean


class GaussianActor(Actor):
    """Actions have a Gaussian around tanh of what the network gives; they are clipped, not squashed."""

    def __init__(self, networks: Networks, observer: Observer, size: int) -> None:
        self._policy = WithDeviation(networks.actor, size).to(observer.device)
        super().__init__(networks, observer, trained=self._policy)

    def decide(self, rows: Array, rng: np.random.Generator | None) -> Array:
        """Actions for (scaled) observations: drawn and then clipped to [-1, 1], or without a generator the means."""
        mean = np.tanh(self.raw(rows))
        if rng is None:
            return mean
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        log_std = self._policy.log_std.detach().clamp(*LOG_STD_RANGE).cpu().numpy()
        action: Array = np.clip(mean + np.exp(log_std) * noise, -1.0, 1.0)
        return action

    def imitate(self, rows: Array, action: Array, weight: Array, learning_rate: float) -> Array:
        """One step towards given actions, each as important as its weight; gives minus their log-densities `[B]`."""
        log_prob = (self._imitate_closed_form if self.fast else self._imitate_autograd)(rows, action, weight)
        self.learner.descend(learning_rate)
        with torch.no_grad():  # a deviation that left its range would get no gradient to come back by
            self._policy.log_std.clamp_(*LOG_STD_RANGE)
        return -log_prob

    def _log_prob(self, rows: Array, action: Array) -> Tensor:
        mean = self._policy(self.inputs(rows)).tanh()
        return gaussian_log_prob(mean, self._policy.log_std, self.tensor(action))

    def _imitate_autograd(self, rows: Array, action: Array, weight: Array) -> Array:
        log_prob = self._log_prob(rows, action)
        self.learner.differentiate(imitation_loss(log_prob, self.tensor(weight)))
        return log_prob.detach().cpu().numpy()

    def _imitate_closed_form(self, rows: Array, action: Array, weight: Array) -> Array:
        log_std, grad = self._policy.log_std, self._policy.log_std.grad
        assert grad is not None
        mean = np.tanh(self._engine.forward(flat_rows(self._observer.arrays(rows))))
        log_prob, d_mean = np.empty(len(mean), np.float32), np.empty_like(mean)
        deviations = log_std.detach().numpy()
        gaussian_likelihood(mean, deviations, action, log_prob)
        gaussian_likelihood_backward(mean, deviations, action, weight / -len(mean), d_mean, grad.numpy())
        self._engine.backward(d_mean * (1.0 - mean * mean))
        return log_prob


class ChoiceActor(Actor):
    """One of several choices: the network gives their logits."""

    def decide(self, rows: Array, rng: np.random.Generator | None) -> Array:
        """Choices for (scaled) observations: drawn, or without a generator the most likely ones."""
        logits = _allowed(self.raw(rows), self._observer.mask(rows))
        choices = Categorical(logits.shape[-1])
        return choices.mode(logits) if rng is None else choices.sample(logits, rng)[0]

    def cost(self, rows: Array, action: Array) -> Array:
        """How unlikely given choices are, as minus their log-probabilities `[B]`, without a gradient."""
        self.learner.module.eval()  # nothing is drawn for it, and no statistics move
        with torch.inference_mode():
            return -self._log_prob(rows, action).cpu().numpy()

    def imitate(self, rows: Array, action: Array, weight: Array, learning_rate: float) -> Array:
        """One step towards given choices `[B]`, each as important as its weight; gives what `cost` was before it."""
        log_prob = (self._imitate_closed_form if self.fast else self._imitate_autograd)(rows, action, weight)
        self.learner.descend(learning_rate)
        return -log_prob

    def _log_prob(self, rows: Array, action: Array) -> Tensor:
        logits, mask = self.learner.module(self.inputs(rows)), self._observer.mask(rows)
        if mask is not None:
            logits = torch.where(self.tensor(mask), logits, FORBIDDEN)
        return Categorical(logits.shape[-1]).log_prob(logits, self.tensor(action))

    def _imitate_autograd(self, rows: Array, action: Array, weight: Array) -> Array:
        log_prob = self._log_prob(rows, action)
        self.learner.differentiate(imitation_loss(log_prob, self.tensor(weight)))
        return log_prob.detach().cpu().numpy()

    def _imitate_closed_form(self, rows: Array, action: Array, weight: Array) -> Array:
        logits = self._engine.forward(flat_rows(self._observer.arrays(rows)))
        logits = _allowed(logits, self._observer.mask(rows))
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probability = powers / powers.sum(axis=-1, keepdims=True)
        every = np.arange(len(action))
        log_prob: Array = np.log(np.maximum(probability[every, action], np.finfo(np.float32).tiny))
        probability[every, action] -= 1.0
        self._engine.backward(probability * (weight / len(action))[:, None])
        return log_prob


def _allowed(logits: Array, mask: Array | None) -> Array:
    return logits if mask is None else np.where(mask, logits, np.float32(FORBIDDEN))
