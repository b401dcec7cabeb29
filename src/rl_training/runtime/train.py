"""The one driver: build a run from a config, then run it."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from threadpoolctl import threadpool_limits

from rl_training.algorithms.base import Algorithm, Context, setting_extra
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.manager import RunFolder, describe_process, run_name, versions
from rl_training.experiment.references import resolve_reference
from rl_training.experiment.registry import capable, suggest
from rl_training.runtime.callbacks import Callback, Log, Save
from rl_training.runtime.checkpoint import Checkpoint, point, pointed, prune, write_checkpoint
from rl_training.runtime.collect import Collector
from rl_training.runtime.controls import build_control_callbacks
from rl_training.runtime.envs import EnvFactory, EnvMaker, describe_spaces
from rl_training.runtime.evaluate import Evaluation, Evaluator
from rl_training.runtime.loops import LOOPS
from rl_training.runtime.rng import make_streams, restore_streams, streams_state, untouched
from rl_training.runtime.schedules import ScheduleSet
from rl_training.types import Metrics, SpaceInfo, UserError

AnyConfig = Config | Mapping[str, Any] | str | Path

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
        self.previous_steps = 0
        self.best_step = -1
        self.folder: RunFolder | None = None
        self.checkpoint: Path | None = None
        self._collector = collector
        self._evaluator = evaluator
        self.streams = streams
        self._seconds_before = 0.0
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
        if self.folder is not None:
            row = {"step": self.steps} | self.metrics | (self.eval_metrics if self.evaluated_now else {})
            self.folder.append_metrics(row | self.timing())

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
        if self.folder is not None:
            self.folder.cut_metrics(trainer["metrics_length"])

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
            point(folder, "latest", path)
            if self.best_step == self.steps:
                point(folder, "best", path)
            prune(folder, self.config.run.keep_checkpoints)
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

    def result(self) -> TrainResult:
        metrics = self.metrics | self.eval_metrics | self.timing()
        run_dir = None if self.folder is None else self.folder.path
        return TrainResult(metrics, self.checkpoint, run_dir, self.stop_reason or COMPLETED)

    def close(self) -> None:
        self._collector.close()
        self._evaluator.close()


def build(config: Config, *, env_factory: EnvFactory | None = None, callbacks: Sequence[Callback] = ()) -> Run:
    """Everything a run needs, in memory: the last place where a mistake in a config can surface."""
    device = _device(config.run.device)
    torch.set_num_threads(config.run.threads)
    threadpool_limits(config.run.threads, user_api="blas")  # NumPy's own threads: a busy machine makes them crawl
    streams = make_streams(config.run.seed)
    maker = EnvMaker(config.run, config.loop, env_factory)
    envs = maker.vector(config.run.num_envs)
    info = describe_spaces(envs.single_observation_space, envs.single_action_space, config.run.env_id)
    _check_capabilities(config, info)
    factory = None if config.model.model == "mlp" else resolve_reference(config.model.model, key="model")
    context = Context(
        info, config.algorithm, config.model, config.run.num_envs, device, streams, factory, config.run.engine
    )
    algorithm = config.spec.build(context)
    collector = Collector(envs, info, streams["env"], reward_clip=config.loop.reward_clip)
    loop = resolve_reference(LOOPS[config.spec.family], key="family")(algorithm, collector, config.loop)
    users = [*(_callback(reference) for reference in config.run.callbacks), *callbacks]
    ordered = [
        *build_control_callbacks(config),
        *users,
        Log(config.run.log_interval),
        Save(config.run.checkpoint_interval),
    ]
    return Run(config, info, algorithm, loop, collector, Evaluator(maker.judged, info), streams, ordered)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={name!r}: cannot be used here ({str(error).splitlines()[0][:80]}); try 'cpu'"
        ) from None


def _check_capabilities(config: Config, info: SpaceInfo) -> None:
    able = config.spec.capabilities
    for what, kind, allowed in (
        ("observations", info.obs_kind, able.observations),
        ("actions", info.action_kind, able.actions),
    ):
        if kind not in allowed:
            others = [name for name in capable(info.obs_kind, info.action_kind) if name != config.spec.name]
            advice = f"; {' or '.join(others)} can" if others else ""
            raise UserError(
                f"algo={config.run.algo!r}: cannot work with the {kind} {what} of {config.run.env_id}, only with "
                f"{' or '.join(allowed)} ones{advice}"
            )


def _callback(reference: str) -> Callback:
    made = resolve_reference(reference, key="callbacks")
    callback = made() if callable(made) else made
    if not isinstance(callback, Callback):
        raise UserError(f"callbacks={reference!r}: it is a {type(callback).__name__}, not a rl_training.Callback")
    return callback


def run(run: Run) -> TrainResult:
    """Step the loop until it is done or told to stop."""
    run.start_clock()
    try:
        with _signals_stop(run):
            run.notify("on_start")
            while not run.finished:
                run.advance()
                run.notify("on_step", run.metrics)
            if not run.should_stop:
                run.stop_reason = COMPLETED
            run.notify("on_end")
        _conclude(run, run.stop_reason or COMPLETED)
    except UserError as error:
        _conclude(run, "failed")
        saved = "" if run.checkpoint is None else f"\nThe last good checkpoint is {run.checkpoint}"
        raise UserError(f"{error}{saved}") from error
    except BaseException as error:
        _conclude(run, f"failed: {error!r}")
        raise
    if run.interrupted:
        raise Interrupted(run.result())
    return run.result()


def _conclude(run: Run, reason: str) -> None:
    if run.folder is None:
        return
    with suppress(OSError):  # a full disk is already being reported
        run.folder.update_metadata(result=dict(run.result()), stop_reason=reason, steps=run.steps)


@contextmanager
def _signals_stop(run: Run) -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the run at the next safe point; a second SIGINT ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if run.should_stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        run.request_stop(INTERRUPTED)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train(
    config: AnyConfig,
    *,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    env_factory: EnvFactory | None = None,
    algo: str | None = None,
) -> TrainResult:
    """Train what a config says, in a folder of its own; or go on with `resume`, a run or a checkpoint."""
    from rl_training.runtime.workflows import resume_training

    if not isinstance(config, Config):
        unnamed = isinstance(config, Mapping) and algo is not None
        config = load_config({"algo": algo, **config} if isinstance(config, Mapping) and unnamed else config)
    if algo is not None and config.run.algo != algo:
        raise UserError(f"algo={config.run.algo!r}: this trains {algo}; use train() or train_{config.run.algo}()")
    if resume is not None:
        return resume_training(resume, callbacks=callbacks, env_factory=env_factory, **config.flat())
    built = build(config, env_factory=env_factory, callbacks=callbacks)
    try:
        built.start()
        built.open_folder(run_dir)
        return run(built)
    finally:
        built.close()
