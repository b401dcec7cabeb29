"""Critics that regress on targets, and what actors climb of them.

Every part has two forms of the same mathematics: a readable one for autograd, which serves any network on any device,
and one for the MLP engine, which serves the default networks on a CPU. A test holds them equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.off_policy import flat_rows
from rl_training.algorithms.parts.networks import Networks
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.ensemble import CriticEnsemble
from rl_training.models.learner import Follower, Learner
from rl_training.models.mlp_engine import stacked_engine
from rl_training.ops.kernels.conservative import conservative_gradient
from rl_training.ops.kernels.td import ensemble_value_gradient, quantile_huber_gradient
from rl_training.ops.value import conservative_gap, ensemble_value_loss, quantile_huber_loss
from rl_training.types import Array

_STATES_TOGETHER = 32


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
class DrawnActions:
    """Actions `[B, S, A]` that were drawn for every state, and the log-densities `[B, S]` with which they were."""

    action: Array
    log_density: Array


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

    def online(self, obs: Array, action: Array) -> Array:
        """Values `[critics, B, quantiles]` as they are now, without a gradient."""
        if self.fast:
            return self._engine.forward(self._joined(obs, action))
        with torch.inference_mode():
            values: Array = self._values(obs, action).cpu().numpy()
        return values

    def fit(self, obs: Array, action: Array, target: Array, learning_rate: float) -> tuple[float, float]:
        """One step towards targets: `[B]`, or samples `[B, M]` for quantiles; gives the loss and the mean value."""
        loss, values = self.differentiate(obs, action, target)
        mean = float(values.mean())
        self.learner.descend(learning_rate)
        return loss, mean

    def differentiate(self, obs: Array, action: Array, target: Array) -> tuple[float, Array]:
        """Leave the gradient of that step in the flat buffer; gives the loss and the values of all critics."""
        target = np.ascontiguousarray(target, np.float32)
        return (self._closed_form if self.fast else self._autograd)(obs, action, target)

    def _autograd(self, obs: Array, action: Array, target: Array) -> tuple[float, Array]:
        goal = self._observer.tensor(target)
        values = self._values(obs, action)
        plain = target.ndim == 1
        loss = ensemble_value_loss(values.squeeze(-1), goal) if plain else quantile_huber_loss(values, goal)
        self.learner.differentiate(loss)
        return float(loss.detach()), values.detach().cpu().numpy()

    def _closed_form(self, obs: Array, action: Array, target: Array) -> tuple[float, Array]:
        values = self._engine.forward(self._joined(obs, action))
        d_values = np.empty_like(values)
        if target.ndim == 1:
            loss, _ = ensemble_value_gradient(values[..., 0], target, d_values[..., 0])
        else:
            loss, _ = quantile_huber_gradient(values, target, d_values)
        self._engine.backward(d_values)
        return loss, values

    def fit_conservatively(
        self, obs: Array, action: Array, target: Array, drawn: DrawnActions, weight: float, learning_rate: float
    ) -> tuple[float, float, float]:
        """One step towards targets `[B]` that lowers the values of drawn actions against those of the data's.

        Gives the squared error, the mean value and the mean gap between the two.
        """
        step = self._conservative_closed_form if self.fast else self._conservative_autograd
        found = step(obs, action, np.ascontiguousarray(target, np.float32), drawn, weight)
        self.learner.descend(learning_rate)
        return found

    def _conservative_autograd(
        self, obs: Array, action: Array, target: Array, drawn: DrawnActions, weight: float
    ) -> tuple[float, float, float]:
        batch, count = drawn.log_density.shape
        rows = np.concatenate([obs, np.repeat(obs, count, axis=0)])
        actions = np.concatenate([action, drawn.action.reshape(batch * count, -1)])
        values = self._values(rows, actions).squeeze(-1)
        value, sampled = values[:, :batch], values[:, batch:].reshape(-1, batch, count)
        error = ensemble_value_loss(value, self._observer.tensor(target))
        gap = conservative_gap(value, sampled, self._observer.tensor(drawn.log_density))
        self.learner.differentiate(error + weight * gap.sum())
        return float(error.detach()), float(value.detach().mean()), float(gap.detach().mean())

    def _conservative_closed_form(
        self, obs: Array, action: Array, target: Array, drawn: DrawnActions, weight: float
    ) -> tuple[float, float, float]:
        inputs = flat_rows(self._observer.arrays(obs))
        actions = np.concatenate([action[:, None], drawn.action], axis=1)
        batch, width, size = actions.shape
        gradient = torch.zeros_like(self.learner.parameters.grad)
        found = np.zeros(3)
        # A few states at a time: what is in between then stays in the processor's cache.
        for start in range(0, batch, _STATES_TOGETHER):
            part = slice(start, start + _STATES_TOGETHER)
            some = len(inputs[part])
            rows = np.empty((some, width, size + inputs.shape[1]), np.float32)
            rows[..., :size], rows[..., size:] = actions[part], inputs[part, None]
            values = self._engine.forward(rows.reshape(some * width, -1)).reshape(-1, some, width)
            d_values = np.empty_like(values)
            found += conservative_gradient(values, target[part], drawn.log_density[part], weight, batch, d_values)
            self._engine.backward(d_values.reshape(-1, some * width, 1))
            gradient += self.learner.parameters.grad
        self.learner.parameters.grad.copy_(gradient)
        return float(found[0]), float(found[1]), float(found[2])

    def action_gradient(self, obs: Array, action: Array, reduction: Reduction) -> tuple[Array, Array]:
        """The reduced values `[B]`, and the gradient of their mean by the actions `[B, A]`; for the engine's form."""
        engine = self._first_engine if reduction.only_first else self._engine
        values = engine.forward(self._joined(obs, action))
        weights = reduction.gradient(values)
        gradient: Array = engine.input_gradient(weights, action.shape[1]).sum(axis=0)
        return (values * weights).sum(axis=(0, 2)) * len(action), gradient

    def _values(self, obs: Array, action: Array) -> Tensor:
        values: Tensor = self.learner.module(self._observer.tensors(obs), self._observer.tensor(action))
        return values

    def _joined(self, obs: Array, action: Array) -> Array:
        return np.concatenate([action, flat_rows(self._observer.arrays(obs))], axis=1)
