"""The folder of a run during training: its checkpoints, its metrics, and a lock against other processes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.data.disk import write_atomically
from rl_training.experiment.config import Config
from rl_training.experiment.manager import RunFolder, describe_process, run_name
from rl_training.experiment.notes import new_run_id, remember
from rl_training.experiment.trust import owner_of
from rl_training.runtime.checkpoints.catalogue import ARRAYS_FOLDER, newest, point, pointed, prune, supersede
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, write_checkpoint
from rl_training.runtime.checkpoints.drafts import create_folder, sweep_drafts
from rl_training.runtime.checkpoints.lock import Lock, hold
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
        # In everything that the run saves. A run that is resumed in its folder takes the id there, `known_id`.
        self.run_id = new_run_id()
        self.known_id: str | None = None
        self._lock: Lock | None = None
        self._left: tuple[int, int] | None = None

    @property
    def metrics_length(self) -> int:
        return 0 if self.folder is None else self.folder.metrics_length()

    def lock(self) -> None:
        """Keep other processes from training in the folder, until `unlock`; it must be as this run left it."""
        if self.folder is None or self._lock is not None:
            return
        with _writing(f"to {str(self.folder.path)!r}"):
            lock = hold(self.folder.path)
            try:
                self._check_unchanged(self.folder)
            except BaseException:
                lock.release()
                raise
            self._lock = lock

    def _check_unchanged(self, folder: RunFolder) -> None:
        found = newest(folder.checkpoints)
        if _mark(found) != self._left:
            at = "there is no checkpoint any more" if found is None else f"the newest checkpoint is {found.name}"
            raise UserError(
                f"{str(folder.path)!r}: another process has changed this run meanwhile, and {at}; resume it from "
                "there, or train in another folder"
            )

    def unlock(self) -> None:
        if self._lock is not None and self.folder is not None:
            with suppress(OSError, UserError):
                self._left = _mark(newest(self.folder.checkpoints))
            self._lock.release()
            self._lock = None

    def open(self, run: Run, run_dir: str | Path | None = None) -> None:
        """Make a folder with the config of a run and its first checkpoint."""

        def fill(path: Path) -> None:
            folder = RunFolder(path)
            folder.checkpoints.mkdir()
            folder.write_config(run.config.flat())
            folder.update_metadata(**describe_process(), run_id=self.run_id, result=None, stop_reason=None)
            folder.cut_metrics(0)
            self._write(folder.checkpoints, run)

        settings = run.config.run
        name = run_name(settings.algo, settings.title, settings.seed)
        given = None if run_dir is None else Path(run_dir)
        path, self._lock = create_folder(given, settings.output_dir, name, fill, lambda path: self._note(path, run))
        self.folder = RunFolder(path)
        self.checkpoint = pointed(self.folder.checkpoints, "latest")
        for array in run.arrays().values():  # the folder got its name after they were written
            if array.written is not None and self.checkpoint is not None:
                array.written = array.written._replace(folder=self.checkpoint / ARRAYS_FOLDER)

    def reopen(self, run: Run, folder: RunFolder, checkpoint: Path, lock: Lock) -> list[str]:
        """Continue in a folder that is locked, from a checkpoint in it; returns what was found and done, in words.

        What was logged after the checkpoint will be logged again; newer checkpoints are moved aside.
        """
        self.folder, self._lock = folder, lock
        with _writing(f"to {str(folder.path)!r}"):
            moved = supersede(folder.checkpoints, checkpoint, folder.metrics_file)
            words = [lock.inherited] if lock.inherited else []
            if moved is not None:
                place = moved.folder.relative_to(folder.path)
                words.append(f"{', '.join(moved.names)}: newer than this, and moved to {place} with their metrics")
            words += filter(None, [folder.cut_metrics(self.known_metrics), _damage(folder)])
            best = folder.checkpoints / f"step_{self.best_step}"
            if best.is_dir():
                point(folder.checkpoints, "best", best)
            else:
                (folder.checkpoints / "best").unlink(missing_ok=True)
            point(folder.checkpoints, "latest", checkpoint)
            folder.write_config(run.config.flat())
            run.resume_notes += words
            folder.note_resumption(run.steps, run.resume_notes)
            self.run_id = self.known_id or self.run_id
            folder.update_metadata(run_id=self.run_id)
            self._note(folder.path, run)
            sweep_drafts(folder.path.parent)
        return words

    def _note(self, place: Path, run: Run) -> None:
        """Note which code the run names, so that this user can resume it without a word."""
        remember(place, self.run_id, run.code)

    def write_config(self, config: Config) -> None:
        """Replace the config in the folder."""
        if self.folder is not None:
            with _writing(f"to {str(self.folder.path)!r}"):
                self.folder.write_config(config.flat())

    def keep_trace(self, trace: str) -> str:
        """Write where the user's own code failed in another process; returns words that say where it stands."""
        if self.folder is None:
            return f"\n{trace}"
        file = self.folder.path / "error.log"
        with _writing(f"to {str(file)!r}"):
            write_atomically(file, trace)
        return f" (where: {file})"

    def append(self, row: Metrics) -> None:
        """Write a row of metrics."""
        if self.folder is not None:
            with _writing(f"to {str(self.folder.metrics_file)!r}"):
                self.folder.append_metrics(row)

    def save(self, run: Run) -> Path | None:
        """Write a checkpoint, if there is a folder for it."""
        if self.folder is not None:
            if self._lock is not None:
                self._lock.renew()
            self.checkpoint = self._write(self.folder.checkpoints, run)
            return self.checkpoint
        return None

    def export(self, path: Path, run: Run) -> Path:
        """Write a checkpoint outside of the run's folder."""
        self._note(owner_of(path), run)
        return write_checkpoint(path, run.snapshot())

    def secure(self, run: Run) -> None:
        """Write a checkpoint that `save` will replace, unless the latest one is of this very moment."""
        if self.saved != (run.steps, run.due):
            self.save(run)

    def _write(self, folder: Path, run: Run) -> Path:
        path = folder / f"step_{run.steps}"
        with _writing(f"the checkpoint {str(path)!r}"):
            write_checkpoint(path, _finite(run.snapshot(), run))
            best = folder / f"step_{self.best_step}"
            if best.is_dir() and best != pointed(folder, "best"):
                point(folder, "best", best)
            point(folder, "latest", path)  # last, so that a resume from it also finds the best one named
            prune(folder, run.config.run.keep_checkpoints)
        self.saved = run.steps, run.due
        return path


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Turn an error of the disk into one message."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {what}: {error.strerror or error}") from error


def _mark(checkpoint: Path | None) -> tuple[int, int] | None:
    """What tells a checkpoint from any other that may take its place."""
    if checkpoint is None or not checkpoint.is_dir():
        return None
    status = checkpoint.stat()
    return status.st_ino, status.st_mtime_ns


def _damage(folder: RunFolder) -> str | None:
    try:
        folder.metadata()
    except ValueError as problem:
        return f"{problem}: it is written anew"
    return None


def _finite(checkpoint: Checkpoint, run: Run) -> Checkpoint:
    """Return the checkpoint, or raise if its policy has nan: an update's metrics precede its last gradient step."""
    for name, tensor in checkpoint.policy.items():
        if bool(tensor.isnan().any()):
            raise run.diverged(name, math.nan)
    return checkpoint
