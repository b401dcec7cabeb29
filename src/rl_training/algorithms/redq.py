"""Randomized ensembled double Q-learning (Chen et al. 2021): many updates per step without overestimation."""

from __future__ import annotations

from rl_training.algorithms.base import AlgorithmSpec, Context
from rl_training.algorithms.hindsight import HindsightLoopConfig
from rl_training.algorithms.off_policy import Minibatch
from rl_training.algorithms.parts.autograd import MEAN
from rl_training.algorithms.parts.networks import EnsembleModelConfig
from rl_training.algorithms.sac import SAC, SACConfig, Variant, soft_policy
from rl_training.algorithms.settings import setting
from rl_training.ops.value import td_target
from rl_training.types import Array, Capabilities, UserError


class REDQLoopConfig(HindsightLoopConfig):
    """Many updates for each step."""

    learning_starts: int = setting(5_000, "Steps of random actions before learning starts.", ge=0, probe=9)
    updates_per_step: float = setting(
        20.0, "Gradient updates per step of experience, whatever num_envs is.", gt=0.0, static=True, probe=0.75
    )


class REDQModelConfig(EnsembleModelConfig):
    """An actor and many critics."""

    n_critics: int = setting(10, "Critics in the ensemble.", ge=1, probe=5)


class REDQConfig(SACConfig):
    """Critics: r + gamma (min over a random subset of Q'(s', a') - ent_coef log pi). Actor: maximise the mean Q."""

    subset_size: int = setting(2, "Critics whose least value is the target; drawn anew for each update.", ge=1, probe=1)
    policy_delay: int = setting(20, "Critic updates per update of the actor.", ge=1, probe=3)


def redq_target(agent: SAC, mini: Minibatch, next_action: Array, entropy_cost: Array) -> Array:
    """The least value of a random subset of the target critics (algorithm 1, line 9)."""
    cfg = agent.cfg
    assert isinstance(cfg, REDQConfig)
    members = agent.batch_rng.choice(agent.critics.count, cfg.subset_size, replace=False)
    least = agent.critics.target(mini.next_obs, next_action, members)[..., 0].min(axis=0)
    return td_target(mini.reward, mini.discount, mini.terminated, least - entropy_cost)


_VARIANT = Variant(target=redq_target, reduction=MEAN, policy_delay=lambda cfg: int(cfg.policy_delay))


def build_redq(context: Context) -> SAC:
    """A soft actor-critic whose targets use a random subset of its critics."""
    agent = SAC(context, _VARIANT)
    cfg = agent.cfg
    assert isinstance(cfg, REDQConfig)
    if cfg.subset_size > agent.critics.count:
        raise UserError(f"subset_size={cfg.subset_size}: there are only n_critics={agent.critics.count} to choose from")
    return agent


SPEC = AlgorithmSpec(
    name="redq",
    family="off_policy",
    summary="Randomized ensembled double Q-learning",
    config=REDQConfig,
    loop=REDQLoopConfig,
    model=REDQModelConfig,
    policy=soft_policy,
    build=build_redq,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",)),
)
