"""Shows a run while it goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from rl_training.runtime.callbacks import Callback
from rl_training.types import Metrics

if TYPE_CHECKING:
    from rl_training.runtime.train import Run

_SECONDS_BETWEEN_LINES = 5.0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class ProgressDisplay(Callback):
    """Steps, steps per second, return and time left."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Progress | None = None
        self._task = TaskID(0)
        self._started = self._last_line = 0.0
        self._first_step = 0

    def on_start(self, run: Run) -> None:
        self._started = self._last_line = time.perf_counter()
        self._first_step = run.steps
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[line]}"))
            self._live = Progress(*columns, console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
            total = run.config.run.total_timesteps
            self._task = self._live.add_task(run.config.run.algo, total=total, completed=run.steps, line="")

    def on_step(self, run: Run, metrics: Metrics) -> None:
        if self._live is not None:
            self._live.update(self._task, completed=run.steps, line=self._describe(run))
        elif time.perf_counter() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.perf_counter()
            self._console.print(self._describe(run), highlight=False, soft_wrap=True)

    def on_eval(self, run: Run, metrics: Metrics) -> None:
        self._console.print(
            f"step {run.steps:,}: evaluation return {metrics['eval_return_mean']:.1f} "
            f"+- {metrics['eval_return_std']:.1f} over {metrics['eval_episodes']:.0f} episodes",
            highlight=False,
            soft_wrap=True,
        )

    def on_end(self, run: Run) -> None:
        self.close()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _describe(self, run: Run) -> str:
        total = run.config.run.total_timesteps
        rate = (run.steps - self._first_step) / max(time.perf_counter() - self._started, 1e-9)
        left = max(total - run.steps, 0) / rate if rate > 0 else 0.0
        shown = run.metrics.get("episode_return_mean")
        score = "-" if shown is None else f"{shown:.1f}"
        return f"{run.steps:,}/{total:,} steps  {rate:,.0f} steps/s  return {score}  {_clock(left)} left"
