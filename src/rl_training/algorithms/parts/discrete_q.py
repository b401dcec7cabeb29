"""The values of all choices of a discrete action, learned by regression on those that were taken.

Two forms of the same mathematics, as in `actor_critic.py`: for autograd, and for the MLP engine. A test holds them
equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Context, ModelConfig
from rl_training.algorithms.off_policy import Minibatch, OffPolicyModelConfig, flat_rows, random_choices
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.learner import Follower, Learner
from rl_training.models.mlp_engine import MLPEngine, acting_engine, covered, network_engine
from rl_training.models.mlp_q import MLPQNetwork
from rl_training.ops.distributions import FORBIDDEN
from rl_training.ops.kernels.td import huber_gradient
from rl_training.ops.value import td_target, weighted_huber_loss
from rl_training.types import Array, SpaceInfo, UserError


def dqn_loss(values: Tensor, action: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The weighted Huber loss of those of `values` `[B, A]` that were chosen."""
    return weighted_huber_loss(_chosen(values, action), target, weight)


def choice_gap(values: Tensor, action: Tensor) -> Tensor:
    """By how much the log-sum-exp of all values is above that of the chosen one (Kumar et al. 2020, eq. 4)."""
    return (values.logsumexp(dim=-1) - _chosen(values, action)).mean()


def _chosen(values: Tensor, action: Tensor) -> Tensor:
    return values.gather(-1, action.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Judgement:
    """What came of an update: the loss, the mean value of the choices, all errors, and the gap if it counts."""

    loss: float
    value: float
    td_error: Array
    gap: float


class ChoiceValues:
    """A network that gives the value of every choice `[B, A]`, and the copy of it that targets are computed with."""

    def __init__(self, context: Context, observer: Observer, *, dueling: bool) -> None:
        info, make = context.info, context.model_factory
        network = _default(info, context.model, dueling) if make is None else make(info, context.model)
        network = network.to(context.device)
        self.learner = Learner(network)
        self.follower = Follower(self.learner)
        self._observer = observer
        self._size = info.action_size
        self._dueling = dueling
        self._check_outputs(context)
        self.fast = make is None and context.engine == "auto" and covered(network)
        if self.fast:
            slow = self.follower.module
            assert isinstance(network, MLPQNetwork)
            assert isinstance(slow, MLPQNetwork)
            self._engine = network_engine(network.layers, trained=True)
            self._target = network_engine(slow.layers, trained=False)
            self._few = acting_engine(network.layers, self.learner.parameters)

    def _check_outputs(self, context: Context) -> None:
        """Try the network on two observations of zeros: what it gives must fit the actions."""
        info = context.info
        shape = self._judged(self.learner.module, np.zeros((2, *info.obs_shape), info.obs_dtype)).shape
        if shape != (2, info.action_size):
            raise UserError(
                f"model={context.model.model!r}: must give values [B, {info.action_size}]; for a batch of 2 it gave "
                f"{shape}"
            )

    def few(self, rows: Array) -> Array:
        """Values for a few (scaled) observations: for acting."""
        if self.fast:
            return self._combined(self._few(flat_rows(self._observer.arrays(rows))))
        return self._judged(self.learner.module, rows)

    def online(self, rows: Array) -> Array:
        """Values for a batch, without a gradient."""
        return self._computed(self._engine, rows) if self.fast else self._judged(self.learner.module, rows)

    def target(self, rows: Array) -> Array:
        """Values by the slow copy."""
        return self._computed(self._target, rows) if self.fast else self._judged(self.follower.module, rows)

    def decide(self, rows: Array, epsilon: float, rng: np.random.Generator | None) -> Array:
        """The best allowed choices for a few (scaled) observations, but for a share of random ones."""
        mask = self._observer.mask(rows)
        action: Array = allowed(self.few(rows), mask).argmax(axis=-1)
        if rng is not None and epsilon > 0.0:
            strays = rng.random(len(rows)) < epsilon
            if strays.any():
                action[strays] = random_choices(rng, len(rows), self._size, mask)[strays]
        return action

    def bootstrap(self, mini: Minibatch, *, double_q: bool) -> Array:
        """What the choices that were made turned out to be worth, `[B]`."""
        judged = self.target(mini.next_obs)
        choosing = self.online(mini.next_obs) if double_q else judged
        chosen = allowed(choosing, self._observer.mask(mini.next_obs)).argmax(axis=-1)
        return dqn_target(mini, judged, chosen)

    def differentiate(
        self, rows: Array, action: Array, target: Array, weight: Array, conservatism: float = 0.0
    ) -> Judgement:
        """Leave the gradient of the loss in the flat buffer."""
        return (self._closed_form if self.fast else self._autograd)(rows, action, target, weight, conservatism)

    def _autograd(self, rows: Array, action: Array, target: Array, weight: Array, conservatism: float) -> Judgement:
        self.learner.module.train()  # judging has put it into the other mode
        values = self.learner.module(self._observer.tensors(rows))
        choice, goal, importance = (self._observer.tensor(array) for array in (action, target, weight))
        gap = choice_gap(values, choice) if conservatism else values.new_zeros(())
        loss = dqn_loss(values, choice, goal, importance) + conservatism * gap
        self.learner.differentiate(loss)
        chosen = values.detach().cpu().numpy()[np.arange(len(action)), action]
        return Judgement(float(loss.detach()), float(chosen.mean()), chosen - target, float(gap.detach()))

    def _closed_form(self, rows: Array, action: Array, target: Array, weight: Array, conservatism: float) -> Judgement:
        values = self._computed(self._engine, rows)
        d_values, td_error = np.empty_like(values), np.empty(len(action), np.float32)
        loss, value = huber_gradient(values, action, target, weight, d_values, td_error)
        gap = 0.0
        if conservatism:
            gap = _add_gap_gradient(values, action, conservatism, d_values)
            loss += conservatism * gap
        if self._dueling:
            spread = d_values - d_values.mean(axis=-1, keepdims=True)
            d_values = np.concatenate([d_values.sum(axis=-1, keepdims=True), spread], axis=-1)
        self._engine.backward(d_values)
        return Judgement(loss, value, td_error, gap)

    def _computed(self, engine: MLPEngine, rows: Array) -> Array:
        return self._combined(engine.forward(flat_rows(self._observer.arrays(rows))))

    def _combined(self, outputs: Array) -> Array:
        """Action values from what the engine's network gives."""
        if not self._dueling:
            return outputs
        advantage = outputs[:, 1:]
        values: Array = outputs[:, :1] + advantage - advantage.mean(axis=-1, keepdims=True)
        return values

    def _judged(self, module: nn.Module, rows: Array) -> Array:
        """Values without a gradient; a user's network neither draws nor moves its statistics for them."""
        module.eval()
        with torch.inference_mode():
            values: Array = module(self._observer.tensors(rows)).cpu().numpy()
        return values


def _add_gap_gradient(values: Array, action: Array, weight: float, d_values: Array) -> float:
    """Add the gradient of `weight` times `choice_gap`; gives the gap."""
    every, highest = np.arange(len(action)), values.max(axis=-1, keepdims=True)
    powers = np.exp(values - highest)
    norm = powers.sum(axis=-1, keepdims=True)
    share = np.float32(weight / len(action))
    d_values += share * powers / norm
    d_values[every, action] -= share
    return float((highest[:, 0] + np.log(norm[:, 0]) - values[every, action]).mean())


def dqn_target(mini: Minibatch, judged: Array, chosen: Array) -> Array:
    """What the action that was taken turned out to be worth: `judged` `[B, A]` at the `chosen` next actions."""
    next_value = judged[np.arange(len(mini)), chosen]
    return td_target(mini.reward, mini.discount, mini.terminated, next_value).astype(np.float32)


def allowed(values: Array, mask: Array | None) -> Array:
    """The values, those of forbidden choices being lower than any other."""
    return values if mask is None else np.where(mask, values, FORBIDDEN)


def _default(info: SpaceInfo, model: ModelConfig, dueling: bool) -> MLPQNetwork:
    assert isinstance(model, OffPolicyModelConfig)
    return MLPQNetwork(info, model.hidden_sizes, model.activation, dueling=dueling)
