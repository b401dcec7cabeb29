"""Evaluations of a policy in several tasks: each in its own environments, and what they come to together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rl_training.algorithms.base import Policy
from rl_training.algorithms.multi_task import named
from rl_training.experiment.settings import RunConfig, ScoreRange
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.evaluate import Evaluator
from rl_training.runtime.evaluations import Evaluation
from rl_training.runtime.opponents import Opposition
from rl_training.types import Metrics

SCORE = "eval_score"


class TaskEvaluations(Mapping[str, Evaluation]):
    """The evaluation of every task, by its name.

    A score is a mean return between the `low` and the `high` that the config gives for the task.
    """

    match = None  # tasks are reported one by one

    def __init__(self, by_task: Mapping[str, Evaluation], scores: Mapping[str, ScoreRange]) -> None:
        self._by_task = dict(by_task)
        self.scores = {task: score(by_task[task].mean) for task, score in scores.items()}

    def __getitem__(self, task: str) -> Evaluation:
        return self._by_task[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_task)

    def __len__(self) -> int:
        return len(self._by_task)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._by_task!r}, scores={self.scores!r})"

    @property
    def by_task(self) -> Mapping[str, Evaluation]:
        return self

    @property
    def mean(self) -> float:
        """The mean over tasks of their mean returns."""
        return sum(one.mean for one in self.values()) / len(self)

    @property
    def score(self) -> float | None:
        """The mean of all scores, if every task has one."""
        return sum(self.scores.values()) / len(self) if len(self.scores) == len(self) else None

    def metrics(self) -> Metrics:
        """The metrics of every task under its name, and the means over tasks."""
        found: Metrics = {
            "eval_return_mean": self.mean,
            "eval_episodes": float(sum(len(e.returns) for e in self.values())),
        }
        if self.score is not None:
            found[f"{SCORE}_mean"] = self.score
        for task, one in self.items():
            score = {SCORE: self.scores[task]} if task in self.scores else {}
            found |= named(task, one.metrics() | score)
        return found


class TaskEvaluator:
    """Evaluates a policy in every task, with the view of the policy that acts there."""

    def __init__(self, by_task: Mapping[str, Evaluator], scores: Mapping[str, ScoreRange]) -> None:
        self.by_task, self._scores = dict(by_task), scores

    @property
    def maker(self) -> EnvMaker:
        """What makes the environments of the first task."""
        return next(iter(self.by_task.values())).maker

    @property
    def unable(self) -> str | None:
        """Why there can be no evaluation now, in a sentence; None if there can be one of every task."""
        return next((one.unable for one in self.by_task.values() if one.unable is not None), None)

    def again(self, asked: Opposition, render: str | None = None) -> TaskEvaluator:
        """Another evaluator in the same environments, for another opponent or to be looked at."""
        return TaskEvaluator({task: one.again(asked, render) for task, one in self.by_task.items()}, self._scores)

    def warnings(self, *, kept: bool = False) -> list[str]:
        return [f"tasks.{task}.{words}" for task, one in self.by_task.items() for words in one.warnings(kept=kept)]

    def __call__(
        self,
        policy: Policy,
        episodes: int,
        *,
        deterministic: bool | None = None,
        heed: Callable[[], None] = lambda: None,
    ) -> TaskEvaluations:
        """Play this many episodes of every task, each as `Evaluator` plays them."""
        found = {
            task: one(policy.for_task(task), episodes, deterministic=deterministic, heed=heed)
            for task, one in self.by_task.items()
        }
        return TaskEvaluations(found, self._scores)

    def close(self) -> None:
        for one in self.by_task.values():
            one.close()


def evaluation_metrics(settings: RunConfig, single: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the metrics of all evaluations of a run; `single` are those of one environment."""
    if settings.tasks is None:
        return single
    example = Evaluation(returns=(0.0,), lengths=(1,))
    evaluations = TaskEvaluations(dict.fromkeys(settings.tasks, example), settings.scores)
    stem = f"eval_{settings.unit}"
    return *evaluations.metrics(), f"{stem}_best", f"{stem}_last5_mean"
