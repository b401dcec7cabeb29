"""Statistics of the learning benchmark: what each side reached, how sure that is, and who is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from libraries import OURS
from numpy.typing import NDArray
from pair_parts import Pair
from seed_files import Curve

Values = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 10_000
LEAST_PROBABILITY = 0.35  # that ours is better, where the intervals overlap
SMALL_SHARE = 0.05  # of the span from random to threshold: a difference that does not matter

LEAST_SEEDS = 5  # of each side, for a verdict

BETTER, LEVEL, CLOSE, WORSE, OPEN = "better", "level", "close", "WORSE", "open"
VERDICTS = {
    BETTER: "the whole interval of ours lies above the peer's",
    LEVEL: f"the intervals overlap, and ours is better with a probability of at least {LEAST_PROBABILITY}",
    CLOSE: f"ours falls short by less than {SMALL_SHARE:.0%} of the span from random to threshold",
    WORSE: "none of these",
    OPEN: f"a side has fewer than {LEAST_SEEDS} seeds",
}


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % bootstrap interval over seeds."""

    value: float
    low: float
    high: float

    def overlaps(self, other: Estimate) -> bool:
        return self.low <= other.high and other.low <= self.high


def estimate(values: Sequence[float]) -> Estimate:
    """The mean over seeds."""
    return bootstrap(lambda drawn: drawn[0].mean(axis=-1), values)


def bootstrap(statistic: Callable[[list[Values]], Values], *samples: Sequence[float]) -> Estimate:
    """A statistic of samples `[..., N]`, each drawn again with replacement; the draws are the same in every call."""
    rng, arrays = np.random.default_rng(0), [np.asarray(sample, float) for sample in samples]
    drawn = [array[rng.integers(len(array), size=(RESAMPLES, len(array)))] for array in arrays]
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(statistic(drawn), [tail, 1.0 - tail])
    return Estimate(float(statistic(arrays)), float(low), float(high))


def superiority(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """The probability that a seed of ours is better than a seed of theirs; a tie counts half."""
    return bootstrap(_superiority, ours, theirs)


def _superiority(samples: list[Values]) -> Values:
    ours, theirs = samples[0][..., :, None], samples[1][..., None, :]
    return np.asarray(((ours > theirs) + 0.5 * (ours == theirs)).mean(axis=(-2, -1)))


def area(curve: Curve) -> float:
    """The area under the curve, by its length: the mean of all evaluations."""
    return float(np.mean(curve.returns))


def steps_to(curve: Curve, threshold: float) -> int | None:
    """The steps until the first evaluation that reaches the threshold; none if no evaluation does."""
    return next((step for step, value in zip(curve.steps, curve.returns, strict=True) if value >= threshold), None)


@dataclass(frozen=True)
class SideSummary:
    """What the seeds of one side reached. `steps` counts a seed that never reached the threshold with all its steps."""

    seeds: int
    area: Estimate
    steps: Estimate
    reached: int
    final: Estimate
    cpu_seconds: float


def summarize_side(curves: Sequence[Curve], threshold: float) -> SideSummary:
    first = [steps_to(curve, threshold) for curve in curves]
    return SideSummary(
        seeds=len(curves),
        area=estimate([area(curve) for curve in curves]),
        steps=estimate(
            [curve.steps[-1] if found is None else found for curve, found in zip(curves, first, strict=True)]
        ),
        reached=sum(found is not None for found in first),
        final=estimate([curve.returns[-1] for curve in curves]),
        cpu_seconds=float(np.mean([curve.cpu_seconds for curve in curves])),
    )


@dataclass(frozen=True)
class PairSummary:
    """Both sides of a pair, and the verdict on the areas under their curves."""

    ours: SideSummary
    theirs: SideSummary
    probability: Estimate
    difference: float  # of the areas, as a share of the span from random to threshold
    verdict: str


def summarize(pair: Pair, curves: Mapping[str, Sequence[Curve]]) -> PairSummary | None:
    """The comparison of a pair, if both sides have a curve."""
    ours, theirs = (curves.get(side, ()) for side in pair.sides)
    if not (ours and theirs):
        return None
    mine, peer = (summarize_side(side, pair.task.threshold) for side in (ours, theirs))
    probability = superiority([area(curve) for curve in ours], [area(curve) for curve in theirs])
    difference = (mine.area.value - peer.area.value) / (pair.task.threshold - pair.task.random)
    enough = min(mine.seeds, peer.seeds) >= LEAST_SEEDS
    found = verdict(mine.area, peer.area, probability.value, difference) if enough else OPEN
    return PairSummary(mine, peer, probability, difference, found)


def verdict(ours: Estimate, theirs: Estimate, probability: float, difference: float) -> str:
    """One of VERDICTS."""
    if ours.low > theirs.high:
        return BETTER
    if ours.overlaps(theirs) and probability >= LEAST_PROBABILITY:
        return LEVEL
    return CLOSE if difference > -SMALL_SHARE else WORSE


def comparison_table(pairs: Mapping[str, Pair], found: Mapping[str, PairSummary]) -> str:
    """The verdicts, as a Markdown table."""
    header = ["pair", "peer", "seeds", "mean of the curve, ours", "peer's", "difference", "P(ours better)", "verdict"]
    rows = [
        [
            f"`{name}`",
            f"`{pairs[name].peer}`",
            seeds_text(result),
            estimate_text(result.ours.area),
            estimate_text(result.theirs.area),
            f"{result.difference:+.0%}",
            f"{result.probability.value:.2f} ({result.probability.low:.2f} to {result.probability.high:.2f})",
            f"**{result.verdict}**" if result.verdict == WORSE else result.verdict,
        ]
        for name, result in found.items()
    ]
    return markdown([header, *rows])


def details_table(pairs: Mapping[str, Pair], found: Mapping[str, PairSummary]) -> str:
    """Steps to the threshold, final returns and CPU seconds, as a Markdown table."""
    header = [
        "pair",
        "threshold",
        "steps to it, ours",
        "peer's",
        "final return, ours",
        "peer's",
        "CPU s, ours",
        "peer's",
    ]
    rows = [
        [
            f"`{name}`",
            f"{pairs[name].task.threshold:g}",
            *(steps_text(side) for side in (result.ours, result.theirs)),
            *(estimate_text(side.final) for side in (result.ours, result.theirs)),
            *(f"{side.cpu_seconds:.1f}" for side in (result.ours, result.theirs)),
        ]
        for name, result in found.items()
    ]
    return markdown([header, *rows])


def seeds_text(result: PairSummary) -> str:
    ours, theirs = result.ours.seeds, result.theirs.seeds
    return str(ours) if ours == theirs else f"{ours} and {theirs}"


def estimate_text(found: Estimate) -> str:
    digits = 1 if max(abs(found.value), abs(found.low), abs(found.high)) < 100.0 else 0
    low, value, high = (f"{number:,.{digits}f}" for number in (found.low, found.value, found.high))
    return f"{value} ({low} to {high})"


def steps_text(side: SideSummary) -> str:
    """Steps until the threshold is reached, and how many seeds reached it."""
    if side.reached == 0:
        return f"never (0 of {side.seeds})"
    least = "" if side.reached == side.seeds else "at least "
    return f"{least}{estimate_text(side.steps)}, {side.reached} of {side.seeds}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    header, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([header, "|" + " --- |" * len(rows[0]), *rest])


def by_side(pair: Pair, curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    return {side: [curve for curve in curves if curve.side == side] for side in pair.sides}


def sources(curves: Sequence[Curve]) -> int:
    """How many different versions of our code made these curves."""
    return len({curve.code for curve in curves if curve.side == OURS})
