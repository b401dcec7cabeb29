"""The off-policy loop: some steps into the replay buffer, then the updates that are due."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from rl_training.algorithms.base import Algorithm, Policy
from rl_training.algorithms.hindsight import Hindsight, HindsightLoopConfig
from rl_training.algorithms.off_policy import MinibatchConfig, OffPolicyLoopConfig, ReplayAlgorithm
from rl_training.data.chunks import Part
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.hindsight import HindsightMemory
from rl_training.data.memory import Mixture, ReplayMemory
from rl_training.data.replay import GoalReplay, Replay, make_replay
from rl_training.data.samplers import PrioritizedSampler
from rl_training.experiment.config import Config
from rl_training.runtime.actors.actor import Steps
from rl_training.runtime.actors.sources import Experience, Source
from rl_training.runtime.envs.goals import GoalJudge
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.loops.base import Latest, Refresh
from rl_training.types import Metrics, Step, UserError


class ReplayLoop(ABC):
    """What loops with replay buffers share: their clock of environment steps, and which updates are due by it.

    The first `random_steps` actions are uniform. No update is due before the step `earliest`. `memories` are the parts
    of memories, and `parts` further ones with state, which a memory may need.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        source: Experience,
        config: OffPolicyLoopConfig,
        memories: Mapping[str, Part],
        *,
        random_steps: int,
        earliest: int = 0,
        parts: Mapping[str, Part] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.source = source
        self.config = config
        self.latest = Latest()
        self.remembering = frozenset(memories)
        self.parts: dict[str, Part] = {**memories, "latest": self.latest, **(parts or {})}
        self._random_steps = random_steps
        self._starts = max(config.learning_starts, earliest)

    @abstractmethod
    def _gather(self) -> None:
        """Gather steps, at least `train_every`, and remember them."""

    @abstractmethod
    def _learn(self, updates: int) -> Metrics:
        """Make so many updates."""

    @abstractmethod
    def _report(self) -> Metrics:
        """The sizes of memories, and the metrics of the sources."""

    @property
    def steps(self) -> int:
        return self.source.steps

    def step(self, refresh: Refresh) -> Metrics:
        algorithm, before = self.algorithm, self.steps
        refresh(before)
        self._gather()
        steps = self.steps
        refresh(steps)
        with np.errstate(over="ignore", invalid="ignore"):  # the driver refuses metrics that are not finite
            self.latest.metrics |= self._learn(self._due(steps) - self._due(before))
        self.source.publish(algorithm.policy.policy_state, algorithm.policy.values, algorithm.n_updates)
        return self.latest.metrics | {"n_updates": float(algorithm.n_updates)} | self._report()

    def warnings(self, total_steps: int) -> list[str]:
        envs = self.source.num_envs
        at_once = math.ceil(self.config.train_every / envs) * envs  # a run ends after a whole step of the loop
        end = self.steps + math.ceil(max(0, total_steps - self.steps) / at_once) * at_once
        if self._due(end) > 0:
            return []
        return [f"learning_starts={self._starts}: this run ends at step {end}, before its first update"]

    def _due(self, steps: int) -> int:
        """The total number of updates that are due after this many steps."""
        return int(max(0, steps - self.latest.memory_since - self._starts) * self.config.updates_per_step)


def remembered(source: Source, memory: ReplayMemory | Mixture, *, randomly: bool) -> Step:
    """The next step of every environment of a source, once it is in the memory."""
    (step,) = source.gather(1, Steps(), randomly=randomly)
    lost = source.take_lost()  # by a resume, or with a worker just now: this step follows from none before
    if lost is not None:
        memory.cut(lost)
    memory.add(step)
    return step


class OffPolicyLoop(ReplayLoop):
    """The loop of DQN, SAC and other off-policy algorithms; it counts environment steps."""

    algorithm: ReplayAlgorithm
    source: Source

    def __init__(
        self,
        algorithm: ReplayAlgorithm,
        source: Source,
        memory: ReplayMemory | Mixture,
        config: OffPolicyLoopConfig,
        *,
        random_steps: int,
        earliest: int = 0,
        dataset: OfflineDataset | None = None,
        parts: Mapping[str, Part] | None = None,
    ) -> None:
        self.memory = memory
        self.dataset = dataset
        super().__init__(
            algorithm, source, config, memory.parts, random_steps=random_steps, earliest=earliest, parts=parts
        )

    def _gather(self) -> None:
        before = steps = self.steps
        gathered = []
        while steps - before < self.config.train_every:
            gathered.append(remembered(self.source, self.memory, randomly=steps < self._random_steps))
            steps = self.steps
        self.algorithm.observe(gathered)

    def _learn(self, updates: int) -> Metrics:
        return self.algorithm.learn_from(self.memory, updates)

    def _report(self) -> Metrics:
        return {"replay_size": float(len(self.memory))} | self.source.metrics()


def make_memory(algorithm: ReplayAlgorithm, source: Source, config: OffPolicyLoopConfig) -> ReplayMemory:
    """The replay buffer of a run, and what decides what is drawn from it."""
    replay = fitting_replay(algorithm.policy, algorithm.cfg, source, config)
    return ReplayMemory(replay, PrioritizedSampler(replay) if algorithm.prioritized else None)


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


def make(algorithm: ReplayAlgorithm, source: Source, config: Config, maker: EnvMaker) -> OffPolicyLoop:
    """The loop of a config."""
    loop = config.loop
    assert isinstance(loop, OffPolicyLoopConfig)
    her = loop.her if isinstance(loop, HindsightLoopConfig) else None
    memory = (
        make_memory(algorithm, source, loop) if her is None else make_hindsight(algorithm, source, loop, her, maker)
    )
    return OffPolicyLoop(algorithm, source, memory, loop, random_steps=loop.learning_starts)
