"""The parts of `autograd.py` in closed form, for MLPs of float32 weights on a CPU; and the choice between the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.off_policy import Engine, NetworkPolicy
from rl_training.algorithms.parts.autograd import (
    SQUARED_ERROR,
    AutogradCritics,
    AutogradImprovement,
    AutogradNetwork,
    CriticLoss,
    Critics,
    DeterministicLoss,
    DrawnActions,
    Improvement,
    OutputObjective,
    Reduction,
    SoftLoss,
    TrainedNetwork,
)
from rl_training.algorithms.parts.networks import Networks
from rl_training.algorithms.parts.observer import Observer
from rl_training.algorithms.parts.policies import squashed
from rl_training.models.ensemble import CriticEnsemble
from rl_training.models.heads import MLPNetwork
from rl_training.models.mlp_engine import network_engine, stacked_engine
from rl_training.ops.kernels.conservative import conservative_gradient
from rl_training.ops.kernels.squashed import squashed_backward
from rl_training.types import Array

_STATES_TOGETHER = 32


class EngineNetwork(TrainedNetwork):
    """An MLP, by the engine."""

    def __init__(self, module: nn.Module, observer: Observer, **options: Any) -> None:
        super().__init__(module, observer, **options)
        assert isinstance(self.layers, MLPNetwork)
        self.mlp = network_engine(self.layers, trained=True)
        if self.follower is not None:
            assert isinstance(self.follower.module, MLPNetwork)
            self._target = network_engine(self.follower.module, trained=False)

    def forward(self, rows: Array) -> Array:
        return self.mlp.forward(self.observer.matrix(rows))

    def array(self, outputs: Array) -> Array:
        return outputs

    def backward(self, outputs: Array, objective: OutputObjective, *columns: Array | None) -> Array:
        d_outputs, report = objective.gradient(outputs, *columns)
        self.mlp.backward(d_outputs)
        return report  # type: ignore[no-any-return]

    def outputs(self, rows: Array) -> Array:
        return self.mlp.forward(self.observer.matrix(rows))

    def target_outputs(self, rows: Array) -> Array:
        return self._target.forward(self.observer.matrix(rows))

    def squashed_actions(self, rows: Array, noise: Array) -> tuple[Array, Array]:
        return squashed(self.mlp.forward(self.observer.matrix(rows)), noise)


class EngineCritics(Critics):
    """An ensemble of MLPs, by the engine."""

    def __init__(self, networks: Networks, observer: Observer, loss: CriticLoss = SQUARED_ERROR) -> None:
        super().__init__(networks, observer, loss)
        module, target = self.learner.module, self.follower.module
        assert isinstance(module, CriticEnsemble)
        assert isinstance(target, CriticEnsemble)
        self._mlps = stacked_engine(module.members, trained=True)
        self._first = stacked_engine(module.members, trained=False, members=slice(0, 1))
        self._targets = stacked_engine(target.members, trained=False)
        one_by_one = (slice(m, m + 1) for m in range(self.count))
        self._each_target = [stacked_engine(target.members, trained=False, members=one) for one in one_by_one]

    def target(self, obs: Array, action: Array, members: Array | None = None) -> Array:
        x = self._joined(obs, action)
        if members is None:
            return self._targets.forward(x)
        return np.concatenate([self._each_target[m].forward(x) for m in members])

    def online(self, obs: Array, action: Array) -> Array:
        return self._mlps.forward(self._joined(obs, action))

    def differentiate(self, obs: Array, action: Array, target: Array) -> tuple[float, Array]:
        values = self._mlps.forward(self._joined(obs, action))
        d_values = np.empty_like(values)
        loss = self.loss.gradient(values, target, d_values)
        self._mlps.backward(d_values)
        return loss, values

    def differentiate_conservatively(
        self, obs: Array, action: Array, target: Array, drawn: DrawnActions, weight: float
    ) -> tuple[float, float, float]:
        inputs = self.observer.matrix(obs)
        actions = np.concatenate([action[:, None], drawn.action], axis=1)
        batch, width, size = actions.shape
        gradient = torch.zeros_like(self.learner.parameters.grad)
        found = np.zeros(3)
        # A few states at a time: the intermediate arrays then stay in the processor's cache.
        for start in range(0, batch, _STATES_TOGETHER):
            part = slice(start, start + _STATES_TOGETHER)
            some = len(inputs[part])
            rows = np.empty((some, width, size + inputs.shape[1]), np.float32)
            rows[..., :size], rows[..., size:] = actions[part], inputs[part, None]
            values = self._mlps.forward(rows.reshape(some * width, -1)).reshape(-1, some, width)
            d_values = np.empty_like(values)
            found += conservative_gradient(values, target[part], drawn.log_density[part], weight, batch, d_values)
            self._mlps.backward(d_values.reshape(-1, some * width, 1))
            gradient += self.learner.parameters.grad
        self.learner.parameters.grad.copy_(gradient)
        return float(found[0]), float(found[1]), float(found[2])

    def action_gradient(self, obs: Array, action: Array, reduction: Reduction) -> tuple[Array, Array]:
        """The reduced values `[B]`, and the gradient of their mean with respect to the actions `[B, A]`."""
        mlps = self._first if reduction.only_first else self._mlps
        values = mlps.forward(self._joined(obs, action))
        weights = reduction.gradient(values)
        gradient: Array = mlps.input_gradient(weights, action.shape[1]).sum(axis=0)
        return (values * weights).sum(axis=(0, 2)) * len(action), gradient

    def _joined(self, obs: Array, action: Array) -> Array:
        return np.concatenate([action, self.observer.matrix(obs)], axis=1)


class EngineImprovement(Improvement):
    """MLPs, by the engine."""

    def __init__(self, actor: EngineNetwork, critics: EngineCritics) -> None:
        self._mlp, self._critics, self._matrix = actor.mlp, critics, actor.observer.matrix

    def soft(self, rows: Array, noise: Array, reduction: Reduction, loss: SoftLoss) -> tuple[float, float]:
        params = self._mlp.forward(self._matrix(rows))
        action, log_prob = squashed(params, noise)
        value, d_value = self._critics.action_gradient(rows, action, reduction)
        mean = float(log_prob.mean())
        total, d_action, d_log_prob = loss.gradient(value, d_value, mean)
        d_params = np.empty_like(params)
        squashed_backward(params, noise, action, d_action, d_log_prob, d_params)
        self._mlp.backward(d_params)
        return total, mean

    def deterministic(self, rows: Array, data: Array, reduction: Reduction, loss: DeterministicLoss) -> float:
        action = np.tanh(self._mlp.forward(self._matrix(rows)))
        value, d_value = self._critics.action_gradient(rows, action, reduction)
        total, d_action = loss.gradient(value, d_value, action, data)
        self._mlp.backward(d_action * (1.0 - action * action))
        return total


class Forms(NamedTuple):
    """The classes of one form."""

    network: Callable[..., TrainedNetwork]
    critics: Callable[..., Critics]
    improvement: Callable[[Any, Any], Improvement]

    def actor(self, policy: NetworkPolicy, *, with_target: bool = False) -> TrainedNetwork:
        """The network of a policy, with an optimiser."""
        return self.network(
            policy.network, policy.observer, weights=policy.weights, layers=policy.layers, with_target=with_target
        )


FORMS: dict[Engine, Forms] = {
    "autograd": Forms(AutogradNetwork, AutogradCritics, AutogradImprovement),
    "mlp": Forms(EngineNetwork, EngineCritics, EngineImprovement),
}
