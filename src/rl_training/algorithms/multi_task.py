"""What algorithms that learn several tasks at once tell the runtime, and what they are told."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from rl_training.algorithms.base import Algorithm, Context, Policy
from rl_training.algorithms.off_policy import MinibatchConfig
from rl_training.data.memory import Memory
from rl_training.types import Metrics, Step


def named(task: str, metrics: Mapping[str, float]) -> Metrics:
    """Metrics of a task, by their full names: `lander/episodes`."""
    return {f"{task}/{name}": value for name, value in metrics.items()} if task else dict(metrics)


def full_names(tasks: Iterable[str], names: Iterable[str]) -> list[str]:
    """The full names of these metrics in every one of the tasks."""
    metrics = dict.fromkeys(names, 0.0)
    return [name for task in tasks for name in named(task, metrics)]


class MultiTaskAlgorithm(Algorithm):
    """Learns from the memories of several tasks, one for each. A run in one environment has one task, named "".

    `tasks` are the spaces of every task, and `target_returns` the returns at which tasks count as solved, where they
    are given. A loop step is: `active_tasks`, then `observe` for each of these, `learn_from`, `hear`. Whatever follows
    from what was heard is part of `training_state`. Evaluations are not heard: they leave no trace in training.
    """

    cfg: MinibatchConfig

    def __init__(self, context: Context, policy: Policy) -> None:
        super().__init__(context.config, policy)
        self.tasks, self.target_returns = context.tasks, context.target_returns
        self.batch_rng = context.streams["batch"]

    @property
    def prioritized(self) -> bool:
        """Whether memories should be drawn from by priority, not uniformly."""
        return False

    def reanalysis_bytes(self) -> int:
        """The RAM that reanalysis takes, for which the config must be a `PlanningConfig`; 0 where there is none."""
        return 0

    def active_tasks(self) -> Sequence[str]:
        """The tasks that experience is gathered in. If there are none, it is gathered in all."""
        return list(self.tasks)

    def set_time_limit(self, task: str, steps: int | None) -> None:
        """Called once for each task, before the first step: the longest episode in steps, or None if not known."""

    def observe(self, task: str, steps: Sequence[Step]) -> None:
        """Take note of new experience of a task, for statistics of observations and rewards."""

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
