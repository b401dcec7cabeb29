"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

from __future__ import annotations

from functools import partial

import numpy as np

from rl_training.algorithms.base import AlgorithmSpec
from rl_training.algorithms.ddpg import DDPG, DDPGConfig, DeterministicModelConfig, Variant, deterministic_policy
from rl_training.algorithms.hindsight import HindsightLoopConfig
from rl_training.algorithms.settings import setting
from rl_training.types import Array, Capabilities


class TD3Config(DDPGConfig):
    """Critics: r + gamma min Q'(s', pi'(s') + clipped noise). Actor, every other update: maximise Q_1(s, pi(s))."""

    policy_delay: int = setting(2, "Critic updates per update of the actor and the target networks.", ge=1, probe=1)
    target_policy_noise: float = setting(0.2, "Deviation of the noise on target actions.", ge=0.0, probe=1.0)
    target_noise_clip: float = setting(0.5, "Noise on target actions stays within this.", ge=0.0, probe=0.01)


def smoothed(agent: DDPG, action: Array) -> Array:
    """Target actions with clipped noise, which smooths narrow peaks of the critics (eq. 14)."""
    cfg = agent.cfg
    assert isinstance(cfg, TD3Config)
    noise = cfg.target_policy_noise * agent.batch_rng.standard_normal(action.shape, dtype=np.float32)
    smooth: Array = np.clip(action + np.clip(noise, -cfg.target_noise_clip, cfg.target_noise_clip), -1.0, 1.0)
    return smooth


SPEC = AlgorithmSpec(
    name="td3",
    family="off_policy",
    summary="Twin delayed deep deterministic policy gradient",
    config=TD3Config,
    loop=HindsightLoopConfig,
    model=DeterministicModelConfig,
    policy=deterministic_policy,
    build=partial(DDPG, variant=Variant(smooth=smoothed, policy_delay=lambda cfg: int(cfg.policy_delay))),
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",)),
)
