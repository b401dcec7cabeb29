"""Compares sets of runs: interquartile means, their intervals, and the probability that one is better.

After Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl_training.experiment.registry import suggest
from rl_training.ops.statistics import interquartile_mean, probability_of_improvement, stratified_resamples
from rl_training.runtime.logged_runs import LoggedRun, read_runs
from rl_training.types import Array, UserError

METRIC = "eval_return_mean"
ALL = "all, scaled"
_RESAMPLES = 10_000
_LEVEL = 0.95


class Estimate(NamedTuple):
    """A value with its confidence interval, for which every environment needs at least two runs."""

    value: float
    low: float | None
    high: float | None

    def text(self, places: int) -> str:
        interval = "" if self.low is None else f" [{self.low:.{places}f}, {self.high:.{places}f}]"
        return f"{self.value:.{places}f}{interval}"


@dataclass(frozen=True)
class Row:
    """One environment, or all of them: the interquartile mean of each side, and how likely each beats the first."""

    environment: str
    runs: Sequence[int]
    means: Sequence[Estimate]
    better: Sequence[Estimate]


@dataclass(frozen=True)
class Comparison:
    """Sets of runs side by side, by what they were called."""

    metric: str
    sides: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple)

    def table(self) -> Iterator[tuple[str, ...]]:
        """The comparison as rows of text."""
        beats = [f"P({name} > {self.sides[0]})" for name in self.sides[1:]]
        yield ("environment", *(f"{name} (IQM)" for name in self.sides), *beats, "runs")
        for row in self.rows:
            means = (mean.text(3 if row.environment == ALL else 2) for mean in row.means)
            yield (row.environment, *means, *(chance.text(2) for chance in row.better), " / ".join(map(str, row.runs)))


def compare_runs(sides: Sequence[str | Path], *, metric: str = METRIC) -> Comparison:
    """Compare the last values of a metric between sets of runs, in every environment that all of them have.

    A side is a run, a folder of runs, or a pattern. Several environments are also taken together: their scores are
    scaled so that the lowest of any run is 0 and the highest 1.
    """
    names = [str(side).rstrip("/") for side in sides]
    if len(names) < 2:
        raise UserError(f"--compare: compares two sets of runs or more; got {len(names)}")
    if len(set(names)) < len(names):
        raise UserError(f"--compare: {next(name for name in names if names.count(name) > 1)!r} is given twice")
    notes: list[str] = []
    found: list[Mapping[str, Array]] = []
    ends: dict[str, set[float]] = {}
    for name in names:
        runs, said = read_runs([name])
        notes += said
        found.append(_scores(name, runs, metric, ends, notes))
    environments = _shared(names, found, notes)
    for environment in environments:
        first, *_, last = [*sorted(ends[environment]), max(ends[environment])]
        if first < last:
            words = f"the last values are of {first:,.0f} to {last:,.0f} steps"
            notes.append(f"in {environment} {words}: not all have learned equally long")
    rows = [_row(environment, [[scores[environment]] for scores in found]) for environment in environments]
    if len(environments) > 1:
        rows.append(_row(ALL, _scaled([[scores[name] for name in environments] for scores in found])))
    return Comparison(metric, names, rows, tuple(dict.fromkeys(notes)))


def _shared(names: Sequence[str], found: Sequence[Mapping[str, Array]], notes: list[str]) -> list[str]:
    """The environments that all sides have; others are noted."""
    environments = set.intersection(*(set(scores) for scores in found))
    if not environments:
        pairs = zip(names, found, strict=True)
        listed = "; ".join(f"{name!r} has {', '.join(sorted(scores))}" for name, scores in pairs)
        raise UserError(f"--compare: there is no environment that all sides have: {listed}")
    for name in sorted({name for scores in found for name in scores} - environments):
        notes.append(f"{name} is left out: not all sides have runs in it")
    return sorted(environments)


def _scores(
    side: str, runs: Sequence[LoggedRun], metric: str, ends: dict[str, set[float]], notes: list[str]
) -> dict[str, Array]:
    """The last value of every run, by environment; their steps are added to `ends`."""
    found: dict[str, list[float]] = {}
    for run in runs:
        steps, values = run.curve(metric)
        if not len(values):
            notes.append(f"{run.path} is left out: it has no {metric} yet")
            continue
        found.setdefault(run.environment, []).append(float(values[-1]))
        ends.setdefault(run.environment, set()).add(float(steps[-1]))
    if not found:
        known = sorted(set[str]().union(*(run.metrics for run in runs)))
        raise UserError(f"{side!r}: has no {metric}{suggest(metric, known)} (known: {', '.join(known)})")
    return {environment: np.array(values) for environment, values in found.items()}


def _scaled(sides: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Scores of every environment, scaled to [0, 1] by the lowest and the highest of any side."""
    pooled = [np.concatenate(same) for same in zip(*sides, strict=True)]
    spans = [(values.min(), max(float(np.ptp(values)), 1e-12)) for values in pooled]
    return [[(values - low) / span for values, (low, span) in zip(side, spans, strict=True)] for side in sides]


def _row(environment: str, sides: Sequence[Sequence[Array]]) -> Row:
    """The estimates of sides, each with its scores by environment."""
    drawn = [_resampled(side, number) for number, side in enumerate(sides)]
    means = [
        _estimate(_middle(side), None if again is None else _middle(again))
        for side, again in zip(sides, drawn, strict=True)
    ]
    first = drawn[0]
    better = [
        _estimate(_chance(side, sides[0]), None if again is None or first is None else _chance(again, first))
        for side, again in zip(sides[1:], drawn[1:], strict=True)
    ]
    return Row(environment, [sum(map(len, side)) for side in sides], means, better)


def _resampled(side: Sequence[Array], seed: int) -> list[Array] | None:
    enough = all(len(values) > 1 for values in side)
    return stratified_resamples(side, resamples=_RESAMPLES, seed=seed) if enough else None


def _middle(strata: Sequence[Array]) -> Array:
    return interquartile_mean(np.concatenate(strata, axis=-1))


def _chance(side: Sequence[Array], first: Sequence[Array]) -> Array:
    """The mean over environments of the probability that a run of the side is better than one of the first."""
    pairs = zip(side, first, strict=True)
    return np.asarray(np.mean([probability_of_improvement(ours, theirs) for ours, theirs in pairs], axis=0))


def _estimate(value: Array, resampled: Array | None) -> Estimate:
    if resampled is None:
        return Estimate(float(value), None, None)
    low, high = np.quantile(resampled, [(1.0 - _LEVEL) / 2.0, (1.0 + _LEVEL) / 2.0])
    return Estimate(float(value), float(low), float(high))
