"""Q-values of discrete actions, learned by regression for the actions that were taken.

One contract and two forms, as in `autograd.py`: by autograd, and in closed form by the MLP engine. A test checks that
they are equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import PolicyContext
from rl_training.algorithms.off_policy import Engine, Minibatch, Outputs
from rl_training.algorithms.parts.networks import build_network, one_network
from rl_training.algorithms.parts.policies import EpsilonGreedyPolicy, allowed
from rl_training.models.flat import Follower, Learner
from rl_training.models.mlp_engine import MLPEngine, network_engine
from rl_training.models.mlp_q import MLPQNetwork
from rl_training.ops.distributions import FORBIDDEN
from rl_training.ops.kernels.td import huber_gradient
from rl_training.ops.value import td_target, weighted_huber_loss
from rl_training.types import Array


def dqn_loss(values: Tensor, action: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The weighted Huber loss of the values `[B, A]` of the actions `[B]` that were taken."""
    return weighted_huber_loss(_taken(values, action), target, weight)


def discrete_gap(values: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
    """The log-sum-exp of the values minus the value of the action taken, averaged (Kumar et al. 2020, eq. 4).

    Only the choices that a mask `[B, A]` allows count: no policy can take the others.
    """
    possible = values if mask is None else torch.where(mask, values, FORBIDDEN)
    return (possible.logsumexp(dim=-1) - _taken(values, action)).mean()


def _taken(values: Tensor, action: Tensor) -> Tensor:
    return values.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def dqn_target(mini: Minibatch, values: Array, greedy: Array) -> Array:
    """Targets `[B]`, from the target network's `values` `[B, A]` of the `greedy` next actions `[B]`."""
    next_value = values[np.arange(len(mini)), greedy]
    return td_target(mini.reward, mini.discount, mini.terminated, next_value).astype(np.float32)


def dueling_rows(outputs: Array) -> Array:
    """`ops.value.dueling_values` of an array."""
    advantage = outputs[:, 1:]
    values: Array = outputs[:, :1] + advantage - advantage.mean(axis=-1, keepdims=True)
    return values


@dataclass(frozen=True)
class DuelingOutputs:
    """Action values for acting, from the compiled outputs of a dueling network."""

    outputs: Outputs

    def __call__(self, rows: Array) -> Array:
        return dueling_rows(self.outputs(rows))


def discrete_policy(context: PolicyContext, *, dueling: bool = False) -> EpsilonGreedyPolicy:
    """An epsilon-greedy policy over the values of the default network or of a custom one."""
    info, model, sizes = context.info, context.model, one_network(context)

    def default() -> nn.Module:
        return MLPQNetwork(info, sizes, model.activation, dueling=dueling, image_encoder=model.image_encoder)

    network, engine = build_network(context, default, info.action_size, must="must return values")
    layers = network.layers if isinstance(network, MLPQNetwork) else network
    policy = EpsilonGreedyPolicy(context, network, engine, layers=layers)
    if engine == "mlp" and dueling:
        policy.outputs = DuelingOutputs(policy.outputs)
    return policy


@dataclass(frozen=True)
class QOutcome:
    """Results of an update: the loss, the mean value of the taken actions, TD errors `[B]`, the gap if it is used."""

    loss: float
    value: float
    td_error: Array
    gap: float


class DiscreteQ(ABC):
    """The network of an epsilon-greedy policy, its optimiser and its target network."""

    def __init__(self, policy: EpsilonGreedyPolicy) -> None:
        self.observer = policy.observer
        self.learner = Learner(policy.network, policy.weights)
        self.follower = Follower(self.learner)

    @abstractmethod
    def online(self, rows: Array) -> Array:
        """Values `[B, A]` for a batch, without a gradient."""

    @abstractmethod
    def target(self, rows: Array) -> Array:
        """Values `[B, A]` by the target network."""

    @abstractmethod
    def differentiate(
        self, rows: Array, action: Array, target: Array, weight: Array, conservatism: float = 0.0
    ) -> QOutcome:
        """Write the gradient of `dqn_loss` plus `conservatism` times `discrete_gap` to the flat buffer."""

    def bootstrap(self, mini: Minibatch, *, double_q: bool) -> Array:
        """Targets `[B]`: the online network chooses the next action if `double_q`, else the target network does."""
        values = self.target(mini.next_obs)
        choosing = self.online(mini.next_obs) if double_q else values
        greedy = allowed(choosing, self.observer.mask(mini.next_obs)).argmax(axis=-1)
        return dqn_target(mini, values, greedy)


class AutogradDiscreteQ(DiscreteQ):
    """Any network, by autograd."""

    def online(self, rows: Array) -> Array:
        return self._evaluated(self.learner.module, rows)

    def target(self, rows: Array) -> Array:
        return self._evaluated(self.follower.module, rows)

    def differentiate(
        self, rows: Array, action: Array, target: Array, weight: Array, conservatism: float = 0.0
    ) -> QOutcome:
        self.learner.module.train()  # `online` has put it into evaluation mode
        values = self.learner.module(self.observer.tensors(rows))
        taken, goal, importance = (self.observer.tensor(array) for array in (action, target, weight))
        mask = self.observer.mask(rows)
        possible = None if mask is None else self.observer.tensor(mask)
        gap = discrete_gap(values, taken, possible) if conservatism else values.new_zeros(())
        loss = dqn_loss(values, taken, goal, importance) + conservatism * gap
        self.learner.differentiate(loss)
        value = values.detach().cpu().numpy()[np.arange(len(action)), action]
        return QOutcome(float(loss.detach()), float(value.mean()), value - target, float(gap.detach()))

    def _evaluated(self, module: nn.Module, rows: Array) -> Array:
        """Values without a gradient, in evaluation mode: no dropout, and batch statistics do not change."""
        module.eval()
        with torch.inference_mode():
            values: Array = module(self.observer.tensors(rows)).cpu().numpy()
        return values


class EngineDiscreteQ(DiscreteQ):
    """An MLP, by the engine."""

    def __init__(self, policy: EpsilonGreedyPolicy) -> None:
        super().__init__(policy)
        network, target = policy.network, self.follower.module
        assert isinstance(network, MLPQNetwork)
        assert isinstance(target, MLPQNetwork)
        self._dueling = network.dueling
        self._mlp = network_engine(network.layers, trained=True)
        self._target = network_engine(target.layers, trained=False)

    def online(self, rows: Array) -> Array:
        return self._values(self._mlp, rows)

    def target(self, rows: Array) -> Array:
        return self._values(self._target, rows)

    def differentiate(
        self, rows: Array, action: Array, target: Array, weight: Array, conservatism: float = 0.0
    ) -> QOutcome:
        values = self._values(self._mlp, rows)
        d_values, td_error = np.empty_like(values), np.empty(len(action), np.float32)
        loss, value = huber_gradient(values, action, target, weight, d_values, td_error)
        gap = 0.0
        if conservatism:
            gap = _add_gap_gradient(values, action, self.observer.mask(rows), conservatism, d_values)
            loss += conservatism * gap
        if self._dueling:
            spread = d_values - d_values.mean(axis=-1, keepdims=True)
            d_values = np.concatenate([d_values.sum(axis=-1, keepdims=True), spread], axis=-1)
        self._mlp.backward(d_values)
        return QOutcome(loss, value, td_error, gap)

    def _values(self, mlp: MLPEngine, rows: Array) -> Array:
        outputs = mlp.forward(self.observer.matrix(rows))
        return dueling_rows(outputs) if self._dueling else outputs


def _add_gap_gradient(values: Array, action: Array, mask: Array | None, weight: float, d_values: Array) -> float:
    """Add the gradient of `weight` times `discrete_gap`; returns the gap."""
    possible = allowed(values, mask)
    every, highest = np.arange(len(action)), possible.max(axis=-1, keepdims=True)
    powers = np.exp(possible - highest)
    norm = powers.sum(axis=-1, keepdims=True)
    share = np.float32(weight / len(action))
    d_values += share * powers / norm
    d_values[every, action] -= share
    return float((highest[:, 0] + np.log(norm[:, 0]) - values[every, action]).mean())


# The class of each form.
DISCRETE_Q: dict[Engine, Callable[[EpsilonGreedyPolicy], DiscreteQ]] = {
    "autograd": AutogradDiscreteQ,
    "mlp": EngineDiscreteQ,
}
