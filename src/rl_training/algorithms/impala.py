"""IMPALA (Espeholt et al. 2018): an actor-critic whose V-trace corrects for the age of the policy that acted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.actor_learner import (
    ActorLearnerAlgorithm,
    ActorLearnerConfig,
    ActorLearnerLoopConfig,
    ActorLearnerModelConfig,
    actor_learner_policy,
)
from rl_training.algorithms.base import AlgorithmSpec, Context
from rl_training.algorithms.on_policy import EVERY_SPACE
from rl_training.algorithms.parts.objectives import Batch, Heads, Objective, Slopes, standardized
from rl_training.algorithms.settings import setting
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatAdam, FlatRMSprop
from rl_training.ops.kernels import heads as kernels
from rl_training.ops.policy import approximate_kl, policy_gradient_loss, truncated_ratio
from rl_training.ops.value import explained_variance, value_loss
from rl_training.types import Array, Metrics


class IMPALAConfig(ActorLearnerConfig):
    """maximise E[min(pg_rho_bar, pi / mu) A log pi(a|s)] + ent_coef H - vf_coef (V - v)^2, with A and v of V-trace"""

    learning_rate: float = setting(6e-4, "Step size of the optimiser.", ge=0.0, report=True)
    ent_coef: float = setting(0.01, "Weight of the entropy bonus.", aliases=["entropy_coef"], ge=0.0, report=True)
    normalize_advantage: bool = setting(False, "Standardise advantages in every update.")
    pg_rho_bar: float = setting(1.0, "pi / mu counts at most this in the policy's gradient.", gt=0.0, probe=0.5)
    optimizer_type: Literal["rmsprop", "adam"] = setting(
        "rmsprop", "The optimiser.", aliases=["optimizer"], probe="adam"
    )
    rms_alpha: float = setting(
        0.99,
        "RMSprop's decay of squared gradients.",
        ge=0.0,
        lt=1.0,
        static=True,
        live_when={"optimizer_type": "rmsprop"},
        probe=0.5,
    )
    rms_eps: float = setting(
        1e-5,
        "RMSprop's epsilon. The paper's 0.01 is for a loss that is summed over 640 steps; here it is their mean.",
        gt=0.0,
        static=True,
        live_when={"optimizer_type": "rmsprop"},
        probe=0.1,
    )
    adam_eps: float = setting(
        1e-5, "Adam's epsilon.", gt=0.0, static=True, live_when={"optimizer_type": "adam"}, probe=0.1
    )


def impala_loss(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    advantage: Tensor,
    entropy: Tensor,
    value_error: Tensor,
    cfg: IMPALAConfig,
) -> tuple[Tensor, Tensor]:
    """The loss of a rollout `[N]` and its policy part (section 4.2). Advantages are not weighted by pi / mu yet."""
    weight = truncated_ratio(log_prob - behaviour_log_prob, cfg.pg_rho_bar)
    policy = policy_gradient_loss(log_prob, weight * advantage)
    return policy + cfg.vf_coef * value_error - cfg.ent_coef * entropy.mean(), policy


def impala_objective(heads: Heads[Tensor], batch: Batch[Tensor], cfg: IMPALAConfig) -> tuple[Tensor, Sequence[Tensor]]:
    """The loss of a rollout, its parts, the entropy, KL(mu || pi), and the mean weight."""
    value_error = value_loss(heads.value, batch.target)
    advantage = standardized(batch.advantage, cfg)
    loss, policy = impala_loss(heads.log_prob, batch.log_prob, advantage, heads.entropy, value_error, cfg)
    with torch.no_grad():
        log_ratio = heads.log_prob - batch.log_prob
        kl, weight = approximate_kl(log_ratio), truncated_ratio(log_ratio, cfg.pg_rho_bar).mean()
    return loss, (policy, value_error, heads.entropy.mean(), kl, weight)


def impala_gradient(heads: Heads[Array], batch: Batch[Array], cfg: IMPALAConfig) -> tuple[Slopes, tuple[float, ...]]:
    """`impala_objective` in closed form."""
    d_log_prob, d_value = np.empty((2, len(batch)), np.float32)
    policy, kl, weight = kernels.weighted_policy_gradient(
        heads.log_prob, batch.log_prob, standardized(batch.advantage, cfg), cfg.pg_rho_bar, d_log_prob
    )
    value_error = kernels.value_gradient(heads.value, batch.target, cfg.vf_coef, d_value)
    seen = (policy, value_error, float(heads.entropy.mean()), kl, weight)
    return Slopes(d_log_prob, -cfg.ent_coef / len(batch), d_value), seen


class IMPALA(ActorLearnerAlgorithm):
    """One gradient step on each rollout."""

    cfg: IMPALAConfig
    objective = Objective(impala_objective, impala_gradient)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        cfg = self.cfg
        self.optimizer = (
            FlatRMSprop(self.parameters, eps=cfg.rms_eps, alpha=cfg.rms_alpha)
            if cfg.optimizer_type == "rmsprop"
            else FlatAdam(self.parameters, eps=cfg.adam_eps)
        )

    def update(self, batch: Rollout) -> Metrics:
        data = self.prepare(batch)
        seen = self.gradient(self.reader.whole(data))
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "rho_mean")
        return dict(zip(names, seen, strict=True)) | {
            "grad_norm": self.descend(self.cfg.max_grad_norm),
            "explained_variance": explained_variance(data.value, data.target),
            "n_updates": float(self.n_updates),
        }


SPEC = AlgorithmSpec(
    name="impala",
    family="actor_learner",
    summary="Actor-critic on rollouts of older policies, corrected by V-trace",
    config=IMPALAConfig,
    loop=ActorLearnerLoopConfig,
    model=ActorLearnerModelConfig,
    policy=actor_learner_policy,
    build=IMPALA,
    capabilities=replace(EVERY_SPACE, recurrent="optional"),
)
