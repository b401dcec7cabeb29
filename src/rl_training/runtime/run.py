"""A run: its parts, its state between two steps, and the interface for callbacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.settings import reported
from rl_training.data.chunks import ChunkedArray
from rl_training.experiment.config import Config
from rl_training.experiment.manager import RunFolder
from rl_training.experiment.notes import Name
from rl_training.runtime.actors.sources import Experience
from rl_training.runtime.arguments import whole_number
from rl_training.runtime.callbacks import Callback, Callbacks, EarlyStopping
from rl_training.runtime.capabilities import refuse_for_tasks
from rl_training.runtime.checkpoints.archive import Archive
from rl_training.runtime.checkpoints.checkpoint import Checkpoint
from rl_training.runtime.checkpoints.chunk_files import arrays_of
from rl_training.runtime.checkpoints.continuation import take_over
from rl_training.runtime.checkpoints.snapshots import load_snapshot, take_snapshot
from rl_training.runtime.clock import Stopwatch
from rl_training.runtime.envs.given import Env
from rl_training.runtime.evaluate import Evaluator, elsewhere
from rl_training.runtime.evaluations import Evaluation
from rl_training.runtime.libraries import Libraries
from rl_training.runtime.loops.base import Loop
from rl_training.runtime.opponents import NOTHING_ASKED, Opposition
from rl_training.runtime.schedules import ScheduleSet
from rl_training.runtime.signals import Signals
from rl_training.runtime.task_evaluation import TaskEvaluations, TaskEvaluator
from rl_training.types import Metrics, SpaceInfo, Streams, UserError

INTERRUPTED = "interrupted"
COMPLETED = "completed"


class TrainResult(dict[str, float]):
    """The final metrics of a run, with its checkpoint, its folder and why it ended."""

    def __init__(self, metrics: Metrics, checkpoint: Path | None, run_dir: Path | None, stop_reason: str) -> None:
        super().__init__(metrics)
        self.checkpoint = checkpoint
        self.run_dir = run_dir
        self.stop_reason = stop_reason


class Interrupted(KeyboardInterrupt):
    """A signal ended the run, which can be resumed; or it arrived when the run was at its end.

    `result.stop_reason` is `interrupted` in the first case only.
    """

    def __init__(self, result: TrainResult) -> None:
        super().__init__(INTERRUPTED)
        self.result = result


@dataclass(frozen=True)
class Surroundings:
    """What surrounds a policy: spaces, environments for evaluation, random streams, and libraries that it borrows.

    `spaces` are those of every task, `action_dtypes` the types of their actions.
    """

    spaces: Mapping[str, SpaceInfo]
    action_dtypes: Mapping[str, Any]
    evaluator: Evaluator | TaskEvaluator
    streams: Streams
    libraries: Libraries

    @property
    def info(self) -> SpaceInfo:
        """The spaces of the first task."""
        return next(iter(self.spaces.values()))


class Run:
    """A run: its algorithm, and its progress.

    Each part has one purpose: `source` collects experience, `loop` steps, `schedules` set hyperparameters, `callbacks`
    are notified, `archive` writes to disk, `clock` measures time. `checkpoints/snapshots.py` saves and restores it all.
    `code` is what its config names of the user's own code.
    Whatever computes borrows the `libraries` of the process, and leaves them as they were.
    """

    def __init__(
        self,
        config: Config,
        surroundings: Surroundings,
        algorithm: Algorithm,
        source: Experience,
        loop: Loop,
        callbacks: Sequence[Callback],
        code: Sequence[Name] = (),
    ) -> None:
        self.config = config
        self.code = tuple(code)
        self.spaces, self.action_dtypes = surroundings.spaces, surroundings.action_dtypes
        self.info, self.action_dtype = surroundings.info, self.action_dtypes[config.tasks[0]]
        self.evaluator, self.streams = surroundings.evaluator, surroundings.streams
        self.libraries = surroundings.libraries
        self.algorithm = algorithm
        self.source = source
        self.loop = loop
        self.callbacks = Callbacks(callbacks)
        self.schedules = ScheduleSet(config.controls, config.run.total_timesteps)
        self.archive = Archive()
        self.clock = Stopwatch()
        self.metrics: Metrics = {}
        self.eval_metrics: Metrics = {}
        self.evaluated_now = False
        self.should_stop = False
        self.stop_reason: str | None = None
        self.signals = Signals()
        self.interrupted = False
        # The hook, on_step or on_end, that no callback has been told of yet, since a signal ended its evaluation.
        self.due: str | None = None
        self.resume_notes: list[str] = []
        self.previous_steps = 0
        self._reported = list(dict.fromkeys([*reported(config.algorithm), *config.controls]))

    @property
    def steps(self) -> int:
        return self.loop.steps

    @property
    def finished(self) -> bool:
        return self.should_stop or self.steps >= self.config.run.total_timesteps

    @property
    def folder(self) -> RunFolder | None:
        return self.archive.folder

    @property
    def checkpoint(self) -> Path | None:
        """The latest checkpoint that was written or loaded."""
        return self.archive.checkpoint

    def start(self) -> None:
        """Begin the first episodes, after a warm start if the config names another run."""
        with self.libraries:
            if self.config.loop.origin is not None:
                take_over(self, self.config.loop.origin)
            self.source.start()
            self.refresh(self.steps)  # `Agent.predict` may act before the first step of the loop does this

    def advance(self) -> None:
        """One step of the loop, and its metrics."""
        self.previous_steps, self.evaluated_now = self.steps, False
        with self.libraries:
            metrics = self.loop.step(self.refresh)
        self.metrics = (
            {"step": float(self.steps)} | metrics | {name: self.algorithm.current(name) for name in self._reported}
        )
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise self.diverged(name, value)

    def refresh(self, step: int) -> None:
        """Set every scheduled hyperparameter to its value at `step`."""
        values = self.schedules.values(step)
        if values:
            self.algorithm.set_hyperparameters(**values)

    def diverged(self, name: str, value: float) -> UserError:
        return UserError(
            f"training diverged at step {self.steps} ({name} is {value}); lower {self.algorithm.step_size}"
        )

    def request_stop(self, reason: str) -> None:
        """End the run after this step; the first reason is kept, and a run at its last step is complete without one."""
        if not self.finished:
            self.should_stop, self.stop_reason = True, reason

    def lift_stop(self) -> None:
        """Allow the run to continue after a stop; if early stopping ended it, its counts start again."""
        if (self.stop_reason or "").startswith(EarlyStopping.REASON):
            for callback in self.callbacks:
                if isinstance(callback, EarlyStopping):
                    callback.restart()
        self.should_stop, self.stop_reason = False, None

    def set_config(self, config: Config) -> None:
        """Continue with another config, which is written to the folder too."""
        self.config = config
        self.archive.write_config(config)

    def notify(self, hook: str, *arguments: Any) -> None:
        """Call a hook of every callback."""
        self.callbacks.notify(hook, self, *arguments)

    def evaluate(
        self,
        episodes: int,
        *,
        deterministic: bool | None = None,
        env: Env | None = None,
        asked: Opposition = NOTHING_ASKED,
        render: str | None = None,
    ) -> Evaluation | TaskEvaluations:
        """Evaluate the policy, in the run's environment or in another one with the same spaces; or in every task.

        Without `deterministic` it is judged as its algorithm is: by greedy actions, or by sampled ones. In training a
        signal ends it at its next step.
        In a game for two players, `asked` may name another opponent than that of the config. `render` is a render mode
        of the environment.
        """
        episodes, policy = whole_number("num_episodes", episodes), self.algorithm.policy
        lender = self.evaluator.maker.lender
        if env is not None and lender is not None and lender.is_out and lender.is_of(env):
            raise UserError(f"env={env!r}: is the environment that the agent trains in; {lender.better}")
        heed = self.signals.heed
        with self.libraries:
            made: Evaluator | TaskEvaluator
            if env is not None:
                refuse_for_tasks(self.config, f"env={env!r}")
                made = elsewhere(env, self.config, self.info, asked, render)
            elif asked != NOTHING_ASKED or render is not None:
                made = self.evaluator.again(asked, render)
            else:
                return self.evaluator(policy, episodes, deterministic=deterministic, heed=heed)
            with closing(made) as evaluator:
                return evaluator(policy, episodes, deterministic=deterministic, heed=heed)

    def record_evaluation(self, metrics: Metrics, *, best: bool) -> None:
        self.eval_metrics, self.evaluated_now = metrics, True
        if best:
            self.archive.best_step = self.steps
        self.notify("on_eval", metrics)

    def log(self) -> None:
        """Write a row of metrics, and pass it to the callbacks."""
        evaluation = self.eval_metrics if self.evaluated_now else {}
        row = self.metrics | evaluation | self.clock.metrics(self.steps)
        self.archive.append(row)
        self.notify("on_log", row)

    def arrays(self) -> Mapping[str, ChunkedArray]:
        """The large arrays of the loop's parts, which are saved in chunks."""
        return arrays_of(self.loop.parts)

    def snapshot(self) -> Checkpoint:
        with self.libraries:
            return take_snapshot(self)

    def load(self, checkpoint: Checkpoint, changed: Mapping[str, str] | None = None) -> None:
        """Load everything that a checkpoint holds; `changed` says which settings let episodes begin anew."""
        with self.libraries:
            load_snapshot(self, checkpoint, changed)

    def save(self) -> None:
        """Write a checkpoint into the run's folder, if it has one."""
        path = self.archive.save(self)
        if path is not None:
            self.notify("on_checkpoint", path)

    def result(self) -> TrainResult:
        metrics = self.metrics | self.eval_metrics | self.clock.metrics(self.steps)
        run_dir = None if self.folder is None else self.folder.path
        reason = INTERRUPTED if self.interrupted else self.stop_reason or COMPLETED
        return TrainResult(metrics, self.checkpoint, run_dir, reason)

    def close(self) -> None:
        self.archive.unlock()
        self.source.close()
        self.evaluator.close()
