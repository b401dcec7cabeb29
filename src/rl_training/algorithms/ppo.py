"""Proximal policy optimisation (Schulman et al. 2017), with the details of Andrychowicz et al. 2021."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
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
from rl_training.models.flat import FlatAdam
from rl_training.ops.kernels import heads as kernels
from rl_training.ops.policy import approximate_kl, clip_fraction, clipped_policy_loss
from rl_training.ops.value import clipped_value_loss, explained_variance, value_loss
from rl_training.types import Array, Metrics


class PPOConfig(OnPolicyConfig):
    """maximise E[min(r A, clip(r, 1 - c, 1 + c) A)] + ent_coef H - vf_coef (V - target)^2"""

    batch_size: int = setting(64, "Samples in a minibatch.", ge=1, probe=5)
    n_epochs: int = setting(10, "Passes over each rollout.", ge=1, probe=3)
    clip_coef: float = setting(
        0.2, "The probability ratio is kept within 1 +- this.", aliases=["clip_range"], ge=0.0, report=True, probe=1e-4
    )
    clip_range_vf: float | None = setting(
        None, "Values are kept within this of the old ones; not clipped if null.", gt=0.0, probe=1e-4
    )
    target_kl: float | None = setting(
        None, "An update ends before the step whose KL exceeds 1.5 times this; never if null.", gt=0.0, probe=1e-9
    )
    adam_eps: float = setting(1e-5, "Adam's epsilon.", gt=0.0, static=True, probe=0.1)


def ppo_loss(
    log_ratio: Tensor, advantage: Tensor, entropy: Tensor, value_error: Tensor, cfg: PPOConfig
) -> tuple[Tensor, Tensor]:
    """The loss of a minibatch `[B]` and its policy part (eq. 9)."""
    policy = clipped_policy_loss(log_ratio, advantage, cfg.clip_coef)
    return policy + cfg.vf_coef * value_error - cfg.ent_coef * entropy.mean(), policy


def ppo_objective(heads: Heads[Tensor], batch: Batch[Tensor], cfg: PPOConfig) -> tuple[Tensor, Sequence[Tensor]]:
    """The loss of a minibatch, and its parts, entropy, KL and clip fraction."""
    log_ratio = heads.log_prob - batch.log_prob
    if cfg.clip_range_vf is None:
        value_error = value_loss(heads.value, batch.target)
    else:
        value_error = clipped_value_loss(heads.value, batch.value, batch.target, cfg.clip_range_vf)
    advantage = standardized(batch.advantage, cfg)
    loss, policy = ppo_loss(log_ratio, advantage, heads.entropy, value_error, cfg)
    with torch.no_grad():
        kl, clipped = approximate_kl(log_ratio), clip_fraction(log_ratio, cfg.clip_coef)
    return loss, (policy, value_error, heads.entropy.mean(), kl, clipped)


def ppo_gradient(heads: Heads[Array], batch: Batch[Array], cfg: PPOConfig) -> tuple[Slopes, tuple[float, ...]]:
    """`ppo_objective` in closed form."""
    d_log_prob, d_value = np.empty((2, len(batch)), np.float32)
    advantage = standardized(batch.advantage, cfg)
    policy, kl, clipped = kernels.ppo_policy_gradient(
        heads.log_prob, batch.log_prob, advantage, cfg.clip_coef, d_log_prob
    )
    if cfg.clip_range_vf is None:
        value_error = kernels.value_gradient(heads.value, batch.target, cfg.vf_coef, d_value)
    else:
        value_error = kernels.clipped_value_gradient(
            heads.value, batch.value, batch.target, cfg.clip_range_vf, cfg.vf_coef, d_value
        )
    seen = (float(policy), value_error, float(heads.entropy.mean()), float(kl), float(clipped))
    return Slopes(d_log_prob, -cfg.ent_coef / len(batch), d_value), seen


class PPO(OnPolicyAlgorithm):
    """Several epochs of minibatch steps on each rollout, kept close to the policy that collected it."""

    cfg: PPOConfig
    objective = Objective(ppo_objective, ppo_gradient)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.optimizer = FlatAdam(self.parameters, eps=self.cfg.adam_eps)

    def update(self, batch: Rollout) -> Metrics:
        cfg = self.cfg
        data = self.prepare(batch)
        rows: list[tuple[float, ...]] = []
        norms: list[float] = []
        for mini in self.minibatches(data):
            seen = self.gradient(mini)
            rows.append(seen)
            # Checked before the step, so that an update that would leave the trust region is not made.
            if cfg.target_kl is not None and seen[3] > 1.5 * cfg.target_kl:
                break
            norms.append(self.descend(cfg.max_grad_norm))
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
        return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True)) | {
            "grad_norm": float(np.mean(norms)) if norms else 0.0,
            "explained_variance": explained_variance(data.value, data.target),
            "minibatch_updates": float(len(norms)),
            "n_updates": float(self.n_updates),
        }

    def minibatches(self, data: Batch[Array]) -> Iterator[Batch[Array]]:
        """All minibatches of an update, epoch after epoch; each epoch is shuffled anew."""
        for _ in range(self.cfg.n_epochs):
            yield from self.reader.epoch(data, self.cfg.batch_size, self.batch_rng)


SPEC = AlgorithmSpec(
    name="ppo",
    family="on_policy",
    summary="Proximal policy optimisation",
    config=PPOConfig,
    loop=OnPolicyLoopConfig,
    model=ActorCriticModelConfig,
    policy=ActorCriticPolicy,
    build=PPO,
    capabilities=EVERY_SPACE,
)
