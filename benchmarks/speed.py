"""Compare the speed of this package and its peers on the same work: `python benchmarks/speed.py ppo_cartpole`.

All sides have one thread each and train in turns.

With `--against SRC` another checkout of this package takes part as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from libraries import OTHER, OURS, PEERS, Work
from sides import Side, SideFailed
from summary import (
    CLOCKS,
    Slice,
    core_share,
    interval_line,
    median_interval,
    paired_ratios,
    rates_table,
    ratios_table,
    spread,
)
from works import WORKS

# A side whose share of a core was below this waited for other processes.
QUIET = 0.95
OWN_SRC = Path(__file__).resolve().parent.parent / "src"
# Two checkouts differ by a few percent only: that takes more rounds, with slices this many times shorter.
ROUNDS, ROUNDS_AGAINST = 5, 21
SHORTER = 2


def measure(
    name: str, sides: Mapping[str, Path | None], count: int, rounds: int, threads: int
) -> dict[str, list[Slice]]:
    """Measure slices of every side, in turns: one process trains, the others wait.

    The value of a side is the source folder from which it loads the package, if it is not the installed one.
    """
    with ExitStack() as stack:
        processes = []
        for side, src in sides.items():
            say(f"{side}: building, and one slice to warm up")
            folder = Path(stack.enter_context(TemporaryDirectory()))
            process = stack.enter_context(Side(name, side, threads, folder, src))
            process.advance(count)
            processes.append(process)
        slices: dict[str, list[Slice]] = {side: [] for side in sides}
        for turn in range(1, rounds + 1):
            for process in processes:
                slices[process.name].append(process.advance(count))
            seconds = ", ".join(f"{side} {done[-1].wall:.2f} s" for side, done in slices.items())
            say(f"round {turn} of {rounds}: {seconds}")
    return slices


def say(words: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(words, file=sys.stderr, flush=True)


def choose_peers(work: Work, wanted: Sequence[str] | None) -> list[str]:
    """The requested peers that can take part; the others are named, with the reason."""
    chosen = []
    for name in work.peers if wanted is None else wanted:
        module, package, install = PEERS[name]
        if name not in work.sides:
            say(f"{name} does not take part: it has no entry for this work")
        elif find_spec(module) is None:
            say(f"{name} does not take part: {package} is not installed ({install})")
        else:
            chosen.append(name)
    return chosen


def choose_sides(work: Work, wanted: Sequence[str] | None, against: Path | None) -> dict[str, Path | None]:
    """The sides that take part, and the source folder from which each loads the package."""
    sides: dict[str, Path | None] = {OURS: None}
    if against is not None:
        sides = {OURS: OWN_SRC, OTHER: against}
    sides |= dict.fromkeys(choose_peers(work, wanted))
    if len(sides) == 1:
        say("ours is measured alone")
    return sides


def report(name: str, work: Work, count: int, threads: int, slices: dict[str, list[Slice]]) -> str:
    """The result as text."""
    rounds = f"{len(slices[OURS])} round{'s' if len(slices[OURS]) > 1 else ''}"
    pace = f"{rounds} of {count:,} {work.unit}, {'one thread' if threads == 1 else f'{threads} threads'}"
    paragraphs = [
        "\n".join(filter(None, [f"{name}: {work.summary}", work.note, pace])),
        rates_table(slices),
        *(ratios_table(slices[OURS], slices[peer], peer) for peer in slices if peer != OURS),
    ]
    if OTHER in slices:
        paragraphs.append(interval_line(slices[OURS], slices[OTHER], OTHER))
    if min(map(core_share, slices.values())) < QUIET:
        paragraphs.append("The machine was busy with other work: read the numbers per CPU second.")
    return "\n\n".join(paragraphs)


def record(name: str, work: Work, count: int, threads: int, slices: dict[str, list[Slice]]) -> dict[str, Any]:
    """The result as plain data: every slice, and the numbers of the tables."""
    ours = slices[OURS]
    return {
        "work": name,
        "summary": work.summary,
        "unit": work.unit,
        "slice_size": count,
        "threads": threads,
        "machine": {"platform": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": versions(list(slices)),
        "sides": {side: [asdict(piece) for piece in pieces] for side, pieces in slices.items()},
        "ratios": {
            peer: {clock: asdict(spread(paired_ratios(ours, pieces, clock))) for clock in CLOCKS}
            for peer, pieces in slices.items()
            if peer != OURS
        },
        "intervals": {
            clock: asdict(median_interval(paired_ratios(ours, slices[OTHER], clock)))
            for clock in CLOCKS
            if OTHER in slices
        },
    }


def versions(sides: Sequence[str]) -> dict[str, str]:
    packages = ["rl-training", *(PEERS[side].package for side in sides if side in PEERS), "torch", "numpy", "gymnasium"]
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def listing() -> str:
    return "\n".join(f"{name}\n  {work.summary}\n  peers: {', '.join(work.peers)}" for name, work in WORKS.items())


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def peer_names(text: str) -> list[str]:
    names = [] if text == "none" else list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is unknown (known: {', '.join(PEERS)}, none)")
    return names


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a mistake ends the program here, with one line and exit code 2."""
    parser = argparse.ArgumentParser(description="Measure our speed and a peer's on the same work, in turns.")
    parser.add_argument("work", nargs="?", choices=list(WORKS), help="what is trained; --list says more")
    parser.add_argument("--list", action="store_true", help="the works, and the peers that have an entry for each")
    parser.add_argument("--rounds", type=positive, help=f"slices of every side ({ROUNDS}; {ROUNDS_AGAINST} --against)")
    parser.add_argument("--steps", type=positive, help="units in a slice (the work's own size; half of it --against)")
    parser.add_argument("--threads", type=positive, default=1, help="threads of every side (1)")
    parser.add_argument("--peers", type=peer_names, help="names with commas between, or none (all of the work)")
    parser.add_argument("--against", type=Path, metavar="SRC", help="the src folder of another checkout: side `other`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every slice and the ratios to a file")
    options = parser.parse_args(arguments)
    if options.list:
        return options
    if options.work is None:
        parser.error(f"name a work: {', '.join(WORKS)}")
    for module, remedy in WORKS[options.work].needs.items():
        if find_spec(module) is None:
            parser.error(f"{options.work} needs {module}, which is not installed: {remedy}")
    if options.against is not None and not (options.against / "rl_training").is_dir():
        parser.error(f"--against {options.against}: holds no rl_training; give the src folder of a checkout")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no such folder")
    options.rounds = options.rounds or (ROUNDS if options.against is None else ROUNDS_AGAINST)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.list:
        print(listing())
        return
    work = WORKS[options.work]
    count = options.steps or (work.slice_size if options.against is None else work.slice_size // SHORTER)
    sides = choose_sides(work, options.peers, options.against)
    slices = measure(options.work, sides, count, options.rounds, options.threads)
    print(report(options.work, work, count, options.threads, slices))
    if options.json is not None:
        found = record(options.work, work, count, options.threads, slices)
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except SideFailed as failure:
        sys.exit(f"speed.py: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
