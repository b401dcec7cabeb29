"""The tables of `docs/conformance.md`. Run as a script, it compares all pairs and writes the tables anew."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from conformance import ENGINES
from peers import Difference, Pair

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
BEGIN, END = "<!-- begin {}: made by tests/support/peer_table.py -->\n", "<!-- end -->"
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


def installed_loops() -> list[Any]:
    if "sb3_contrib" in missing():
        return []
    from sb3_loop_pairs import LOOPS

    return LOOPS


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


def farthest(pair: Any) -> tuple[float, float]:
    """How far observations and weights get from each other, over both engines."""
    found = [pair.difference(engine) for engine in ENGINES]
    return max(one.observation for one in found), max(one.weight for one in found)


def loop_table(pairs: Iterable[Any], compare: Callable[[Any], tuple[float, float]] = farthest) -> str:
    """All runs, their lengths, and how far the two sides get from each other."""
    names = ("algorithm", "peer", "environments", "steps", "updates", "observations", "weights")
    rows = [" | ".join(names), " | ".join("---" for _ in names)]
    for pair in pairs:
        world = f"{pair.num_envs} x {pair.world.words}"
        numbers = map(_figure, compare(pair))
        rows.append(" | ".join((pair.algorithm, pair.peer, world, f"{pair.steps}", f"{pair.updates}", *numbers)))
    return "".join(f"| {row} |\n" for row in rows)


def _figure(number: float) -> str:
    return f"{number:.1e}" if number else "0"


def words_of(text: str) -> str:
    """A table without its figures and versions, which are not the same on every machine."""
    return _FIGURE.sub("_", re.sub(r"Measured with .*", "", text))


def written(name: str) -> str:
    """A table as it is in the document."""
    return DOCUMENT.read_text().split(BEGIN.format(name))[1].split(END)[0]


def write(name: str, made: str) -> None:
    before, rest = DOCUMENT.read_text().split(BEGIN.format(name))
    _, after = rest.split(END, 1)
    DOCUMENT.write_text(before + BEGIN.format(name) + made + END + after)
    print(made)


if __name__ == "__main__":
    if missing():
        raise SystemExit(f"not installed: {', '.join(missing())}")
    torch.set_num_threads(1)
    write("updates", table(installed_pairs()))
    write("loops", loop_table(installed_loops()))
