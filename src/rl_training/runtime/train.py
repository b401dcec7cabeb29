"""The driver: builds a run from a config, then runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from rl_training.algorithms.base import CollectingLoopConfig, Context, Policy, PolicyContext
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.notes import Name
from rl_training.experiment.references import reference_to, resolve_reference
from rl_training.experiment.trust import ELSEWHERE, TRAINING, code_in
from rl_training.runtime.actors.actor import Actor
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.actors.engines import WorkerFailed, WorkersLost
from rl_training.runtime.actors.make_pool import is_pooled, make_pool
from rl_training.runtime.actors.sources import Experience, Local, Nothing, Source
from rl_training.runtime.actors.task_sources import TaskSources
from rl_training.runtime.arguments import AnyCallback, callback_list, named_callback
from rl_training.runtime.callbacks import Callback, Log, Save
from rl_training.runtime.capabilities import notes_on_speed
from rl_training.runtime.clock import WALL_CLOCK
from rl_training.runtime.controls import build_control_callbacks
from rl_training.runtime.envs.make import EnvFactory
from rl_training.runtime.given_code import model_factory, nameless
from rl_training.runtime.libraries import Libraries
from rl_training.runtime.loggers import build_loggers
from rl_training.runtime.loops import LOOPS
from rl_training.runtime.loops.base import Loop
from rl_training.runtime.memory import check_memory
from rl_training.runtime.opponents import NOTHING_ASKED, Opposition
from rl_training.runtime.rng import make_streams, stream_of
from rl_training.runtime.run import COMPLETED, INTERRUPTED, Interrupted, Run, Surroundings, TrainResult
from rl_training.runtime.signals import Cut
from rl_training.runtime.task_environments import TaskEnvironments, envs_of, evaluator_of, in_task, make_environments
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
    "code_of",
    "policy_for",
    "run",
    "train",
    "trainer",
]

_LOG = logging.getLogger("rl_training")

AnyConfig = Config | Mapping[str, Any] | str | Path


class Trainer(Protocol):
    """`train` for one algorithm, such as `train_ppo`."""

    def __call__(
        self,
        config: AnyConfig,
        *,
        run_dir: str | Path | None = None,
        resume: str | Path | None = None,
        callbacks: Sequence[AnyCallback] = (),
    ) -> TrainResult: ...


def build(
    config: Config,
    *,
    env_factory: EnvFactory | None = None,
    callbacks: Sequence[AnyCallback] = (),
    trust: bool = False,
) -> Run:
    """Build everything a run needs, without writing to disk; all mistakes in a config are found here at the latest.

    `trust` lets in code that the checkpoint of an opponent names.
    """
    controls, loggers = build_control_callbacks(config), build_loggers(config.run.loggers)
    users = [*(named_callback(reference) for reference in config.run.callbacks), *callback_list("callbacks", callbacks)]
    family = config.spec.family
    if family not in LOOPS:
        raise UserError(f"algo={config.run.algo!r}: its SPEC has family={family!r}; must be one of {', '.join(LOOPS)}")
    pooled = is_pooled(config)
    with Libraries(config.run.threads) as libraries, ExitStack() as on_failure:
        streams, asked = make_streams(config.run.seed, config.tasks), Opposition(trust=trust)
        environments = make_environments(config, env_factory, on_failure, asked, learns=True, spaces_only=pooled)
        surroundings = _surroundings(config, environments, streams, libraries)
        algorithm = config.spec.build(
            Context(
                **_context(config, surroundings.spaces),
                num_envs=sum(envs_of(each.config) for each in environments.values()),
                streams=streams,
                target_returns=config.run.target_returns,
            )
        )
        source = _source(config, environments, streams, algorithm.policy, env_factory, on_failure)
        if config.run.eval_interval is not None and surroundings.evaluator.unable is not None:
            raise UserError(f"eval_interval={config.run.eval_interval}: {surroundings.evaluator.unable}")
        loop: Loop = resolve_reference(LOOPS[family], key="family")(
            algorithm, source, config, surroundings.evaluator.maker
        )
        on_failure.pop_all()
    ordered = [
        *_comparisons(config, loop.dataset),
        *controls,
        *users,
        *loggers,
        Log(config.run.log_interval),
        Save(config.run.checkpoint_interval),
    ]
    return Run(config, surroundings, algorithm, source, loop, ordered, code_of(config, env_factory))


def code_of(config: Config, env_factory: EnvFactory | None) -> list[Name]:
    """The code that a run uses by name: not that of its environment, if a function of another name makes it."""
    by_name = env_factory is None or reference_to(env_factory) == config.run.env_id
    return list(code_in(config, TRAINING if by_name else ELSEWHERE))


def build_policy(
    config: Config, *, env_factory: EnvFactory | None = None, asked: Opposition = NOTHING_ASKED
) -> tuple[Policy, Surroundings]:
    """Build only the policy of a config, and what is needed to evaluate it; `asked` may name another opponent."""
    with Libraries(config.run.threads) as libraries, ExitStack() as on_failure:
        streams = make_streams(config.run.seed, config.tasks)
        environments = make_environments(config, env_factory, on_failure, asked)
        surroundings = _surroundings(config, environments, streams, libraries)
        policy = config.spec.policy(PolicyContext(**_context(config, surroundings.spaces)))
        for each in environments.values():
            each.envs.close()
        on_failure.pop_all()
    return policy, surroundings


def policy_for(config: Config, spaces: Mapping[str, SpaceInfo]) -> Policy:
    """Build only the policy of a config, for the spaces of its tasks, which are known; no environment is needed."""
    for task, info in spaces.items():
        check_memory(config.for_task(task), info)
    with Libraries(config.run.threads):  # new weights are drawn from the global generator
        return config.spec.policy(PolicyContext(**_context(config, spaces)))


def _surroundings(
    config: Config, environments: Mapping[str, TaskEnvironments], streams: Streams, libraries: Libraries
) -> Surroundings:
    spaces = {task: each.info for task, each in environments.items()}
    dtypes = {task: each.envs.single_action_space.dtype for task, each in environments.items()}
    return Surroundings(spaces, dtypes, evaluator_of(environments, config), streams, libraries)


def _context(config: Config, spaces: Mapping[str, SpaceInfo]) -> dict[str, Any]:
    """The arguments that a policy is built from."""
    return {
        "info": spaces[config.tasks[0]],
        "tasks": spaces,
        "config": config.algorithm,
        "model": config.model,
        "device": _device(config.run.device, spaces.values()),
        "model_factory": None if config.model.model == "auto" else model_factory(config),
        "engine": config.run.engine,
    }


def _source(
    config: Config,
    environments: Mapping[str, TaskEnvironments],
    streams: Streams,
    policy: Policy,
    env_factory: EnvFactory | None,
    on_failure: ExitStack,
) -> Experience:
    """What gathers: one actor in this process, which acts with the learner's own policy, or workers; in every task."""
    sources: dict[str, Source] = {}
    for task, each in environments.items():
        loop = each.config.loop
        if is_pooled(config) or not loop.collects:
            each.envs.close()  # only their spaces were needed
        if not loop.collects:
            return Nothing()
        assert isinstance(loop, CollectingLoopConfig)
        if is_pooled(config):
            with in_task(task):
                pool = make_pool(config, env_factory, policy.for_task(task))
            on_failure.callback(pool.close)
            sources[task] = pool
        else:
            rng = streams[stream_of(task, "env")]
            collector = Collector(each.envs, each.info, rng, reward_clip=loop.reward_clip)
            sources[task] = Local(Actor(policy.for_task(task), collector, streams[stream_of(task, "policy")]))
    return sources[""] if config.run.tasks is None else TaskSources(sources)


def _comparisons(config: Config, dataset: OfflineDataset | None) -> list[Callback]:
    if dataset is None:
        return []
    from rl_training.runtime.baselines import Comparison

    return [Comparison(dataset, config.run.bc_baseline_updates)]


def _device(name: str, spaces: Iterable[SpaceInfo]) -> torch.device:
    if name == "auto":
        # Small networks on vectors are faster on a CPU, where they have their own engine.
        images = any(info.obs_kind == "image" or any(part.kind == "image" for part in info.parts) for info in spaces)
        return torch.device("cuda" if images and torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={name!r}: cannot be used here ({str(error).splitlines()[0][:80]}); try 'cpu'"
        ) from None


def run(run: Run) -> TrainResult:
    """Step the loop until the run is complete or stopped."""
    run.archive.lock()
    run.clock.start()
    try:
        with run.libraries, run.signals.noted():
            early = run.loop.warnings(run.config.run.total_timesteps)
            unkept = run.evaluator.warnings(kept=run.folder is not None)
            unnamed = [] if run.folder is None else nameless(run.config)
            for words in (*early, *unkept, *unnamed, *notes_on_speed(run.config, run.info, run.algorithm)):
                _LOG.warning(words)
            _drive(run)
            signalled = run.signals.received
        _conclude(run, run.result().stop_reason)
    except UserError as error:
        _conclude(run, "failed")
        traced = run.archive.keep_trace(error.trace) if isinstance(error, WorkerFailed) else ""
        saved = "" if run.checkpoint is None else f"\nThe last good checkpoint is {run.checkpoint}"
        raise UserError(f"{error}{traced}{saved}") from error
    except BaseException as error:
        _conclude(run, f"failed: {error!r}")
        raise
    finally:
        run.clock.stop()
        run.archive.unlock()
        for callback in run.callbacks:
            callback.close()
    if signalled:  # also if it came when the run was at its end: whoever sent it wants everything to end
        raise Interrupted(run.result())
    return run.result()


def _drive(run: Run) -> None:
    """Step the loop until the run is complete, stopped or interrupted, and tell the callbacks."""
    run.interrupted = False
    try:
        run.notify("on_start")
    except Cut:  # nothing is new since the last checkpoint
        run.interrupted = True
        return
    try:
        _step(run)
        if not run.interrupted:
            if not run.should_stop:
                run.stop_reason = COMPLETED
            run.notify("on_end")
            return
    except Cut:
        run.interrupted = True
        if run.due is None:  # in a user's callback, which cannot be told of the step twice: the last checkpoint stands
            return
    with suppress(Cut):
        run.save()  # first, since an uninterrupted run would not have ended here
        run.notify("on_end")


def _step(run: Run) -> None:
    due, run.due = run.due, None
    if due == "on_step":
        run.notify("on_step", run.metrics)
    while not run.finished:
        # Checked between steps only, so that a step's log and checkpoint are complete.
        if run.signals.received:
            run.interrupted = True
            return
        try:
            run.advance()
        except WorkersLost:
            run.save()
            raise
        run.notify("on_step", run.metrics)


def _conclude(run: Run, reason: str) -> None:
    if run.folder is None:
        return
    with suppress(OSError):  # a full disk is already being reported
        run.folder.update_metadata(result=dict(run.result()), stop_reason=reason, steps=run.steps)


def train(
    config: AnyConfig,
    *,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    callbacks: Sequence[AnyCallback] = (),
    env_factory: EnvFactory | None = None,
    algo: str | None = None,
    trust: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train a config in a new folder, or continue `resume`, a run or a checkpoint.

    Settings replace those of the config, as in `train("ppo/cartpole", total_timesteps=50_000)`.
    `trust` lets in code that files in a run's folder name: a config, or the checkpoint of an opponent.
    """
    from rl_training.runtime.workflows import resume_training

    if not isinstance(config, Config):
        target = {"algo": algo, **config} if isinstance(config, Mapping) and algo is not None else config
        config = load_config(target, trust=trust, **settings)
    elif settings:
        config = config.replace(**settings)
    if algo is not None and config.run.algo != algo:
        raise UserError(f"algo={config.run.algo!r}: this trains {algo}; use train() or train_{config.run.algo}()")
    if resume is not None:
        if run_dir is not None:
            raise UserError(f"run_dir={str(run_dir)!r}: a resumed run stays in its folder; give resume or run_dir")
        return resume_training(resume, callbacks=callbacks, env_factory=env_factory, config=config, trust=trust)
    built = build(config, env_factory=env_factory, callbacks=callbacks, trust=trust)
    try:
        built.start()
        built.archive.open(built, run_dir)
        return run(built)
    finally:
        built.close()


def trainer(algo: str) -> Trainer:
    """Make the function `train_<algo>`, which trains one algorithm and refuses the config of another."""

    def train_one(
        config: AnyConfig,
        *,
        run_dir: str | Path | None = None,
        resume: str | Path | None = None,
        callbacks: Sequence[AnyCallback] = (),
    ) -> TrainResult:
        return train(config, algo=algo, run_dir=run_dir, resume=resume, callbacks=callbacks)

    train_one.__name__ = train_one.__qualname__ = f"train_{algo}"
    train_one.__module__ = f"rl_training.runtime.{algo}_trainer"
    train_one.__doc__ = f"Train {algo} with a config: a preset's name, a file, a mapping or a checked config."
    return train_one
