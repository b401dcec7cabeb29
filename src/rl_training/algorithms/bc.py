"""Behaviour cloning: regression on the actions of a dataset."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import nn

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext, model_setting
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
from rl_training.algorithms.parts.regressions import CHOICES, HEADS, MEAN, Head
from rl_training.algorithms.settings import setting
from rl_training.data.memory import Memory
from rl_training.models.heads import MLPNetwork
from rl_training.types import Array, Capabilities, Metrics


class BCModelConfig(OffPolicyModelConfig):
    """A network that returns actions before tanh (squashed: their log deviations too), or the logits of choices."""

    model: str = model_setting(probe="rl_training.testing:LinearPolicy")
    policy_head: Literal["gaussian", "squashed"] = setting(
        "gaussian",
        "For `likelihood`: a Gaussian around tanh of the output, clipped; or a Gaussian squashed by tanh, as in SAC.",
        live_when={"actions": "continuous", "loss": "likelihood"},
        probe="squashed",
    )


class BCConfig(MinibatchConfig):
    """minimise (pi(s) - a)^2 or -log pi(a | s)"""

    loss: Literal["mse", "likelihood"] = setting(
        "mse",
        "For continuous actions: squared error, or the likelihood of the data under the policy (`policy_head`).",
        live_when={"actions": "continuous"},
        probe="likelihood",
    )


def cloning(context: PolicyContext) -> Head:
    """The head that fits the actions and the config."""
    cfg, model = context.config, context.model
    assert isinstance(cfg, BCConfig)
    assert isinstance(model, BCModelConfig)
    if not context.info.continuous:
        return CHOICES
    return HEADS[model.policy_head] if cfg.loss == "likelihood" else MEAN


def bc_policy(context: PolicyContext) -> NetworkPolicy:
    """Build only the policy."""
    head, info, model = cloning(context), context.info, context.model
    outputs = head.outputs * info.action_size

    def default() -> nn.Module:
        return MLPNetwork(info, outputs, model.hidden_sizes, model.activation, image_encoder=model.image_encoder)

    return head.policy(context, *build_network(context, default, outputs, must="it must return"))


class BC(OffPolicyAlgorithm):
    """Trains a policy to imitate the data's actions. It does not use rewards."""

    cfg: BCConfig

    def __init__(self, context: Context) -> None:
        policy = bc_policy(context)
        actor = FORMS[policy.engine].actor(policy)
        super().__init__(context, policy, {"actor": actor.learner})
        self.actor, self.regression = actor, cloning(context).regression(policy)

    def learn_part(self, memory: Memory, rows: int) -> Metrics:
        return self.update(memory.transitions(rows, self.batch_rng, gamma=1.0))

    def learn(self, mini: Minibatch) -> Metrics:
        columns: list[Array | None] = [mini.action, np.ones(len(mini), np.float32)]
        if not self.info.continuous:
            columns.append(self.observer.mask(mini.obs))
        report = self.actor.fit(mini.obs, self.regression, *columns, learning_rate=self.cfg.learning_rate)
        self.policy.confine()
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
        observations=("vector", "image", "dict"),
        actions=("continuous", "discrete", "multi_discrete", "multi_binary"),
        offline=True,
    ),
)
