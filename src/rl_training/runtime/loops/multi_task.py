"""The loop of algorithms that learn several tasks: steps of every task into its own replay buffer, then the updates."""

from __future__ import annotations

from collections.abc import Mapping

from rl_training.algorithms.multi_task import MultiTaskAlgorithm, named
from rl_training.algorithms.off_policy import OffPolicyLoopConfig
from rl_training.data.chunks import Part
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.memory import ReplayMemory
from rl_training.experiment.config import Config
from rl_training.runtime.actors.sources import Experience
from rl_training.runtime.actors.task_sources import run_metrics, sources_of
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.loops.base import Refresh, known_time_limit
from rl_training.runtime.loops.memories import announce_reanalysis, make_memory
from rl_training.runtime.loops.off_policy import ReplayLoop, remembered
from rl_training.types import Metrics, Step


class MultiTaskLoop(ReplayLoop):
    """Gathers in the tasks that the algorithm asks for, in turn; it counts the environment steps of all tasks."""

    algorithm: MultiTaskAlgorithm
    dataset: OfflineDataset | None = None

    def __init__(
        self,
        algorithm: MultiTaskAlgorithm,
        source: Experience,
        memories: Mapping[str, ReplayMemory],
        config: OffPolicyLoopConfig,
    ) -> None:
        self.sources = sources_of(source)
        self.memories = memories
        kept: dict[str, Part] = {
            part_name(task, name): part for task, memory in memories.items() for name, part in memory.parts.items()
        }
        super().__init__(algorithm, source, config, kept, random_steps=config.learning_starts)

    def _gather(self, refresh: Refresh) -> None:
        """One step of every environment of every active task, until enough are gathered.

        Where tasks have left, that takes more rounds; each searches at the temperature of its own step.
        """
        before = steps = self.steps
        gathered: dict[str, list[Step]] = {task: [] for task in self.algorithm.active_tasks() or self.sources}
        while steps - before < self.config.train_every:
            refresh(steps)
            randomly = steps < self._random_steps
            for task, found in gathered.items():
                found.append(remembered(self.sources[task], self.memories[task], randomly=randomly))
            steps = self.steps
        for task, found in gathered.items():
            self.algorithm.observe(task, found)

    def _learn(self, updates: int) -> Metrics:
        found = self.algorithm.learn_from(self.memories, updates)
        if found and updates:  # a task that has left training has no metrics of updates any more
            left = tuple(f"{task}/" for task in self.memories if not any(name.startswith(f"{task}/") for name in found))
            for name in [name for name in self.latest.metrics if name.startswith(left)]:
                del self.latest.metrics[name]
        return found

    def _report(self) -> Metrics:
        heard = {task: source.metrics() for task, source in self.sources.items()}
        followed = self.algorithm.hear({task: source.returns() for task, source in self.sources.items()})
        sizes: Metrics = {}
        for task, memory in self.memories.items():
            sizes |= named(task, {"replay_size": float(len(memory))})
        return sizes | followed | run_metrics(heard, self.sources)


def part_name(task: str, name: str) -> str:
    """The name under which a part of a task's memory is saved. It is part of the names of files."""
    return f"{task}.{name}" if task else name


def make(algorithm: MultiTaskAlgorithm, source: Experience, config: Config, maker: EnvMaker) -> MultiTaskLoop:
    """The loop of a config."""
    assert isinstance(config.loop, OffPolicyLoopConfig)
    for task in algorithm.tasks:
        algorithm.set_time_limit(task, known_time_limit(config.for_task(task)))
    memories = {}
    for task, its in sources_of(source).items():
        policy, loop = algorithm.policy.for_task(task), config.for_task(task).loop
        assert isinstance(loop, OffPolicyLoopConfig)
        memories[task] = make_memory(policy, algorithm.cfg, its, loop, prioritized=algorithm.prioritized)
    announce_reanalysis(algorithm.cfg, algorithm.reanalysis_bytes(), memories.values())
    return MultiTaskLoop(algorithm, source, memories, config.loop)
