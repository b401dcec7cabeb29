"""The trained parts of the actor-critics: a network, critics, and the improvement of a policy by the critics.

Each part has one contract and two forms. The contracts are here, with the readable form, in which autograd computes any
network on any device. `engine.py` has the closed form for MLPs on a CPU. The form is chosen once, when an algorithm is
built. Tests check that the two are equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.parts.networks import Networks
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.flat import FlatWeights, Follower, Learner
from rl_training.ops.distributions import squashed_sample
from rl_training.ops.kernels.td import ensemble_value_gradient
from rl_training.ops.value import conservative_gap, ensemble_value_loss
from rl_training.types import Array


class OutputObjective(Protocol):
    """A loss of a network's outputs, written twice: in torch, and as a gradient in closed form.

    Both are functions of the outputs and of further columns of a minibatch. `loss` returns the loss and a report,
    `gradient` the gradient with respect to the outputs and the report.
    """

    @property
    def loss(self) -> Callable[..., tuple[Tensor, Tensor]]: ...

    @property
    def gradient(self) -> Callable[..., tuple[Array, Any]]: ...


class TrainedNetwork(ABC):
    """A network from observations to outputs `[B, outputs]`, its optimiser and, optionally, its target network.

    Observations are scaled rows. Arrays that a method returns are valid until the next call.
    """

    def __init__(
        self,
        module: nn.Module,
        observer: Observer,
        *,
        weights: FlatWeights | None = None,
        layers: nn.Module | None = None,
        with_target: bool = False,
    ) -> None:
        """`weights` are the module's flat weights, if they exist; `layers` is its MLP, if that is only a part of it."""
        self.learner = Learner(module, weights)
        self.follower = Follower(self.learner) if with_target else None
        self.observer = observer
        self.layers = module if layers is None else layers

    @abstractmethod
    def forward(self, rows: Array) -> Any:
        """The outputs in the form's own type, from which `backward` can take a gradient."""

    @abstractmethod
    def array(self, outputs: Any) -> Array:
        """What `forward` returned, as an array."""

    @abstractmethod
    def backward(self, outputs: Any, objective: OutputObjective, *columns: Array | None) -> Array:
        """Write the gradient of an objective to the flat buffer; returns what the objective reports."""

    @abstractmethod
    def outputs(self, rows: Array) -> Array:
        """The outputs as an array, without a gradient."""

    @abstractmethod
    def target_outputs(self, rows: Array) -> Array:
        """The outputs of the target network."""

    @abstractmethod
    def squashed_actions(self, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Actions and their log-densities of a squashed Gaussian for standard normal noise `[B, A]`."""

    def fit(self, rows: Array, objective: OutputObjective, *columns: Array | None, learning_rate: float) -> Array:
        """Take one optimiser step on an objective; returns what the objective reports."""
        report = self.backward(self.forward(rows), objective, *columns)
        self.learner.descend(learning_rate)
        return report


class AutogradNetwork(TrainedNetwork):
    """Any network, by autograd."""

    def forward(self, rows: Array) -> Tensor:
        outputs: Tensor = self.learner.module(self.observer.tensors(rows))
        return outputs

    def array(self, outputs: Tensor) -> Array:
        return outputs.detach().cpu().numpy()

    def backward(self, outputs: Tensor, objective: OutputObjective, *columns: Array | None) -> Array:
        tensors = (None if column is None else self.observer.tensor(column) for column in columns)
        loss, report = objective.loss(outputs, *tensors)
        self.learner.differentiate(loss)
        array: Array = report.detach().cpu().numpy()
        return array

    def outputs(self, rows: Array) -> Array:
        return self._computed(self.learner.module, rows)

    def target_outputs(self, rows: Array) -> Array:
        assert self.follower is not None
        return self._computed(self.follower.module, rows)

    def squashed_actions(self, rows: Array, noise: Array) -> tuple[Array, Array]:
        with torch.inference_mode():
            action, log_prob = squashed_sample(self.forward(rows), self.observer.tensor(noise))
        return action.cpu().numpy(), log_prob.cpu().numpy()

    def _computed(self, module: nn.Module, rows: Array) -> Array:
        with torch.inference_mode():
            outputs: Array = module(self.observer.tensors(rows)).cpu().numpy()
        return outputs


@dataclass(frozen=True)
class CriticLoss:
    """A loss of the values `[critics, B, quantiles]` against targets, and its gradient in closed form.

    `gradient` writes into its third argument and returns the loss.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Array, Array, Array], float]


def _squared_error_gradient(values: Array, target: Array, d_values: Array) -> float:
    loss: float = ensemble_value_gradient(values[..., 0], target, d_values[..., 0])[0]
    return loss


# For critics with one value: half the mean squared error, summed over the critics.
SQUARED_ERROR = CriticLoss(
    lambda values, target: ensemble_value_loss(values.squeeze(-1), target), _squared_error_gradient
)


@dataclass(frozen=True)
class Reduction:
    """Reduces the values of all critics `[critics, B, quantiles]` to one per sample, which a policy maximises.

    `gradient` is that of the mean over the batch.
    """

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Array], Array]
    only_first: bool = False  # the other critics need not be computed


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
    """Sampled actions `[B, S, A]` for every state, and their log-densities `[B, S]` under the sampling distribution."""

    action: Array
    log_density: Array


class Critics(ABC):
    """An ensemble of Q-functions, its optimiser and its target networks."""

    def __init__(self, networks: Networks, observer: Observer, loss: CriticLoss = SQUARED_ERROR) -> None:
        self.count, self.observer, self.loss = networks.n_critics, observer, loss
        self.learner = Learner(networks.critic)
        self.follower = Follower(self.learner)
        self._share_encoder = networks.share_encoder

    @abstractmethod
    def target(self, obs: Array, action: Array, members: Array | None = None) -> Array:
        """Values `[critics, B, quantiles]` by the target networks, of all critics or of some."""

    @abstractmethod
    def online(self, obs: Array, action: Array) -> Array:
        """Values `[critics, B, quantiles]` by the online networks, without a gradient."""

    @abstractmethod
    def differentiate(self, obs: Array, action: Array, target: Array) -> tuple[float, Array]:
        """Write the gradient of the loss to the flat buffer; returns the loss and the values of all critics.

        Targets are float32: `[B]`, or samples `[B, M]` if critics return quantiles.
        """

    @abstractmethod
    def differentiate_conservatively(
        self, obs: Array, action: Array, target: Array, drawn: DrawnActions, weight: float
    ) -> tuple[float, float, float]:
        """Write the gradient of the squared error plus `weight` times every critic's gap (Kumar et al. 2020, eq. 4).

        Returns the squared error, the mean value and the mean gap between drawn actions and those of the data.
        """

    def fit(self, obs: Array, action: Array, target: Array, learning_rate: float) -> tuple[float, float]:
        """One step towards targets; returns the loss and the mean value before it."""
        loss, values = self.differentiate(obs, action, np.ascontiguousarray(target, np.float32))
        mean = float(values.mean())
        self.descend(learning_rate)
        return loss, mean

    def fit_conservatively(
        self, obs: Array, action: Array, target: Array, drawn: DrawnActions, weight: float, learning_rate: float
    ) -> tuple[float, float, float]:
        """One step towards targets that lowers the values of drawn actions against those of the data."""
        target = np.ascontiguousarray(target, np.float32)
        report = self.differentiate_conservatively(obs, action, target, drawn, weight)
        self.descend(learning_rate)
        return report

    def descend(self, learning_rate: float) -> None:
        """Take an optimiser step with the gradient in the flat buffer; networks that share the encoder follow it."""
        self.learner.descend(learning_rate)
        self._share_encoder()


class AutogradCritics(Critics):
    """Any critics, by autograd."""

    def values(self, obs: Array, action: Array) -> Tensor:
        """Values `[critics, B, quantiles]`, differentiable."""
        values: Tensor = self.learner.module(self.observer.tensors(obs), self.observer.tensor(action))
        return values

    def target(self, obs: Array, action: Array, members: Array | None = None) -> Array:
        with torch.inference_mode():
            values = self.follower.module(self.observer.tensors(obs), self.observer.tensor(action))
        array: Array = values.cpu().numpy()
        return array if members is None else array[members]

    def online(self, obs: Array, action: Array) -> Array:
        with torch.inference_mode():
            return self.values(obs, action).cpu().numpy()

    def differentiate(self, obs: Array, action: Array, target: Array) -> tuple[float, Array]:
        values = self.values(obs, action)
        loss = self.loss.loss(values, self.observer.tensor(target))
        self.learner.differentiate(loss)
        return float(loss.detach()), values.detach().cpu().numpy()

    def differentiate_conservatively(
        self, obs: Array, action: Array, target: Array, drawn: DrawnActions, weight: float
    ) -> tuple[float, float, float]:
        batch, count = drawn.log_density.shape
        rows = np.concatenate([obs, np.repeat(obs, count, axis=0)])
        actions = np.concatenate([action, drawn.action.reshape(batch * count, -1)])
        values = self.values(rows, actions).squeeze(-1)
        value, sampled = values[:, :batch], values[:, batch:].reshape(-1, batch, count)
        error = ensemble_value_loss(value, self.observer.tensor(target))
        gap = conservative_gap(value, sampled, self.observer.tensor(drawn.log_density))
        self.learner.differentiate(error + weight * gap.sum())
        return float(error.detach()), float(value.detach().mean()), float(gap.detach().mean())


class SoftLoss(Protocol):
    """A policy's loss, a function of the values `[B]` of its actions and of their log-densities `[B]`."""

    def loss(self, value: Tensor, log_prob: Tensor) -> Tensor: ...

    def gradient(self, value: Array, d_value: Array, log_prob: float) -> tuple[float, Array, float]:
        """The loss, and its gradients with respect to the actions `[B, A]` and each log-density.

        `d_value` is the gradient of the mean value with respect to the actions; `log_prob` is the mean log-density.
        """


class DeterministicLoss(Protocol):
    """A policy's loss, a function of its actions `[B, A]`, their values `[B]`, and the data's actions `data`."""

    def loss(self, value: Tensor, action: Tensor, data: Tensor) -> Tensor: ...

    def gradient(self, value: Array, d_value: Array, action: Array, data: Array) -> tuple[float, Array]:
        """The loss and its gradient with respect to the actions; `d_value` is the gradient of the mean value."""


class Improvement(ABC):
    """The gradient of a policy's loss through the critics that evaluate its actions. The critics do not change."""

    @abstractmethod
    def soft(self, rows: Array, noise: Array, reduction: Reduction, loss: SoftLoss) -> tuple[float, float]:
        """For a squashed Gaussian and standard normal noise `[B, A]`; returns the loss and the mean log-density."""

    @abstractmethod
    def deterministic(self, rows: Array, data: Array, reduction: Reduction, loss: DeterministicLoss) -> float:
        """For a deterministic policy; `data` are the actions `[B, A]` of the data. Returns the loss."""


class AutogradImprovement(Improvement):
    """Any networks, by autograd."""

    def __init__(self, actor: AutogradNetwork, critics: AutogradCritics) -> None:
        self._actor, self._critics = actor.learner, critics.learner
        self._observer = actor.observer

    def soft(self, rows: Array, noise: Array, reduction: Reduction, loss: SoftLoss) -> tuple[float, float]:
        obs = self._observer.tensors(rows)
        action, log_prob = squashed_sample(self._actor.module(obs), self._observer.tensor(noise))
        total = loss.loss(reduction.value(self._critics.module(obs, action)), log_prob)
        self._actor.differentiate(total)
        return float(total.detach()), float(log_prob.detach().mean())

    def deterministic(self, rows: Array, data: Array, reduction: Reduction, loss: DeterministicLoss) -> float:
        obs = self._observer.tensors(rows)
        action = self._actor.module(obs).tanh()
        total = loss.loss(reduction.value(self._critics.module(obs, action)), action, self._observer.tensor(data))
        self._actor.differentiate(total)
        return float(total.detach())
