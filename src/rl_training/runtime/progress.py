"""How far runs have come, in lines: measured in the process of a run, shown in the one that has the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from rl_training.runtime.callbacks import Callback
from rl_training.types import Metrics

if TYPE_CHECKING:
    from rl_training.runtime.run import Run

SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_READINGS = 0.2


def clock(seconds: float) -> str:
    """A time in hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class Reading(NamedTuple):
    """How far a run has come, how fast it goes, and the mean return of its last episodes."""

    steps: int
    total: int
    rate: float
    score: float | None

    def __str__(self) -> str:
        left = max(self.total - self.steps, 0) / self.rate if self.rate > 0 else 0.0
        score = "-" if self.score is None else f"{self.score:.1f}"
        return f"{self.steps:,}/{self.total:,} steps  {self.rate:,.0f} steps/s  return {score}  {clock(left)} left"


class Speed:
    """Measures a run. The first step may compile kernels, so it is left out."""

    def __init__(self) -> None:
        self._first_step: int | None = None
        self._started = 0.0

    def read(self, run: Run) -> Reading | None:
        """To be called after every step; None after the first."""
        if self._first_step is None:
            self._first_step, self._started = run.steps, time.perf_counter()
            return None
        rate = (run.steps - self._first_step) / max(time.perf_counter() - self._started, 1e-9)
        return Reading(run.steps, run.config.run.total_timesteps, rate, run.metrics.get("episode_return_mean"))


def evaluation_line(run: Run, metrics: Metrics) -> str:
    """What an evaluation came to, in every task."""
    words = []
    for task, prefix in ((task, f"{task}/" if task else "") for task in run.config.tasks):
        mean, deviation = metrics[f"{prefix}eval_return_mean"], metrics[f"{prefix}eval_return_std"]
        episodes = metrics[f"{prefix}eval_episodes"]
        counted = f"{episodes:.0f} episode{'' if episodes == 1 else 's'}"
        words.append(f"return {mean:.1f} +- {deviation:.1f} over {counted}" + (f" in {task}" if task else ""))
    return f"step {run.steps:,}: evaluation {', '.join(words)}"


def bars(console: Console) -> Progress:
    """Live lines, each with a name, a bar and a text."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[line]}"))
    # What is printed meanwhile appears above the lines, unless it goes to a file.
    to_screen = sys.stdout.isatty()
    return Progress(*columns, console=console, refresh_per_second=4, transient=True, redirect_stdout=to_screen)


class Meter(Callback):
    """Tells how far its run has come, several times a second, and what its evaluations come to."""

    def __init__(self, tell: Callable[[Reading | str], None]) -> None:
        self._tell = tell
        self._speed, self._last = Speed(), 0.0

    def on_step(self, run: Run, metrics: Metrics) -> None:
        reading, now = self._speed.read(run), time.perf_counter()
        if reading is not None and (run.finished or now - self._last >= _SECONDS_BETWEEN_READINGS):
            self._last = now
            self._tell(reading)

    def on_eval(self, run: Run, metrics: Metrics) -> None:
        self._tell(evaluation_line(run, metrics))


class RunsDisplay:
    """The progress of several runs: a live line for each on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last_line: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """A run is begun."""
        self._last_line[name] = time.perf_counter()
        if self._console.is_terminal:
            if self._live is None:
                self._live = bars(self._console)
                self._live.start()
            self._tasks[name] = self._live.add_task(name, total=None, line="starting")

    def show(self, name: str, told: Reading | str) -> None:
        """How far a run has come, or a line that stays."""
        if isinstance(told, str):
            self._print(f"{name}: {told}")
        elif self._live is not None:
            self._live.update(self._tasks[name], completed=told.steps, total=told.total, line=str(told))
        elif time.perf_counter() - self._last_line[name] >= SECONDS_BETWEEN_LINES:
            self._last_line[name] = time.perf_counter()
            self._print(f"{name}: {told}")

    def end(self, name: str) -> None:
        """A run has ended: its line makes room for others."""
        if self._live is not None:
            self._live.remove_task(self._tasks.pop(name))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._tasks.clear()

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)
