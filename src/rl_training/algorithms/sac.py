"""Soft actor-critic (Haarnoja et al. 2018)."""

from __future__ import annotations

from functools import partial

from rl_training.algorithms.base import AlgorithmSpec
from rl_training.algorithms.off_policy import Minibatch, OffPolicyLoopConfig
from rl_training.algorithms.parts.critics import LEAST
from rl_training.algorithms.parts.networks import EnsembleModelConfig
from rl_training.algorithms.parts.soft_actor_critic import SoftActorCritic, SoftConfig
from rl_training.ops.value import td_target
from rl_training.types import Array, Capabilities


class SACConfig(SoftConfig):
    """Critics: r + gamma (min Q'(s', a') - ent_coef log pi(a' | s')). Actor: maximise min Q - ent_coef log pi."""


def sac_goal(agent: SoftActorCritic, mini: Minibatch, next_action: Array, entropy_cost: Array) -> Array:
    """The least of the critics' values of the next action, and what its certainty costs (eq. 8)."""
    least = agent.critics.target(mini.next_obs, next_action)[..., 0].min(axis=0)
    return td_target(mini.reward, mini.discount, mini.terminated, least - entropy_cost)


SPEC = AlgorithmSpec(
    name="sac",
    family="off_policy",
    summary="Soft actor-critic",
    config=SACConfig,
    loop=OffPolicyLoopConfig,
    model=EnsembleModelConfig,
    build=partial(SoftActorCritic, goal=sac_goal, reduction=LEAST),
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",)),
)
