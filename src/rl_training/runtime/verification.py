"""Measures whether a preset still reaches the return that it claims."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rl_training.experiment.config import Config, load_config
from rl_training.experiment.presets import preset_names
from rl_training.experiment.registry import REGISTRY, proper_name
from rl_training.experiment.settings import Expected
from rl_training.experiment.tasks import part_of_score, spread, without_task
from rl_training.runtime.arguments import AnyCallback
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.task_evaluation import SCORE
from rl_training.runtime.train import build
from rl_training.runtime.train import run as run_training
from rl_training.types import Metrics, UserError

# What these settings say of a run or of a task decides what its returns and scores mean.
_MEASURED_IN = ("env_id", "env_kwargs", "time_limit", "score", "eval_opponent")


@dataclass(frozen=True)
class Verification:
    """Whether a preset still reaches its claimed return, or score if its tasks have scores."""

    preset: str
    expected: float
    measure: str
    returns: dict[int, float]
    minutes: dict[int, float]
    final_expected: float | None = None
    final_returns: dict[int, float] = field(default_factory=dict)
    unit: Literal["return", "score"] = "return"

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.returns.values())))

    @property
    def final_mean(self) -> float:
        """The mean return of the final policies, if the preset claims one beside the last evaluations."""
        return float(np.mean(list(self.final_returns.values())))

    @property
    def passed(self) -> bool:
        return self.mean >= self.expected and (self.final_expected is None or self.final_mean >= self.final_expected)


class _Evaluations(Callback):
    """Keeps the returns of a run's evaluations, or the scores if its tasks have scores."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_eval(self, run: Run, metrics: Metrics) -> None:
        self.values.append(metrics.get(f"{SCORE}_mean", metrics["eval_return_mean"]))


def verify_preset(
    preset: str,
    overrides: Iterable[str] = (),
    *,
    seeds: Sequence[int] | None = None,
    callbacks: Sequence[AnyCallback] = (),
) -> Verification:
    """Train a preset on the seeds of its evidence and measure each seed's return as the preset specifies."""
    overrides = list(overrides)
    if proper_name(preset) in REGISTRY:
        own = [name for name in preset_names() if name.partition("/")[0] == proper_name(preset)]
        raise UserError(f"{preset!r}: is an algorithm; verify one of its presets: {', '.join(own)}")
    claimed, config = load_config(preset), load_config(preset, overrides)
    _check_the_same_is_measured(preset, claimed, config)
    (expected, bar), unit = _claim(preset, config), claimed.run.unit
    returns, minutes, finals = {}, {}, {}
    for seed in seeds or expected.seeds:
        evaluations = _Evaluations()
        run = build(load_config(preset, overrides, seed=seed), callbacks=[*callbacks, evaluations])
        started = time.perf_counter()
        try:
            run.start()
            run.archive.open(run)
            run_training(run)
            minutes[seed] = (time.perf_counter() - started) / 60.0
            if expected.measure == "last_5_evaluations":
                returns[seed] = _mean_of_last(evaluations.values, 5)
                if expected.final_return is not None:
                    finals[seed] = _final(run, expected.episodes)
            else:
                returns[seed] = _final(run, expected.episodes)
        finally:
            run.close()
    return Verification(preset, bar, expected.measure, returns, minutes, expected.final_return, finals, unit)


def _check_the_same_is_measured(preset: str, claimed: Config, config: Config) -> None:
    """Raise a UserError if an override changes what the claim of a preset is measured in."""
    old, new = spread(claimed.flat()), spread(config.flat())
    for key in sorted(old.keys() | new.keys()):
        name = without_task(key)
        if name in _MEASURED_IN and old.get(key) != new.get(key):
            there = (key, old.get(key), new.get(key))
            part, was, now = part_of_score(*there) if name == "score" else there
            raise UserError(
                f"{part}={now!r}: {preset} claims its {claimed.run.unit} with {part}={was!r}, and nothing else "
                "compares with that; `rl-training train` trains with other settings"
            )


def _claim(preset: str, config: Config) -> tuple[Expected, float]:
    """The `expected` block of a preset and the return that it claims; raises if it claims none."""
    expected, settings = config.run.expected, config.run
    if expected is None:
        raise UserError(f"{preset}: has no 'expected' block to compare with")
    if expected.return_ is None:
        raise UserError(
            f"{preset}: is marked long: no evidence is claimed for its {settings.total_timesteps:,} steps, so there is "
            f"nothing to verify; `rl-training train {preset}` trains it"
        )
    if expected.measure == "last_5_evaluations":
        interval = settings.eval_interval or settings.total_timesteps
        if settings.total_timesteps < 5 * interval:
            raise UserError(
                f"expected.measure={expected.measure!r}: eval_interval={settings.eval_interval} gives fewer than five "
                f"evaluations in total_timesteps={settings.total_timesteps}"
            )
    return expected, expected.return_


def _final(run: Run, episodes: int) -> float:
    """What is measured of a run at its end: the mean return of its policy, or the mean score of its tasks."""
    evaluation = run.evaluate(episodes)
    return evaluation.mean if evaluation.score is None else evaluation.score


def _mean_of_last(returns: Sequence[float], count: int) -> float:
    if len(returns) < count:
        raise UserError(f"expected.measure: the run ended after {len(returns)} evaluations; it needs {count}")
    return float(np.mean(returns[-count:]))
