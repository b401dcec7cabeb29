"""What algorithms that learn several tasks at once tell the runtime, and what they are told."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from rl_training.algorithms.base import Algorithm, Context, Policy
from rl_training.algorithms.off_policy import MinibatchConfig, OffPolicyLoopConfig
from rl_training.data.memory import Memory
from rl_training.types import Metrics, Step


def named(task: str, metrics: Mapping[str, float]) -> Metrics:
    """Metrics of a task, by their full names: `lander/episodes`."""
    return {f"{task}/{name}": value for name, value in metrics.items()} if task else dict(metrics)


class MultiTaskLoopConfig(OffPolicyLoopConfig):
    """Some steps of every task into its own replay buffer, then the updates that are due for all of them."""


class MultiTaskAlgorithm(Algorithm):
    """Learns from the memories of several tasks, one for each. A run in one environment has one task, named "".

    `tasks` are the spaces of every task, and `targets` the returns at which tasks count as solved, where a config gives
    them. A loop step is: `active_tasks`, then `observe` for each of these, `learn_from`, `hear`. Whatever follows from
    what was heard is part of `training_state`. Evaluations are not heard: they leave no trace in training.
    """

    cfg: MinibatchConfig

    def __init__(self, context: Context, policy: Policy) -> None:
        super().__init__(context.config, policy)
        self.tasks, self.targets = context.tasks, context.targets
        self.batch_rng = context.streams["batch"]

    @property
    def prioritized(self) -> bool:
        """Whether memories should be drawn from by priority, not uniformly."""
        return False

    def active_tasks(self) -> Sequence[str]:
        """The tasks that experience is gathered in. If there are none, it is gathered in all."""
        return list(self.tasks)

    def episodes_end(self, task: str, limit: int | None) -> None:
        """After how many steps an episode of a task ends at the latest, if that is known; said before the first."""

    def observe(self, task: str, steps: Sequence[Step]) -> None:
        """New experience of a task, for the statistics that scale observations."""

    @abstractmethod
    def learn_from(self, memories: Mapping[str, Memory], updates: int) -> Metrics:
        """Make `updates` updates from the memories of all tasks; returns the means of their metrics.

        The memories of tasks that were never active are empty.
        """

    def hear(self, returns: Mapping[str, Sequence[float]]) -> Metrics:
        """How each task goes in training: the returns of its latest episodes, up to 100, the newest last.

        Returns metrics of what followed, such as the tasks that are solved.
        """
        return {}
