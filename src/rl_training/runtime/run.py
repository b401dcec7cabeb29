"""A run between two safe points: what it is made of, what is saved of it, what callbacks may ask of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from rl_training.algorithms.base import Algorithm, setting_extra
from rl_training.experiment.config import Config
from rl_training.experiment.manager import RunFolder, describe_process, run_name, versions
from rl_training.experiment.registry import suggest
from rl_training.runtime.actors.collector import Collector, Idle
from rl_training.runtime.arguments import whole_number
from rl_training.runtime.callbacks import Callback, EarlyStopping, Log, Save, named
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, point, pointed, prune, write_checkpoint
from rl_training.runtime.checkpoints.chunk_files import MEMORY_FOLDER, load_memory, memory_of
from rl_training.runtime.checkpoints.continuation import take_over
from rl_training.runtime.checkpoints.lock import hold
from rl_training.runtime.evaluate import Evaluation, Evaluator
from rl_training.runtime.rng import restore_streams, streams_state, untouched
from rl_training.runtime.schedules import ScheduleSet
from rl_training.types import Metrics, SpaceInfo, UserError

# Metrics that differ between two equal runs.
WALL_CLOCK = ("seconds", "steps_per_second")
INTERRUPTED = "interrupted"
COMPLETED = "completed"


class Loop(Protocol):
    """What the driver knows of a loop."""

    @property
    def steps(self) -> int:
        """The clock."""

    @property
    def parts(self) -> Mapping[str, Any]:
        """Everything that has memory, with `state_dict` and `load_state_dict`, and its large arrays as `memory`."""

    def step(self, refresh: Callable[[int], None]) -> Metrics:
        """From one safe point to the next."""


class TrainResult(dict[str, float]):
    """The final metrics of a run, with its checkpoint, its folder and why it ended.

    `signalled` says that a signal came, even if the run was at its end by then.
    """

    def __init__(
        self,
        metrics: Metrics,
        checkpoint: Path | None,
        run_dir: Path | None,
        stop_reason: str,
        *,
        signalled: bool = False,
    ) -> None:
        super().__init__(metrics)
        self.checkpoint = checkpoint
        self.run_dir = run_dir
        self.stop_reason = stop_reason
        self.signalled = signalled


class Interrupted(KeyboardInterrupt):
    """A signal ended the run; it was saved first."""

    def __init__(self, result: TrainResult) -> None:
        super().__init__(INTERRUPTED)
        self.result = result


class Run:
    """A run between two safe points: everything that is saved, and what callbacks may ask for."""

    def __init__(
        self,
        config: Config,
        info: SpaceInfo,
        algorithm: Algorithm,
        loop: Loop,
        collector: Collector | Idle,
        evaluator: Evaluator,
        streams: Mapping[str, Any],
        callbacks: Sequence[Callback],
    ) -> None:
        self.config = config
        self.info = info
        self.algorithm = algorithm
        self.loop = loop
        self.callbacks = list(callbacks)
        self.schedules = ScheduleSet(config.controls, config.run.total_timesteps)
        self.metrics: Metrics = {}
        self.eval_metrics: Metrics = {}
        self.evaluated_now = False
        self.should_stop = False
        self.stop_reason: str | None = None
        self.signalled = False
        self.resume_notes: list[str] = []
        self.previous_steps = 0
        self.best_step = -1
        self.folder: RunFolder | None = None
        self.checkpoint: Path | None = None
        self._collector = collector
        self.evaluator = evaluator
        self.streams = streams
        self._seconds_before = 0.0
        self._metrics_length = 0
        self._started: float | None = None
        self._lock: IO[str] | None = None
        fields = type(config.algorithm).model_fields
        reported = [name for name in fields if setting_extra(type(config.algorithm), name).get("report")]
        self._reported = list(dict.fromkeys([*reported, *config.controls]))

    @property
    def steps(self) -> int:
        return self.loop.steps

    @property
    def action_dtype(self) -> Any:
        """What the environment's actions are made of."""
        return self._collector.envs.single_action_space.dtype

    @property
    def finished(self) -> bool:
        return self.should_stop or self.steps >= self.config.run.total_timesteps

    @property
    def exact(self) -> bool:
        """Whether it could be resumed from here to the bit."""
        return self._collector.exact

    @property
    def seconds(self) -> float:
        """How long it has been trained, in this process and in those before."""
        return self._seconds_before + (0.0 if self._started is None else time.perf_counter() - self._started)

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it: then nothing is judged or logged that an uninterrupted run would not have."""
        return self.stop_reason == INTERRUPTED

    def start(self) -> None:
        """Begin the first episodes, from where another run had come if the config says so."""
        origin = getattr(self.config.loop, "start_from", None)
        if origin is not None:
            take_over(self.algorithm, self.loop, self.config, origin)
        self._collector.start()

    def start_clock(self) -> None:
        self._started = time.perf_counter()

    def stop_clock(self) -> None:
        self._seconds_before, self._started = self.seconds, None

    def lock(self) -> None:
        """Keep other processes from training in its folder, until `unlock`."""
        if self.folder is not None and self._lock is None:
            self._lock = hold(self.folder.path)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def request_stop(self, reason: str) -> None:
        """End the run after this step; the first reason given is the one that is kept."""
        if not self.should_stop:
            self.should_stop, self.stop_reason = True, reason

    def lift_stop(self) -> None:
        """Let it go on after a stop; the early stopping that ended it counts anew."""
        if (self.stop_reason or "").startswith(EarlyStopping.REASON):
            for callback in self.callbacks:
                if isinstance(callback, EarlyStopping):
                    callback.restart()
        self.should_stop, self.stop_reason = False, None

    def set_config(self, config: Config) -> None:
        """Go on under another config, which its folder shows as well."""
        self.config = config
        if self.folder is not None:
            try:
                self.folder.write_config(config.flat())
            except OSError as error:
                raise UserError(f"cannot write to {str(self.folder.path)!r}: {error.strerror or error}") from error

    def mistake(self, message: str, word: str, known: Mapping[str, Any]) -> UserError:
        return UserError(f"{message}{suggest(word, known)} (known: {', '.join(sorted(known))})")

    def refresh(self, step: int) -> None:
        """Set every scheduled hyperparameter to its value at `step`."""
        values = self.schedules.values(step)
        if values:
            self.algorithm.set_hyperparameters(**values)

    def advance(self) -> None:
        """One step of the loop, and the metrics that it gave."""
        self.previous_steps, self.evaluated_now = self.steps, False
        metrics = self.loop.step(self.refresh)
        self.metrics = (
            {"step": float(self.steps)} | metrics | {name: self.algorithm.current(name) for name in self._reported}
        )
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise self._diverged(name, value)

    def _diverged(self, name: str, value: float) -> UserError:
        return UserError(
            f"training diverged at step {self.steps} ({name} is {value}); lower {self.algorithm.step_size}"
        )

    def notify(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)

    @contextmanager
    def joined_by(self, callbacks: Sequence[Callback]) -> Iterator[None]:
        """For as long as this lasts there are more callbacks; logging and saving, which see all they did, stay last."""
        before = self.callbacks
        last = [callback for callback in before if isinstance(callback, (Log, Save))]
        self.callbacks = [*(callback for callback in before if callback not in last), *callbacks, *last]
        try:
            yield
        finally:
            self.callbacks = before

    def evaluate(self, episodes: int) -> Evaluation:
        return self.evaluator(self.algorithm, whole_number("num_episodes", episodes))

    def record_evaluation(self, metrics: Metrics) -> None:
        self.eval_metrics, self.evaluated_now = metrics, True
        self.notify("on_eval", metrics)

    def timing(self) -> Metrics:
        seconds = self.seconds
        return {"seconds": round(seconds, 3), "steps_per_second": round(self.steps / max(seconds, 1e-9), 1)}

    def log(self) -> None:
        """Write a row of metrics, and show it to the callbacks."""
        row = self.metrics | (self.eval_metrics if self.evaluated_now else {}) | self.timing()
        if self.folder is not None:
            try:
                self.folder.append_metrics(row)
            except OSError as error:
                file = str(self.folder.metrics_file)
                raise UserError(f"cannot write to {file!r}: {error.strerror or error}") from error
        self.notify("on_log", row)

    def state_dict(self) -> dict[str, Any]:
        """All of training but the policy's tensors and the environments."""
        return {
            "algorithm": self.algorithm.training_state(),
            "parts": {name: part.state_dict() for name, part in self.loop.parts.items() if part is not self._collector},
            "rng": streams_state(self.streams),
            "callbacks": {name: callback.state_dict() for name, callback in named(self.callbacks)},
            "trainer": {
                "should_stop": self.should_stop,
                "stop_reason": self.stop_reason,
                "horizon": self.schedules.horizon,
                "hyperparameters": self._hyperparameters_by_hand(),
                "best_step": self.best_step,
                "metrics": self.metrics,
                "eval_metrics": self.eval_metrics,
                "seconds": self.seconds,
                "metrics_length": 0 if self.folder is None else self.folder.metrics_length(),
            },
        }

    def _hyperparameters_by_hand(self) -> dict[str, Any]:
        """Those that were set on the algorithm itself, against what its config says."""
        configured = self.config.algorithm.model_dump(mode="json")
        now = self.algorithm.cfg.model_dump(mode="json")
        return {
            name: value for name, value in now.items() if name not in self.config.controls and value != configured[name]
        }

    def _restore_hyperparameters(self, by_hand: Mapping[str, Any], saved_config: Mapping[str, Any]) -> None:
        """Set those again that neither a schedule nor a change of the config governs now."""
        configured = self.config.algorithm.model_dump(mode="json")
        kept = {
            name: value
            for name, value in by_hand.items()
            if name not in self.config.controls and configured[name] == saved_config.get(name)
        }
        if kept:
            self.algorithm.set_hyperparameters(**kept)

    def load(self, checkpoint: Checkpoint) -> None:
        """Take over everything that a checkpoint holds."""
        state = checkpoint.state
        restore_streams(self.streams, state["rng"])
        with untouched():  # replaying episodes may draw from the global generators
            self._collector.load_state_dict(checkpoint.envs)
        self.algorithm.load_policy_state(checkpoint.policy)
        self.algorithm.load_training_state(state["algorithm"])
        load_memory(memory_of(self.loop.parts), checkpoint.memory)  # first: the parts may derive the rest from it
        for name, part in self.loop.parts.items():
            if part is not self._collector:
                part.load_state_dict(state["parts"][name])
        for name, callback in named(self.callbacks):
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])
        trainer = state["trainer"]
        self.should_stop, self.stop_reason = trainer["should_stop"], trainer["stop_reason"]
        if not self.config.run.stretch_schedules:
            self.schedules.horizon = trainer["horizon"]
        self.best_step, self._seconds_before = trainer["best_step"], trainer["seconds"]
        self.metrics, self.eval_metrics = dict(trainer["metrics"]), dict(trainer["eval_metrics"])
        self._restore_hyperparameters(trainer.get("hyperparameters", {}), checkpoint.meta["config"])
        self.previous_steps = self.steps
        self._metrics_length = trainer["metrics_length"]

    def snapshot(self) -> Checkpoint:
        meta = {
            "step": self.steps,
            "config": self.config.flat(),
            "spaces": self.info.to_dict(),
            "versions": versions(),
            "engine": self.algorithm.engine,
            "threads": torch.get_num_threads(),
            "resume": "exact" if self.exact else "restarted",
            "eval": self.eval_metrics,
        }
        envs, memory = self._collector.state_dict(), memory_of(self.loop.parts)
        return Checkpoint(meta, self.algorithm.policy_state(), self.state_dict(), envs, memory)

    def save(self) -> None:
        """Write a checkpoint into the run's folder, if it has one."""
        if self.folder is None:
            return
        self.checkpoint = self._write_checkpoint(self.folder.checkpoints)
        self.notify("on_checkpoint", self.checkpoint)

    def _write_checkpoint(self, folder: Path) -> Path:
        path = folder / f"step_{self.steps}"
        try:
            checkpoint = self.snapshot()
            for name, tensor in checkpoint.policy.items():
                if bool(tensor.isnan().any()):  # the update's metrics are those of before its last gradient
                    raise self._diverged(name, math.nan)
            write_checkpoint(path, checkpoint)
            best = folder / f"step_{self.best_step}"
            if best.is_dir() and best != pointed(folder, "best"):
                point(folder, "best", best)
            point(folder, "latest", path)  # last: whoever resumes from it finds the best one named too
            prune(folder, self.config.run.keep_checkpoints, self.steps)
        except OSError as error:
            raise UserError(f"cannot write the checkpoint {str(path)!r}: {error.strerror or error}") from error
        return path

    def open_folder(self, run_dir: str | Path | None = None) -> None:
        """Give the run a folder with its config and a first checkpoint."""

        def fill(folder: RunFolder) -> None:
            folder.write_config(self.config.flat())
            folder.update_metadata(**describe_process(), result=None, stop_reason=None)
            self._write_checkpoint(folder.checkpoints)

        settings = self.config.run
        name = run_name(settings.algo, settings.env_id, settings.seed)
        self.folder = RunFolder.create(None if run_dir is None else Path(run_dir), settings.output_dir, name, fill)
        self.checkpoint = pointed(self.folder.checkpoints, "latest")
        for array in memory_of(self.loop.parts).values():  # the folder got its name after they were written
            if array.written is not None and self.checkpoint is not None:
                array.written = array.written._replace(folder=self.checkpoint / MEMORY_FOLDER)
        self.lock()

    def reopen_folder(self, folder: RunFolder, checkpoint: Path, notes: list[str]) -> None:
        """Go on in the folder of the checkpoint that was loaded; what was logged after it will be logged again."""
        self.folder, self.resume_notes = folder, notes
        self.lock()
        folder.note_resumption(self.steps, notes)
        folder.write_config(self.config.flat())
        folder.cut_metrics(self._metrics_length)
        best = folder.checkpoints / f"step_{self.best_step}"
        if best.is_dir():
            point(folder.checkpoints, "best", best)
        else:  # it names one that came after the checkpoint, and will be written over
            (folder.checkpoints / "best").unlink(missing_ok=True)
        point(folder.checkpoints, "latest", checkpoint)

    def result(self) -> TrainResult:
        metrics = self.metrics | self.eval_metrics | self.timing()
        run_dir = None if self.folder is None else self.folder.path
        return TrainResult(metrics, self.checkpoint, run_dir, self.stop_reason or COMPLETED, signalled=self.signalled)

    def close(self) -> None:
        self.unlock()
        self._collector.close()
        self.evaluator.close()
