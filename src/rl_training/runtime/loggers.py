"""Loggers of a run: a progress line on a terminal, TensorBoard, Weights & Biases. None of them changes training."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, TaskID

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.extras import import_extra
from rl_training.runtime.progress import SECONDS_BETWEEN_LINES, Speed, bars, evaluation_line
from rl_training.runtime.rng import untouched
from rl_training.types import Metrics, UserError

if TYPE_CHECKING:
    from rl_training.runtime.run import Run


class ProgressDisplay(Callback):
    """Steps, steps per second, return and time left: a live line on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Progress | None = None
        self._task = TaskID(0)
        self._last_line = 0.0
        self._speed = Speed()

    def on_start(self, run: Run) -> None:
        self._last_line = time.perf_counter()
        self._speed = Speed()
        if self._console.is_terminal:
            self._live = bars(self._console)
            self._live.start()
            settings = run.config.run
            name = f"{settings.algo} seed {settings.seed}"
            self._task = self._live.add_task(name, total=settings.total_timesteps, completed=run.steps, line="")

    def on_step(self, run: Run, metrics: Metrics) -> None:
        reading = self._speed.read(run)
        if reading is None:
            return
        if self._live is not None:
            self._live.update(self._task, completed=run.steps, line=str(reading))
        elif time.perf_counter() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.perf_counter()
            self._console.print(str(reading), highlight=False, soft_wrap=True)

    def on_eval(self, run: Run, metrics: Metrics) -> None:
        self._console.print(evaluation_line(run, metrics), highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


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
