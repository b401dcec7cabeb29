"""Advantage-weighted actor-critic (Nair et al. 2020)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, setting
from rl_training.algorithms.off_policy import Minibatch, OffPolicyAlgorithm, OffPolicyConfig
from rl_training.algorithms.offline import OfflineLoopConfig
from rl_training.algorithms.parts.actors import SoftActor
from rl_training.algorithms.parts.critics import Critics
from rl_training.algorithms.parts.networks import EnsembleModelConfig, build_networks
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.ops.policy import advantage_weights, effective_share, imitation_loss, softmax_weights
from rl_training.ops.value import ensemble_value_loss, td_target
from rl_training.types import Act, Array, Capabilities, Metrics


class AWACConfig(OffPolicyConfig):
    """Critics: r + gamma min Q'(s', a'), no entropy. Actor: repeat the data's actions, weighted by exp(A / lambda)."""

    awac_lambda: float = setting(
        1.0 / 3.0, "How little an advantage has to be to count: the temperature of the weights.", gt=0.0, report=True
    )
    weighting: Literal["clipped", "softmax"] = setting(
        "clipped", "Weights are exponentials up to max_weight, or a softmax over the minibatch.", probe="softmax"
    )
    max_weight: float = setting(
        100.0, "The largest weight, when they are clipped.", gt=0.0, live_when={"weighting": "clipped"}, probe=0.1
    )
    normalize_obs: bool | Literal["auto"] = setting(
        "auto", "Scale observations by the dataset's mean and deviation; `auto`: unless they are images.", probe=False
    )


def awac_weights(advantage: Tensor, *, awac_lambda: float, weighting: str, max_weight: float) -> Tensor:
    """How much each action deserves to be repeated, without a gradient (eq. 13)."""
    if weighting == "softmax":
        return softmax_weights(advantage.detach(), awac_lambda)
    return advantage_weights(advantage.detach(), awac_lambda, max_weight)


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
    """The critics' loss, the actor's, and what is reported of them.

    `values` `[critics, B]` are those of the data's actions, `policy_values` those of the policy's own; `target` is what
    the first regress on, `behavior_logprob` the log-density of the data's actions under the policy (both `[B]`).
    """
    if not (awac_lambda > 0.0 and max_weight > 0.0):  # not a number is neither
        raise ValueError(f"awac_lambda={awac_lambda!r}, max_weight={max_weight!r}: both must be above 0")
    if weighting not in ("clipped", "softmax"):
        raise ValueError(f"weighting={weighting!r}: must be 'clipped' or 'softmax'")
    advantage = values.detach().min(dim=0).values - policy_values.detach().min(dim=0).values
    weight = awac_weights(advantage, awac_lambda=awac_lambda, weighting=weighting, max_weight=max_weight)
    critic_loss = ensemble_value_loss(values, target)
    actor_loss = imitation_loss(behavior_logprob, weight)
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
    """Critics judge the policy; the policy repeats what they find better than it."""

    cfg: AWACConfig
    policy = "actor"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        networks = build_networks(context, MLPSACModel, actor_outputs=2 * self.info.action_size)
        self.actor, self.critics = SoftActor(networks, self.observer), Critics(networks, self.observer)
        self.learners = {"actor": self.actor.learner, "critic": self.critics.learner}
        self.followers = {"critic": self.critics.follower}

    @property
    def engine(self) -> str:
        return "mlp" if self.actor.fast else "autograd"

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        return Act(self.actor.decide(self.observer.scaled(obs), self.policy_rng if explore else None), carry)

    def learn(self, mini: Minibatch) -> Metrics:
        cfg = self.cfg
        target = awac_target(self, mini)
        # Everything is computed from the networks as they are; then both move.
        _, values = self.critics.differentiate(mini.obs, mini.action, target)
        values = values[..., 0].copy()
        params = self.actor.params(mini.obs)
        own = self.actor.sample_from(params, standard_noise(self, mini))
        policy_values = self.critics.online(mini.obs, own)[..., 0]
        advantage = values.min(axis=0) - policy_values.min(axis=0)
        weight = awac_weights(
            torch.from_numpy(advantage),
            awac_lambda=cfg.awac_lambda,
            weighting=cfg.weighting,
            max_weight=cfg.max_weight,
        ).numpy()
        log_prob = -self.actor.imitate_from(params, mini.action, weight, cfg.learning_rate)
        self.critics.learner.descend(cfg.learning_rate)
        self.critics.follower.follow(cfg.tau)
        _, _, metrics = awac_loss(
            *(torch.from_numpy(array) for array in (values, target, policy_values, log_prob)),
            awac_lambda=cfg.awac_lambda,
            weighting=cfg.weighting,
            max_weight=cfg.max_weight,
        )
        return metrics


def awac_target(agent: AWAC, mini: Minibatch) -> Array:
    """The least of the slow critics' values of an action that the policy would take next, and no entropy."""
    next_action, _ = agent.actor.sample(mini.next_obs, standard_noise(agent, mini))
    least = agent.critics.target(mini.next_obs, next_action)[..., 0].min(axis=0)
    return td_target(mini.reward, mini.discount, mini.terminated, least).astype(np.float32)


def standard_noise(agent: AWAC, mini: Minibatch) -> Array:
    """Standard normal numbers, one for each action of a minibatch."""
    return agent.batch_rng.standard_normal((len(mini), agent.info.action_size), dtype=np.float32)


SPEC = AlgorithmSpec(
    name="awac",
    family="offline",
    summary="Advantage-weighted actor-critic",
    config=AWACConfig,
    loop=OfflineLoopConfig,
    model=EnsembleModelConfig,
    build=AWAC,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",), offline=True),
)
