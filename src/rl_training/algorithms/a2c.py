"""Advantage actor-critic: the synchronous form of Mnih et al. 2016."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context
from rl_training.algorithms.on_policy import (
    EVERY_SPACE,
    ActorCriticModelConfig,
    ActorCriticPolicy,
    OnPolicyAlgorithm,
    OnPolicyConfig,
    OnPolicyLoopConfig,
)
from rl_training.algorithms.parts.objectives import Batch, Heads, Objective, Slopes, standardized
from rl_training.algorithms.settings import setting
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatRMSprop
from rl_training.ops.kernels import heads as kernels
from rl_training.ops.policy import policy_gradient_loss
from rl_training.ops.value import explained_variance, value_loss
from rl_training.types import Array, Metrics


class A2CLoopConfig(OnPolicyLoopConfig):
    """Short rollouts."""

    n_steps: int = setting(
        5, "Steps of each environment between two updates, each of n_steps * num_envs samples.", ge=1, probe=8
    )


class A2CConfig(OnPolicyConfig):
    """maximise E[log pi(a|s) A] + ent_coef H - vf_coef (V - target)^2"""

    learning_rate: float = setting(7e-4, "Step size of the optimiser.", ge=0.0, report=True)
    gae_lambda: float = setting(1.0, "Trace decay of the advantage estimate.", ge=0.0, le=1.0, probe=0.5)
    normalize_advantage: bool = setting(False, "Standardise advantages in every update.")
    rms_alpha: float = setting(0.99, "RMSprop's decay of squared gradients.", ge=0.0, lt=1.0, static=True, probe=0.5)
    rms_eps: float = setting(1e-5, "RMSprop's epsilon.", gt=0.0, static=True, probe=0.1)


def a2c_loss(
    log_prob: Tensor, advantage: Tensor, entropy: Tensor, value_error: Tensor, cfg: A2CConfig
) -> tuple[Tensor, Tensor]:
    """The loss of a rollout `[N]` and its policy part."""
    policy = policy_gradient_loss(log_prob, advantage)
    return policy + cfg.vf_coef * value_error - cfg.ent_coef * entropy.mean(), policy


def a2c_objective(heads: Heads[Tensor], batch: Batch[Tensor], cfg: A2CConfig) -> tuple[Tensor, Sequence[Tensor]]:
    """The loss of a rollout, its parts, and the entropy."""
    value_error = value_loss(heads.value, batch.target)
    advantage = standardized(batch.advantage, cfg)
    loss, policy = a2c_loss(heads.log_prob, advantage, heads.entropy, value_error, cfg)
    return loss, (policy, value_error, heads.entropy.mean())


def a2c_gradient(heads: Heads[Array], batch: Batch[Array], cfg: A2CConfig) -> tuple[Slopes, tuple[float, ...]]:
    """`a2c_objective` in closed form."""
    d_log_prob, d_value = np.empty((2, len(batch)), np.float32)
    policy = kernels.plain_policy_gradient(heads.log_prob, standardized(batch.advantage, cfg), d_log_prob)
    value_error = kernels.value_gradient(heads.value, batch.target, cfg.vf_coef, d_value)
    seen = (policy, value_error, float(heads.entropy.mean()))
    return Slopes(d_log_prob, -cfg.ent_coef / len(batch), d_value), seen


class A2C(OnPolicyAlgorithm):
    """One gradient step on each rollout."""

    cfg: A2CConfig
    objective = Objective(a2c_objective, a2c_gradient)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.optimizer = FlatRMSprop(self.parameters, eps=self.cfg.rms_eps, alpha=self.cfg.rms_alpha)

    def update(self, batch: Rollout) -> Metrics:
        data = self.prepare(batch)
        seen = self.gradient(data)
        return dict(zip(("policy_loss", "value_loss", "entropy"), seen, strict=True)) | {
            "grad_norm": self.descend(self.cfg.max_grad_norm),
            "explained_variance": explained_variance(data.value, data.target),
            "n_updates": float(self.n_updates),
        }


SPEC = AlgorithmSpec(
    name="a2c",
    family="on_policy",
    summary="Advantage actor-critic",
    config=A2CConfig,
    loop=A2CLoopConfig,
    model=ActorCriticModelConfig,
    policy=ActorCriticPolicy,
    build=A2C,
    capabilities=EVERY_SPACE,
)
