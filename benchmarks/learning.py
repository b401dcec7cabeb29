"""Compare how well this package and its peers learn from the same steps: `python benchmarks/learning.py ppo_cartpole`.

Every seed of every side is a process of its own with one thread, and leaves one small file in the `--out` folder.
A seed that is there is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from learning_plot import draw
from learning_summary import (
    VERDICTS,
    PairSummary,
    by_side,
    comparison_table,
    details_table,
    sources,
    summarize,
)
from libraries import OURS, PEERS
from pair_parts import FAMILIES, Pair
from pairs import PAIRS
from seed_files import DATA_VARIABLE, Curve, curves_of, data_file, fingerprint, own_code, read_curve, seed_file
from sides import child_environment

HERE = Path(__file__).resolve().parent
TARGET = HERE / "learning"


class SeedRun(NamedTuple):
    """One seed of one side that is still to be trained."""

    pair: str
    side: str
    seed: int

    def __str__(self) -> str:
        return f"{self.pair}, {self.side}, seed {self.seed}"


def say(words: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(words, file=sys.stderr, flush=True)


def obstacle(pair: Pair) -> str | None:
    """What is missing for both sides of a pair."""
    for module, remedy in pair.task.needs.items():
        if find_spec(module) is None:
            return f"it needs {module}, which is not installed ({remedy})"
    if pair.dataset is not None and not data_file(pair.dataset).is_file():
        return f"its data {pair.dataset} is not there; name the folder with --data or {DATA_VARIABLE}"
    return None


def able_sides(name: str) -> list[str]:
    """The sides of a pair that can be trained here; the others are named, with the reason."""
    pair = PAIRS[name]
    missing = obstacle(pair)
    if missing is not None:
        say(f"{name} is left out: {missing}")
        return []
    module, package, install = PEERS[pair.peer]
    if find_spec(module) is None:
        say(f"{name}: {pair.peer} does not take part: {package} is not installed ({install})")
        return [OURS]
    return list(pair.sides)


def seeds_to_train(names: Sequence[str], seeds: Sequence[int], out: Path, *, refresh: bool = False) -> list[SeedRun]:
    """The seeds that are not there yet, or that were trained with other settings, which a line says.

    With `refresh` seeds of ours that other code has trained are not counted as there.
    """
    todo = []
    code = own_code() if refresh else None
    for name in names:
        sides = able_sides(name)
        for run in (SeedRun(name, side, seed) for seed in seeds for side in sides):
            path = seed_file(out, *run)
            done = read_curve(path)
            same = done is not None and done.settings == fingerprint(PAIRS[name], run.side)
            outdated = done is not None and refresh and run.side == OURS and done.code != code
            if same and not outdated:
                continue
            if done is not None:
                say(f"{run}: was trained with other {'code' if same else 'settings'}, and is trained again")
            elif path.exists():
                say(f"{run}: the file {path} cannot be read, and is written again")
            todo.append(run)
    return todo


def train_all(runs: Sequence[SeedRun], out: Path, jobs: int) -> list[SeedRun]:
    """Train so many at once; the ones that failed are returned."""
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(train, run, out): run for run in runs}
        try:
            for count, (future, run) in enumerate(running.items(), start=1):
                words = future.result()
                say(f"{count} of {len(runs)}: {run}: {words or describe(read_curve(seed_file(out, *run)))}")
                if words is not None:
                    failed.append(run)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def train(run: SeedRun, out: Path) -> str | None:
    """Train in a process of its own; the last lines of what it said if it failed."""
    path = seed_file(out.absolute(), *run)
    command = [sys.executable, str(HERE / "learners.py"), run.pair, run.side, str(run.seed), str(path)]
    with TemporaryDirectory() as folder:  # some libraries write logs to the working directory
        done = subprocess.run(command, cwd=folder, env=child_environment(1), capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return f"failed with exit code {done.returncode}:\n" + "\n".join(done.stderr.strip().splitlines()[-15:])


def describe(curve: Curve | None) -> str:
    if curve is None:
        return "left no result"
    mean = sum(curve.returns) / len(curve.returns)
    return f"mean of the curve {mean:.1f}, final {curve.returns[-1]:.1f}, {curve.cpu_seconds:.1f} CPU s"


def collect(names: Sequence[str], out: Path) -> dict[str, dict[str, list[Curve]]]:
    """The curves that are there, by pair and side; those with other settings are named and left out."""
    found: dict[str, dict[str, list[Curve]]] = {}
    for name in names:
        pair = PAIRS[name]
        every = [curve for side in pair.sides for curve in curves_of(out, name, side)]
        fitting = [curve for curve in every if curve.settings == fingerprint(pair, curve.side)]
        if len(fitting) < len(every):
            say(f"{name}: {len(every) - len(fitting)} seeds with other settings are left out")
        if sources(fitting) > 1:
            say(f"{name}: the seeds of ours come from {sources(fitting)} versions of the code")
        if fitting:
            found[name] = by_side(pair, fitting)
    return found


def compare(curves: Mapping[str, Mapping[str, Sequence[Curve]]]) -> dict[str, PairSummary]:
    """The pairs of which both sides have curves."""
    found = {name: summarize(PAIRS[name], sides) for name, sides in curves.items()}
    return {name: result for name, result in found.items() if result is not None}


def report(curves: Mapping[str, Mapping[str, Sequence[Curve]]], target: Path) -> str:
    """Write the tables, the pictures and all curves; return the tables."""
    target.mkdir(parents=True, exist_ok=True)
    found = compare(curves)
    paragraphs = ["# Learning, side by side"]
    for family, title in FAMILIES.items():
        members = {name: PAIRS[name] for name in curves if PAIRS[name].family == family}
        results = {name: found[name] for name in members if name in found}
        if not members:
            continue
        draw(target / f"{family}.png", title, members, curves)
        paragraphs += [f"## {title}", f"![{title}]({family}.png)"]
        if results:
            paragraphs += [comparison_table(PAIRS, results), details_table(PAIRS, results)]
    paragraphs += [notes(curves), meaning()]
    text = "\n\n".join(filter(None, paragraphs)) + "\n"
    (target / "results.md").write_text(text)
    (target / "results.json").write_text(record(curves, found))
    return text


def notes(curves: Mapping[str, object]) -> str:
    lines = [f"- `{name}`: {PAIRS[name].note}." for name in curves if PAIRS[name].note is not None]
    missing = [f"`{name}`" for name in PAIRS if name not in curves]
    if missing:
        lines.append(f"- Not trained yet: {', '.join(missing)}.")
    return "\n".join(["## Where the sides differ", "", *lines]) if lines else ""


def meaning() -> str:
    lines = [f"- *{name}*: {words}." for name, words in VERDICTS.items()]
    return "\n".join(["## Verdicts, on the means of the curves", "", *lines])


def record(curves: Mapping[str, Mapping[str, Sequence[Curve]]], found: Mapping[str, PairSummary]) -> str:
    """Everything as JSON, a line for each pair and each curve."""
    pairs = [f"{json.dumps(name)}: {json.dumps(described(name, found.get(name)))}" for name in curves]
    lines = [json.dumps(asdict(curve)) for sides in curves.values() for side in sides.values() for curve in side]
    return '{"pairs": {\n' + ",\n".join(pairs) + '\n},\n"curves": [\n' + ",\n".join(lines) + "\n]}\n"


def described(name: str, result: PairSummary | None) -> dict[str, Any]:
    pair = PAIRS[name]
    settings = {side: pair.described(side) for side in pair.sides}
    task = {"random": pair.task.random, "threshold": pair.task.threshold}
    return {"summary": pair.summary, **task, "sides": settings, "result": None if result is None else asdict(result)}


def listing() -> str:
    return "\n".join(
        f"{name}\n  {pair.summary}\n  peer: {pair.peer}; {pair.total:,} {pair.unit}, an evaluation of {pair.episodes} "
        f"episodes after every {pair.every:,}"
        for name, pair in PAIRS.items()
    )


def seed_range(text: str) -> list[int]:
    """`3`, `0-4`, or several of these with commas between."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last or first).isdigit()) or int(last or first) < int(first):
            raise argparse.ArgumentTypeError(f"{text!r} is no list of seeds; write 0-4 or 0,3,7")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a mistake ends the program here, with one line and exit code 2."""
    parser = argparse.ArgumentParser(description="Compare what we and a peer learn from the same number of steps.")
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help="names that --list shows (all)")
    parser.add_argument("--list", action="store_true", help="the pairs")
    parser.add_argument(
        "--seeds", type=seed_range, default=seed_range("0-4"), help="such as 0-4 (the default) or 0,3,7"
    )
    parser.add_argument("--jobs", type=positive, default=os.cpu_count(), help="processes at once (one for each core)")
    parser.add_argument("--out", type=Path, default=Path("learning_runs"), help="folder of the seeds (learning_runs)")
    parser.add_argument("--data", type=Path, help=f"folder of the public data, instead of {DATA_VARIABLE}")
    parser.add_argument("--refresh", action="store_true", help="train ours again where its code has changed")
    parser.add_argument("--report", action="store_true", help="train nothing; tables and pictures of what is there")
    parser.add_argument("--to", type=Path, default=TARGET, help="folder of tables and pictures (benchmarks/learning)")
    options = parser.parse_args(arguments)
    for name in options.pairs:
        if name not in PAIRS:
            parser.error(f"{name!r} is unknown (known: {', '.join(PAIRS)})")
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data {options.data}: there is no such folder")
    if options.report and find_spec("matplotlib") is None:
        parser.error("--report: draws with matplotlib, which is not installed (pip install 'rl-training[plot]')")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        print(listing())
        return 0
    if options.data is not None:
        os.environ[DATA_VARIABLE] = str(options.data.resolve())
    names = options.pairs or list(PAIRS)
    if options.report:
        curves = collect(names, options.out)
        if not curves:
            say(f"there is no result in {options.out}")
            return 1
        print(report(curves, options.to))
        return 0
    runs = seeds_to_train(names, options.seeds, options.out, refresh=options.refresh)
    failed = train_all(runs, options.out, options.jobs)
    results = compare(collect(names, options.out))
    if results:
        print(comparison_table(PAIRS, results), details_table(PAIRS, results), sep="\n\n")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
