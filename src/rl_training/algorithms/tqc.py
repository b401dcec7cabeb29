"""Truncated quantile critics (Kuznetsov et al. 2020): return distributions without their highest quantiles."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from rl_training.algorithms.base import AlgorithmSpec, Context
from rl_training.algorithms.hindsight import HindsightLoopConfig
from rl_training.algorithms.off_policy import Minibatch
from rl_training.algorithms.parts.autograd import MEAN, CriticLoss
from rl_training.algorithms.parts.networks import EnsembleModelConfig
from rl_training.algorithms.sac import SAC, SACConfig, Variant, soft_policy
from rl_training.algorithms.settings import setting
from rl_training.ops.kernels.td import quantile_huber_gradient
from rl_training.ops.value import quantile_huber_loss, td_target
from rl_training.types import Array, Capabilities, SpaceInfo, UserError


class TQCModelConfig(EnsembleModelConfig):
    """An actor and several critics that return quantiles."""

    n_quantiles: int = setting(25, "Number of quantiles of each critic.", ge=1, probe=5)

    sizes: ClassVar[tuple[str, ...]] = ("hidden_sizes", "n_critics", "n_quantiles")

    def least_weights(self, info: SpaceInfo) -> int:
        return super().least_weights(info) + (self.n_critics * self.n_quantiles if self.model == "auto" else 0)


class TQCConfig(SACConfig):
    """Critics: quantile regression on the lowest of all quantiles of r + gamma (Z'(s', a') - ent_coef log pi)."""

    top_quantiles_to_drop: int = setting(2, "Highest quantiles that are left out, for each critic.", ge=0, probe=0)


def tqc_target(agent: SAC, mini: Minibatch, next_action: Array, entropy_cost: Array) -> Array:
    """The lowest quantiles of all critics pooled, as samples `[B, M]` of the target (eq. 10)."""
    cfg = agent.cfg
    assert isinstance(cfg, TQCConfig)
    values = agent.critics.target(mini.next_obs, next_action)
    pooled = np.sort(values.transpose(1, 0, 2).reshape(len(mini), -1), axis=1)
    kept = pooled[:, : pooled.shape[1] - cfg.top_quantiles_to_drop * len(values)]
    reward, discount, terminated = mini.reward[:, None], mini.discount[:, None], mini.terminated[:, None]
    return td_target(reward, discount, terminated, kept - entropy_cost[:, None])


def _quantile_gradient(quantiles: Array, target: Array, d_quantiles: Array) -> float:
    loss: float = quantile_huber_gradient(quantiles, target, d_quantiles)[0]
    return loss


_VARIANT = Variant(
    target=tqc_target,
    critic_loss=CriticLoss(quantile_huber_loss, _quantile_gradient),
    reduction=MEAN,
    n_quantiles=lambda model: int(model.n_quantiles),
)


def build_tqc(context: Context) -> SAC:
    """A soft actor-critic whose critics return quantiles."""
    cfg, model = context.config, context.model
    assert isinstance(cfg, TQCConfig)
    assert isinstance(model, TQCModelConfig)
    if cfg.top_quantiles_to_drop >= model.n_quantiles:
        raise UserError(
            f"top_quantiles_to_drop={cfg.top_quantiles_to_drop}: must be below n_quantiles={model.n_quantiles}"
        )
    return SAC(context, _VARIANT)


SPEC = AlgorithmSpec(
    name="tqc",
    family="off_policy",
    summary="Truncated quantile critics",
    config=TQCConfig,
    loop=HindsightLoopConfig,
    model=TQCModelConfig,
    policy=partial(soft_policy, variant=_VARIANT),
    build=build_tqc,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",)),
)
