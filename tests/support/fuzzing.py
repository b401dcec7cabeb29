"""Fuzzing of files: what is damaged, who reads it then, and what may come of it.

A probe damages one file in a copy of a target, lets a door of the package read it, and gives a verdict. The rule of the
file at that door says what is legitimate:

- `checked`: it has a checksum that this door compares. Any change must be refused.
- `described`: the same for a `meta.json`; but without one a folder is no checkpoint, as if it had never been written.
  Then the one before is taken, and a warning says so.
- `kept`: this door does not need it. The outcome must be the same as ever, unless the name itself is unusable.
- `pointer`: the same, or a warning, since it may name another checkpoint that is whole.
- `equal`: refused, or the same outcome as ever.
- `none`: the door is of no interest for it.
- `open`: the format has no checksum, so what can still be read is what it says. It must only end in one line or none.
"""

from __future__ import annotations

import io
import itertools
import logging
import signal
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from damage import PLAIN, Damage, contents, forgeries, fresh_copy
from rl_training.cli import cli
from rl_training.types import UserError
from run_helpers import differences

_SECONDS = 20
Rule = Callable[[str], str]


class Complaint(UserError):
    """What a command found and said with exit code 1."""


class Hung(BaseException):
    """A door that did not come back."""


@dataclass(frozen=True)
class Door:
    """A part of the package that reads a target's folder and returns what can be compared."""

    name: str
    read: Callable[[Path], Any]
    rule: Rule
    share: float = 1.0  # how often it is drawn; less if it takes long


@dataclass(frozen=True)
class Target:
    """A folder that is only read; `forged` are the files whose contents are forged behind valid checksums."""

    name: str
    folder: Path
    doors: Sequence[Door]
    forged: Sequence[str] = ()

    @property
    def files(self) -> list[str]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in found)


class Probe(NamedTuple):
    """Enough to do the same again."""

    target: str
    file: str
    damage: str
    door: str
    forged: bool
    number: int


@dataclass
class Verdicts:
    """What came of all probes; `failures` says how to see each of them again."""

    counts: Counter[str] = field(default_factory=Counter)
    files: set[tuple[str, str]] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ("refused", "legitimate", "traceback", "silent", "untidy")
        numbers = ", ".join(f"{self.counts[kind]} {kind}" for kind in kinds)
        return f"{len(self.files)} files, {sum(self.counts.values())} probes: {numbers}"


class Fuzzer:
    """Probes targets; everything that is drawn follows from the seed."""

    def __init__(self, targets: Sequence[Target], scratch: Path, seed: int) -> None:
        self.targets = {target.name: target for target in targets}
        self.scratch, self.seed = scratch, seed
        self.verdicts = Verdicts()
        self._expected: dict[tuple[str, str], Any] = {}
        self._contents: dict[str, dict[str, bytes | None]] = {}
        self._clean: str | None = None  # the target that the copy is equal to

    def run(self, plain: int, forged: int) -> Verdicts:
        """Probe every file of every target `plain` times at least, and `forged` times where it can be forged."""
        for target in self.targets.values():
            for file in target.files:
                self._probe_file(self._drawn(target, file, PLAIN, forged=False), plain)
            for file in target.forged:
                self._probe_file(self._drawn(target, file, forgeries(file), forged=True), forged)
        return self.verdicts

    def _probe_file(self, probes: Iterator[Probe], count: int) -> None:
        """Some damage changes nothing, such as zeros where there were zeros: it does not count."""
        for probe in itertools.islice(probes, 10 * count):
            count -= self.probe(probe) is not None
            if count == 0:
                break

    def _drawn(self, target: Target, file: str, damages: Mapping[str, Damage], *, forged: bool) -> Iterator[Probe]:
        """Every damage in turn, in an order that is drawn, each at a door that is drawn."""
        rng = self._rng(target.name, file, str(forged))
        doors = [door for door in target.doors if door.rule(file) != "none"]
        shares = np.array([door.share for door in doors])
        for number in itertools.count():
            for damage in rng.permutation(list(damages)):
                door = doors[int(rng.choice(len(doors), p=shares / shares.sum()))]
                yield Probe(target.name, file, str(damage), door.name, forged, number)

    def _rng(self, *words: str) -> Generator:
        return np.random.default_rng([self.seed, zlib.crc32("\0".join(words).encode())])

    def probe(self, probe: Probe) -> str | None:
        """Damage one file of a copy, and see what a door makes of it; returns and counts the verdict.

        None if the damage came to nothing.
        """
        target = self.targets[probe.target]
        (door,) = (door for door in target.doors if door.name == probe.door)
        expected = self._outcome(target, door)
        folder, whole = self._copy(target), self._whole(target)
        damages = forgeries(probe.file) if probe.forged else PLAIN
        damages[probe.damage](folder, folder / probe.file, self._rng(*map(str, probe)))
        before = contents(folder)
        rule = "forged" if probe.forged else self._strictest(door, _changed(whole, before), probe)
        if rule == "unchanged":
            return None
        verdict, words = self._judge(door, folder, rule, probe, before, expected)
        if verdict == "refused":
            self._repair(target, _changed(whole, before), probe)
        self.verdicts.counts[verdict] += 1
        self.verdicts.files.add((probe.target, probe.file))
        if verdict not in ("refused", "legitimate"):
            self.verdicts.failures.append(f"{verdict}: seed={self.seed}, {probe}: {words}")
        return verdict

    def _whole(self, target: Target) -> dict[str, bytes | None]:
        if target.name not in self._contents:
            self._contents[target.name] = contents(target.folder)
        return self._contents[target.name]

    def _copy(self, target: Target) -> Path:
        """A copy that is as the target; it is used again if a probe has left it so."""
        if self._clean != target.name:
            fresh_copy(target.folder, self.scratch / "copy")
        self._clean = None
        return self.scratch / "copy"

    def _repair(self, target: Target, changed: list[str], probe: Probe) -> None:
        """Undo the damage of a probe that changed nothing else."""
        if probe.file.endswith(".lock"):
            return
        for name in changed:
            file, content = self.scratch / "copy" / name, self._whole(target)[name]
            if file.is_dir():
                file.rmdir()
            file.write_bytes(content or b"")
        self._clean = target.name

    def _strictest(self, door: Door, changed: list[str], probe: Probe) -> str:
        """The rule for all files that a damage has changed; a swap changes two."""
        if not changed:  # nothing came of it, or only the lock has changed
            return "kept" if probe.file.endswith(".lock") else "unchanged"
        found = {door.rule(name) for name in changed}
        if "described" in found:
            return "said" if probe.damage in ("missing", "a_folder") else "checked"
        return next(rule for rule in ("checked", "open", "equal", "pointer", "kept") if rule in found)

    def _outcome(self, target: Target, door: Door) -> Any:
        """What comes of a folder that nobody damaged."""
        if (target.name, door.name) not in self._expected:
            self._clean = None
            with _quiet():
                found = door.read(fresh_copy(target.folder, self.scratch / "copy"))
            self._expected[target.name, door.name] = found
        return self._expected[target.name, door.name]

    def _judge(
        self, door: Door, folder: Path, rule: str, probe: Probe, before: Mapping[str, Any], expected: Any
    ) -> tuple[str, str]:
        try:
            with _quiet() as warnings:
                found = door.read(folder)
        except UserError as error:
            if rule == "forged" and "training diverged" in str(error):  # it fitted, and was trained with
                return "legitimate", str(error)
            wrong = _flaws_of(str(error), folder, probe, rule)
            if contents(folder) != before:
                wrong.append(f"changed {_changed(before, contents(folder))}")
            return ("untidy", f"{', '.join(wrong)}: {error}") if wrong else ("refused", str(error))
        except Exception:
            return "traceback", traceback.format_exc(limit=-6)
        except Hung:
            return "traceback", f"it was still at work after {_SECONDS} seconds\n{traceback.format_exc(limit=-3)}"
        except BaseException as error:  # a panic of a library, which is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            return "traceback", traceback.format_exc(limit=-6)
        if rule == "checked":
            return "silent", "a damaged file was taken for whole"
        if rule == "said":
            return ("legitimate", "") if warnings else ("silent", "another checkpoint was taken without a word")
        if rule == "pointer" and warnings:
            return "legitimate", ""
        other = [] if rule in ("open", "forged") else differences(expected, found)
        return ("silent", f"another outcome: {other[:3]}") if other else ("legitimate", "")


def _flaws_of(message: str, folder: Path, probe: Probe, rule: str) -> list[str]:
    """What is wrong with a refusal."""
    wrong = []
    if "\n" in message.strip():
        wrong.append("several lines")
    if rule in ("kept", "pointer") and probe.damage != "a_folder":
        wrong.append("refused though it is not needed")
    # A swap damages two files, and what is checked last may be any of them; a missing one may leave no checkpoint.
    exact = rule == "checked" and not probe.damage.startswith(("swapped", "of_another", "missing", "a_folder"))
    if not probe.forged and (Path(probe.file).name if exact else str(folder)) not in message:
        wrong.append("names no file")
    return wrong


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name, 0) != after.get(name, 0))


class _Warnings(logging.Handler):
    """Keeps the warnings of the package."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Show nothing, and do not wait for ever; yields what the package warns of."""

    def late(*_: Any) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_SECONDS)
    log, warnings = logging.getLogger("rl_training"), _Warnings()
    propagates, log.propagate = log.propagate, False
    log.addHandler(warnings)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield warnings.said
    finally:
        log.removeHandler(warnings)
        log.propagate = propagates
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def said_by(*arguments: Any) -> list[str]:
    """The lines that a command of `rl-training` says; a `Complaint` if it ends with exit code 1."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = cli.main([str(argument) for argument in arguments], standalone_mode=False)
    lines = out.getvalue().splitlines()
    if code:
        raise Complaint("; ".join(lines))
    return lines
