"""Implicit Q-learning (Kostrikov et al. 2022)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext, model_setting
from rl_training.algorithms.layers import ACTOR_CRITICS_VALUE, LayerSizes, NetworkNames, widths_help
from rl_training.algorithms.off_policy import Minibatch, OffPolicyAlgorithm, OffPolicyConfig
from rl_training.algorithms.offline import WeightedLoopConfig
from rl_training.algorithms.parts.engine import FORMS
from rl_training.algorithms.parts.networks import EnsembleModelConfig, Networks, build_networks
from rl_training.algorithms.parts.policies import ClippedGaussianPolicy, NoisyPolicy
from rl_training.algorithms.parts.regressions import GaussianLikelihood, Regression, SquaredError
from rl_training.algorithms.settings import setting
from rl_training.models.mlp_iql import MLPIQLModel
from rl_training.ops.policy import effective_share
from rl_training.ops.value import expectile_loss, td_target
from rl_training.types import Array, Capabilities, Metrics


class IQLModelConfig(EnsembleModelConfig):
    """An actor, critics and a network for the values of states."""

    model: str = model_setting(probe="rl_training.testing:LinearImplicitModel")
    hidden_sizes: LayerSizes = setting((256, 256), widths_help(ACTOR_CRITICS_VALUE), probe=(8,))
    policy_head: Literal["gaussian", "deterministic"] = setting(
        "gaussian",
        "Gaussian, trained by likelihood; or deterministic, trained by squared error.",
        probe="deterministic",
    )

    networks: ClassVar[NetworkNames] = ACTOR_CRITICS_VALUE


class IQLConfig(OffPolicyConfig):
    """V: an expectile of Q'(s, a). Q: r + gamma V(s'). Actor: imitate the data, weighted by exp(beta (Q' - V))."""

    actor_learning_rate: float = setting(
        3e-4, "Step size of the actor; the paper decays it to 0 (`actor_learning_rate_schedule: cosine`).", ge=0.0
    )
    expectile: float = setting(
        0.7, "The expectile of V: 0.5 is the mean, towards 1 the best action in the data.", gt=0.0, lt=1.0, report=True
    )
    beta: float = setting(3.0, "Inverse temperature of the advantage weights.", ge=0.0, report=True)
    max_weight: float = setting(100.0, "The largest weight of an action.", gt=0.0, probe=0.1)
    noise_std: float = setting(
        0.1,
        "Deviation of the noise on actions that a deterministic policy takes online.",
        ge=0.0,
        live_when={"online": True, "policy_head": "deterministic"},
        probe=0.5,
    )


class ExpectileRegression(NamedTuple):
    """The loss of values `[B, 1]` against targets `[B]` (eq. 5), and its gradient in closed form."""

    expectile: float

    def loss(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        loss = expectile_loss(values.squeeze(-1), target, self.expectile)
        return loss, loss

    def gradient(self, values: Array, target: Array) -> tuple[Array, float]:
        error = target - values[:, 0]
        below, above = np.float32(1.0 - self.expectile), np.float32(self.expectile)
        weighted = np.where(error < 0.0, below, above) * error
        return (-2.0 / len(error) * weighted)[:, None].astype(np.float32), float((weighted * error).mean())


def iql_weights(advantage: Array, beta: float, max_weight: float) -> Array:
    """exp(beta * advantage), at most `max_weight` (eq. 7)."""
    if beta == 0.0:
        return np.full_like(advantage, min(1.0, max_weight))
    # The limit is on the exponent, so that nothing overflows.
    exponent = (torch.from_numpy(advantage) / (1.0 / beta)).clamp(max=math.log(max_weight))
    return exponent.exp().numpy()


class IQL(OffPolicyAlgorithm):
    """Learns values from the data's actions only; updates V, policy, Q in this order, as the paper's code does."""

    cfg: IQLConfig

    def __init__(self, context: Context) -> None:
        networks = _networks(context)
        policy, forms = _policy(context, networks), FORMS[networks.engine]
        actor, critics = forms.actor(policy), forms.critics(networks, policy.observer)
        values = forms.network(networks.value, policy.observer)
        learners = {"actor": actor.learner, "critic": critics.learner, "value": values.learner}
        super().__init__(context, policy, learners, {"critic": critics.follower})
        self.actor, self.critics, self.values = actor, critics, values
        self.regression: Regression = SquaredError()
        if isinstance(policy, ClippedGaussianPolicy):
            self.regression = GaussianLikelihood(policy)

    def learn(self, mini: Minibatch) -> Metrics:
        cfg = self.cfg
        q = self.critics.target(mini.obs, mini.action)[..., 0].min(axis=0)
        value_loss = self.values.fit(mini.obs, ExpectileRegression(cfg.expectile), q, learning_rate=cfg.learning_rate)
        advantage = q - self.values.outputs(mini.obs)[:, 0]
        weight = iql_weights(advantage, cfg.beta, cfg.max_weight)
        costs = self._regress(mini, weight)
        next_value = self.values.outputs(mini.next_obs)[:, 0]
        target = td_target(mini.reward, mini.discount, mini.terminated, next_value)
        critic_loss, q_mean = self.critics.fit(mini.obs, mini.action, target, cfg.learning_rate)
        self.critics.follower.follow(cfg.tau)
        return {
            "value_loss": float(value_loss),
            "actor_loss": float((weight * costs).mean()),
            "critic_loss": critic_loss,
            "q_mean": q_mean,
            "advantage_mean": float(advantage.mean()),
            "advantage_weight_mean": float(weight.mean()),
            "effective_sample_size": float(effective_share(torch.from_numpy(weight))) * len(weight),
            "weight_clip_fraction": float((weight >= cfg.max_weight * (1.0 - 1e-6)).mean()),
        }

    def _regress(self, mini: Minibatch, weight: Array) -> Array:
        """One step of the policy towards the data's actions; returns their costs `[B]` before it."""
        rate = self.cfg.actor_learning_rate
        report = self.actor.fit(mini.obs, self.regression, mini.action, weight, learning_rate=rate)
        self.policy.confine()
        return self.regression.costs(report, mini.action)


def _networks(context: PolicyContext) -> Networks:
    return build_networks(context, MLPIQLModel, actor_outputs=context.info.action_size, with_value=True)


def _policy(context: PolicyContext, networks: Networks) -> ClippedGaussianPolicy | NoisyPolicy:
    model = context.model
    assert isinstance(model, IQLModelConfig)
    if model.policy_head == "gaussian":
        return ClippedGaussianPolicy(context, networks.actor, networks.engine)
    return NoisyPolicy(context, networks.actor, networks.engine, always_draws=True)


def iql_policy(context: PolicyContext) -> ClippedGaussianPolicy | NoisyPolicy:
    """Build only the policy."""
    return _policy(context, _networks(context))


SPEC = AlgorithmSpec(
    name="iql",
    family="offline",
    summary="Implicit Q-learning",
    config=IQLConfig,
    loop=WeightedLoopConfig,
    model=IQLModelConfig,
    policy=iql_policy,
    build=IQL,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",), offline=True),
)
