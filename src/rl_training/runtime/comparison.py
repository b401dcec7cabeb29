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
from rl_training.runtime.places import Where, place_names, score_of
from rl_training.types import Array, UserError

METRIC = "eval_return_mean"
# All environments together, scaled by what the runs reached, or by the scores of tasks.
ALL = "all, scaled"
SCORES = "all, by score"
_LONGEST_NAME = 30
_HEAD = 20  # letters of a long name before the middle that it loses
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
    """One environment or task, or all: the interquartile mean of each side, and how likely each beats the first."""

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

    @property
    def labels(self) -> list[str]:
        """Short names of the sides."""
        return short_names(self.sides)

    def table(self) -> Iterator[tuple[str, ...]]:
        """The comparison as rows of text."""
        first, *others = self.labels
        beats = [f"P({name} > {first})" for name in others]
        yield ("environment", *(f"{name} (IQM)" for name in self.labels), *beats, "runs")
        for row in self.rows:
            means = (mean.text(3 if row.environment in (ALL, SCORES) else 2) for mean in row.means)
            yield (row.environment, *means, *(chance.text(2) for chance in row.better), " / ".join(map(str, row.runs)))


def short_names(names: Sequence[str]) -> list[str]:
    """What tells names apart: without the folders that all are in.

    If they are long, without any folders if these are not needed, and without the words that all begin with; what is
    still long loses its middle.
    """
    found = _without_beginning(names, "/")
    last = [name.rpartition("/")[2] for name in found]
    if max(map(len, found)) > _LONGEST_NAME and len(set(last)) == len(last):
        found = last
    if max(map(len, found)) > _LONGEST_NAME:
        found = _without_beginning(found, "__")
    cut = [
        name if len(name) <= _LONGEST_NAME else f"{name[:_HEAD]}...{name[_HEAD + 3 - _LONGEST_NAME :]}"
        for name in found
    ]
    return [name if cut.count(name) == 1 else f"{place}: {name}" for place, name in enumerate(cut, 1)]


def _without_beginning(names: Sequence[str], separator: str) -> list[str]:
    """Names without the words that all begin with, of which every name keeps its last."""
    words = [name.split(separator) for name in names]
    most = min(map(len, words)) - 1
    same = next((k for k in range(most) if len({name[k] for name in words}) > 1), most)
    return [separator.join(name[same:]) for name in words]


@dataclass
class _Side:
    """What one set of runs has of a metric: the last values of its runs and their steps, by where they were trained."""

    name: str
    values: dict[Where, dict[Path, float]] = field(default_factory=dict)
    steps: dict[Where, set[float]] = field(default_factory=dict)
    scores: dict[Where, set[tuple[float, float] | None]] = field(default_factory=dict)

    def arrays(self, places: Sequence[Where]) -> list[Array]:
        return [np.array(list(self.values[where].values())) for where in places]

    def count(self, places: Sequence[Where]) -> int:
        """How many runs there are in some places, where one may have several tasks."""
        return len({path for where in places for path in self.values[where]})


def compare_runs(sides: Sequence[str | Path], *, metric: str = METRIC) -> Comparison:
    """Compare the last values of a metric between sets of runs, in every environment and task that all of them have.

    A side is a run, a folder of runs, or a pattern. Several environments are also taken together: what they reach is
    scaled by the scores of tasks, if all have them, or else so that the lowest of any run is 0 and the highest 1.
    """
    names = [str(side).rstrip("/") for side in sides]
    if len(names) < 2:
        raise UserError(f"--compare: compares two sets of runs or more; got {len(names)}")
    if len(set(names)) < len(names):
        raise UserError(f"--compare: {next(name for name in names if names.count(name) > 1)!r} is given twice")
    notes: list[str] = []
    found = []
    for name in names:
        runs, said = read_runs([name])
        notes += said
        found.append(_side(name, runs, metric, notes))
    shared = _shared(found, notes)
    for where, called in shared.items():
        ends = sorted(set[float]().union(*(side.steps[where] for side in found)))
        if len(ends) > 1:
            words = f"the last values are of {ends[0]:,.0f} to {ends[-1]:,.0f} steps"
            notes.append(f"in {called} {words}: not all have learned equally long")
    rows = [_row(called, [where], found, [side.arrays([where]) for side in found]) for where, called in shared.items()]
    if len(shared) > 1:
        places = list(shared)
        bounds = _bounds(shared, found, metric, notes)
        scaled = _scaled([side.arrays(places) for side in found], bounds)
        rows.append(_row(ALL if bounds is None else SCORES, places, found, scaled))
    return Comparison(metric, names, rows, tuple(dict.fromkeys(notes)))


def _side(name: str, runs: Sequence[LoggedRun], metric: str, notes: list[str]) -> _Side:
    side = _Side(name)
    for run in runs:
        for where, column in run.columns(metric).items():
            steps, values = run.curve(column)
            if not len(values):
                notes.append(f"{run.path} is left out: it has no {column} yet")
                continue
            side.values.setdefault(where, {})[run.path] = float(values[-1])
            side.steps.setdefault(where, set()).add(float(steps[-1]))
            side.scores.setdefault(where, set()).add(score_of(run.config, where[0]) if len(where) == 1 else None)
    if not side.values:
        known = sorted(set[str]().union(*(run.metrics for run in runs)))
        raise UserError(f"{name!r}: has no {metric}{suggest(metric, known)} (known: {', '.join(known)})")
    return side


def _shared(found: Sequence[_Side], notes: list[str]) -> dict[Where, str]:
    """The environments and tasks that all sides have, and what they are called; others are noted."""
    everywhere = {where for side in found for where in side.values}
    names = place_names(sorted({place for where in everywhere for place in where}))
    called = {where: ", ".join(names[place] for place in where) for where in everywhere}
    ordered = sorted(everywhere, key=lambda where: (called[where], where))
    shared = [where for where in ordered if all(where in side.values for side in found)]
    if not shared:
        listed = (
            f"{side.name!r} has {', '.join(called[where] for where in ordered if where in side.values)}"
            for side in found
        )
        raise UserError(f"--compare: there is no environment that all sides have: {'; '.join(listed)}")
    notes += [f"{called[where]} is left out: not all sides have runs in it" for where in ordered if where not in shared]
    return {where: called[where] for where in shared}


def _bounds(
    shared: Mapping[Where, str], found: Sequence[_Side], metric: str, notes: list[str]
) -> list[tuple[float, float]] | None:
    """The returns that count as scores of 0 and of 1 in every task, if all of them have one score in all runs."""
    scores = {
        where: set[tuple[float, float] | None]().union(*(side.scores[where] for side in found)) for where in shared
    }
    agreed = [next(iter(of)) for of in scores.values() if len(of) == 1]
    bounds = [bound for bound in agreed if bound is not None]
    if metric != METRIC or not any(bound for of in scores.values() for bound in of):
        return None
    if len(bounds) == len(shared):
        return bounds
    without = [shared[where] for where, of in scores.items() if len(of) > 1 or None in of]
    words = f"not all runs share a score in {', '.join(without)}"
    notes.append(f"taken together, all are scaled from the lowest run to the highest: {words}")
    return None


def _scaled(sides: Sequence[Sequence[Array]], bounds: Sequence[tuple[float, float]] | None) -> list[list[Array]]:
    """Values of every environment, scaled so that its bounds, or the lowest and highest of any side, are 0 and 1."""
    pooled = [np.concatenate(same) for same in zip(*sides, strict=True)]
    ends = bounds or [(float(values.min()), float(values.max())) for values in pooled]
    spans = [(low, max(high - low, 1e-12)) for low, high in ends]
    return [[(values - low) / span for values, (low, span) in zip(side, spans, strict=True)] for side in sides]


def _row(called: str, places: Sequence[Where], found: Sequence[_Side], sides: Sequence[Sequence[Array]]) -> Row:
    """The estimates of sides, each with its values by environment."""
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
    return Row(called, [side.count(places) for side in found], means, better)


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
