"""The replay buffers of loops: made for a policy, a config and a source; whether reanalysis fits beside them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rl_training.algorithms.base import Policy
from rl_training.algorithms.hindsight import Hindsight
from rl_training.algorithms.off_policy import MinibatchConfig, OffPolicyLoopConfig, ReplayAlgorithm
from rl_training.algorithms.planning import PlanningConfig
from rl_training.data.hindsight import HindsightMemory
from rl_training.data.memory import ReplayMemory
from rl_training.data.ram import available_memory, readable
from rl_training.data.replay import GoalReplay, Replay, make_replay
from rl_training.data.samplers import PrioritizedSampler
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.envs.goals import GoalJudge
from rl_training.runtime.envs.make import EnvMaker
from rl_training.types import UserError

_LOG = logging.getLogger("rl_training")


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


def announce_reanalysis(cfg: MinibatchConfig, needed: int, memories: Iterable[ReplayMemory]) -> None:
    """Log the RAM that reanalysis will take; raises a UserError if it does not fit beside the replay buffers."""
    if needed == 0:
        return
    assert isinstance(cfg, PlanningConfig)  # no others have reanalysis
    replay, available = sum(map(_bytes_of, memories)), available_memory()
    if available is not None and needed + replay > available:
        raise UserError(
            f"reanalyze_ratio={cfg.reanalyze_ratio:g}: its searches need {readable(needed)} of RAM beside the replay's "
            f"{readable(replay)}, and {readable(available)} are available; lower it, batch_size or num_simulations"
        )
    _LOG.info("reanalysis takes up to %s of RAM", readable(needed))


def _bytes_of(memory: ReplayMemory) -> int:
    return sum(array.data.nbytes for array in memory.replay.arrays.values())
