"""Callbacks, called around the steps of a loop: evaluate, stop early, log, save, in this order."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rl_training.algorithms.multi_task import full_names
from rl_training.experiment.registry import suggest
from rl_training.experiment.settings import EarlyStoppingRule
from rl_training.runtime.actors.episodes import EPISODE_METRICS
from rl_training.runtime.evaluations import GAME_METRICS, SUCCESS_METRIC, Evaluation
from rl_training.runtime.task_evaluation import SCORE, evaluation_metrics
from rl_training.types import Metrics, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from rl_training.runtime.run import Run

_LOG = logging.getLogger("rl_training")

# The metrics of every evaluation; the last two are added by `Evaluate`.
EVALUATION_METRICS = (
    *Evaluation(returns=(0.0,), lengths=(1,)).metrics(),
    "eval_return_best",
    "eval_return_last5_mean",
)
# Further ones of policies that are judged by sampled actions.
GREEDY_METRICS = ("eval_return_mean_greedy",)
_LAST = 5


class Callback:
    """Base class: override what you need. `run.request_stop(reason)` ends the run at the end of the step."""

    def on_start(self, run: Run) -> None:
        """Before the first step of this process."""

    def on_step(self, run: Run, metrics: Metrics) -> None:
        """After every step of the loop."""

    def on_eval(self, run: Run, metrics: Metrics) -> None:
        """After every evaluation; entries added to `metrics` are logged too."""

    def on_log(self, run: Run, row: Metrics) -> None:
        """After every row of metrics that the run writes; `row["step"]` is the run's step."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """After every checkpoint."""

    def on_end(self, run: Run) -> None:
        """When the run has ended, unless an error ended it."""

    def close(self) -> None:
        """Release resources: called last, after an error too. `on_start` may follow, if the run is continued."""

    def state_dict(self) -> dict[str, Any]:
        """The callback's state, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class FunctionCallback(Callback):
    """Calls a function with the run after every step of the loop; the run ends if it returns False."""

    def __init__(self, function: Callable[[Run], Any], name: str) -> None:
        self.function = function
        self.name = name

    def on_step(self, run: Run, metrics: Metrics) -> None:
        if self.function(run) is False:  # None, which is what most return, goes on
            run.request_stop(f"the callback {self.name} returned False")


class Callbacks(list[Callback]):
    """The callbacks of a run, in the order in which they are called."""

    def notify(self, hook: str, run: Run, *arguments: Any) -> None:
        """Call a hook of every callback."""
        for callback in self:
            getattr(callback, hook)(run, *arguments)

    @contextmanager
    def joined_by(self, more: Sequence[Callback]) -> Iterator[None]:
        """Add callbacks temporarily; logging and saving stay last, since they record what the others did."""
        before = list(self)
        last = [callback for callback in before if isinstance(callback, (Log, Save))]
        self[:] = [*(callback for callback in before if callback not in last), *more, *last]
        try:
            yield
        finally:
            self[:] = before

    def named(self) -> Iterator[tuple[str, Callback]]:
        """Name each by its class and its index in the class, so that an added callback does not get another's state."""
        seen: Counter[str] = Counter()
        for callback in self:
            kind = type(callback).__qualname__
            yield f"{kind}.{seen[kind]}", callback
            seen[kind] += 1

    def state_dict(self) -> dict[str, Any]:
        """What they remember. Those that only watch leave no trace: a run is the same whoever watches it."""
        states = ((name, callback.state_dict()) for name, callback in self.named())
        return {name: state for name, state in states if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, callback in self.named():
            if name in state:
                callback.load_state_dict(state[name])


def crossed(before: int, now: int, interval: int | None) -> bool:
    """Whether the step count passed a multiple of the interval, for loops that advance by any amount."""
    return interval is not None and now // interval > before // interval


class Evaluate(Callback):
    """Evaluates the policy at its interval and at the end."""

    def __init__(self, interval: int | None, episodes: int) -> None:
        self.interval = interval
        self.episodes = episodes
        self.last_step = -1
        self.best: float | None = None
        self.last: deque[float] = deque(maxlen=_LAST)

    def on_step(self, run: Run, metrics: Metrics) -> None:
        if crossed(run.previous_steps, run.steps, self.interval):
            self._evaluate(run, "on_step")

    def on_end(self, run: Run) -> None:
        if self.last_step != run.steps and not run.interrupted and run.evaluator.unable is None:
            self._evaluate(run, "on_end")

    def _evaluate(self, run: Run, hook: str) -> None:
        run.due = hook  # this is the first callback: where a signal ends the evaluation, no other knows of the step
        if run.finished:
            run.archive.secure(run)  # whatever happens in the last evaluation, training is not lost
        evaluation = run.evaluate(self.episodes)
        metrics = evaluation.metrics()
        if run.algorithm.policy.judged_by_samples:
            metrics[GREEDY_METRICS[0]] = run.evaluate(self.episodes, deterministic=True).mean
        run.due = None
        self.last_step = run.steps
        # Returns of tasks that have a score can be of any scale.
        stem = "eval_return" if evaluation.score is None else SCORE
        mean, best = metrics[f"{stem}_mean"], self.best
        better = best is None or mean > best
        self.best = mean if best is None or better else best
        self.last.append(mean)
        summary = {f"{stem}_best": self.best, f"{stem}_last5_mean": sum(self.last) / len(self.last)}
        run.record_evaluation(metrics | summary, best=better)

    def state_dict(self) -> dict[str, Any]:
        return {"last_step": self.last_step, "best": self.best, "last": list(self.last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.last_step, self.best = state["last_step"], state["best"]
        self.last.extend(state.get("last", ()))


class EarlyStopping(Callback):
    """Ends the run when the watched metric has reached its target, or has not improved for too long."""

    REASON = "early_stopping"

    def __init__(self, rule: EarlyStoppingRule) -> None:
        self.rule = rule
        self.restart()

    def restart(self) -> None:
        """Discard the counts of past evaluations."""
        self.best: float | None = None
        self.waited = 0
        self.reached = 0
        self._metric_is_known = False
        self._metric_has_gone = False

    def on_step(self, run: Run, metrics: Metrics) -> None:
        """Report an unknown metric at the first update, long before most evaluations."""
        if self._metric_is_known:
            return
        by_task = full_names(run.config.tasks, (*EPISODE_METRICS, SUCCESS_METRIC))
        evaluations = evaluation_metrics(run.config.run, EVALUATION_METRICS)
        known = metrics | dict.fromkeys((*evaluations, *EPISODE_METRICS, *by_task), 0.0)
        if self.rule.metric.rpartition("/")[2] in GAME_METRICS:
            games = [task for task, info in run.spaces.items() if info.two_player]
            known |= dict.fromkeys(full_names(games, GAME_METRICS), 0.0)
        if self.rule.metric not in known:
            if metrics.get("n_updates") == 0.0:  # it may be a metric of updates, and there was no update yet
                return
            name = self.rule.metric
            listed = ", ".join(sorted(known))
            raise UserError(f"early_stopping.metric={name!r}: no such metric{suggest(name, known)} (known: {listed})")
        self._metric_is_known = True

    def on_eval(self, run: Run, metrics: Metrics) -> None:
        rule = self.rule
        known = run.metrics | metrics
        if rule.metric not in known:  # a metric of episodes or updates, and there was none yet
            if rule.metric == SUCCESS_METRIC:
                words = "the environment does not say at the end of every episode whether info['is_success']"
                raise UserError(f"early_stopping.metric={rule.metric!r}: {words}")
            if self.best is not None and not self._metric_has_gone:  # its task has left training
                self._metric_has_gone = True
                _LOG.warning("early_stopping.metric=%r: there are no new values of it, so this rule waits", rule.metric)
            return
        sign = 1.0 if rule.mode == "max" else -1.0
        value = sign * known[rule.metric]
        if self.best is None or value > self.best + rule.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        on_target = rule.target_value is not None and value >= sign * rule.target_value
        self.reached = self.reached + 1 if on_target else 0
        if run.steps < rule.min_steps:
            return
        if on_target and self.reached >= rule.sustained:
            run.request_stop(f"{self.REASON}: {rule.metric} reached {known[rule.metric]:g}")
        elif rule.patience is not None and self.waited >= rule.patience:
            run.request_stop(f"{self.REASON}: {rule.metric} did not improve in {self.waited} evaluations")

    def state_dict(self) -> dict[str, Any]:
        rule = self.rule.model_dump(mode="json")
        counts = {"best": self.best, "waited": self.waited, "reached": self.reached}
        return {"rule": rule, "known": self._metric_is_known} | counts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["rule"] != self.rule.model_dump(mode="json"):
            return  # the saved counts belong to another rule
        self.best, self.waited, self.reached = state["best"], state["waited"], state["reached"]
        # A metric of a task is not there any more when the task has left training.
        self._metric_is_known = state.get("known", False)


class Log(Callback):
    """Writes a row of metrics at its interval, at every evaluation and at the end."""

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def on_step(self, run: Run, metrics: Metrics) -> None:
        # The last row is written by on_end, which may have an evaluation to add.
        if not run.finished and (crossed(run.previous_steps, run.steps, self.interval) or run.evaluated_now):
            run.log()

    def on_end(self, run: Run) -> None:
        if not run.interrupted and run.metrics:
            run.log()


class Save(Callback):
    """Writes a checkpoint at its interval, at every new best evaluation and at the end.

    The driver saves an interrupted run, before any callback is told of its end.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def on_step(self, run: Run, metrics: Metrics) -> None:
        # The last checkpoint is written by on_end, when nothing more can change.
        if not run.finished and (
            crossed(run.previous_steps, run.steps, self.interval) or run.archive.best_step == run.steps
        ):
            run.save()

    def on_end(self, run: Run) -> None:
        if not run.interrupted:
            run.save()
