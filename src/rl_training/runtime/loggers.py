"""Loggers of a run: a progress line on a terminal, TensorBoard, Weights & Biases. None of them changes training."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.extras import import_extra
from rl_training.runtime.rng import untouched
from rl_training.types import Metrics, UserError

if TYPE_CHECKING:
    from rl_training.runtime.run import Run

_SECONDS_BETWEEN_LINES = 5.0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class ProgressDisplay(Callback):
    """Steps, steps per second, return and time left: a live line on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Progress | None = None
        self._task = TaskID(0)
        self._started = self._last_line = 0.0
        self._first_step: int | None = None

    def on_start(self, run: Run) -> None:
        self._last_line = time.perf_counter()
        self._first_step = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[line]}"))
            self._live = Progress(*columns, console=self._console, transient=True, refresh_per_second=4)
            self._live.start()
            settings = run.config.run
            name = f"{settings.algo} seed {settings.seed}"
            self._task = self._live.add_task(name, total=settings.total_timesteps, completed=run.steps, line="")

    def on_step(self, run: Run, metrics: Metrics) -> None:
        if self._first_step is None:
            # The first step may compile kernels, so it is left out of the measured speed.
            self._first_step, self._started = run.steps, time.perf_counter()
        elif self._live is not None:
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

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _describe(self, run: Run) -> str:
        total = run.config.run.total_timesteps
        rate = (run.steps - (self._first_step or 0)) / max(time.perf_counter() - self._started, 1e-9)
        left = max(total - run.steps, 0) / rate if rate > 0 else 0.0
        shown = run.metrics.get("episode_return_mean")
        score = "-" if shown is None else f"{shown:.1f}"
        return f"{run.steps:,}/{total:,} steps  {rate:,.0f} steps/s  return {score}  {_clock(left)} left"


class TensorBoard(Callback):
    """Writes every row of metrics to `<run>/tensorboard`, one scalar for each, at the run's step."""

    def __init__(self) -> None:
        with untouched():
            self._library = import_extra("torch.utils.tensorboard", "tensorboard", asked_by="loggers='tensorboard'")
        self._writer: Any = None
        self.last_step = 0

    def on_start(self, run: Run) -> None:
        folder = _run_folder(run, "tensorboard") / "tensorboard"
        try:
            # Rows after the checkpoint that the run resumes from are written again: TensorBoard drops the old ones.
            self._writer = self._library.SummaryWriter(str(folder), purge_step=self.last_step + 1)
        except OSError as error:
            raise UserError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from error

    def on_log(self, run: Run, row: Metrics) -> None:
        self.last_step = int(row["step"])
        with untouched():
            for name, value in row.items():
                if name != "step":
                    self._writer.add_scalar(name, value, self.last_step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def state_dict(self) -> dict[str, Any]:
        if self._writer is not None:
            self._writer.flush()  # rows up to the checkpoint must not be lost in a crash
        return {"last_step": self.last_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.last_step = state["last_step"]


class WeightsAndBiases(Callback):
    """Sends every row of metrics to one W&B run, which a resumed run continues. `WANDB_MODE=offline` needs no account.

    W&B accepts no step twice: it skips the rows that it already has when a run resumes from an earlier checkpoint.
    """

    def __init__(self) -> None:
        with untouched():
            self._library = import_extra("wandb", "wandb", asked_by="loggers='wandb'")
            if self._library.setup().settings.mode == "online" and not self._library.login(prompt=False, verify=False):
                raise UserError(
                    "loggers='wandb': you are not logged in to W&B; run `wandb login`, or set WANDB_MODE=offline"
                )
        self._session: Any = None
        self._ended = False
        self.run_id = secrets.token_hex(8)

    def on_start(self, run: Run) -> None:
        folder = _run_folder(run, "wandb")
        self._ended = False
        try:
            with untouched():
                self._session = self._library.init(
                    project=os.environ.get("WANDB_PROJECT") or "rl_training",
                    id=self.run_id,
                    name=folder.name,
                    dir=str(folder),
                    config=run.config.flat(),
                    tags=list(run.config.run.tags),
                    resume="allow",
                    allow_val_change=True,  # a resumed run may have more steps
                    reinit="create_new",
                    settings={"console": "off", "quiet": True},  # the terminal belongs to the progress display
                )
        except self._library.Error as error:
            raise UserError(f"loggers='wandb': W&B did not start: {error}") from error

    def on_log(self, run: Run, row: Metrics) -> None:
        values = {name: value for name, value in row.items() if name != "step"}
        with untouched():
            self._session.log(values, step=int(row["step"]))

    def on_end(self, run: Run) -> None:
        self._ended = True

    def close(self) -> None:
        if self._session is not None:
            with untouched():
                self._session.finish(exit_code=0 if self._ended else 1)
            self._session = None

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.run_id = state["run_id"]


def _run_folder(run: Run, logger: str) -> Path:
    if run.folder is None:
        raise UserError(f"loggers={logger!r}: writes into the run's folder, but this run has none; give output_dir")
    return run.folder.path


LOGGERS: Mapping[str, type[Callback]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def build_loggers(names: Iterable[str]) -> list[Callback]:
    """Build the loggers of a config; raises if the extra of one is missing."""
    return [LOGGERS[name]() for name in names]
