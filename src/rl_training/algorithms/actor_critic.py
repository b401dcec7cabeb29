"""The parts of the continuous actor-critics: critics that regress on targets, and actors that climb them.

Every part has two forms of the same mathematics: a readable one for autograd, which serves any network on any device,
and one for the MLP engine, which serves the default networks on a CPU. A test holds them equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Context, model_setting, setting
from rl_training.algorithms.observer import Observer
from rl_training.algorithms.off_policy import OffPolicyModelConfig, flat_rows
from rl_training.models.ensemble import CriticEnsemble
from rl_training.models.heads import MLPNetwork
from rl_training.models.learner import Follower, Learner
from rl_training.models.mlp_ddpg import CriticShape
from rl_training.models.mlp_engine import acting_engine, covered, network_engine, stacked_engine
from rl_training.ops.distributions import squashed_sample
from rl_training.ops.kernels.squashed import squashed_backward, squashed_forward
from rl_training.ops.kernels.td import ensemble_value_gradient, quantile_huber_gradient
from rl_training.ops.value import ensemble_value_loss, quantile_huber_loss
from rl_training.types import Array, UserError


class EnsembleModelConfig(OffPolicyModelConfig):
    """An actor and several critics."""

    model: str = model_setting(probe="rl_training.testing:LinearSoftActorCritic")
    n_critics: int = setting(2, "Critics in the ensemble.", ge=1, probe=3)


@dataclass(frozen=True)
class Reduction:
    """One value for each sample out of those of some critics `[critics, B, quantiles]`: what an actor climbs.

    `gradient` is that of the mean over the batch.
    """

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Array], Array]
    only_first: bool = False  # the other critics need not be asked


def _least_gradient(values: Array) -> Array:
    gradient = np.zeros_like(values)
    rows = values.shape[1]
    gradient[values[..., 0].argmin(axis=0), np.arange(rows), 0] = 1.0 / rows
    return gradient


def _mean_gradient(values: Array) -> Array:
    return np.full_like(values, 1.0 / values.size)


LEAST = Reduction(lambda values: values.squeeze(-1).min(dim=0).values, _least_gradient)
MEAN = Reduction(lambda values: values.mean(dim=(0, 2)), _mean_gradient)
FIRST = Reduction(lambda values: values[0, :, 0], _mean_gradient, only_first=True)


@dataclass(frozen=True)
class Networks:
    """An actor, its critics and their number; `fast` says that the engine serves both."""

    actor: nn.Module
    critic: nn.Module
    n_critics: int
    fast: bool


class Critics:
    """An ensemble that judges actions, and the copy of it that targets are computed with."""

    def __init__(self, networks: Networks, observer: Observer) -> None:
        module, fast, self.count = networks.critic, networks.fast, networks.n_critics
        self.learner = Learner(module)
        self.follower = Follower(self.learner)
        self._observer = observer
        self.fast = fast
        if fast:
            assert isinstance(module, CriticEnsemble)
            assert isinstance(self.follower.module, CriticEnsemble)
            online, slow = module.members, self.follower.module.members
            self._engine = stacked_engine(online, trained=True)
            self._first_engine = stacked_engine(online, trained=False, members=slice(0, 1))
            self._target = stacked_engine(slow, trained=False)
            one_by_one = (slice(m, m + 1) for m in range(self.count))
            self._each_target = [stacked_engine(slow, trained=False, members=one) for one in one_by_one]

    def target(self, obs: Array, action: Array, members: Array | None = None) -> Array:
        """Values `[critics, B, quantiles]` by the slow copies, of all critics or of some."""
        if self.fast:
            x = self._joined(obs, action)
            if members is None:
                return self._target.forward(x)
            return np.concatenate([self._each_target[m].forward(x) for m in members])
        with torch.inference_mode():
            values = self.follower.module(self._observer.tensors(obs), self._observer.tensor(action))
        array: Array = values.cpu().numpy()
        return array if members is None else array[members]

    def fit(self, obs: Array, action: Array, target: Array, learning_rate: float) -> tuple[float, float]:
        """One step towards targets: `[B]`, or samples `[B, M]` for quantiles; gives the loss and the mean value."""
        target = np.ascontiguousarray(target, np.float32)
        loss, mean = (self._fit_closed_form if self.fast else self._fit_autograd)(obs, action, target)
        self.learner.descend(learning_rate)
        return loss, mean

    def _fit_autograd(self, obs: Array, action: Array, target: Array) -> tuple[float, float]:
        goal = self._observer.tensor(target)
        values = self.learner.module(self._observer.tensors(obs), self._observer.tensor(action))
        plain = target.ndim == 1
        loss = ensemble_value_loss(values.squeeze(-1), goal) if plain else quantile_huber_loss(values, goal)
        self.learner.differentiate(loss)
        return float(loss.detach()), float(values.detach().mean())

    def _fit_closed_form(self, obs: Array, action: Array, target: Array) -> tuple[float, float]:
        values = self._engine.forward(self._joined(obs, action))
        d_values = np.empty_like(values)
        if target.ndim == 1:
            loss, mean = ensemble_value_gradient(values[..., 0], target, d_values[..., 0])
        else:
            loss, mean = quantile_huber_gradient(values, target, d_values)
        self._engine.backward(d_values)
        return loss, mean

    def action_gradient(self, obs: Array, action: Array, reduction: Reduction) -> tuple[float, Array]:
        """The mean of the reduced values, and its gradient by the actions `[B, A]`; for the engine's form."""
        engine = self._first_engine if reduction.only_first else self._engine
        values = engine.forward(self._joined(obs, action))
        weights = reduction.gradient(values)
        gradient: Array = engine.input_gradient(weights, action.shape[1]).sum(axis=0)
        return float((values * weights).sum()), gradient

    def _joined(self, obs: Array, action: Array) -> Array:
        return np.concatenate([action, flat_rows(self._observer.arrays(obs))], axis=1)


class Actor:
    """The policy of a continuous actor-critic: a network whose output becomes an action in [-1, 1]."""

    def __init__(self, networks: Networks, observer: Observer) -> None:
        module, fast = networks.actor, networks.fast
        self.learner = Learner(module)
        self._observer = observer
        self.fast = fast
        if fast:
            assert isinstance(module, MLPNetwork)
            self._engine = network_engine(module, trained=True)
            self._few = acting_engine(module, self.learner.parameters)

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

    def sample(self, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Actions and their log-densities for standard normal noise `[B, A]`, without a gradient."""
        if self.fast:
            return squashed(self._engine.forward(flat_rows(self._observer.arrays(rows))), noise)
        with torch.inference_mode():
            action, log_prob = squashed_sample(self.learner.module(self.inputs(rows)), self.tensor(noise))
        return action.cpu().numpy(), log_prob.cpu().numpy()

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
        value, gradient = critics.action_gradient(rows, action, reduction)
        d_params = np.empty_like(params)
        squashed_backward(params, noise, action, -gradient, ent_coef / len(noise), d_params)
        self._engine.backward(d_params)
        mean = float(log_prob.mean())
        return ent_coef * mean - value, mean


class DeterministicActor(Actor):
    """One action for every observation: tanh of what the network gives. Targets use a slow copy of it."""

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

    def climb(self, rows: Array, critics: Critics, learning_rate: float) -> float:
        """One step towards E[Q(s, pi(s))]; gives the loss."""
        loss = (self._climb_closed_form if self.fast else self._climb_autograd)(rows, critics)
        self.learner.descend(learning_rate)
        return loss

    def _climb_autograd(self, rows: Array, critics: Critics) -> float:
        inputs = self.inputs(rows)
        loss = -FIRST.value(critics.learner.module(inputs, self.learner.module(inputs).tanh())).mean()
        self.learner.differentiate(loss)
        return float(loss.detach())

    def _climb_closed_form(self, rows: Array, critics: Critics) -> float:
        action = np.tanh(self._engine.forward(flat_rows(self._observer.arrays(rows))))
        value, gradient = critics.action_gradient(rows, action, FIRST)
        self._engine.backward(-gradient * (1.0 - action * action))
        return -value


def soft_actor_loss(value: Tensor, log_prob: Tensor, ent_coef: float) -> Tensor:
    """ent_coef log pi(a | s) - Q(s, a), averaged over the batch (Haarnoja et al. 2018, eq. 9)."""
    return (ent_coef * log_prob - value).mean()


def squashed(params: Array, noise: Array) -> tuple[Array, Array]:
    """Actions and their log-densities from what a soft actor's network gives."""
    action, log_prob = np.empty_like(noise), np.empty(len(noise), np.float32)
    squashed_forward(params, noise, action, log_prob)
    return action, log_prob


def build_networks(
    context: Context, default: Callable[[Any, CriticShape], nn.Module], *, actor_outputs: int, n_quantiles: int = 1
) -> Networks:
    """The default networks or a user's own, tried on two observations of zeros: what they give must fit."""
    model, info = context.model, context.info
    assert isinstance(model, EnsembleModelConfig)
    shape = CriticShape(model.hidden_sizes, model.activation, model.n_critics, n_quantiles)
    make = context.model_factory
    network = (default(info, shape) if make is None else make(info, model)).to(context.device)
    actor, critic = (getattr(network, part, None) for part in ("actor", "critic"))
    if not isinstance(actor, nn.Module) or not isinstance(critic, nn.Module):
        raise UserError(f"model={model.model!r}: must have the modules 'actor' and 'critic'")
    if {id(parameter) for parameter in actor.parameters()} & {id(parameter) for parameter in critic.parameters()}:
        raise UserError(
            f"model={model.model!r}: 'actor' and 'critic' must not share parameters: each has its optimiser"
        )
    observer = Observer(info, context.device, normalize=False, clip=1.0)
    obs = observer.tensors(np.zeros((2, *info.obs_shape), info.obs_dtype))
    network.eval()
    with torch.inference_mode():
        given = actor(obs).shape
        values = critic(obs, torch.zeros(2, info.action_size, device=context.device)).shape
    for what, found, wanted in (
        (f"actor(obs) must give [B, {actor_outputs}]", given, (2, actor_outputs)),
        (f"critic(obs, action) must give [critics, B, {n_quantiles}]", values, (*values[:1], 2, n_quantiles)),
    ):
        if tuple(found) != wanted:
            raise UserError(f"model={model.model!r}: {what}; for a batch of 2 it gave {tuple(found)}")
    return Networks(actor, critic, values[0], fast=make is None and context.engine == "auto" and covered(network))
