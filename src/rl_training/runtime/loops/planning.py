"""The loop of the planning family: the off-policy loop, with searched steps."""

from __future__ import annotations

from rl_training.algorithms.muzero import MuZero
from rl_training.experiment.config import Config
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.loops import off_policy
from rl_training.runtime.loops.base import known_time_limit


def make(algorithm: MuZero, source: Source, config: Config) -> off_policy.OffPolicyLoop:
    """The loop of a config; the algorithm learns how long episodes can be, to judge the range of its values."""
    algorithm.range.time_limit = known_time_limit(config)
    return off_policy.make(algorithm, source, config)
