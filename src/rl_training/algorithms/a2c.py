"""Advantage actor-critic: the synchronous form of Mnih et al. 2016."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, setting
from rl_training.algorithms.on_policy import (
    EVERY_SPACE,
    ActorCriticModelConfig,
    Batch,
    OnPolicyAlgorithm,
    OnPolicyConfig,
    OnPolicyLoopConfig,
)
from rl_training.data.rollout import Rollout
from rl_training.models.actor_critic_engine import ActorCriticEngine
from rl_training.models.flat import FlatRMSprop
from rl_training.ops.kernels import heads
from rl_training.ops.policy import policy_gradient_loss, standardize
from rl_training.ops.value import explained_variance, value_loss
from rl_training.types import Array, Metrics


class A2CLoopConfig(OnPolicyLoopConfig):
    """Short rollouts."""

    n_steps: int = setting(5, "Steps of each environment between two updates.", ge=1, probe=8)


class A2CConfig(OnPolicyConfig):
    """maximise E[log pi(a|s) A] + ent_coef H - vf_coef (V - target)^2 / 2"""

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


class A2C(OnPolicyAlgorithm):
    """One gradient step on each rollout."""

    cfg: A2CConfig

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.optimizer = FlatRMSprop(self.parameters, eps=self.cfg.rms_eps, alpha=self.cfg.rms_alpha)

    def update(self, batch: Rollout) -> Metrics:
        data = self.prepare(batch)
        seen = self._autograd(data) if self.mlp is None else self._closed_form(self.mlp, data)
        return dict(zip(("policy_loss", "value_loss", "entropy"), seen, strict=True)) | {
            "grad_norm": self.descend(self.cfg.max_grad_norm),
            "explained_variance": explained_variance(data.value, data.target),
            "n_updates": float(self.n_updates),
        }

    def _autograd(self, batch: Batch[Array]) -> tuple[float, ...]:
        data = self.tensors(batch)
        params, value = self.network_outputs(batch.obs)
        log_prob, entropy = self.distribution.log_prob(params, data.action), self.distribution.entropy(params)
        value_error = value_loss(value, data.target)
        advantage = standardize(data.advantage) if self.cfg.normalize_advantage else data.advantage
        loss, policy = a2c_loss(log_prob, advantage, entropy, value_error, self.cfg)
        self.differentiate(loss)
        return tuple(torch.stack([policy, value_error, entropy.mean()]).tolist())

    def _closed_form(self, mlp: ActorCriticEngine, data: Batch[Array]) -> tuple[float, ...]:
        log_prob, entropy, value = self.evaluate(data)
        d_log_prob, d_value = np.empty((2, len(data)), np.float32)
        policy = heads.plain_policy_gradient(log_prob, self.standardized(data.advantage), d_log_prob)
        value_error = heads.value_gradient(value, data.target, self.cfg.vf_coef, d_value)
        mean_entropy = float(entropy.mean())
        mlp.backward(d_log_prob, -self.cfg.ent_coef / len(data), d_value)
        return policy, value_error, mean_entropy


SPEC = AlgorithmSpec(
    name="a2c",
    family="on_policy",
    summary="Advantage actor-critic",
    config=A2CConfig,
    loop=A2CLoopConfig,
    model=ActorCriticModelConfig,
    build=A2C,
    capabilities=EVERY_SPACE,
)
