"""Actors of continuous actions: they climb what critics say, or repeat what somebody did.

Both forms of each, as in `critics.py`: for autograd, and for the MLP engine. A test holds them equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.off_policy import flat_rows
from rl_training.algorithms.parts.critics import FIRST, Critics, Reduction
from rl_training.algorithms.parts.networks import Networks
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.heads import MLPNetwork
from rl_training.models.learner import Follower, Learner
from rl_training.models.mlp_engine import acting_engine, network_engine
from rl_training.ops.distributions import before_squashing, squashed_log_prob, squashed_sample
from rl_training.ops.kernels.likelihood import squashed_likelihood, squashed_likelihood_backward
from rl_training.ops.kernels.squashed import squashed_backward, squashed_forward
from rl_training.ops.policy import imitation_loss, squared_imitation_loss
from rl_training.types import Array

# What a soft actor's network gives: an array of the engine's, or a tensor with its graph.
Params = Array | Tensor


class Actor:
    """The policy of a continuous actor-critic: a network whose output becomes an action in [-1, 1]."""

    def __init__(self, networks: Networks, observer: Observer, trained: nn.Module | None = None) -> None:
        """`trained` is what has the actor's parameters, if that is more than its network."""
        network = networks.actor
        self.learner = Learner(network if trained is None else trained)
        self._observer = observer
        self.fast = networks.fast
        if self.fast:
            assert isinstance(network, MLPNetwork)
            self._engine = network_engine(network, trained=True)
            self._few = acting_engine(network, self.learner.parameters)

    def raw(self, rows: Array) -> Array:
        """What the network gives for (scaled) observations, without a gradient: for acting."""
        if self.fast:
            return self._few(flat_rows(self._observer.arrays(rows)))
        self.learner.module.eval()
        with torch.inference_mode():
            raw: Array = self.learner.module(self._observer.tensors(rows)).cpu().numpy()
        return raw

    def tensor(self, array: Array) -> Tensor:
        return self._observer.tensor(array)

    def inputs(self, rows: Array) -> Any:
        return self._observer.tensors(rows)


class SoftActor(Actor):
    """Actions are tanh of a Gaussian's samples (Haarnoja et al. 2018, appendix C)."""

    def decide(self, rows: Array, rng: np.random.Generator | None) -> Array:
        """Actions for (scaled) observations: drawn, or without a generator the most likely ones."""
        raw = self.raw(rows)
        size = raw.shape[1] // 2
        if rng is None:
            return np.tanh(raw[:, :size])
        return squashed(raw, rng.standard_normal((len(raw), size), dtype=np.float32))[0]

    def sample(self, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Actions and their log-densities for standard normal noise `[B, A]`, without a gradient."""
        if self.fast:
            return squashed(self._engine.forward(flat_rows(self._observer.arrays(rows))), noise)
        with torch.inference_mode():
            action, log_prob = squashed_sample(self.learner.module(self.inputs(rows)), self.tensor(noise))
        return action.cpu().numpy(), log_prob.cpu().numpy()

    def sample_several(self, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Actions `[B, S, A]` and their log-densities `[B, S]` for noise `[B, S, A]`, the network being asked once."""
        batch, count, size = noise.shape
        if self.fast:
            params = self._engine.forward(flat_rows(self._observer.arrays(rows)))
        else:
            with torch.inference_mode():
                params = self.learner.module(self.inputs(rows)).cpu().numpy()
        action, log_prob = squashed(np.repeat(params, count, axis=0), noise.reshape(batch * count, size))
        return action.reshape(noise.shape), log_prob.reshape(batch, count)

    def climb(
        self, rows: Array, noise: Array, critics: Critics, reduction: Reduction, ent_coef: float, learning_rate: float
    ) -> tuple[float, float]:
        """One step towards E[Q(s, a) - ent_coef log pi(a | s)]; gives the loss and the mean log-density."""
        step = self._climb_closed_form if self.fast else self._climb_autograd
        loss, log_prob = step(rows, noise, critics, reduction, ent_coef)
        self.learner.descend(learning_rate)
        return loss, log_prob

    def _climb_autograd(
        self, rows: Array, noise: Array, critics: Critics, reduction: Reduction, ent_coef: float
    ) -> tuple[float, float]:
        inputs = self.inputs(rows)
        action, log_prob = squashed_sample(self.learner.module(inputs), self.tensor(noise))
        value = reduction.value(critics.learner.module(inputs, action))
        loss = soft_actor_loss(value, log_prob, ent_coef)
        self.learner.differentiate(loss)
        return float(loss.detach()), float(log_prob.detach().mean())

    def _climb_closed_form(
        self, rows: Array, noise: Array, critics: Critics, reduction: Reduction, ent_coef: float
    ) -> tuple[float, float]:
        params = self._engine.forward(flat_rows(self._observer.arrays(rows)))
        action, log_prob = squashed(params, noise)
        values, gradient = critics.action_gradient(rows, action, reduction)
        d_params = np.empty_like(params)
        squashed_backward(params, noise, action, -gradient, ent_coef / len(noise), d_params)
        self._engine.backward(d_params)
        mean = float(log_prob.mean())
        return ent_coef * mean - float(values.mean()), mean

    def cost(self, rows: Array, action: Array) -> Array:
        """How unlikely given actions are, as minus their log-densities `[B]`, without a gradient."""
        self.learner.module.eval()  # nothing is drawn for it, and no statistics move
        with torch.inference_mode():
            return -squashed_log_prob(self.learner.module(self.inputs(rows)), self.tensor(action)).cpu().numpy()

    def imitate(self, rows: Array, action: Array, weight: Array, learning_rate: float) -> Array:
        """One step towards given actions, each as important as its weight; gives what `cost` was before it."""
        return self.imitate_from(self.params(rows), action, weight, learning_rate)

    def params(self, rows: Array) -> Params:
        """Means and log deviations `[B, 2A]`, with what `imitate_from` needs to learn from them."""
        if self.fast:
            return self._engine.forward(flat_rows(self._observer.arrays(rows)))
        given: Tensor = self.learner.module(self.inputs(rows))
        return given

    def sample_from(self, params: Params, noise: Array) -> Array:
        """Actions for standard normal noise `[B, A]`, without a gradient."""
        return squashed(params if isinstance(params, np.ndarray) else params.detach().cpu().numpy(), noise)[0]

    def imitate_from(self, params: Params, action: Array, weight: Array, learning_rate: float) -> Array:
        """`imitate`, when the network has been asked already; nothing else may have asked it since."""
        if isinstance(params, np.ndarray):
            log_prob = self._imitate_closed_form(params, action, weight)
        else:
            given = squashed_log_prob(params, self.tensor(action))
            self.learner.differentiate(imitation_loss(given, self.tensor(weight)))
            log_prob = given.detach().cpu().numpy()
        self.learner.descend(learning_rate)
        return -log_prob

    def _imitate_closed_form(self, params: Array, action: Array, weight: Array) -> Array:
        raw = before_squashing(torch.from_numpy(action)).numpy()
        log_prob, d_params = np.empty(len(raw), np.float32), np.empty_like(params)
        squashed_likelihood(params, raw, log_prob)
        squashed_likelihood_backward(params, raw, weight / -len(raw), d_params)
        self._engine.backward(d_params)
        return log_prob


class MeanActor(Actor):
    """One action for every observation: tanh of what the network gives."""

    def decide(self, rows: Array, rng: np.random.Generator | None) -> Array:
        """The action for (scaled) observations; nothing is drawn."""
        return np.tanh(self.raw(rows))

    def cost(self, rows: Array, action: Array) -> Array:
        """How far from given actions it is: the mean square of every sample `[B]`."""
        far: Array = np.square(self.decide(rows, None) - action).mean(axis=-1)
        return far

    def imitate(self, rows: Array, action: Array, weight: Array, learning_rate: float) -> Array:
        """One step towards given actions, each as important as its weight; gives what `cost` was before it."""
        own = (self._imitate_closed_form if self.fast else self._imitate_autograd)(rows, action, weight)
        self.learner.descend(learning_rate)
        far: Array = np.square(own - action).mean(axis=-1)
        return far

    def _imitate_autograd(self, rows: Array, action: Array, weight: Array) -> Array:
        own = self.learner.module(self.inputs(rows)).tanh()
        self.learner.differentiate(squared_imitation_loss(own, self.tensor(action), self.tensor(weight)))
        actions: Array = own.detach().cpu().numpy()
        return actions

    def _imitate_closed_form(self, rows: Array, action: Array, weight: Array) -> Array:
        own = np.tanh(self._engine.forward(flat_rows(self._observer.arrays(rows))))
        self._engine.backward((2.0 / own.size) * weight[:, None] * (own - action) * (1.0 - own * own))
        return own


class DeterministicActor(MeanActor):
    """One action for every observation. Targets use a slow copy of it."""

    def __init__(self, networks: Networks, observer: Observer) -> None:
        super().__init__(networks, observer)
        self.follower = Follower(self.learner)
        if self.fast:
            assert isinstance(self.follower.module, MLPNetwork)
            self._target = network_engine(self.follower.module, trained=False)

    def target(self, rows: Array) -> Array:
        """The slow copy's actions."""
        if self.fast:
            return np.tanh(self._target.forward(flat_rows(self._observer.arrays(rows))))
        with torch.inference_mode():
            raw: Array = self.follower.module(self.inputs(rows)).cpu().numpy()
        return np.tanh(raw)

    def climb(self, rows: Array, critics: Critics, learning_rate: float, anchor: Anchor | None = None) -> float:
        """One step towards E[Q(s, pi(s))], or towards that and an anchor; gives the loss."""
        loss = (self._climb_closed_form if self.fast else self._climb_autograd)(rows, critics, anchor)
        self.learner.descend(learning_rate)
        return loss

    def _climb_autograd(self, rows: Array, critics: Critics, anchor: Anchor | None) -> float:
        inputs = self.inputs(rows)
        action = self.learner.module(inputs).tanh()
        value = FIRST.value(critics.learner.module(inputs, action))
        loss = -value.mean()
        if anchor is not None:
            loss = anchored_actor_loss(value, action, self.tensor(anchor.action), anchor.alpha)
        self.learner.differentiate(loss)
        return float(loss.detach())

    def _climb_closed_form(self, rows: Array, critics: Critics, anchor: Anchor | None) -> float:
        action = np.tanh(self._engine.forward(flat_rows(self._observer.arrays(rows))))
        value, gradient = critics.action_gradient(rows, action, FIRST)
        loss, d_action = -float(value.mean()), -gradient
        if anchor is not None:
            error, scale = action - anchor.action, anchor.alpha / _size_of(float(np.abs(value).mean()))
            loss = scale * loss + float((error * error).mean())
            d_action = np.float32(scale) * d_action + (2.0 / error.size) * error
        self._engine.backward(d_action * (1.0 - action * action))
        return loss


@dataclass(frozen=True)
class Anchor:
    """Actions `[B, A]` that an actor stays near to; `alpha` is how much more than that the values count."""

    action: Array
    alpha: float


def anchored_actor_loss(value: Tensor, action: Tensor, anchor: Tensor, alpha: float) -> Tensor:
    """-lambda Q + (action - anchor)^2, lambda = alpha / mean |Q|, which has no gradient (Fujimoto and Gu 2021, eq. 5).

    The squares are averaged over samples and dimensions.
    """
    scale = alpha / _size_of(float(value.detach().abs().mean()))
    return -scale * value.mean() + (action - anchor).square().mean()


def _size_of(mean_magnitude: float) -> float:
    """Never 0, so that values of 0 have no weight instead of an infinite one."""
    return max(mean_magnitude, 1e-8)


def soft_actor_loss(value: Tensor, log_prob: Tensor, ent_coef: float) -> Tensor:
    """ent_coef log pi(a | s) - Q(s, a), averaged over the batch (Haarnoja et al. 2018, eq. 9)."""
    return (ent_coef * log_prob - value).mean()


def squashed(params: Array, noise: Array) -> tuple[Array, Array]:
    """Actions and their log-densities from what a soft actor's network gives."""
    action, log_prob = np.empty_like(noise), np.empty(len(noise), np.float32)
    squashed_forward(params, noise, action, log_prob)
    return action, log_prob


def noisy(action: Array, noise_std: float, rng: np.random.Generator) -> Array:
    """Actions off by Gaussian noise, within [-1, 1]."""
    noise = rng.standard_normal(action.shape, dtype=np.float32)
    moved: Array = np.clip(action + np.float32(noise_std) * noise, -1.0, 1.0)
    return moved
