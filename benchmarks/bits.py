"""Check that a change keeps training bit-identical: `python benchmarks/bits.py OLD_SRC NEW_SRC`.

Every case of bit_cases.py is trained with the package of both source folders, and all results are compared: weights,
optimisers, counters, random streams, replay, environments, metrics and an evaluation.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, NamedTuple

from bit_cases import CARTPOLE_FILE, CASES, LANDER_FILE, chosen, find_case, preset_case
from sides import child_environment

Record = dict[str, Any]  # what bit_records.py answers for a case, and `case`: which case that was
Records = dict[str, Record]

_SHOWN_PATHS, _SHOWN_ADDED = 5, 15
_PARTS = r"((?:before/|after/)?)"  # a resumed case has two snapshots


class Rule(NamedTuple):
    """The new place of an old path that the new code does not have."""

    old: str  # a regular expression for the whole path
    new: str | None  # where it is now; None if it was dropped on purpose
    values: tuple[str, ...] | None = None  # only if it had one of these


RULES = (
    # A run without environments has no actor; it used to write an empty state in the form of a collector's.
    Rule(rf"{_PARTS}envs/(steps|raw|keeper)", None, ("0", "[]", "{}")),
    # The recurrent state between rollouts belongs to the actor that steps the episodes.
    Rule(rf"{_PARTS}state/parts/episodes/carry(.*)", r"\1envs/actor/carry\2"),
    # The former name of GAIL's discriminator.
    Rule(rf"{_PARTS}state/algorithm/judge/(.*)", r"\1state/algorithm/discriminator/\2"),
    # The state of environments is a mapping by the names of actors, of which a run has one.
    Rule(rf"{_PARTS}envs/(.+)", r"\1envs/actor/\2"),
)


def renamed(path: str, value: str) -> str | None:
    """The new path by the first rule that matches; the path itself if none does, None if it was dropped."""
    for rule in RULES:
        match = re.fullmatch(rule.old, path)
        if match and (rule.values is None or value in rule.values):
            return None if rule.new is None else match.expand(rule.new)
    return path


@dataclass
class Comparison:
    """How the new record of a case differs from the old one."""

    changed: list[str] = field(default_factory=list)  # a line for each path
    added: list[str] = field(default_factory=list)  # paths that only the new record has

    def fails(self, strict: bool) -> bool:
        return bool(self.changed or (strict and self.added))


def compare(old: Record, new: Record) -> Comparison:
    """Compare path by path; rules apply to old paths that the new record does not have under their own name."""
    for side, record in (("old", old), ("new", new)):
        if "values" not in record:
            return Comparison([f"{side}: {record.get('error') or record.get('skipped')}"])
    found, before, after = Comparison(), old["values"], new["values"]
    seen = set()
    for path, value in before.items():
        now = path if path in after else renamed(path, value)
        if now is None:
            continue
        seen.add(now)
        where = path if now == path else f"{path} -> {now}"
        if now not in after:
            found.changed.append(f"{where}: is gone (was {value})")
        elif after[now] != value:
            found.changed.append(f"{where}: {value} became {after[now]}")
    found.added = [path for path in after if path not in seen]
    return found


def report(old: Records, new: Records, names: Sequence[str], strict: bool) -> tuple[str, bool]:
    """The result as text, and whether there are no differences."""
    skipped = {name: new[name]["skipped"] for name in names if "skipped" in old[name] and "skipped" in new[name]}
    results = {name: compare(old[name], new[name]) for name in names if name not in skipped}
    failed = {name: result for name, result in results.items() if result.fails(strict)}
    lines = [f"{len(results)} cases compared: {len(results) - len(failed)} equal, {len(failed)} differ"]
    lines += [f"{name}: was not run: {reason}" for name, reason in skipped.items()]
    alike: dict[tuple[str, ...], list[str]] = {}  # cases with the same differences are shown together
    for name, result in failed.items():
        differences = result.changed + [f"{path}: is new" for path in result.added if strict]
        shown = [f"  {line}" for line in differences[:_SHOWN_PATHS]]
        more = [f"  and {len(differences) - len(shown)} more"] if len(differences) > len(shown) else []
        alike.setdefault((*shown, *more), []).append(name)
    for shown_lines, cases in alike.items():
        lines += [", ".join(cases), *shown_lines]
    added = Counter(re.sub(r"^(before|after)/", "", path) for result in results.values() for path in result.added)
    lines += [f"new: {path} ({count} times)" for path, count in added.most_common(_SHOWN_ADDED)]
    if len(added) > _SHOWN_ADDED:
        lines.append(f"new: {len(added) - _SHOWN_ADDED} paths more")
    return "\n".join(lines), not failed


def preset_progress(records: Records, names: Iterable[str]) -> str:
    """The steps of each preset before its evaluation."""
    lines = []
    for name in names:
        record = records[name]
        if "values" in record:
            evaluated = record["values"].get("evaluation/eval_return_mean", "?")
            done = f"{record['steps']:,} loop steps to {record['clock']:,} on its clock"
            lines.append(f"{name}: {done}, return {evaluated}, {record['cpu']:.1f} CPU seconds")
    return "\n".join(lines)


def make_datasets(folder: Path) -> None:
    """Random actions in two environments, as files of transitions."""
    import gymnasium as gym
    import numpy as np

    for file, env_id, arguments in (
        (LANDER_FILE, "LunarLander-v3", {"continuous": True}),
        (CARTPOLE_FILE, "CartPole-v1", {}),
    ):
        try:
            env = gym.make(env_id, max_episode_steps=60, **arguments)
        except gym.error.DependencyNotInstalled:  # the cases that need it are not run
            continue
        env.action_space.seed(0)
        rows: list[tuple[Any, ...]] = []
        for episode in range(8):
            obs, done = env.reset(seed=episode)[0], False
            while not done:
                action = env.action_space.sample()
                next_obs, reward, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
                rows.append((obs, action, np.float32(reward), next_obs, terminated, truncated))
                obs = next_obs
        env.close()
        names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
        columns = zip(names, zip(*rows, strict=True), strict=True)
        arrays: dict[str, Any] = {name: np.stack(column) for name, column in columns}
        np.savez(folder / file, **arrays)


class Child:
    """A process that trains cases with the package of a source folder, in a folder of its own."""

    def __init__(self, src: Path, folder: Path, seconds: float) -> None:
        self._words = folder / "words.txt"
        script = Path(__file__).resolve().with_name("bit_records.py")
        with self._words.open("w") as words:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(src.resolve()), str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                cwd=folder,
                env=child_environment(1, str(src.resolve())),
            )

    def ask(self, order: Mapping[str, Any]) -> Any:
        """Its answer; None if it died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            reply = self._process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply and self._process.wait() in (130, -signal.SIGINT):
            raise KeyboardInterrupt  # the terminal has interrupted the child too
        return json.loads(reply) if reply else None

    def last_words(self) -> str:
        self.close()
        return f"the process ended with exit code {self._process.returncode}; {self._words.read_text().strip()}"

    def close(self) -> None:
        self._process.communicate()


def presets_of(src: Path) -> list[str]:
    """The case of every preset of a package."""
    with TemporaryDirectory() as folder:
        child = Child(src, Path(folder), 0.0)
        names = child.ask({"presets": True})
        if names is None:
            sys.exit(f"bits.py: {src}: {child.last_words()}")
        child.close()
    return [preset_case(name).name for name in names]


@dataclass(frozen=True)
class Side:
    """How one side is recorded."""

    name: str
    src: Path
    jobs: int
    seconds: float

    def record(self, steps: Mapping[str, int | None]) -> Records:
        """Every case of `steps`, with so many loop steps (as many as the limit allows, if None), in some processes."""
        waiting, records, lock = list(steps), dict[str, Record](), Lock()
        with TemporaryDirectory() as folder:
            data = Path(folder, "data")
            data.mkdir()
            if waiting:
                make_datasets(data)

            def work(number: int) -> None:
                own = Path(folder, str(number))
                shutil.copytree(data, own)
                child = Child(self.src, own, self.seconds)
                while True:
                    with lock:
                        if not waiting:
                            break
                        name = waiting.pop(0)
                    answer = child.ask({"case": name, "steps": steps[name]})
                    if answer is None:  # the next case gets a new process
                        answer = {"error": child.last_words()}
                        child = Child(self.src, own, self.seconds)
                    with lock:
                        records[name] = answer | {"case": repr(find_case(name))}
                        _say(f"{self.name}: {len(records)} of {len(steps)}: {name}")
                child.close()

            with ThreadPoolExecutor(self.jobs) as pool:
                list(pool.map(work, range(min(self.jobs, len(steps)))))
        return records


def _say(words: str) -> None:
    """Print progress to standard error, on one line."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"\033[K{words}" if end == "\r" else words, file=sys.stderr, end=end, flush=True)


def fingerprint(src: Path) -> dict[str, str]:
    """Hashes of what a record depends on: the code, and the numerical libraries."""
    code = hashlib.sha1()
    for file in sorted(path for path in src.rglob("*") if path.suffix in (".py", ".yaml", ".npz")):
        code.update(f"{file.relative_to(src)}\0".encode())
        code.update(file.read_bytes())
    return {"code": code.hexdigest()} | {name: version(name) for name in ("torch", "numpy", "gymnasium", "numba")}


def read_records(file: Path | None, src: Path) -> Records:
    """The records of a file that an earlier run wrote, of the cases that have not changed since."""
    if file is None or not file.exists():
        return {}
    try:
        content = json.loads(file.read_text())
        before, records = dict(content["fingerprint"]), dict(content["records"])
    except (ValueError, KeyError, TypeError):
        sys.exit(f"bits.py: --old-record {file}: was not written by bits.py; name another file")
    now = fingerprint(src)
    changed = sorted(name for name in now if before.get(name) != now[name])
    if changed:
        sys.exit(f"bits.py: --old-record {file}: was made with another {changed[0]}; delete it to record {src} again")
    return {
        name: record
        for name, record in records.items()
        if (name in CASES or name.startswith("preset/")) and record["case"] == repr(find_case(name))
    }


def old_records(options: argparse.Namespace, names: Sequence[str]) -> Records:
    """The records of the old side, from its file as far as possible; missing cases are run and added to the file."""
    known = read_records(options.old_record, options.old)
    missing: dict[str, int | None] = {name: None for name in names if name not in known}
    fresh = Side("old", options.old, options.jobs, options.seconds).record(missing)
    records = known | fresh
    if options.old_record is not None and fresh:
        content = {"fingerprint": fingerprint(options.old), "records": records}
        options.old_record.write_text(json.dumps(content, indent=0) + "\n")
    return records


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a mistake ends the program here, with one line and exit code 2."""
    parser = argparse.ArgumentParser(description="Compare what two versions of the package compute, to the bit.")
    parser.add_argument("old", type=Path, metavar="OLD_SRC", help="the src folder of one checkout")
    parser.add_argument("new", type=Path, metavar="NEW_SRC", help="the src folder of another")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="some cases: ppo, ppo/sde, 'resume/*' (all)")
    parser.add_argument("--presets", action="store_true", help="every preset up to its first evaluation, not the cases")
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU seconds for each preset, at most (10)")
    parser.add_argument("--old-record", type=Path, metavar="FILE", help="keep the old side here, or take it from here")
    parser.add_argument("--strict", action="store_true", help="paths that only the new side has count as differences")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--list", action="store_true", help="name the cases and do nothing")
    options = parser.parse_args(arguments)
    for src in (options.old, options.new):
        if not (src / "rl_training").is_dir():
            parser.error(f"{src}: holds no rl_training; give the src folder of a checkout")
    if options.old_record is not None and not options.old_record.absolute().parent.is_dir():
        parser.error(f"--old-record {options.old_record}: there is no such folder")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    every = presets_of(options.old) if options.presets else list(CASES)
    names = chosen(every, options.cases)
    if not names:
        sys.exit(f"bits.py: --cases {' '.join(options.cases)}: no case has such a name; --list names all")
    if options.list:
        print("\n".join(names))
        return 0
    old = old_records(options, names)
    # A preset makes as many loop steps as it made on the old side, however fast the new one is.
    steps = {name: old[name].get("steps") for name in names}
    new = Side("new", options.new, options.jobs, options.seconds).record(steps)
    if options.presets:
        print(preset_progress(new, names))
    words, well = report(old, new, names, options.strict)
    print(words)
    return 0 if well else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
