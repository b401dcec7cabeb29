"""The replay buffers of loops: made for a policy, a config and a source."""

from __future__ import annotations

from rl_training.algorithms.base import Policy
from rl_training.algorithms.hindsight import Hindsight
from rl_training.algorithms.off_policy import MinibatchConfig, OffPolicyLoopConfig, ReplayAlgorithm
from rl_training.data.hindsight import HindsightMemory
from rl_training.data.memory import ReplayMemory
from rl_training.data.replay import GoalReplay, Replay, make_replay
from rl_training.data.samplers import PrioritizedSampler
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.envs.goals import GoalJudge
from rl_training.runtime.envs.make import EnvMaker
from rl_training.types import UserError


def make_memory(
    policy: Policy, cfg: MinibatchConfig, source: Source, config: OffPolicyLoopConfig, *, prioritized: bool
) -> ReplayMemory:
    """A replay buffer, and what decides what is drawn from it."""
    replay = fitting_replay(policy, cfg, source, config)
    return ReplayMemory(replay, PrioritizedSampler(replay) if prioritized else None)


def fitting_replay(
    policy: Policy, cfg: MinibatchConfig, source: Source, config: OffPolicyLoopConfig, *, goals: bool = False
) -> Replay:
    """A replay buffer with columns for the policy's records, which can hold a minibatch."""
    if config.buffer_size < cfg.batch_size:
        raise UserError(
            f"buffer_size={config.buffer_size}: must be at least batch_size={cfg.batch_size}, or a minibatch would "
            "hold the same transitions several times"
        )
    records = policy.records(policy.info)
    return make_replay(
        policy.info, source.num_envs, config.buffer_size, config.frame_stack, records, goals=goals, task=policy.task
    )


def make_hindsight(
    algorithm: ReplayAlgorithm, source: Source, config: OffPolicyLoopConfig, her: Hindsight, maker: EnvMaker
) -> HindsightMemory:
    """The replay buffer of a run that learns from what it achieved in place of what was desired."""
    if algorithm.prioritized:
        raise UserError(
            "her: cannot be combined with prioritized=True; an error is that of a transition with one goal, and its "
            "next draw has another"
        )
    if maker.lender is not None:
        raise maker.lender.cannot("her: goals are judged in an environment of their own")
    judge = GoalJudge(maker, config.reward_clip)
    replay = fitting_replay(algorithm.policy, algorithm.cfg, source, config, goals=True)
    assert isinstance(replay, GoalReplay)
    return HindsightMemory(replay, judge, her.strategy, her.n_sampled_goal)
