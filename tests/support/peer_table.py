"""The table of `docs/conformance.md`. Run as a script, it compares all pairs and writes the table anew."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from peers import Difference, Pair

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
BEGIN, END = "<!-- begin: made by tests/support/peer_table.py -->\n", "<!-- end -->"
PACKAGES = ("stable-baselines3", "sb3-contrib", "d3rlpy")
_FIGURE = re.compile(r"\b(0|\d\.\de[-+]\d\d)\b")


def sb3_pairs() -> list[Pair]:
    from sb3_on_policy_pairs import ON_POLICY
    from sb3_pairs import OFF_POLICY

    return [*ON_POLICY, *OFF_POLICY]


def d3rlpy_pairs() -> list[Pair]:
    from d3rlpy_cql_pairs import CONSERVATIVE
    from d3rlpy_pairs import OFFLINE

    return [*OFFLINE, *CONSERVATIVE]


# What compares with each package; the modules import it.
SOURCES = {"sb3_contrib": sb3_pairs, "d3rlpy": d3rlpy_pairs}


def missing() -> list[str]:
    return [package for package in SOURCES if find_spec(package) is None]


def installed_pairs() -> list[Pair]:
    return [pair for package, pairs in SOURCES.items() if package not in missing() for pair in pairs()]


Compare = Callable[[Pair, str | None], Difference]


def compared(pair: Pair, without: str | None) -> Difference:
    return pair.difference(without=without)


def table(pairs: Iterable[Pair], compare: Compare = compared) -> str:
    """All comparisons, then what is different, and how much that makes."""
    rows, notes = [], []
    for pair in pairs:
        found = compare(pair, None)
        numbers = f"{_figure(found.gradient)} | {_figure(found.weight)}"
        rows.append(f"| {pair.algorithm} | {pair.peer} | {pair.compared} | {pair.settings} | {numbers} |")
        notes += _notes(pair, compare)
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    head = "| algorithm | peer | compared | settings | gradients | weights |\n| --- | --- | --- | --- | --- | --- |"
    return "\n".join([f"Measured with {versions}.", "", head, *rows, "", "## What is different", *notes, ""])


def _notes(pair: Pair, compare: Compare) -> Iterator[str]:
    if pair.deviations:
        yield f"\n**{pair.algorithm}** ({pair.peer})\n"
    for name, words in pair.deviations.items():
        found = compare(pair, name)
        numbers = f"gradients {_figure(found.gradient)}, weights {_figure(found.weight)}"
        yield f"- {words} Unless one side is changed: {numbers}."


def _figure(number: float) -> str:
    return f"{number:.1e}" if number else "0"


def words_of(text: str) -> str:
    """A table without its figures and versions, which are not the same on every machine."""
    return _FIGURE.sub("_", re.sub(r"Measured with .*", "", text))


def written() -> str:
    """The table as it is in the document."""
    return DOCUMENT.read_text().split(BEGIN)[1].split(END)[0]


if __name__ == "__main__":
    if missing():
        raise SystemExit(f"not installed: {', '.join(missing())}")
    torch.set_num_threads(1)
    made = table(installed_pairs())
    before, rest = DOCUMENT.read_text().split(BEGIN)
    DOCUMENT.write_text(before + BEGIN + made + END + rest.split(END)[1])
    print(made)
