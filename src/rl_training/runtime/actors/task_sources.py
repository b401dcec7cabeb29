"""Sources of several tasks, side by side: each has its own environments, streams and episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from rl_training.algorithms.multi_task import named
from rl_training.runtime.actors.episodes import EPISODE_METRICS
from rl_training.runtime.actors.sources import Experience, Source
from rl_training.types import Metrics, UserError


def sources_of(source: Experience) -> Mapping[str, Source]:
    """The source of every task; that of a run in one environment has no name."""
    return source.by_task if isinstance(source, TaskSources) else {"": cast(Source, source)}


class TaskSources:
    """The sources of a run by task, as one for its clock and its checkpoints. A loop asks each by itself."""

    def __init__(self, by_task: Mapping[str, Source]) -> None:
        self.by_task = dict(by_task)
        self.num_envs = sum(source.num_envs for source in by_task.values())

    @property
    def steps(self) -> int:
        """Environment steps of all tasks."""
        return sum(source.steps for source in self.by_task.values())

    @property
    def exact(self) -> bool:
        return all(source.exact for source in self.by_task.values())

    @property
    def why_not_exact(self) -> list[str]:
        return [f"{task}: {words}" for task, source in self.by_task.items() for words in source.why_not_exact]

    def start(self) -> None:
        for source in self.by_task.values():
            source.start()

    def begin_anew(self) -> None:
        for source in self.by_task.values():
            source.begin_anew()

    def go_on_anew(self, state: Mapping[str, Any], why: str) -> None:
        self._check_tasks(state)
        for task, source in self.by_task.items():
            source.go_on_anew(state[task], why)

    def publish(self, weights: Callable[[], Mapping[str, Tensor]], values: Mapping[str, float], version: int) -> None:
        for source in self.by_task.values():
            source.publish(weights, values, version)

    def state_dict(self) -> dict[str, Any]:
        return {task: source.state_dict() for task, source in self.by_task.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check_tasks(state)
        for task, source in self.by_task.items():
            source.load_state_dict(state[task])

    def _check_tasks(self, state: Mapping[str, Any]) -> None:
        if state.keys() != self.by_task.keys():
            there, here = (", ".join(map(repr, names)) or "none" for names in (state, self.by_task))
            raise UserError(f"the checkpoint has the environments of the tasks {there}; this run has those of {here}")

    def close(self) -> None:
        for source in self.by_task.values():
            source.close()


def run_metrics(metrics: Mapping[str, Metrics], sources: Mapping[str, Source]) -> Metrics:
    """The metrics of all tasks as those of a run: with each task's clock, the episodes of all, and their mean return.

    The mean is over tasks, once an episode has ended in each of them.
    """
    if metrics.keys() == {""}:
        return metrics[""]
    together: Metrics = {"episodes": sum(found["episodes"] for found in metrics.values())}
    for name in EPISODE_METRICS:
        values = [found[name] for found in metrics.values() if name in found]
        if len(values) == len(metrics):
            together[name] = sum(values) / len(values)
    for task, found in metrics.items():
        together |= named(task, {"steps": float(sources[task].steps), **found})
    return together
