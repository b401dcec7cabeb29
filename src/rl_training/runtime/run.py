"""A run between two safe points: what it is made of, what is saved of it, what callbacks may ask of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from rl_training.algorithms.base import Algorithm, setting_extra
from rl_training.experiment.config import Config
from rl_training.experiment.manager import RunFolder, describe_process, run_name, versions
from rl_training.experiment.registry import suggest
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint, point, pointed, prune, write_checkpoint
from rl_training.runtime.collect import Collector
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
        """Everything that has memory, with `state_dict` and `load_state_dict`."""

    def step(self, refresh: Callable[[int], None]) -> Metrics:
        """From one safe point to the next."""


class TrainResult(dict[str, float]):
    """The final metrics of a run, with its checkpoint, its folder and why it ended."""

    def __init__(self, metrics: Metrics, checkpoint: Path | None, run_dir: Path | None, stop_reason: str) -> None:
        super().__init__(metrics)
        self.checkpoint = checkpoint
        self.run_dir = run_dir
        self.stop_reason = stop_reason


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
        collector: Collector,
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
        self._evaluator = evaluator
        self.streams = streams
        self._seconds_before = 0.0
        self._metrics_length = 0
        self._started = time.perf_counter()
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
        return self._seconds_before + time.perf_counter() - self._started

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it: then nothing is judged or logged that an uninterrupted run would not have."""
        return self.stop_reason == INTERRUPTED

    def start(self) -> None:
        """Begin the first episodes."""
        self._collector.start()

    def start_clock(self) -> None:
        self._started = time.perf_counter()

    def request_stop(self, reason: str) -> None:
        """End the run after this step; the first reason given is the one that is kept."""
        if not self.should_stop:
            self.should_stop, self.stop_reason = True, reason

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
            {"step": float(self.steps)}
            | metrics
            | {name: float(getattr(self.algorithm, name)) for name in self._reported}
        )

    def notify(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)

    def evaluate(self, episodes: int) -> Evaluation:
        return self._evaluator(self.algorithm.act, episodes)

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
            "callbacks": {name: callback.state_dict() for name, callback in self._named_callbacks()},
            "trainer": {
                "should_stop": self.should_stop,
                "stop_reason": self.stop_reason,
                "horizon": self.schedules.horizon,
                "best_step": self.best_step,
                "metrics": self.metrics,
                "eval_metrics": self.eval_metrics,
                "seconds": self.seconds,
                "metrics_length": 0 if self.folder is None else self.folder.metrics_length(),
            },
        }

    def _named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        """Each under its class and how many of the class came before, so that a new one takes no other's state."""
        seen: Counter[str] = Counter()
        for callback in self.callbacks:
            kind = type(callback).__qualname__
            yield f"{kind}.{seen[kind]}", callback
            seen[kind] += 1

    def load(self, checkpoint: Checkpoint) -> None:
        """Take over everything that a checkpoint holds."""
        state = checkpoint.state
        restore_streams(self.streams, state["rng"])
        with untouched():  # replaying episodes may draw from the global generators
            self._collector.load_state_dict(checkpoint.envs)
        self.algorithm.load_policy_state(checkpoint.policy)
        self.algorithm.load_training_state(state["algorithm"])
        for name, part in self.loop.parts.items():
            if part is not self._collector:
                part.load_state_dict(state["parts"][name])
        for name, callback in self._named_callbacks():
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])
        trainer = state["trainer"]
        self.should_stop, self.stop_reason = trainer["should_stop"], trainer["stop_reason"]
        if not self.config.run.stretch_schedules:
            self.schedules.horizon = trainer["horizon"]
        self.best_step, self._seconds_before = trainer["best_step"], trainer["seconds"]
        self.metrics, self.eval_metrics = dict(trainer["metrics"]), dict(trainer["eval_metrics"])
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
        return Checkpoint(meta, self.algorithm.policy_state(), self.state_dict(), self._collector.state_dict())

    def save(self) -> None:
        """Write a checkpoint into the run's folder, if it has one."""
        if self.folder is None:
            return
        self.checkpoint = self._write_checkpoint(self.folder.checkpoints)
        self.notify("on_checkpoint", self.checkpoint)

    def _write_checkpoint(self, folder: Path) -> Path:
        path = folder / f"step_{self.steps}"
        try:
            write_checkpoint(path, self.snapshot())
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

    def reopen_folder(self, folder: RunFolder, checkpoint: Path) -> None:
        """Go on in the folder of the checkpoint that was loaded; what was logged after it will be logged again."""
        folder.cut_metrics(self._metrics_length)
        point(folder.checkpoints, "latest", checkpoint)
        self.folder = folder

    def result(self) -> TrainResult:
        metrics = self.metrics | self.eval_metrics | self.timing()
        run_dir = None if self.folder is None else self.folder.path
        return TrainResult(metrics, self.checkpoint, run_dir, self.stop_reason or COMPLETED)

    def close(self) -> None:
        self._collector.close()
        self._evaluator.close()
