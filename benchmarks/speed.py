"""Ours and its peers on the same work, with one thread each, in turns: `python benchmarks/speed.py ppo_cartpole`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sides import Side, SideFailed
from summary import CLOCKS, Slice, core_share, paired_ratios, rates_table, ratios_table, spread
from works import OURS, PEERS, WORKS, Work

# A side that had less of a core than this waited for other processes.
QUIET = 0.95


def measure(name: str, sides: Sequence[str], count: int, rounds: int, threads: int) -> dict[str, list[Slice]]:
    """Slices of every side, in turns: one process trains, the others wait for their line."""
    with ExitStack() as stack:
        processes = []
        for side in sides:
            say(f"{side}: building, and one slice to warm up")
            folder = Path(stack.enter_context(TemporaryDirectory()))
            process = stack.enter_context(Side(name, side, threads, folder))
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
    """Progress goes beside the result, not into it."""
    print(words, file=sys.stderr, flush=True)


def choose_peers(work: Work, wanted: Sequence[str] | None) -> list[str]:
    """The peers that can take part, of those that were asked for; who cannot is named, with the reason."""
    chosen = []
    for name in work.peers if wanted is None else wanted:
        module, package, install = PEERS[name]
        if name not in work.sides:
            say(f"{name} does not take part: it has no entry for this work")
        elif find_spec(module) is None:
            say(f"{name} does not take part: {package} is not installed ({install})")
        else:
            chosen.append(name)
    if not chosen:
        say("ours is measured alone")
    return chosen


def report(name: str, work: Work, count: int, threads: int, slices: dict[str, list[Slice]]) -> str:
    """The result for a reader."""
    rounds = f"{len(slices[OURS])} round{'s' if len(slices[OURS]) > 1 else ''}"
    pace = f"{rounds} of {count:,} {work.unit}, {'one thread' if threads == 1 else f'{threads} threads'}"
    paragraphs = [
        "\n".join(filter(None, [f"{name}: {work.summary}", work.note, pace])),
        rates_table(slices),
        *(ratios_table(slices[OURS], slices[peer], peer) for peer in slices if peer != OURS),
    ]
    if min(map(core_share, slices.values())) < QUIET:
        paragraphs.append("The machine was busy with other work: read the numbers per CPU second.")
    return "\n\n".join(paragraphs)


def record(name: str, work: Work, count: int, threads: int, slices: dict[str, list[Slice]]) -> dict[str, Any]:
    """The result for a program: every slice, and what the tables are made of."""
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
    }


def versions(sides: Sequence[str]) -> dict[str, str]:
    packages = ["rl-training", *(PEERS[side].package for side in sides if side != OURS), "torch", "numpy", "gymnasium"]
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
    """What was asked for; a mistake in it ends the program here, with one line and exit code 2."""
    parser = argparse.ArgumentParser(description="Measure our speed and a peer's on the same work, in turns.")
    parser.add_argument("work", nargs="?", choices=list(WORKS), help="what is trained; --list says more")
    parser.add_argument("--list", action="store_true", help="the works, and the peers that have an entry for each")
    parser.add_argument("--rounds", type=positive, default=5, help="slices of every side (5)")
    parser.add_argument("--steps", type=positive, help="units in a slice (the work's own size)")
    parser.add_argument("--threads", type=positive, default=1, help="threads of every side (1)")
    parser.add_argument("--peers", type=peer_names, help="names with commas between, or none (all of the work)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every slice and the ratios to a file")
    options = parser.parse_args(arguments)
    if options.list:
        return options
    if options.work is None:
        parser.error(f"name a work: {', '.join(WORKS)}")
    for module, remedy in WORKS[options.work].needs.items():
        if find_spec(module) is None:
            parser.error(f"{options.work} needs {module}, which is not installed: {remedy}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no such folder")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.list:
        print(listing())
        return
    work = WORKS[options.work]
    count = options.steps or work.slice_size
    sides = [OURS, *choose_peers(work, options.peers)]
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
