"""The one driver: build a run from a config, then run it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from gymnasium.vector import VectorEnv
from threadpoolctl import threadpool_limits

from rl_training.algorithms.base import Algorithm, CollectingLoopConfig, Context, ModelConfig
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.references import resolve_reference, unfitting_call
from rl_training.experiment.registry import REGISTRY, capable
from rl_training.runtime.actors.collector import Collector, Idle
from rl_training.runtime.arguments import callback_list
from rl_training.runtime.callbacks import Callback, Log, Save
from rl_training.runtime.controls import build_control_callbacks
from rl_training.runtime.envs.make import EnvFactory, EnvMaker
from rl_training.runtime.evaluate import Evaluator
from rl_training.runtime.loggers import build_loggers
from rl_training.runtime.loops import LOOPS
from rl_training.runtime.rng import make_streams
from rl_training.runtime.run import COMPLETED, INTERRUPTED, WALL_CLOCK, Interrupted, Loop, Run, TrainResult
from rl_training.types import SpaceInfo, Streams, UserError

__all__ = [
    "COMPLETED",
    "INTERRUPTED",
    "WALL_CLOCK",
    "AnyConfig",
    "Interrupted",
    "Loop",
    "Run",
    "TrainResult",
    "build",
    "build_policy",
    "run",
    "train",
    "trainer",
]

AnyConfig = Config | Mapping[str, Any] | str | Path


class Trainer(Protocol):
    """`train` for one algorithm: `train_ppo` and its like."""

    def __call__(
        self,
        config: AnyConfig,
        *,
        run_dir: str | Path | None = None,
        resume: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> TrainResult: ...


def build(config: Config, *, env_factory: EnvFactory | None = None, callbacks: Sequence[Callback] = ()) -> Run:
    """Everything a run needs, in memory: the last place where a mistake in a config can surface."""
    controls, loggers = build_control_callbacks(config), build_loggers(config.run.loggers)
    users = [*(_callback(reference) for reference in config.run.callbacks), *callback_list("callbacks", callbacks)]
    num_envs = config.run.num_envs if config.loop.collects else 1
    policy = build_policy(config, num_envs=num_envs, env_factory=env_factory)
    with ExitStack() as on_failure:
        on_failure.callback(policy.close)
        collector = _collector(config, policy)
        loop = resolve_reference(LOOPS[config.spec.family], key="family")(policy.algorithm, collector, config)
        on_failure.pop_all()
    ordered = [
        *_comparisons(config, getattr(loop, "dataset", None)),
        *controls,
        *users,
        *loggers,
        Log(config.run.log_interval),
        Save(config.run.checkpoint_interval),
    ]
    return Run(config, policy.info, policy.algorithm, loop, collector, policy.evaluator, policy.streams, ordered)


def _comparisons(config: Config, dataset: OfflineDataset | None) -> list[Callback]:
    if dataset is None:
        return []
    from rl_training.runtime.baselines import Comparison

    return [Comparison(dataset, config.run.bc_baseline_updates)]


@dataclass(frozen=True)
class Policy:
    """An algorithm with environments to see the spaces of, and to be judged in."""

    algorithm: Algorithm
    info: SpaceInfo
    envs: VectorEnv[Any, Any, Any]
    evaluator: Evaluator
    streams: Streams

    def close(self) -> None:
        self.envs.close()
        self.evaluator.close()


def build_policy(config: Config, *, num_envs: int = 1, env_factory: EnvFactory | None = None) -> Policy:
    """What acts, without what it learns from."""
    torch.set_num_threads(config.run.threads)
    threadpool_limits(1, user_api="blas")  # NumPy's own threads crawl: several threads are torch's
    streams = make_streams(config.run.seed)
    maker = EnvMaker(config.run, config.loop, env_factory)
    factory = None if config.model.model == "auto" else _model_factory(config.model.model)
    envs = maker.masking(maker.vector(num_envs))
    with ExitStack() as on_failure:
        on_failure.callback(envs.close)
        info = maker.describe(envs)
        _check_capabilities(config, info)
        device = _device(config.run.device, info)
        context = Context(info, config.algorithm, config.model, num_envs, device, streams, factory, config.run.engine)
        algorithm = config.spec.build(context)
        on_failure.pop_all()
    return Policy(algorithm, info, envs, Evaluator(maker.judged, info), streams)


def _collector(config: Config, policy: Policy) -> Collector | Idle:
    loop = config.loop
    if not isinstance(loop, CollectingLoopConfig) or not loop.collects:
        return Idle(policy.envs)
    return Collector(policy.envs, policy.info, policy.streams["env"], reward_clip=loop.reward_clip)


def _model_factory(reference: str) -> Callable[[SpaceInfo, ModelConfig], torch.nn.Module]:
    """The user's function or class that makes a network, which is looked at when it is made."""
    make = resolve_reference(reference, key="model")
    if not callable(make):
        raise UserError(f"model={reference!r}: must name a class or function that makes a network")

    def made(info: SpaceInfo, config: ModelConfig) -> torch.nn.Module:
        problem = unfitting_call(make, info, config)
        if problem is not None:
            raise UserError(f"model={reference!r}: is called with (SpaceInfo, ModelConfig): {problem}")
        network = make(info, config)
        if not isinstance(network, torch.nn.Module):
            raise UserError(f"model={reference!r}: it made a {type(network).__name__}, not a torch.nn.Module")
        return network

    return made


def _device(name: str, info: SpaceInfo) -> torch.device:
    if name == "auto":
        # Small networks on vectors are faster on a CPU, where they have an engine of their own.
        images = info.obs_kind == "image" or any(part.kind == "image" for part in info.parts)
        return torch.device("cuda" if images and torch.cuda.is_available() else "cpu")
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
            # Who has a dataset wants to learn from it; who has none cannot, and has nobody to imitate.
            others = [
                name
                for name in capable(info.obs_kind, info.action_kind)
                if name != config.spec.name
                and REGISTRY[name].capabilities.offline == able.offline
                and REGISTRY[name].family != "imitation"
            ]
            advice = f"; {' or '.join(others)} can" if others else ""
            raise UserError(
                f"algo={config.run.algo!r}: cannot work with the {kind} {what} of {config.run.env_id}, only with "
                f"{' or '.join(allowed)} ones{advice}"
            )


def _callback(reference: str) -> Callback:
    made = resolve_reference(reference, key="callbacks")
    problem = unfitting_call(made) if callable(made) else None
    if problem is not None:
        raise UserError(f"callbacks={reference!r}: is called without arguments: {problem}")
    callback = made() if callable(made) else made
    if not isinstance(callback, Callback):
        raise UserError(f"callbacks={reference!r}: it is a {type(callback).__name__}, not a rl_training.Callback")
    return callback


def run(run: Run) -> TrainResult:
    """Step the loop until it is done or told to stop."""
    run.lock()
    run.start_clock()
    try:
        with _signals_stop(run):
            run.notify("on_start")
            while not run.finished:
                # Looked at between steps only, so that all that a step has to log, judge and save is done.
                if run.signalled:
                    run.request_stop(INTERRUPTED)
                    break
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
    finally:
        run.stop_clock()
        run.unlock()
        for callback in run.callbacks:
            callback.close()
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
    """The first SIGINT or SIGTERM ends the run at the next safe point; a second one of either kind ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if run.signalled:
            raise KeyboardInterrupt
        run.signalled = True

    run.signalled = False
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
        if run_dir is not None:
            raise UserError(f"run_dir={str(run_dir)!r}: a run that goes on stays in its folder; give resume or run_dir")
        return resume_training(resume, callbacks=callbacks, env_factory=env_factory, config=config)
    built = build(config, env_factory=env_factory, callbacks=callbacks)
    try:
        built.start()
        built.open_folder(run_dir)
        return run(built)
    finally:
        built.close()


def trainer(algo: str) -> Trainer:
    """The function `train_<algo>`, which trains one algorithm and refuses the config of another."""

    def train_one(
        config: AnyConfig,
        *,
        run_dir: str | Path | None = None,
        resume: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> TrainResult:
        return train(config, algo=algo, run_dir=run_dir, resume=resume, callbacks=callbacks)

    train_one.__name__ = train_one.__qualname__ = f"train_{algo}"
    train_one.__module__ = f"rl_training.runtime.{algo}_trainer"
    train_one.__doc__ = f"Train {algo} as a config says: a preset's name, a file, a mapping or a checked config."
    return train_one
