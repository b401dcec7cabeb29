"""Proximal policy optimisation (Schulman et al. 2017), with the details of Andrychowicz et al. 2021."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, ModelConfig, setting
from rl_training.algorithms.on_policy import OnPolicyAlgorithm, OnPolicyConfig, OnPolicyLoopConfig
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatAdam
from rl_training.ops.policy import approximate_kl, clip_fraction, clipped_policy_loss, standardize
from rl_training.ops.value import clipped_value_loss, explained_variance, value_loss
from rl_training.types import Capabilities, Metrics


class PPOConfig(OnPolicyConfig):
    """maximise E[min(r A, clip(r, 1 - c, 1 + c) A)] + ent_coef H - vf_coef (V - target)^2 / 2"""

    batch_size: int = setting(64, "Samples in a minibatch.", ge=1, probe=5)
    n_epochs: int = setting(10, "Passes over each rollout.", ge=1, probe=2)
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


class PPO(OnPolicyAlgorithm):
    """Several epochs of minibatch steps on each rollout, kept near the policy that gathered it."""

    cfg: PPOConfig

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.optimizer = FlatAdam(self.parameters, eps=self.cfg.adam_eps)

    def update(self, batch: Rollout) -> Metrics:
        cfg = self.cfg
        data = self.prepare(batch)
        rows: list[tuple[float, ...]] = []
        stopped = False
        for _ in range(cfg.n_epochs):
            shuffled = data.take(torch.from_numpy(self.batch_rng.permutation(len(data))).to(self.device))
            for start in range(0, len(data), cfg.batch_size):
                mini = shuffled.slice(start, start + cfg.batch_size)
                params, value = self.network(mini.obs)
                log_ratio = self.distribution.log_prob(params, mini.action) - mini.log_prob
                entropy = self.distribution.entropy(params)
                if cfg.clip_range_vf is None:
                    value_error = value_loss(value, mini.target)
                else:
                    value_error = clipped_value_loss(value, mini.value, mini.target, cfg.clip_range_vf)
                advantage = standardize(mini.advantage) if cfg.normalize_advantage else mini.advantage
                loss, policy = ppo_loss(log_ratio, advantage, entropy, value_error, cfg)
                with torch.no_grad():
                    kl = approximate_kl(log_ratio)
                    clipped = clip_fraction(log_ratio, cfg.clip_coef)
                    seen = torch.stack([policy, value_error, entropy.mean(), kl, clipped]).tolist()
                # Looked at before the step: the update that would leave the trust region is not made.
                stopped = cfg.target_kl is not None and seen[3] > 1.5 * cfg.target_kl
                if stopped:
                    break
                rows.append((*seen, self.descend(loss)))
            if stopped:
                break
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
        means = np.mean(rows, axis=0) if rows else np.zeros(len(names))
        return dict(zip(names, means.tolist(), strict=True)) | {
            "explained_variance": explained_variance(data.value.cpu().numpy(), data.target.cpu().numpy()),
            "minibatch_updates": float(len(rows)),
            "n_updates": float(self.n_updates),
        }


SPEC = AlgorithmSpec(
    name="ppo",
    family="on_policy",
    summary="Proximal policy optimisation",
    config=PPOConfig,
    loop=OnPolicyLoopConfig,
    model=ModelConfig,
    build=PPO,
    capabilities=Capabilities(observations=("vector",), actions=("discrete", "continuous")),
)
