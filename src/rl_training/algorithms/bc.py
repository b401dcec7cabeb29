"""Behaviour cloning: regression on the actions of a dataset."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.awac import SquashedLikelihood
from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext, model_setting, setting
from rl_training.algorithms.off_policy import (
    Minibatch,
    MinibatchConfig,
    NetworkPolicy,
    OffPolicyAlgorithm,
    OffPolicyModelConfig,
)
from rl_training.algorithms.offline import BehaviorLoopConfig
from rl_training.algorithms.parts.engine import FORMS
from rl_training.algorithms.parts.networks import build_network
from rl_training.algorithms.parts.policies import (
    CategoricalPolicy,
    DeterministicPolicy,
    SquashedGaussianPolicy,
    allowed,
)
from rl_training.data.memory import Memory
from rl_training.models.heads import MLPNetwork
from rl_training.ops.distributions import FORBIDDEN, Categorical
from rl_training.types import Array, Capabilities, Metrics


class BCModelConfig(OffPolicyModelConfig):
    """A network that returns actions before tanh (and their log deviations), or the logits of choices."""

    model: str = model_setting(probe="rl_training.testing:LinearPolicy")


class BCConfig(MinibatchConfig):
    """minimise (pi(s) - a)^2 or -log pi(a | s)"""

    loss: Literal["mse", "likelihood"] = setting(
        "mse",
        "For continuous actions: squared error, or the likelihood of a squashed Gaussian, as in SAC.",
        live_when={"actions": "continuous"},
        probe="likelihood",
    )


class SquaredError:
    """Weighted regression on given actions: the squared error of tanh(outputs), averaged over its dimensions.

    The loss, and its gradient in closed form; both report the actions of the policy.
    """

    def loss(self, outputs: Tensor, action: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        own = outputs.tanh()
        return (weight * (own - action).square().mean(dim=-1)).mean(), own

    def gradient(self, outputs: Array, action: Array, weight: Array) -> tuple[Array, Array]:
        own = np.tanh(outputs)
        return (2.0 / own.size) * weight[:, None] * (own - action) * (1.0 - own * own), own

    def costs(self, own: Array, action: Array) -> Array:
        """The squared error of each action `[B]`, from what was reported."""
        costs: Array = np.square(own - action).mean(axis=-1)
        return costs

    def held_out(self, policy: NetworkPolicy, rows: Array, action: Array) -> Array:
        """The squared error of each held-out action `[B]`."""
        return self.costs(np.tanh(policy.outputs(rows)), action)


class CategoricalLikelihood:
    """Weighted regression on given choices `[B]`: minus their log-probabilities, among the allowed ones of a mask.

    The loss of logits `[B, A]`, and its gradient in closed form; both report the log-probabilities.
    """

    def loss(self, logits: Tensor, action: Tensor, weight: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        log_prob = _log_prob(logits, action, mask)
        return -(weight * log_prob).mean(), log_prob

    def gradient(self, logits: Array, action: Array, weight: Array, mask: Array | None) -> tuple[Array, Array]:
        logits = allowed(logits, mask)
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probability = powers / powers.sum(axis=-1, keepdims=True)
        every = np.arange(len(action))
        log_prob: Array = np.log(np.maximum(probability[every, action], np.finfo(np.float32).tiny))
        probability[every, action] -= 1.0
        return probability * (weight / len(action))[:, None], log_prob

    def costs(self, log_prob: Array, action: Array) -> Array:
        """Minus the log-probability of each choice `[B]`, from what was reported."""
        return -log_prob

    def held_out(self, policy: NetworkPolicy, rows: Array, action: Array) -> Array:
        """Minus the log-probability of each held-out choice `[B]`."""
        mask, observer = policy.observer.mask(rows), policy.observer
        with torch.inference_mode():
            logits, allowed_ones = policy.by_torch.tensor(rows), None if mask is None else observer.tensor(mask)
            return -_log_prob(logits, observer.tensor(action), allowed_ones).cpu().numpy()


def _log_prob(logits: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        logits = torch.where(mask, logits, FORBIDDEN)
    return Categorical(logits.shape[-1]).log_prob(logits, action)


class Cloning(NamedTuple):
    """A kind of behaviour cloning: the policy, how many outputs it needs for each action, and its regression."""

    policy: type[NetworkPolicy]
    outputs: int
    regression: SquaredError | SquashedLikelihood | CategoricalLikelihood


def cloning(context: PolicyContext) -> Cloning:
    """The kind that fits the actions and the config."""
    cfg = context.config
    assert isinstance(cfg, BCConfig)
    if not context.info.continuous:
        return Cloning(CategoricalPolicy, 1, CategoricalLikelihood())
    if cfg.loss == "likelihood":
        return Cloning(SquashedGaussianPolicy, 2, SquashedLikelihood())
    return Cloning(DeterministicPolicy, 1, SquaredError())


def bc_policy(context: PolicyContext) -> NetworkPolicy:
    """Build only the policy."""
    kind, info, model = cloning(context), context.info, context.model
    outputs = kind.outputs * info.action_size

    def default() -> nn.Module:
        return MLPNetwork(info, outputs, model.hidden_sizes, model.activation)

    return kind.policy(context, *build_network(context, default, outputs, must="it must return"))


class BC(OffPolicyAlgorithm):
    """Trains a policy to imitate the data's actions. It does not use rewards."""

    cfg: BCConfig

    def __init__(self, context: Context) -> None:
        policy = bc_policy(context)
        actor = FORMS[policy.engine].actor(policy)
        super().__init__(context, policy, {"actor": actor.learner})
        self.actor, self.regression = actor, cloning(context).regression

    def learn_part(self, memory: Memory, rows: int) -> Metrics:
        return self.update(memory.transitions(rows, self.batch_rng, gamma=1.0))

    def learn(self, mini: Minibatch) -> Metrics:
        columns: list[Array | None] = [mini.action, np.ones(len(mini), np.float32)]
        if not self.info.continuous:
            columns.append(self.observer.mask(mini.obs))
        report = self.actor.fit(mini.obs, self.regression, *columns, learning_rate=self.cfg.learning_rate)
        return {"loss": float(np.mean(self.regression.costs(report, mini.action)))}

    def validation_loss(self, obs: Array, action: Array) -> float:
        """The loss on held-out transitions."""
        return float(self.regression.held_out(self.policy, self.observer.scaled(obs), action).mean())


SPEC = AlgorithmSpec(
    name="bc",
    family="offline",
    summary="Behaviour cloning",
    config=BCConfig,
    loop=BehaviorLoopConfig,
    model=BCModelConfig,
    policy=bc_policy,
    build=BC,
    capabilities=Capabilities(
        observations=("vector", "image", "dict"), actions=("continuous", "discrete"), offline=True
    ),
)
