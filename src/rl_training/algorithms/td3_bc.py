"""TD3+BC (Fujimoto and Gu 2021): TD3 whose actor stays near the data."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec
from rl_training.algorithms.ddpg import DDPG, DeterministicModelConfig, Variant, deterministic_policy
from rl_training.algorithms.offline import OfflineLoopConfig
from rl_training.algorithms.settings import setting
from rl_training.algorithms.td3 import TD3Config, smoothed
from rl_training.types import Array, Capabilities


class TD3BCConfig(TD3Config):
    """Critics as in TD3. Actor: maximise lambda Q_1(s, pi(s)) - (pi(s) - a)^2, lambda = alpha / mean |Q_1|."""

    learning_rate: float = setting(3e-4, "Step size of the optimisers.", ge=0.0, report=True)
    alpha: float = setting(
        2.5, "Weight of Q-values against staying near the data: 0 is behaviour cloning.", ge=0.0, report=True
    )
    normalize_obs: bool | Literal["auto"] = setting(
        "auto", "Scale observations by the dataset's mean and deviation; `auto`: unless they are images.", probe=False
    )
    noise_std: float = setting(
        0.1,
        "Deviation of the noise on actions in online training.",
        ge=0.0,
        report=True,
        live_when={"online": True},
        probe=0.5,
    )


class AnchoredActorLoss(NamedTuple):
    """-lambda Q + (pi(s) - a)^2, lambda = alpha / mean |Q|, which has no gradient (eq. 5); and its gradient.

    The squares are averaged over samples and dimensions.
    """

    alpha: float

    def loss(self, value: Tensor, action: Tensor, data: Tensor) -> Tensor:
        scale = self.alpha / _magnitude(float(value.detach().abs().mean()))
        return -scale * value.mean() + (action - data).square().mean()

    def gradient(self, value: Array, d_value: Array, action: Array, data: Array) -> tuple[float, Array]:
        error, scale = action - data, self.alpha / _magnitude(float(np.abs(value).mean()))
        loss = scale * -float(value.mean()) + float((error * error).mean())
        return loss, np.float32(scale) * -d_value + (2.0 / error.size) * error


def _magnitude(mean: float) -> float:
    """The mean, but never 0: values of 0 then have a finite weight."""
    return max(mean, 1e-8)


def anchored(cfg: Any) -> AnchoredActorLoss:
    """The actor's loss for the current config."""
    return AnchoredActorLoss(cfg.alpha)


SPEC = AlgorithmSpec(
    name="td3_bc",
    family="offline",
    summary="TD3 whose actor stays near the data",
    config=TD3BCConfig,
    loop=OfflineLoopConfig,
    model=DeterministicModelConfig,
    policy=deterministic_policy,
    build=partial(
        DDPG,
        variant=Variant(smooth=smoothed, policy_delay=lambda cfg: int(cfg.policy_delay), actor_loss=anchored),
    ),
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",), offline=True),
)
