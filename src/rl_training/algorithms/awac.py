"""Advantage-weighted actor-critic (Nair et al. 2020)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext, model_setting
from rl_training.algorithms.off_policy import Minibatch, OffPolicyAlgorithm, OffPolicyConfig
from rl_training.algorithms.offline import WeightedLoopConfig
from rl_training.algorithms.parts.engine import FORMS
from rl_training.algorithms.parts.networks import EnsembleModelConfig, Networks, build_networks
from rl_training.algorithms.parts.policies import ClippedGaussianPolicy, SquashedGaussianPolicy
from rl_training.algorithms.parts.regressions import HEADS, SampledPolicy
from rl_training.algorithms.settings import setting
from rl_training.models.mlp_ddpg import MLPDDPGModel
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.ops.policy import effective_share
from rl_training.ops.value import ensemble_value_loss, td_target
from rl_training.types import Array, Capabilities, Metrics

# The initial log deviation of the Gaussian head, as in the paper's code. Critics evaluate the policy with its noise, so
# a wide one would teach them the values of random actions for thousands of updates.
_LOG_STD = -3.0


class AWACModelConfig(EnsembleModelConfig):
    """A stochastic actor and its critics."""

    model: str = model_setting(probe="rl_training.testing:LinearDeterministicActorCritic")
    policy_head: Literal["gaussian", "squashed"] = setting(
        "gaussian",
        "A Gaussian around tanh of the network's output, clipped; or a Gaussian squashed by tanh, as in SAC.",
        probe="squashed",
    )


class AWACConfig(OffPolicyConfig):
    """Critics: r + gamma min Q'(s', a'), no entropy. Actor: imitate the data's actions, weighted by exp(A / lambda)."""

    awac_lambda: float = setting(
        1.0 / 3.0, "Temperature of the weights: a smaller one favours large advantages more.", gt=0.0, report=True
    )
    weighting: Literal["clipped", "softmax"] = setting(
        "clipped", "Weights are exponentials up to max_weight, or a softmax over the minibatch.", probe="softmax"
    )
    max_weight: float = setting(
        100.0, "The largest weight, if weights are clipped.", gt=0.0, live_when={"weighting": "clipped"}, probe=0.1
    )
    normalize_obs: bool | Literal["auto"] = setting(
        "auto", "Scale observations by the dataset's mean and deviation; `auto`: unless they are images.", probe=False
    )


def awac_weights(advantage: Tensor, *, awac_lambda: float, weighting: str, max_weight: float) -> Tensor:
    """exp(advantage / awac_lambda), at most `max_weight`, or scaled to a mean of 1; without a gradient (eq. 13)."""
    exponent = advantage.detach() / awac_lambda
    if weighting == "softmax":
        return exponent.softmax(dim=0) * len(advantage)
    # The limit is on the exponent, so that nothing overflows.
    return exponent.clamp(max=math.log(max_weight)).exp()


def awac_loss(
    values: Tensor,
    target: Tensor,
    policy_values: Tensor,
    behavior_logprob: Tensor,
    *,
    awac_lambda: float,
    weighting: str = "clipped",
    max_weight: float = 100.0,
) -> tuple[Tensor, Tensor, Metrics]:
    """The critics' loss, the actor's loss, and their metrics.

    `values` `[critics, B]` are those of the data's actions, `policy_values` those of the policy's own; `target` is the
    regression target of `values`, `behavior_logprob` the log-density of the data's actions under the policy (`[B]`).
    """
    if not (awac_lambda > 0.0 and max_weight > 0.0):  # NaN is refused too
        raise ValueError(f"awac_lambda={awac_lambda!r}, max_weight={max_weight!r}: both must be above 0")
    if weighting not in ("clipped", "softmax"):
        raise ValueError(f"weighting={weighting!r}: must be 'clipped' or 'softmax'")
    advantage = values.detach().min(dim=0).values - policy_values.detach().min(dim=0).values
    weight = awac_weights(advantage, awac_lambda=awac_lambda, weighting=weighting, max_weight=max_weight)
    critic_loss = ensemble_value_loss(values, target)
    actor_loss = -(weight * behavior_logprob).mean()
    clipped = (weight >= max_weight * (1.0 - 1e-6)) if weighting == "clipped" else torch.zeros_like(weight)
    metrics = {
        "critic_loss": critic_loss,
        "actor_loss": actor_loss,
        "target_q_mean": target.mean(),
        "advantage_mean": advantage.mean(),
        "advantage_weight_mean": weight.mean(),
        "behavior_logprob_mean": behavior_logprob.mean(),
        "effective_sample_size": effective_share(weight) * len(weight),
        "weight_clip_fraction": clipped.float().mean(),
    }
    return critic_loss, actor_loss, {name: float(value.detach()) for name, value in metrics.items()}


class AWAC(OffPolicyAlgorithm):
    """Critics evaluate the policy; the policy regresses on the data's actions, weighted by their advantages."""

    cfg: AWACConfig
    policy: SampledPolicy

    def __init__(self, context: Context) -> None:
        networks = _networks(context)
        policy, forms = _policy(context, networks), FORMS[networks.engine]
        actor, critics = forms.actor(policy), forms.critics(networks, policy.observer)
        learners = {"actor": actor.learner, "critic": critics.learner}
        super().__init__(context, policy, learners, {"critic": critics.follower})
        self.actor, self.critics = actor, critics
        self.regression = HEADS[_head(context)].regression(policy)

    def learn(self, mini: Minibatch) -> Metrics:
        cfg = self.cfg
        settings: dict[str, Any] = {name: getattr(cfg, name) for name in ("awac_lambda", "weighting", "max_weight")}
        target = awac_target(self, mini)
        # All gradients are computed first; then both networks are updated.
        _, values = self.critics.differentiate(mini.obs, mini.action, target)
        values = values[..., 0].copy()
        outputs = self.actor.forward(mini.obs)
        own = self.policy.sampled(self.actor.array(outputs), standard_noise(self, mini))
        policy_values = self.critics.online(mini.obs, own)[..., 0]
        advantage = values.min(axis=0) - policy_values.min(axis=0)
        weight = awac_weights(torch.from_numpy(advantage), **settings).numpy()
        log_prob = self.actor.backward(outputs, self.regression, mini.action, weight)
        self.actor.learner.descend(cfg.learning_rate)
        self.policy.confine()
        self.critics.descend(cfg.learning_rate)
        self.critics.follower.follow(cfg.tau)
        _, _, metrics = awac_loss(
            *(torch.from_numpy(array) for array in (values, target, policy_values, log_prob)), **settings
        )
        return metrics


def awac_target(agent: AWAC, mini: Minibatch) -> Array:
    """TD targets with the least of the target critics' values of the policy's next action, without entropy."""
    next_action = agent.policy.sampled(agent.actor.outputs(mini.next_obs), standard_noise(agent, mini))
    least = agent.critics.target(mini.next_obs, next_action)[..., 0].min(axis=0)
    return td_target(mini.reward, mini.discount, mini.terminated, least).astype(np.float32)


def standard_noise(agent: AWAC, mini: Minibatch) -> Array:
    """Standard normal numbers `[B, A]`."""
    return agent.batch_rng.standard_normal((len(mini), agent.info.action_size), dtype=np.float32)


def _head(context: PolicyContext) -> str:
    model = context.model
    assert isinstance(model, AWACModelConfig)
    return model.policy_head


def _networks(context: PolicyContext) -> Networks:
    head = _head(context)
    model = MLPDDPGModel if head == "gaussian" else MLPSACModel
    return build_networks(context, model, actor_outputs=HEADS[head].outputs * context.info.action_size)


def _policy(context: PolicyContext, networks: Networks) -> SampledPolicy:
    if _head(context) == "squashed":
        return SquashedGaussianPolicy(context, networks.actor, networks.engine)
    return ClippedGaussianPolicy(context, networks.actor, networks.engine, log_std=_LOG_STD)


def awac_policy(context: PolicyContext) -> SampledPolicy:
    """Build only the policy."""
    return _policy(context, _networks(context))


SPEC = AlgorithmSpec(
    name="awac",
    family="offline",
    summary="Advantage-weighted actor-critic",
    config=AWACConfig,
    loop=WeightedLoopConfig,
    model=AWACModelConfig,
    policy=awac_policy,
    build=AWAC,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",), offline=True),
)
