"""The folder of a run during training: its checkpoints, its metrics, and a lock against other processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rl_training.experiment.config import Config
from rl_training.experiment.manager import RunFolder, describe_process, run_name
from rl_training.runtime.checkpoints.catalogue import point, pointed, prune
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, write_checkpoint
from rl_training.runtime.checkpoints.chunk_files import ARRAYS_FOLDER
from rl_training.runtime.checkpoints.lock import hold
from rl_training.types import Metrics, UserError

if TYPE_CHECKING:
    from rl_training.runtime.run import Run


class Archive:
    """What a run writes to disk. A run without a folder writes nothing."""

    def __init__(self) -> None:
        self.folder: RunFolder | None = None
        self.checkpoint: Path | None = None
        self.best_step = -1
        # What the latest checkpoint is of: its step, and the hook that is due there.
        self.saved: tuple[int, str | None] | None = None
        # The length of the metrics file in bytes when the loaded checkpoint was written.
        self.known_metrics = 0
        self._lock: IO[str] | None = None

    @property
    def metrics_length(self) -> int:
        return 0 if self.folder is None else self.folder.metrics_length()

    def lock(self) -> None:
        """Keep other processes from training in the folder, until `unlock`."""
        if self.folder is not None and self._lock is None:
            self._lock = hold(self.folder.path)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def open(self, run: Run, run_dir: str | Path | None = None) -> None:
        """Make a folder with the config of a run and its first checkpoint."""

        def fill(folder: RunFolder) -> None:
            folder.write_config(run.config.flat())
            folder.update_metadata(**describe_process(), result=None, stop_reason=None)
            self._write(folder.checkpoints, run)

        settings = run.config.run
        name = run_name(settings.algo, settings.env_id, settings.seed)
        self.folder = RunFolder.create(None if run_dir is None else Path(run_dir), settings.output_dir, name, fill)
        self.checkpoint = pointed(self.folder.checkpoints, "latest")
        for array in run.arrays().values():  # the folder got its name after they were written
            if array.written is not None and self.checkpoint is not None:
                array.written = array.written._replace(folder=self.checkpoint / ARRAYS_FOLDER)
        self.lock()

    def reopen(self, run: Run, folder: RunFolder, checkpoint: Path) -> None:
        """Continue in the folder of the loaded checkpoint; what was logged after it will be logged again."""
        self.folder = folder
        self.lock()
        folder.note_resumption(run.steps, run.resume_notes)
        folder.write_config(run.config.flat())
        folder.cut_metrics(self.known_metrics)
        best = folder.checkpoints / f"step_{self.best_step}"
        if best.is_dir():
            point(folder.checkpoints, "best", best)
        else:  # it names a later checkpoint, which will be overwritten
            (folder.checkpoints / "best").unlink(missing_ok=True)
        point(folder.checkpoints, "latest", checkpoint)

    def write_config(self, config: Config) -> None:
        """Replace the config in the folder."""
        if self.folder is not None:
            try:
                self.folder.write_config(config.flat())
            except OSError as error:
                raise UserError(f"cannot write to {str(self.folder.path)!r}: {error.strerror or error}") from error

    def append(self, row: Metrics) -> None:
        """Write a row of metrics."""
        if self.folder is not None:
            try:
                self.folder.append_metrics(row)
            except OSError as error:
                file = str(self.folder.metrics_file)
                raise UserError(f"cannot write to {file!r}: {error.strerror or error}") from error

    def save(self, run: Run) -> Path | None:
        """Write a checkpoint, if there is a folder for it."""
        if self.folder is not None:
            self.checkpoint = self._write(self.folder.checkpoints, run)
            return self.checkpoint
        return None

    def secure(self, run: Run) -> None:
        """Write a checkpoint that `save` will replace, unless the latest one is of this very moment."""
        if self.saved != (run.steps, run.due):
            self.save(run)

    def _write(self, folder: Path, run: Run) -> Path:
        path = folder / f"step_{run.steps}"
        try:
            write_checkpoint(path, _finite(run.snapshot(), run))
            best = folder / f"step_{self.best_step}"
            if best.is_dir() and best != pointed(folder, "best"):
                point(folder, "best", best)
            point(folder, "latest", path)  # last, so that a resume from it also finds the best one named
            prune(folder, run.config.run.keep_checkpoints, run.steps)
        except OSError as error:
            raise UserError(f"cannot write the checkpoint {str(path)!r}: {error.strerror or error}") from error
        self.saved = run.steps, run.due
        return path


def _finite(checkpoint: Checkpoint, run: Run) -> Checkpoint:
    """Return the checkpoint, or raise if its policy has nan: an update's metrics precede its last gradient step."""
    for name, tensor in checkpoint.policy.items():
        if bool(tensor.isnan().any()):
            raise run.diverged(name, math.nan)
    return checkpoint
