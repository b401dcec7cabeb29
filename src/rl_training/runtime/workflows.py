"""Workflows on existing runs: evaluate a checkpoint, resume a run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.experiment.config import Config, saved_config
from rl_training.experiment.manager import RunFolder, versions
from rl_training.experiment.references import reference_to
from rl_training.experiment.registry import proper_name
from rl_training.experiment.tasks import without_task
from rl_training.experiment.trust import ELSEWHERE, EPISODES, EPISODES_ELSEWHERE, POLICY, TRAINING
from rl_training.runtime.arguments import AnyCallback, whole_number
from rl_training.runtime.capabilities import refuse_for_tasks
from rl_training.runtime.changes import cannot_change, changes, lifting
from rl_training.runtime.checkpoints.catalogue import find_checkpoint, find_newest, find_run, recover, sweep_leftovers
from rl_training.runtime.checkpoints.checkpoint import fitting_policy, read_checkpoint, read_meta
from rl_training.runtime.checkpoints.drafts import sweep_files
from rl_training.runtime.checkpoints.lock import Lock, hold
from rl_training.runtime.checkpoints.spaces import spaces_for
from rl_training.runtime.envs.given import Env
from rl_training.runtime.envs.ids import is_same_id
from rl_training.runtime.envs.make import EnvFactory
from rl_training.runtime.evaluate import Evaluator, elsewhere
from rl_training.runtime.evaluations import Evaluation
from rl_training.runtime.libraries import Libraries
from rl_training.runtime.opponents import NOTHING_ASKED, Opposition
from rl_training.runtime.saved_policy import restore_policy
from rl_training.runtime.task_evaluation import TaskEvaluations, TaskEvaluator
from rl_training.runtime.train import Run, TrainResult, build, build_policy, policy_for
from rl_training.runtime.train import run as run_training
from rl_training.types import Metrics, UserError

_LOG = logging.getLogger("rl_training")


def evaluate_checkpoint(
    path: str | Path,
    *,
    num_episodes: int | None = None,
    device: str = "auto",
    which: str = "latest",
    env_factory: EnvFactory | None = None,
    deterministic: bool | None = None,
    env: Env | None = None,
    opponent: str | Path | None = None,
    model: str | Callable[..., Any] | None = None,
    trust: bool = False,
) -> Metrics:
    """Evaluate the policy of a run or a checkpoint, on the episodes that every evaluation uses.

    With `deterministic=False` it explores as it did when it was saved, with `deterministic=True` it is greedy; without
    either it is judged as its algorithm is: by greedy actions, or Dreamer by sampled ones. `env` is another environment
    with the same spaces; `env_factory` makes that of the run, if it cannot be found by its name. In a game for two
    players, `opponent` is `random`, `perfect`, or a run or checkpoint, instead of the `eval_opponent` of the run.
    `model` is the class of its network, if that cannot be found by its name. `trust` lets in the code that the run and
    the opponent name, if you did not train them yourself.
    """
    judged = judge_checkpoint(
        path,
        num_episodes=num_episodes,
        device=device,
        which=which,
        env_factory=env_factory,
        deterministic=deterministic,
        env=env,
        asked=opposition(opponent, trust=trust),
        model=model,
    )
    return {"step": float(judged.step)} | judged.evaluation.metrics()


class Judged(NamedTuple):
    """The step of a checkpoint, the evaluation of its policy, and the opponent in a game for two players."""

    step: int
    evaluation: Evaluation | TaskEvaluations
    opponent: str


def opposition(opponent: str | Path | None = None, openings: int = 0, *, trust: bool = False) -> Opposition:
    """The opponent and the openings that a caller asks for, checked."""
    return Opposition(None if opponent is None else str(opponent), whole_number("openings", openings, least=0), trust)


def judge_checkpoint(
    path: str | Path,
    *,
    num_episodes: int | None = None,
    device: str = "auto",
    which: str = "latest",
    env_factory: EnvFactory | None = None,
    deterministic: bool | None = None,
    env: Env | None = None,
    asked: Opposition = NOTHING_ASKED,
    model: str | Callable[..., Any] | None = None,
) -> Judged:
    """Evaluate like `evaluate_checkpoint`, and return all of the evaluation; `asked` says whether to trust it."""
    if env is not None and env_factory is not None:
        raise UserError(f"env={env!r} and env_factory: give one of them")
    found = find_checkpoint(path, which)
    checkpoint = read_checkpoint(found, policy_only=True)
    changes: dict[str, Any] = {"device": device} | ({} if model is None else {"model": model})
    if isinstance(env, str) and _is_its_own(env, checkpoint.meta):
        env, changes["env_id"] = None, env  # this only says where it is found: its arguments and limits stay
    uses = POLICY if env is not None else EPISODES if env_factory is None else EPISODES_ELSEWHERE
    options = {"env_id": "--env "}
    config = saved_config(found, checkpoint.meta, trust=asked.trust, uses=uses, options=options, **changes)
    evaluator: Evaluator | TaskEvaluator
    if env is None:
        policy, surroundings = build_policy(config, env_factory=env_factory, asked=asked)
        evaluator, libraries = surroundings.evaluator, surroundings.libraries
    else:
        refuse_for_tasks(config, f"env={env!r}")
        libraries = Libraries(config.run.threads)
        spaces = spaces_for(config, checkpoint.meta, found)
        evaluator = elsewhere(env, config, spaces[""], asked)
        policy = policy_for(config, spaces)
    with libraries, closing(evaluator):
        explore = policy.judged_by_samples if deterministic is None else not deterministic
        restore_policy(policy, config, checkpoint, found, explore=explore)
        episodes = config.run.eval_episodes if num_episodes is None else num_episodes
        evaluation = evaluator(policy, whole_number("num_episodes", episodes), deterministic=deterministic)
    opponent = config.run.eval_opponent if asked.opponent is None else asked.opponent
    return Judged(int(checkpoint.meta["step"]), evaluation, opponent)


def _is_its_own(env_id: str, meta: Mapping[str, Any]) -> bool:
    """Whether a name of code, or an id with its module, is that of the run's own environment."""
    saved = meta["config"]
    own = saved.get("env_id") if isinstance(saved, Mapping) else None
    return ":" in env_id and (env_id == own or is_same_id(env_id, own))


def restore(
    path: str | Path,
    *,
    which: str = "latest",
    callbacks: Sequence[AnyCallback] = (),
    env_factory: EnvFactory | None = None,
    overrides: Iterable[str] = (),
    config: Config | None = None,
    trust: bool = False,
    given: Iterable[str] = (),
    anew: Sequence[str] = (),
    **values: Any,
) -> tuple[Run, list[str]]:
    """Restore the run of a checkpoint, ready to continue; also returns what differs from when it was saved.

    The settings of `anew` may change, at the price of new episodes.
    Its config is the saved one with `overrides` and `values`, or `config` as a whole. Code that the saved one names
    must be given (by any of these, or in `given`), noted, or trusted.
    """
    found = find_checkpoint(path, which)
    checkpoint = read_checkpoint(found)
    overrides, saved = list(overrides), checkpoint.meta["config"]
    algos = [values.get("algo"), *(o.removeprefix("algo=") for o in overrides if o.startswith("algo="))]
    for algo in algos if config is None else [config.run.algo]:
        # Checked first: most settings of another algorithm would be unknown.
        if algo is not None and proper_name(str(algo)) != saved["algo"]:
            raise cannot_change("algo", saved["algo"], algo)
    if config is None:
        uses, gives = TRAINING if env_factory is None else ELSEWHERE, [*given, reference_to(env_factory)]
        config = saved_config(found, checkpoint.meta, overrides, trust=trust, uses=uses, given=gives, **values)
    changed = changes(saved, config, anew)
    moved = [key for key in changed if without_task(key) in anew]
    run = build(config, env_factory=env_factory, callbacks=callbacks, trust=trust)
    try:
        fitting_policy(checkpoint.policy, run.algorithm.policy, found)
        run.load(checkpoint, {key: f"{key} is {changed[key][1]!r}, was {changed[key][0]!r}" for key in moved})
    except BaseException:
        run.close()
        raise
    run.archive.checkpoint = found
    if changed.keys() & lifting(run.stop_reason):
        run.should_stop, run.stop_reason = False, None
    notes = [f"{key}: {old!r} -> {new!r}" for key, (old, new) in changed.items()]
    return run, notes + _differences(checkpoint.meta, run)


def _differences(meta: dict[str, Any], run: Run) -> list[str]:
    """Differences of this machine that could change the last bits of the rest of the run."""
    notes = []
    for package, now in versions().items():
        then = meta["versions"].get(package)
        if then != now:
            notes.append(f"{package} is {now}, was {then}: the rest of the run may differ in its last bits")
    threads = run.config.run.threads
    if meta["threads"] != threads:
        notes.append(f"threads is {threads}, was {meta['threads']}: results may differ in last bits")
    if meta["engine"] != run.algorithm.engine:
        notes.append(f"engine is {run.algorithm.engine}, was {meta['engine']}: results may differ in last bits")
    for why in run.source.why_not_exact:
        notes.append(f"the environments are not restored exactly: {why}")
        _LOG.warning(notes[-1])
    return notes


def resume_training(
    path: str | Path,
    *,
    which: str = "latest",
    callbacks: Sequence[AnyCallback] = (),
    env_factory: EnvFactory | None = None,
    overrides: Iterable[str] = (),
    config: Config | None = None,
    trust: bool = False,
    **values: Any,
) -> TrainResult:
    """Resume a run from its checkpoint, in the same folder; settings such as `total_timesteps` may change.

    Only a checkpoint that is named is resumed from if there are newer ones, which are then moved aside. `trust` lets in
    the code that the run names, if you did not train it yourself.
    """
    folder, which = _run_of(path, which)
    with _locked(folder) as lock:
        found = find_newest(folder.path) if which == "latest" else find_checkpoint(folder.path, which)
        run, run_notes = restore(
            found,
            callbacks=callbacks,
            env_factory=env_factory,
            overrides=overrides,
            config=config,
            trust=trust,
            **values,
        )
        try:
            then, now = read_meta(found)["config"]["output_dir"], run.config.run.output_dir
            if then != now:
                raise cannot_change("output_dir", then, now)
            if run.finished and run.due is None:
                reason = run.stop_reason or "completed"
                raise UserError(
                    f"{str(folder.path)!r}: this run has ended at step {run.steps} ({reason}); to continue, give a "
                    "larger total_timesteps, or another early_stopping if that ended it"
                )
            run.resume_notes = run_notes
            warnings = run.archive.reopen(run, folder, found, lock)
            for note in run.resume_notes:
                level = logging.WARNING if note in warnings else logging.INFO
                _LOG.log(level, f"resumed at step {run.steps:,}: {note}")
            return run_training(run)
        finally:
            run.close()


def _run_of(path: str | Path, which: str) -> tuple[RunFolder, str]:
    """The run that a path means, and which of its checkpoints; raises if it is not in a run's folder."""
    found = find_run(path)
    if found is None:
        if os.path.lexists(Path(path) / "summary.json"):
            raise UserError(f"{str(path)!r}: holds several seeds; go on with resume_seeds, or resume one of its runs")
        read_meta(find_checkpoint(path))
        raise UserError(f"{str(path)!r}: is not in a run's folder; load it with Agent.load and call learn")
    if found[1] is not None and which not in ("latest", found[1]):
        find_checkpoint(path, which)  # which says that it is one itself
    return RunFolder(found[0]), found[1] or which


@contextmanager
def _locked(folder: RunFolder) -> Iterator[Lock]:
    """A run that no other process trains. What a crash left under a temporary name has its own again, or is removed."""
    folder.check_names()
    if not folder.checkpoints.is_dir():
        raise UserError(f"{str(folder.path)!r}: there is no such run or checkpoint")
    try:
        lock = hold(folder.path)
    except OSError as error:
        raise UserError(f"cannot write to {str(folder.path)!r}: {error.strerror or error}") from error
    with lock:
        recover(folder.checkpoints)
        sweep_leftovers(folder.checkpoints)
        sweep_files(folder.path, folder.FILES)
        yield lock


__all__ = ["evaluate_checkpoint", "read_meta", "restore", "resume_training"]
