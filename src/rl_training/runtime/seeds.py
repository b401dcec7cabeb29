"""Trains one config on several seeds, one after the other, and summarises the runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.disk import write_atomically
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.manager import run_name
from rl_training.ops.statistics import bootstrap_interval, interquartile_mean, mean
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.envs.make import EnvFactory
from rl_training.runtime.train import INTERRUPTED, AnyConfig, Interrupted, TrainResult, train
from rl_training.types import UserError

METRIC = "eval_return_mean"
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
    runs: Mapping[int, TrainResult]

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(seed for seed in self.seeds if seed not in self.runs)

    @property
    def returns(self) -> dict[int, float]:
        """The final evaluation's mean return of every run."""
        return {seed: run[METRIC] for seed, run in self.runs.items()}

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
        return self.folder / "summary.json"

    def _estimate(self, statistic: Any) -> Estimate:
        values = np.array(list(self.returns.values()))
        if len(values) < 2:
            return Estimate(float(statistic(values)), None)
        low, high = bootstrap_interval(values, statistic, level=LEVEL, resamples=RESAMPLES)
        return Estimate(float(statistic(values)), (float(low), float(high)))

    def summary(self) -> dict[str, Any]:
        """The contents of `summary.json`, as plain data."""
        content: dict[str, Any] = {
            "metric": METRIC,
            "seeds": list(self.seeds),
            "missing": list(self.missing),
            "runs": [
                {
                    "seed": seed,
                    "return": run[METRIC],
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


def train_seeds(
    config: AnyConfig,
    seeds: Sequence[int],
    *,
    callbacks: Sequence[Callback] = (),
    env_factory: EnvFactory | None = None,
    report: Callable[[int, TrainResult], None] | None = None,
    trust: bool = False,
) -> SeedsResult:
    """Train a config on each seed, one after the other, in a new folder with a `summary.json`.

    The summary is written after every run, so that finished runs are kept if training stops early; `report` is called
    then too, with the seed and its result. `trust` is that of `train`.
    """
    config = config if isinstance(config, Config) else load_config(config, trust=trust)
    seeds = _checked(seeds)
    folder = _make_folder(config)
    runs: dict[int, TrainResult] = {}
    outcome = SeedsResult(config, folder, seeds, runs)
    try:
        for seed in seeds:
            one = config.replace(seed=seed, output_dir=str(folder))
            runs[seed] = train(one, callbacks=callbacks, env_factory=env_factory, trust=trust)
            _write_summary(outcome)
            if report is not None:
                report(seed, runs[seed])
    except KeyboardInterrupt as stop:
        result = stop.result if isinstance(stop, Interrupted) else TrainResult({}, None, None, INTERRUPTED)
        if result.stop_reason != INTERRUPTED:  # the signal came when this run was at its end
            runs[seed] = result
        _write_summary(outcome)
        raise SeedsInterrupted(result, outcome) from stop
    except UserError as error:
        if not any(folder.iterdir()):  # a mistake in the config, independent of the seed
            raise
        done = f"; done before it: {', '.join(map(str, runs))}" if runs else ""
        raise UserError(f"seed {seed}: {error}\nThe runs are in {folder}{done}") from error
    finally:
        with suppress(OSError):
            folder.rmdir()  # only succeeds if a mistake prevented the first run
    return outcome


def _checked(seeds: Sequence[int]) -> tuple[int, ...]:
    repeated = sorted({seed for seed in seeds if list(seeds).count(seed) > 1})
    if repeated:
        raise UserError(f"seeds={list(seeds)}: {repeated[0]} is given twice; equal seeds make equal runs")
    if not seeds or min(seeds) < 0:
        raise UserError(f"seeds={list(seeds)}: give one or more whole numbers that are at least 0")
    return tuple(seeds)


def _make_folder(config: Config) -> Path:
    """Make a new folder for the runs, named like a run."""
    parent, name = Path(config.run.output_dir), run_name(config.run.algo, config.run.env_id, None)
    try:
        for attempt in range(1, 1000):
            folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
    except OSError as error:
        raise UserError(f"cannot write the runs to {str(parent)!r}: {error.strerror or error}") from error
    raise UserError(f"cannot write the runs to {str(parent)!r}: too many have the name {name!r}")


def _write_summary(outcome: SeedsResult) -> None:
    try:
        write_atomically(outcome.summary_file, json.dumps(outcome.summary(), indent=2) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {str(outcome.summary_file)!r}: {error.strerror or error}") from error
