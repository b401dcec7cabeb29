"""The loop of the planning family: the off-policy loop, with searched steps."""

from __future__ import annotations

import logging

from rl_training.algorithms.muzero import MuZero
from rl_training.data.memory import ReplayMemory
from rl_training.data.ram import available_memory, readable
from rl_training.experiment.config import Config
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.loops import off_policy
from rl_training.runtime.loops.base import known_time_limit
from rl_training.types import UserError

_LOG = logging.getLogger("rl_training")


def make(algorithm: MuZero, source: Source, config: Config, maker: EnvMaker) -> off_policy.OffPolicyLoop:
    """The loop of a config; the algorithm learns how long episodes can be, to judge the range of its values."""
    algorithm.set_time_limit(known_time_limit(config))
    loop = off_policy.make(algorithm, source, config, maker)
    assert isinstance(loop.memory, ReplayMemory)
    _announce_reanalysis(algorithm, sum(array.data.nbytes for array in loop.memory.replay.arrays.values()))
    return loop


def _announce_reanalysis(algorithm: MuZero, replay: int) -> None:
    """Log the RAM that reanalysis will take; raises a UserError if it does not fit beside the replay buffer."""
    needed, available, ratio = algorithm.reanalysis_bytes(), available_memory(), algorithm.cfg.reanalyze_ratio
    if needed == 0:
        return
    if available is not None and needed + replay > available:
        raise UserError(
            f"reanalyze_ratio={ratio:g}: its searches need {readable(needed)} of RAM beside the replay's "
            f"{readable(replay)}, and {readable(available)} are available; lower it, batch_size or num_simulations"
        )
    _LOG.info("reanalysis takes up to %s of RAM", readable(needed))
