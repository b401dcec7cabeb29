"""APPO: PPO's clipped objective on rollouts of older policies, with the advantages of V-trace.

By default the ratio is pi / mu, where mu is the policy that acted: an anchor that moved with every update would be no
trust region. With `target_update_interval` it is that of IMPACT (Luo et al. 2020): a target network that is copied now
and then stands between the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
from rl_training.algorithms.parts.readers import Judged
from rl_training.algorithms.parts.target_policy import TargetPolicy
from rl_training.algorithms.settings import setting
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatAdam
from rl_training.ops.kernels import heads as kernels
from rl_training.ops.policy import approximate_kl, clip_fraction, clipped_policy_loss
from rl_training.ops.value import explained_variance, value_loss
from rl_training.types import Array, Metrics, UserError


class APPOConfig(ActorLearnerConfig):
    """maximise E[min(r A, clip(r, 1 - c, 1 + c) A)] + ent_coef H - vf_coef (V - v)^2 - kl_coef KL; A, v of V-trace"""

    batch_size: int = setting(
        256, "Steps in a minibatch; with an rnn, of whole rollouts of environments (at least one).", ge=1, probe=12
    )
    n_epochs: int = setting(1, "Passes over each rollout.", ge=1, probe=3)
    clip_coef: float = setting(
        0.2, "The probability ratio is kept within 1 +- this.", aliases=["clip_range"], ge=0.0, report=True, probe=1e-4
    )
    kl_coef: float = setting(0.0, "Weight of the KL from the policy that the ratio compares with.", ge=0.0, report=True)
    kl_target: float | None = setting(
        None,
        "kl_coef is multiplied by 1.5 after updates whose KL is above twice this, and by 0.5 below half of it; fixed "
        "if null.",
        gt=0.0,
        live_when={"kl_coef": 0.2},
        probe=1e-9,
    )
    target_update_interval: int | None = setting(
        None,
        "Updates between two copies of the policy to a target network, to which the ratio and V-trace then refer "
        "(IMPACT); none if null.",
        ge=2,
        probe=3,
    )
    target_ratio_bar: float = setting(
        2.0,
        "mu / pi_target counts at most this in the ratio (IMPACT).",
        gt=0.0,
        live_when={"target_update_interval": 2},
        probe=0.5,
    )
    adam_eps: float = setting(1e-5, "Adam's epsilon.", gt=0.0, static=True, probe=0.1)


def appo_loss(
    log_ratio: Tensor, advantage: Tensor, entropy: Tensor, value_error: Tensor, cfg: APPOConfig
) -> tuple[Tensor, Tensor]:
    """The loss of a minibatch `[B]` and its policy part, without the KL; `advantage` is not weighted by pi / mu."""
    policy = clipped_policy_loss(log_ratio, advantage, cfg.clip_coef)
    penalty = cfg.kl_coef * approximate_kl(log_ratio)
    return policy + cfg.vf_coef * value_error - cfg.ent_coef * entropy.mean() + penalty, policy


def appo_objective(heads: Heads[Tensor], batch: Batch[Tensor], cfg: APPOConfig) -> tuple[Tensor, Sequence[Tensor]]:
    """The loss of a minibatch, and its parts, entropy, KL and clip fraction."""
    log_ratio = heads.log_prob - batch.log_prob
    value_error = value_loss(heads.value, batch.target)
    advantage = standardized(batch.advantage, cfg)
    loss, policy = appo_loss(log_ratio, advantage, heads.entropy, value_error, cfg)
    with torch.no_grad():
        kl, clipped = approximate_kl(log_ratio), clip_fraction(log_ratio, cfg.clip_coef)
    return loss, (policy, value_error, heads.entropy.mean(), kl, clipped)


def appo_gradient(heads: Heads[Array], batch: Batch[Array], cfg: APPOConfig) -> tuple[Slopes, tuple[float, ...]]:
    """`appo_objective` in closed form."""
    d_log_prob, d_value = np.empty((2, len(batch)), np.float32)
    policy, kl, clipped = kernels.ppo_policy_gradient(
        heads.log_prob, batch.log_prob, standardized(batch.advantage, cfg), cfg.clip_coef, d_log_prob
    )
    if cfg.kl_coef > 0.0:  # the derivative of r - 1 - log r with respect to log r is r - 1
        d_log_prob += cfg.kl_coef * np.expm1(heads.log_prob - batch.log_prob) / len(batch)
    value_error = kernels.value_gradient(heads.value, batch.target, cfg.vf_coef, d_value)
    seen = (float(policy), value_error, float(heads.entropy.mean()), float(kl), float(clipped))
    return Slopes(d_log_prob, -cfg.ent_coef / len(batch), d_value), seen


def adapted(factor: float, kl: float, kl_target: float) -> float:
    """The factor of `kl_coef` after an update with this KL (the adaptive penalty of Schulman et al. 2017, section 4).

    As in RLlib: by 1.5 above twice the target, by 0.5 below half of it.
    """
    if kl > 2.0 * kl_target:
        return 1.5 * factor
    return 0.5 * factor if kl < 0.5 * kl_target else factor


class APPO(ActorLearnerAlgorithm):
    """Minibatch steps on each rollout, kept close to the policy that made it, or to a target network.

    V-trace is computed once per update, with the policy at its beginning.
    """

    cfg: APPOConfig
    objective = Objective(appo_objective, appo_gradient)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if self.cfg.kl_target is not None and self.cfg.kl_coef == 0.0:
            raise UserError(f"kl_target={self.cfg.kl_target:g}: adapts kl_coef, which is 0; set it, for example to 0.2")
        self.optimizer = FlatAdam(self.parameters, eps=self.cfg.adam_eps)
        self.kl_factor = 1.0
        self.target: TargetPolicy | None = None
        if self.cfg.target_update_interval is not None:
            self.target = TargetPolicy(self.make_policy(context), self.policy)

    def corrected_log_prob(self, rollout: Rollout, judged: Judged) -> Array:
        return judged.log_prob if self.target is None else self.target.log_prob(rollout)

    def anchor(self, behaviour: Array, log_prob: Array) -> Array:
        """With a target network, r = min(target_ratio_bar, mu / pi_target) pi / mu (Luo et al. 2020)."""
        if self.target is None:
            return behaviour
        anchor: Array = np.maximum(log_prob, behaviour - np.float32(math.log(self.cfg.target_ratio_bar)))
        return anchor

    def current(self, name: str) -> float:
        return super().current(name) * (self.kl_factor if name == "kl_coef" else 1.0)

    def update(self, batch: Rollout) -> Metrics:
        data = self.prepare(batch)
        cfg = self.cfg.model_copy(update={"kl_coef": self.current("kl_coef")})
        rows: list[tuple[float, ...]] = []
        norms: list[float] = []
        for mini in self.minibatches(data):
            rows.append(self.form.gradient(self.objective, mini, cfg))
            norms.append(self.descend(cfg.max_grad_norm))
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
        seen = dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))
        if cfg.kl_target is not None:
            self.kl_factor = adapted(self.kl_factor, seen["approx_kl"], cfg.kl_target)
        if self.target is not None and cfg.target_update_interval is not None:
            self.target.grow_older(cfg.target_update_interval)
        return seen | {
            "grad_norm": float(np.mean(norms)),
            "explained_variance": explained_variance(data.value, data.target),
            "minibatch_updates": float(len(norms)),
            "n_updates": float(self.n_updates),
        }

    def minibatches(self, data: Batch[Array]) -> Iterator[Batch[Array]]:
        """All minibatches of an update, epoch after epoch; each epoch is shuffled anew."""
        for _ in range(self.cfg.n_epochs):
            yield from self.reader.epoch(data, self.cfg.batch_size, self.batch_rng)

    def training_state(self) -> dict[str, Any]:
        target = {} if self.target is None else {"target": self.target.state_dict()}
        return super().training_state() | {"kl_factor": self.kl_factor} | target

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        super().load_training_state(state)
        self.kl_factor = state["kl_factor"]
        if self.target is not None and "target" in state:
            self.target.load_state_dict(state["target"])
        elif self.target is not None:  # the run goes on with a target network that it did not have before
            self.target.copy()


SPEC = AlgorithmSpec(
    name="appo",
    family="actor_learner",
    summary="PPO on rollouts of older policies, corrected by V-trace",
    config=APPOConfig,
    loop=ActorLearnerLoopConfig,
    model=ActorLearnerModelConfig,
    policy=actor_learner_policy,
    build=APPO,
    capabilities=replace(EVERY_SPACE, recurrent="optional"),
)
