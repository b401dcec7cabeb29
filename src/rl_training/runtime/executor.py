"""Does whole runs: one after the other, several at a time in processes of their own, or on a Ray cluster.

A run is the same wherever it is done, to the bit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rl_training.runtime.arguments import whole_number
from rl_training.runtime.jobs.job import ENDINGS, Engine, Job, Word
from rl_training.runtime.progress import Meter, RunsDisplay
from rl_training.runtime.run import Interrupted, TrainResult
from rl_training.runtime.signals import Signals
from rl_training.types import UserError

__all__ = ["Ended", "Executor", "Job", "Lost", "RunFailed"]

_LOG = logging.getLogger("rl_training")

# Seconds after which a signal is noticed at the latest.
_TICK = 0.1


class Lost(UserError):
    """The process of a run is gone: killed, or out of memory. The run can be resumed."""


class RunFailed(Exception):
    """Code of the user's, mostly an environment, raised an error in the process of a run; its cause shows where."""

    def __init__(self, words: str, trace: str) -> None:
        super().__init__(words)
        self.__cause__ = _InAnotherProcess(trace)


class _InAnotherProcess(Exception):
    """Shows the traceback of another process above that of this one."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Ended:
    """A job that has ended: its result, or the problem that ended it; `Interrupted` comes with a result too."""

    job: Job
    result: TrainResult | None = None
    problem: BaseException | None = None


class Executor:
    """Does jobs, at most `parallel` at a time: one by default, on a cluster as many as it has room for.

    One at a time is done in this process, several in processes of their own, and with `ray`, the address of a cluster,
    all are done there. `display` shows how far they have come.
    """

    def __init__(
        self, parallel: int | None = None, *, ray: str | None = None, display: RunsDisplay | None = None
    ) -> None:
        self.parallel = None if parallel is None else whole_number("parallel", parallel)
        self.ray = ray
        self.interrupted = False
        self._display = display
        self._running: dict[int, Job] = {}

    @property
    def running(self) -> list[Job]:
        """The jobs that are under way."""
        return list(self._running.values())

    def run(self, jobs: Iterable[Job]) -> Iterator[Ended]:
        """Do jobs, and yield each as it ends. A job is asked for when there is room for it.

        After a signal no other is begun, those under way are saved and end, and `interrupted` is set. A second signal
        ends them at once.
        """
        self.interrupted = False
        here = self.ray is None and self.parallel in (None, 1)
        try:
            yield from self._here(jobs) if here else self._elsewhere(jobs)
        finally:
            self._running.clear()
            if self._display is not None:
                self._display.close()

    def _here(self, jobs: Iterable[Job]) -> Iterator[Ended]:
        for number, job in enumerate(jobs):
            self._begin(number, job)
            ended = self._done_here(job)
            self._end(number)
            yield ended
            if self.interrupted:
                return

    def _done_here(self, job: Job) -> Ended:
        display = self._display
        try:
            if display is None:
                return Ended(job, job.do())
            return Ended(job, job.do([Meter(lambda told: display.show(job.name, told))]))
        except Interrupted as stop:
            self.interrupted = True
            return Ended(job, stop.result, stop)
        except Exception as error:
            return Ended(job, problem=error)

    def _elsewhere(self, jobs: Iterable[Job]) -> Iterator[Ended]:
        engine, waiting, signals = self._engine(), enumerate(jobs), Signals()
        try:
            with signals.noted():
                while True:
                    self._fill(engine, waiting)
                    if not self._running:
                        return
                    for number, word in engine.wait(_TICK):
                        ended = self._heard(self._running[number], word)
                        if ended is not None:
                            self._end(number)
                            yield ended
                    if signals.received and not self.interrupted:
                        self.interrupted = True
                        engine.stop()
        finally:
            engine.close()

    def _fill(self, engine: Engine, waiting: Iterator[tuple[int, Job]]) -> None:
        """Begin jobs while there is room."""
        while not self.interrupted and (self.parallel is None or len(self._running) < self.parallel):
            number, job = next(waiting, (-1, None))
            if job is None:
                return
            engine.start(number, job)
            self._begin(number, job)

    def _engine(self) -> Engine:
        if self.ray is None:
            from rl_training.runtime.jobs.processes import Processes

            return Processes()
        from rl_training.runtime.jobs.cluster import Cluster

        return Cluster(self.ray)

    def _begin(self, number: int, job: Job) -> None:
        self._running[number] = job
        if self._display is not None:
            self._display.begin(job.name)

    def _end(self, number: int) -> None:
        job = self._running.pop(number)
        if self._display is not None:
            self._display.end(job.name)

    def _heard(self, job: Job, word: Word) -> Ended | None:
        """Pass on what a job says; returns its end, if this was it."""
        kind, value = word
        if kind == "told" and self._display is not None:
            self._display.show(job.name, value)
        elif kind == "logged":
            level, line = value
            _LOG.log(level, f"{job.name}: {line}")
        return _ending(job, word) if kind in ENDINGS else None


def _ending(job: Job, word: Word) -> Ended:
    kind, value = word
    if kind == "done":
        return Ended(job, value)
    if kind == "interrupted":
        return Ended(job, value, Interrupted(value))
    if kind == "unbegun":
        return Ended(job)
    if kind == "lost":
        return Ended(job, problem=Lost(value))
    return Ended(job, problem=UserError(value) if kind == "refused" else RunFailed(*value))
