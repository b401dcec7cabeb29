"""Statistics of a benchmark's slices: rates, ratios of consecutive slices, and tables of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median, quantiles
from typing import Literal

Clock = Literal["wall", "cpu"]
CLOCKS: dict[Clock, str] = {"wall": "per second", "cpu": "per CPU second"}


@dataclass(frozen=True)
class Slice:
    """Cost of one slice of training: seconds on both clocks, and the process's peak memory in bytes so far."""

    count: int
    wall: float
    cpu: float
    peak: int


@dataclass(frozen=True)
class Spread:
    """Five numbers that describe some measurements."""

    lowest: float
    lower_quartile: float
    median: float
    upper_quartile: float
    highest: float


def spread(values: Sequence[float]) -> Spread:
    """Quartiles are interpolated between the two nearest measurements."""
    lower, middle, upper = quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * list(values)
    return Spread(min(values), lower, middle, upper, max(values))


def rates(slices: Sequence[Slice], clock: Clock) -> list[float]:
    """Units per second of every slice."""
    return [piece.count / getattr(piece, clock) for piece in slices]


def paired_ratios(ours: Sequence[Slice], peer: Sequence[Slice], clock: Clock) -> list[float]:
    """How many times faster we were in every round; a slow phase of the machine affects both sides of a round."""
    return [mine / theirs for mine, theirs in zip(rates(ours, clock), rates(peer, clock), strict=True)]


@dataclass(frozen=True)
class Interval:
    """A median and its confidence interval."""

    median: float
    low: float
    high: float
    confidence: float = 0.9


def median_interval(values: Sequence[float], resamples: int = 10_000) -> Interval:
    """By bootstrap: the medians of measurements drawn with replacement; the draws are the same in every call."""
    draw = Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(resamples))
    tail = round(resamples * (1 - Interval.confidence) / 2)
    return Interval(median(values), medians[tail], medians[-1 - tail])


def core_share(slices: Sequence[Slice]) -> float:
    """The share of one core that a side had: less than one means that it waited for other processes."""
    return sum(piece.cpu for piece in slices) / sum(piece.wall for piece in slices)


def rates_table(sides: Mapping[str, Sequence[Slice]]) -> str:
    """The median rates of every side and its memory."""
    header = ["", *CLOCKS.values(), "share of a core", "peak memory"]
    rows = [
        [
            name,
            *(rate_text(median(rates(slices, clock))) for clock in CLOCKS),
            f"{core_share(slices):.0%}",
            f"{slices[-1].peak / 1e6:,.0f} MB",
        ]
        for name, slices in sides.items()
    ]
    return aligned([header, *rows])


def rate_text(rate: float) -> str:
    """A rate as text; slow works get a decimal."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def ratios_table(ours: Sequence[Slice], peer: Sequence[Slice], peer_name: str) -> str:
    """The ratios of the rounds on both clocks."""
    header = [f"ours / {peer_name}", "median", "quartiles", "lowest to highest"]
    rows = []
    for clock, title in CLOCKS.items():
        found = spread(paired_ratios(ours, peer, clock))
        quartiles = f"{found.lower_quartile:.2f} to {found.upper_quartile:.2f}"
        rows.append([title, f"{found.median:.2f}", quartiles, f"{found.lowest:.2f} to {found.highest:.2f}"])
    return aligned([header, *rows])


def interval_line(ours: Sequence[Slice], other: Sequence[Slice], name: str) -> str:
    """The median ratio by CPU time, with its interval."""
    found = median_interval(paired_ratios(ours, other, "cpu"))
    return (
        f"ours / {name} {CLOCKS['cpu']}: median {found.median:.3f}, "
        f"{found.confidence:.0%} interval {found.low:.3f} to {found.high:.3f} ({len(ours)} rounds)"
    )


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("   ".join(cells).rstrip())
    return "\n".join(lines)
