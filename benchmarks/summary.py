"""What the slices of a benchmark say: rates, ratios of slices that ran one after the other, and tables of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal

Clock = Literal["wall", "cpu"]
CLOCKS: dict[Clock, str] = {"wall": "per second", "cpu": "per CPU second"}


@dataclass(frozen=True)
class Slice:
    """What one slice of training took: seconds on both clocks, and the process's peak memory in bytes so far."""

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
    """How many times faster we were in every round; a machine that was slow in a round was so for both."""
    return [mine / theirs for mine, theirs in zip(rates(ours, clock), rates(peer, clock), strict=True)]


def core_share(slices: Sequence[Slice]) -> float:
    """How much of one core a side had: less than one means that it waited for others."""
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
    """Slow works need a decimal."""
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


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("   ".join(cells).rstrip())
    return "\n".join(lines)
