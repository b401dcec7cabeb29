"""The loop of algorithms with a world model: the off-policy loop, with a memory of rows."""

from __future__ import annotations

import logging

from rl_training.algorithms.dreamer import Dreamer
from rl_training.algorithms.world import WorldLoopConfig
from rl_training.data.replay import make_replay
from rl_training.data.row_memory import RowMemory
from rl_training.data.row_replay import RowReplay
from rl_training.experiment.config import Config
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.types import UserError

_LOG = logging.getLogger("rl_training")
# Fewer updates than this learn little at a rate below that one.
_FEW_UPDATES, _SMALL_RATE = 20_000, 1e-4


class WorldModelLoop(OffPolicyLoop):
    """The loop of Dreamer. Its first update is due when a whole window is stored, or after `learning_starts`."""

    algorithm: Dreamer

    def warnings(self, total_steps: int) -> list[str]:
        words, updates, cfg = super().warnings(total_steps), self._due(total_steps), self.algorithm.cfg
        rate = cfg.learning_rate
        if 0 < updates < _FEW_UPDATES and 0.0 < rate < _SMALL_RATE:
            words.append(
                f"learning_rate={rate:g}: is made for long runs, and this one makes {updates:,} updates; try "
                "learning_rate=4e-4 warmup_updates=100"
            )
        return words


def make(algorithm: Dreamer, source: Source, config: Config, maker: EnvMaker) -> WorldModelLoop:
    """The loop of a config."""
    loop, cfg, policy = config.loop, algorithm.cfg, algorithm.policy
    assert isinstance(loop, WorldLoopConfig)
    rows, envs = cfg.batch_length + 1, source.num_envs
    if loop.buffer_size // envs < rows:
        raise UserError(
            f"buffer_size={loop.buffer_size}: must be at least {rows * envs}, so that a window of batch_length + 1 = "
            f"{rows} rows of each of {envs} environments fits"
        )
    records = policy.records(policy.info)
    replay = make_replay(policy.info, envs, loop.buffer_size, loop.frame_stack, records, rows=True)
    assert isinstance(replay, RowReplay)
    ratio = loop.updates_per_step * cfg.batch_size * cfg.batch_length
    _LOG.info("updates_per_step=%g: a train ratio of %g replayed steps per step", loop.updates_per_step, ratio)
    # An environment has a row for each of its steps at least, so that some environment has a whole window by then.
    return WorldModelLoop(
        algorithm,
        source,
        RowMemory(replay, cfg.batch_length),
        loop,
        random_steps=loop.learning_starts,
        earliest=rows * envs,
    )
