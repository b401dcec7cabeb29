"""The off-policy loop: some steps into the replay buffer, then the updates that are due."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.hindsight import HindsightLoopConfig
from rl_training.algorithms.off_policy import OffPolicyLoopConfig, ReplayAlgorithm
from rl_training.data.chunks import Part
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.memory import Mixture, ReplayMemory
from rl_training.experiment.config import Config
from rl_training.runtime.actors.actor import Steps
from rl_training.runtime.actors.sources import Experience, Source
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.loops.base import Latest, Refresh
from rl_training.runtime.loops.memories import make_hindsight, make_memory
from rl_training.types import Metrics, Step


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
    def _gather(self, refresh: Refresh) -> None:
        """Gather steps, at least `train_every`, and remember them; `refresh` sets what is scheduled, before acting."""

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
        self._gather(refresh)
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

    def _gather(self, refresh: Refresh) -> None:
        before = steps = self.steps
        refresh(before)
        gathered = []
        while steps - before < self.config.train_every:
            gathered.append(remembered(self.source, self.memory, randomly=steps < self._random_steps))
            steps = self.steps
        self.algorithm.observe(gathered)

    def _learn(self, updates: int) -> Metrics:
        return self.algorithm.learn_from(self.memory, updates)

    def _report(self) -> Metrics:
        return {"replay_size": float(len(self.memory))} | self.source.metrics()


def make(algorithm: ReplayAlgorithm, source: Source, config: Config, maker: EnvMaker) -> OffPolicyLoop:
    """The loop of a config."""
    loop = config.loop
    assert isinstance(loop, OffPolicyLoopConfig)
    her = loop.her if isinstance(loop, HindsightLoopConfig) else None
    memory: ReplayMemory
    if her is None:
        memory = make_memory(algorithm.policy, algorithm.cfg, source, loop, prioritized=algorithm.prioritized)
    else:
        memory = make_hindsight(algorithm, source, loop, her, maker)
    return OffPolicyLoop(algorithm, source, memory, loop, random_steps=loop.learning_starts)
