"""Trains one config on several seeds, one after the other or several at a time, and summarises the runs."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.data.checked_files import damaged, seal, unseal_alone
from rl_training.data.disk import write_atomically
from rl_training.experiment.config import Config, load_config, saved_config
from rl_training.experiment.manager import run_name
from rl_training.experiment.notes import new_run_id, remember
from rl_training.experiment.references import reference_to
from rl_training.experiment.trust import ELSEWHERE, TRAINING
from rl_training.ops.statistics import bootstrap_interval, interquartile_mean, mean
from rl_training.runtime.arguments import AnyCallback
from rl_training.runtime.checkpoints.catalogue import find_newest
from rl_training.runtime.checkpoints.checkpoint import read_meta, read_trainer_state
from rl_training.runtime.checkpoints.drafts import create_folder, sweep_drafts, sweep_files
from rl_training.runtime.checkpoints.lock import hold
from rl_training.runtime.clock import Stopwatch
from rl_training.runtime.envs.make import EnvFactory
from rl_training.runtime.executor import Executor, Job, Lost
from rl_training.runtime.train import INTERRUPTED, AnyConfig, Interrupted, TrainResult, code_of
from rl_training.types import UserError

_LOG = logging.getLogger("rl_training")

_RETURN = "eval_return_mean"
_SUMMARY = "summary.json"
LEVEL = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A statistic over seeds; its confidence interval needs at least two seeds."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class SeedsResult:
    """The runs of one config on several seeds, and their folder; seeds without a finished run are `missing`."""

    config: Config
    folder: Path
    seeds: tuple[int, ...]
    runs: dict[int, TrainResult]
    id: str = ""

    def add(self, seed: int, result: TrainResult) -> None:
        """Add the result of a run, in the order of the seeds."""
        known = self.runs | {seed: result}
        self.runs.clear()
        self.runs.update({seed: known[seed] for seed in self.seeds if seed in known})

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(seed for seed in self.seeds if seed not in self.runs)

    @property
    def returns(self) -> dict[int, float]:
        """The final evaluation's mean return of every run."""
        return {seed: run[_RETURN] for seed, run in self.runs.items()}

    @property
    def metric(self) -> str:
        """What the runs are judged by: the mean return, or the mean score where every task has a score."""
        return f"eval_{self.config.run.unit}_mean"

    @property
    def values(self) -> dict[int, float]:
        """The final evaluation of every run in that unit."""
        return {seed: run[self.metric] for seed, run in self.runs.items()}

    @property
    def mean(self) -> Estimate:
        return self._estimate(mean)

    @property
    def iqm(self) -> Estimate:
        """The interquartile mean: the mean of the middle half."""
        return self._estimate(interquartile_mean)

    @property
    def method(self) -> str:
        """How the confidence intervals are computed."""
        few = "; with so few it is the whole range" if len(self.runs) <= 3 else ""
        return f"percentile bootstrap over {len(self.runs)} seeds, {RESAMPLES:,} resamples{few}"

    @property
    def summary_file(self) -> Path:
        return self.folder / _SUMMARY

    def _estimate(self, statistic: Any) -> Estimate:
        values = np.array(list(self.values.values()))
        if len(values) < 2:
            return Estimate(float(statistic(values)), None)
        low, high = bootstrap_interval(values, statistic, level=LEVEL, resamples=RESAMPLES)
        return Estimate(float(statistic(values)), (float(low), float(high)))

    def summary(self) -> dict[str, Any]:
        """The contents of `summary.json`, as plain data."""
        content: dict[str, Any] = {
            "metric": self.metric,
            "run_id": self.id,
            "seeds": list(self.seeds),
            "missing": list(self.missing),
            "runs": [
                {
                    "seed": seed,
                    "return": run[_RETURN],
                    self.config.run.unit: run[self.metric],  # the same, or the score beside it
                    "steps": int(run["step"]),
                    "seconds": run["seconds"],
                    "stop_reason": run.stop_reason,
                    "folder": None if run.run_dir is None else run.run_dir.name,
                }
                for seed, run in self.runs.items()
            ],
        }
        if self.runs:
            content |= {"mean": self.mean.value, "iqm": self.iqm.value}
        if len(self.runs) > 1:
            content["confidence"] = {
                "level": LEVEL,
                "method": self.method,
                "mean": self.mean.interval,
                "iqm": self.iqm.interval,
            }
        return content | {"config": self.config.flat()}


class SeedsInterrupted(Interrupted):
    """A signal ended the training: the interrupted run was saved (`result`), `outcome` has the finished ones."""

    def __init__(self, result: TrainResult, outcome: SeedsResult) -> None:
        super().__init__(result)
        self.outcome = outcome


class SeedsFailed(UserError):
    """Runs of some seeds failed, or their processes are gone; `outcome` has the finished ones."""

    def __init__(self, words: str, outcome: SeedsResult) -> None:
        super().__init__(words)
        self.outcome = outcome


Report = Callable[[int, TrainResult], None]


def train_seeds(
    config: AnyConfig,
    seeds: Sequence[int],
    *,
    callbacks: Sequence[AnyCallback] = (),
    env_factory: EnvFactory | None = None,
    report: Report | None = None,
    trust: bool = False,
    parallel: int | None = None,
    executor: Executor | None = None,
) -> SeedsResult:
    """Train a config on each seed, `parallel` at a time, in a new folder with a `summary.json`.

    The summary is written at once and after every run, so that `resume_seeds` can go on if training stops early;
    `report` is called with every seed and its result. `trust` is that of `train`. Runs that are trained at the same
    time have processes of their own, each with its own copy of the callbacks. An `executor` says in more detail how
    they are done.
    """
    how = _How(callbacks, env_factory, trust, _executor(parallel, executor), report)
    config = config if isinstance(config, Config) else load_config(config, trust=trust)
    outcome = SeedsResult(config, Path(), _checked(seeds), {}, new_run_id())

    def fill(folder: Path) -> None:
        _write_summary(replace(outcome, folder=folder))

    def note(folder: Path) -> None:
        remember(folder, outcome.id, code_of(config, env_factory))

    name = run_name(config.run.algo, config.run.title, None)
    folder, lock = create_folder(None, config.run.output_dir, name, fill, note)
    with lock:
        try:
            return _train(replace(outcome, folder=folder), {}, how)
        except UserError:
            if not _runs_in(folder):  # a mistake in the config, independent of the seed
                shutil.rmtree(folder, ignore_errors=True)
            raise


def resume_seeds(
    folder: str | Path,
    *,
    callbacks: Sequence[AnyCallback] = (),
    env_factory: EnvFactory | None = None,
    report: Report | None = None,
    trust: bool = False,
    parallel: int | None = None,
    executor: Executor | None = None,
) -> SeedsResult:
    """Go on with the folder of `train_seeds`, wherever it stopped: finished runs are kept, others resumed or begun.

    `trust` lets in the code that it names, if you did not train it yourself. `parallel` and `executor` are those of
    `train_seeds`; how many were trained at a time before does not matter.
    """
    folder, how = Path(folder), _How(callbacks, env_factory, trust, _executor(parallel, executor), report)
    if not holds_seeds(folder):
        raise UserError(f"{str(folder)!r}: is not a folder of several seeds, which has a {_SUMMARY}")
    try:
        lock = hold(folder)
    except OSError as error:
        raise UserError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from error
    with lock:
        if lock.inherited:
            _LOG.warning(f"{str(folder)!r}: {lock.inherited}")
        outcome = _read_summary(folder, env_factory, trust)
        begun = {_seed_of(run): run for run in _runs_in(folder)}
        ended = {seed: _ended(begun[seed]) for seed in outcome.seeds if seed in begun}
        outcome.runs.update({seed: result for seed, result in ended.items() if result is not None})
        sweep_drafts(folder)
        sweep_files(folder, [_SUMMARY])
        return _train(outcome, begun, how)


class _How(NamedTuple):
    """How seeds are trained, and who is told."""

    callbacks: Sequence[AnyCallback]
    env_factory: EnvFactory | None
    trust: bool
    executor: Executor
    report: Report | None


def _executor(parallel: int | None, executor: Executor | None) -> Executor:
    if executor is None:
        return Executor(parallel)
    if parallel is not None:
        raise UserError(f"parallel={parallel!r} and executor: give one of them")
    return executor


def holds_seeds(folder: str | Path) -> bool:
    """Whether this is the folder of several seeds, rather than that of a run."""
    return os.path.lexists(Path(folder) / _SUMMARY) and not os.path.lexists(Path(folder) / "checkpoints")


def _runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/checkpoints") if not path.parent.name.startswith("."))


def _train(outcome: SeedsResult, begun: Mapping[int, Path], how: _How) -> SeedsResult:
    """Train the seeds that are missing; `begun` has the runs that can be resumed.

    A run that fails keeps others from being begun, but not those that are under way. A process that is gone does
    neither.
    """
    problems: dict[int, BaseException] = {}
    stopped = TrainResult({}, None, None, INTERRUPTED)
    try:
        for seed in [seed for seed in outcome.seeds if seed in outcome.runs]:
            _report(outcome, seed, how)
        for ended in how.executor.run(_jobs(outcome, begun, how, problems)):
            seed, result = int(ended.job.name.split()[-1]), ended.result
            if result is not None and result.stop_reason == INTERRUPTED:
                stopped = result
            elif result is not None:
                outcome.add(seed, result)
                _write_summary(outcome)
                _report(outcome, seed, how)
            elif ended.problem is not None:
                problems[seed] = ended.problem
                if how.executor.running:  # it is raised when they have ended
                    _LOG.error(f"seed {seed}: {ended.problem}; the other runs go on")
    except KeyboardInterrupt as stop:  # between two runs, or the second signal
        _write_summary(outcome)
        raise SeedsInterrupted(stopped, outcome) from stop
    if how.executor.interrupted:
        _write_summary(outcome)
        raise SeedsInterrupted(stopped, outcome)
    if problems:
        raise _failed(outcome, problems)
    _write_summary(outcome)  # it may lack runs that had ended before
    return outcome


def _jobs(
    outcome: SeedsResult, begun: Mapping[int, Path], how: _How, problems: Mapping[int, BaseException]
) -> Iterator[Job]:
    settings = outcome.config.run
    needs: dict[str, Any] = {"cpus": settings.threads, "gpus": int(settings.device.startswith("cuda"))}
    given: dict[str, Any] = {"env_factory": how.env_factory, "trust": how.trust, "callbacks": tuple(how.callbacks)}
    for seed in outcome.missing:
        if not all(isinstance(problem, Lost) for problem in problems.values()):
            return
        if seed in begun:
            yield Job(f"seed {seed}", run_dir=begun[seed], **given, **needs)
        else:
            config = outcome.config.replace(seed=seed, output_dir=str(outcome.folder))
            yield Job(f"seed {seed}", config, **given, **needs)


def _report(outcome: SeedsResult, seed: int, how: _How) -> None:
    if how.report is not None:
        how.report(seed, outcome.runs[seed])


def _failed(outcome: SeedsResult, problems: Mapping[int, BaseException]) -> BaseException:
    """What to raise at the end for the problems of seeds."""
    for problem in problems.values():
        if not isinstance(problem, UserError) or not (isinstance(problem, Lost) or _runs_in(outcome.folder)):
            return problem
    lines = [f"seed {seed}: {problem}" for seed, problem in problems.items()]
    joint = "; the" if len(lines) == 1 and "\n" not in lines[0] else "\nThe"
    done = f"; done: {', '.join(map(str, outcome.runs))}" if outcome.runs else ""
    only_lost = all(isinstance(problem, Lost) for problem in problems.values())
    advice = f"; continue with: rl-training resume {outcome.folder}" if only_lost and _runs_in(outcome.folder) else ""
    return SeedsFailed("\n".join(lines) + f"{joint} runs are in {outcome.folder}{done}{advice}", outcome)


def _seed_of(run_dir: Path) -> int:
    checkpoint = find_newest(run_dir)
    with _understood(checkpoint / "meta.json"):
        return int(read_meta(checkpoint)["config"]["seed"])


def _ended(run_dir: Path) -> TrainResult | None:
    """The result of a run that has ended; None if it can go on."""
    checkpoint = find_newest(run_dir)
    meta, trainer = read_meta(checkpoint), read_trainer_state(checkpoint)
    with _understood(checkpoint / "state.json"):
        complete = trainer["should_stop"] or meta["step"] >= meta["config"]["total_timesteps"]
        if not complete or trainer["due"] is not None:
            return None
        clock = Stopwatch()
        clock.set(trainer["seconds"])
        metrics = trainer["metrics"] | trainer["eval_metrics"] | clock.metrics(meta["step"])
        return TrainResult(metrics, checkpoint, run_dir, trainer["stop_reason"])


@contextmanager
def _understood(file: Path) -> Iterator[None]:
    """Turn what is missing in a file into one message."""
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise damaged(file, repr(error)) from None


def _checked(seeds: Sequence[int]) -> tuple[int, ...]:
    repeated = sorted({seed for seed in seeds if list(seeds).count(seed) > 1})
    if repeated:
        raise UserError(f"seeds={list(seeds)}: {repeated[0]} is given twice; equal seeds make equal runs")
    if not seeds or min(seeds) < 0:
        raise UserError(f"seeds={list(seeds)}: give one or more whole numbers that are at least 0")
    return tuple(seeds)


def _read_summary(folder: Path, env_factory: EnvFactory | None, trust: bool) -> SeedsResult:
    """What a folder of several seeds was made for, without the runs in it."""
    file = folder / _SUMMARY
    with _understood(file):
        summary = unseal_alone(file)
        saved, seeds = {"config": dict(summary["config"]), "run_id": summary["run_id"]}, list(summary["seeds"])
        if any(type(seed) is not int for seed in seeds):
            raise ValueError("its seeds are not whole numbers")
    uses = TRAINING if env_factory is None else ELSEWHERE
    given = [reference_to(env_factory)]
    config = saved_config(folder, saved, trust=trust, uses=uses, given=given, options={})
    return SeedsResult(config, folder, _checked(seeds), {}, str(summary["run_id"]))


def _write_summary(outcome: SeedsResult) -> None:
    try:
        write_atomically(outcome.summary_file, seal(outcome.summary()))
    except OSError as error:
        raise UserError(f"cannot write {str(outcome.summary_file)!r}: {error.strerror or error}") from error
