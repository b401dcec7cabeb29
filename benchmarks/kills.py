"""Kill runs at random moments, resume them, and compare them with runs that were never killed.

`python benchmarks/kills.py --kills 100`. A chain is one run in several processes: each is killed at a moment that was
drawn beforehand, the next resumes what is there, and the last one ends the run. The cases take turns, a chain each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import Any, TypeVar

from bit_cases import chosen
from bit_records import missing_module
from bits import fingerprint
from kill_cases import CASES, Case
from kill_chains import Chain, Killer, Server, train_whole
from kill_findings import Whole
from kill_runs import SAVING

_SHOWN = 5  # findings of a chain
_COLUMNS = ("case", "chains", "kills", "while writing", "unresumable", "differences", "left over")
Task = TypeVar("Task")


def share(servers: Sequence[Server], tasks: Iterator[Task], work: Callable[[Server, Task], None]) -> None:
    """Let every server work on the next task until there is none, or something fails."""
    lock, stopped = Lock(), Event()

    def serve(server: Server) -> None:
        while not stopped.is_set():
            with lock:
                task = next(tasks, None)
            if task is None:
                break
            work(server, task)

    with ThreadPoolExecutor(len(servers)) as pool:
        futures = [pool.submit(serve, server) for server in servers]
        try:
            for future in futures:
                future.result()
        finally:
            stopped.set()


class Campaign:
    """All chains of some cases, until there were enough kills; every chain is a line of a file."""

    def __init__(self, names: Sequence[str], kills: int, seed: int, out: Path) -> None:
        self._names, self._wanted, self._seed, self._out = names, kills, seed, out
        self._src = source_folder()
        self._wholes: dict[str, tuple[Whole, dict[str, Any]]] = {}
        self._locks = {name: Lock() for name in names}
        self.chains = list(self._known())

    @property
    def kills(self) -> int:
        return sum(len(chain.kills) for chain in self.chains)

    def _known(self) -> Iterator[Chain]:
        """The chains that an earlier command has written; a new file gets its first line."""
        first = {"seed": self._seed, **fingerprint(self._src)}
        if not self._out.exists():
            self._out.write_text(json.dumps(first) + "\n")
        header, *lines = map(json.loads, self._out.read_text().splitlines())
        changed = sorted(name for name in first if header.get(name) != first[name])
        if changed:
            sys.exit(f"kills.py: --out {self._out}: was made with another {changed[0]}; name another file")
        yield from (Chain(**line) for line in lines)

    def _planned(self) -> Iterator[Chain]:
        """A chain of every case in turn, until there were enough kills."""
        done = {(chain.case, chain.number) for chain in self.chains}
        for number, name in ((number, name) for number in itertools.count() for name in self._names):
            if self.kills >= self._wanted:
                return
            if (name, number) not in done:
                yield Chain(name, number)

    def run(self, jobs: int) -> None:
        """Kill, a chain of every case in turn. The whole run of a case is trained before its first chain."""
        if self.kills >= self._wanted:
            return
        with TemporaryDirectory() as folder, ExitStack() as ends:
            places = [Path(folder, f"server-{number}") for number in range(jobs)]
            for place in places:
                place.mkdir()
            servers = [ends.enter_context(Server(self._src, self._names, place)) for place in places]

            def kill(server: Server, chain: Chain) -> None:
                place = _place(folder, chain.case)
                with self._locks[chain.case]:
                    if chain.case not in self._wholes:
                        self._wholes[chain.case] = self._train(server, CASES[chain.case], place)
                chance = random.Random(f"{self._seed}/{chain.case}/{chain.number}")
                Killer(server, *self._wholes[chain.case], place / str(chain.number), chain).run(chance)
                self._note(chain, place / str(chain.number))

            share(servers, self._planned(), kill)

    def _train(self, server: Server, case: Case, place: Path) -> tuple[Whole, dict[str, Any]]:
        try:
            return train_whole(server, case, place)
        except RuntimeError as error:
            sys.exit(f"kills.py: {case.name}: cannot be trained as a whole: {error}")

    def _note(self, chain: Chain, place: Path) -> None:
        """Write a chain down; its folder is kept if something was found."""
        self.chains.append(chain)
        with self._out.open("a") as file:
            file.write(json.dumps(asdict(chain)) + "\n")
        if chain.findings:
            kept = self._out.with_suffix(".findings") / f"{chain.case.replace('/', '-')}-{chain.number}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.move(place, kept)
            say(f"{chain.case} {chain.number}: {chain.findings[0]}; its folder is {kept}")
        else:
            shutil.rmtree(place)
        say(f"{self.kills} of {self._wanted} kills: {chain.case}")


def _place(folder: str, name: str) -> Path:
    return Path(folder, name.replace("/", "-"))


def source_folder() -> Path:
    """The source folder of the package that is installed here, or that PYTHONPATH names."""
    spec = find_spec("rl_training")
    if spec is None or spec.origin is None:
        sys.exit("kills.py: rl_training is not installed")
    return Path(spec.origin).resolve().parents[1]


def say(words: str) -> None:
    """Print progress to standard error."""
    print(words, file=sys.stderr, flush=True)


def report(chains: Sequence[Chain]) -> tuple[str, bool]:
    """The result as text, and whether nothing was found."""
    rows: list[tuple[str, ...]] = [
        ("case", "chains", "kills", "while writing", "unresumable", "differences", "left over")
    ]
    by_case: dict[str, list[Chain]] = {}
    for chain in chains:
        by_case.setdefault(chain.case, []).append(chain)
    rows += [_row(name, some) for name, some in by_case.items()]
    rows.append(_row("all", chains))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in columns)
        for columns in (enumerate(zip(row, widths, strict=True)) for row in rows)
    ]
    kills = [kill for chain in chains for kill in chain.kills]
    for title, counted in (
        ("killed while", Counter(kill["during"] for kill in kills)),
        ("killed by", Counter("+".join(signal.Signals(n).name for n in kill["signals"]) for kill in kills)),
    ):
        lines.append(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counted.most_common()))
    for chain in chains:
        found = [f"{chain.case} {chain.number}: {line}" for line in chain.findings]
        lines += found[:_SHOWN] + ([f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])
    return "\n".join(lines), not any(chain.findings for chain in chains)


def _row(name: str, chains: Sequence[Chain]) -> tuple[str, ...]:
    """How many kills there were, and how many chains were not as they should be."""
    kills = [kill for chain in chains for kill in chain.kills]
    counts = (
        len(chains),
        len(kills),
        sum(bool(kill["drafts"]) or kill["during"] == SAVING for kill in kills),
        *(sum(bool(getattr(chain, what)) for chain in chains) for what in ("unresumable", "differences", "left_over")),
    )
    return (name, *map(str, counts))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a mistake ends the program here, with one line and exit code 2."""
    parser = argparse.ArgumentParser(description="Kill runs, resume them, and compare them with whole ones.")
    parser.add_argument("--kills", type=int, default=100, help="how many kills at least (100)")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments (0)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some cases: pong, acrobot/ppo, '*/sac' (all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (1)")
    parser.add_argument("--out", type=Path, default=Path("kills.jsonl"), help="a line for every chain (kills.jsonl)")
    parser.add_argument("--list", action="store_true", help="name the cases and do nothing")
    options = parser.parse_args(arguments)
    if not options.out.absolute().parent.is_dir():
        parser.error(f"--out {options.out}: there is no such folder")
    for name in ("kills", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    names = chosen(list(CASES), options.only)
    if not names:
        sys.exit(f"kills.py: --only {' '.join(options.only)}: no case has such a name; --list names all")
    if options.list:
        print("\n".join(names))
        return 0
    missing = {name: missing_module(CASES[name].worlds) for name in names}
    for name, module in missing.items():
        if module is not None:
            say(f"{name}: is left out, since {module} is not installed")
    campaign = Campaign([name for name in names if missing[name] is None], options.kills, options.seed, options.out)
    try:
        campaign.run(options.jobs)
    finally:
        words, well = report(campaign.chains)
        print(words)
    return 0 if well else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the chains under way end, and so do their processes
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
