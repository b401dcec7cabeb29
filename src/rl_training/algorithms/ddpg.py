"""Deep deterministic policy gradient (Lillicrap et al. 2016)."""

from __future__ import annotations

from rl_training.algorithms.base import AlgorithmSpec, setting
from rl_training.algorithms.off_policy import OffPolicyLoopConfig
from rl_training.algorithms.parts.deterministic_actor_critic import (
    DeterministicActorCritic,
    DeterministicConfig,
    DeterministicModelConfig,
)
from rl_training.types import Capabilities


class DDPGModelConfig(DeterministicModelConfig):
    """A deterministic actor and one critic."""

    n_critics: int = setting(1, "Critics, of which the least value is the target.", ge=1, probe=2)


class DDPGConfig(DeterministicConfig):
    """Critic: r + gamma Q'(s', pi'(s')). Actor: maximise Q(s, pi(s))."""


SPEC = AlgorithmSpec(
    name="ddpg",
    family="off_policy",
    summary="Deep deterministic policy gradient",
    config=DDPGConfig,
    loop=OffPolicyLoopConfig,
    model=DDPGModelConfig,
    build=DeterministicActorCritic,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",)),
)
