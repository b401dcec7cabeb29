"""The loop of the planning family: the off-policy loop, with searched steps."""

from __future__ import annotations

from rl_training.algorithms.muzero import MuZero
from rl_training.data.memory import ReplayMemory
from rl_training.experiment.config import Config
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.loops import off_policy
from rl_training.runtime.loops.base import known_time_limit
from rl_training.runtime.loops.memories import announce_reanalysis


def make(algorithm: MuZero, source: Source, config: Config, maker: EnvMaker) -> off_policy.OffPolicyLoop:
    """The loop of a config; the algorithm learns how long episodes can be, to judge the range of its values."""
    algorithm.set_time_limit(known_time_limit(config))
    loop = off_policy.make(algorithm, source, config, maker)
    assert isinstance(loop.memory, ReplayMemory)
    announce_reanalysis(algorithm.cfg, algorithm.reanalysis_bytes(), [loop.memory])
    return loop
