"""Chains of kills.py: one run in several processes, each of which is killed at a moment that is drawn beforehand."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from kill_cases import Case
from kill_findings import Whole, differences, hidden_in, left_over, pointed, runs_in, shared_memory
from kill_runs import (
    ENDED_BEFORE,
    ENDING,
    EVALUATING,
    INTERRUPTED,
    NOTES,
    PROGRESS,
    SAVING,
    STARTING,
    STEPPING,
    TEMPORARY,
    WORDS,
    Progress,
)
from sides import child_environment

_MOST_KILLS = 4  # of a chain; then its run may end
_TIME_LIMIT = 900.0  # seconds of a process, and of its end after a signal; far more than it needs on a busy machine
_GLANCE = 0.0005  # seconds between two looks at a process

# The phase in which a process is killed, and whether as soon as a draft is on the disk; and how often.
_WHERE: Mapping[tuple[str, bool], int] = {
    (STARTING, False): 15,
    (STARTING, True): 10,
    (STEPPING, False): 25,
    (EVALUATING, False): 15,
    (SAVING, False): 12,
    (SAVING, True): 15,
    (ENDING, False): 8,
}
_SIGNALS: Mapping[tuple[signal.Signals, ...], int] = {
    (signal.SIGKILL,): 80,
    (signal.SIGTERM,): 6,
    (signal.SIGINT,): 6,
    (signal.SIGTERM, signal.SIGTERM): 3,
    (signal.SIGINT, signal.SIGINT): 3,
    (signal.SIGTERM, signal.SIGKILL): 2,
}


@dataclass(frozen=True)
class Moment:
    """When a process is killed: after it has entered a phase for the n-th time. And how: by which signals."""

    phase: str
    entry: int
    delay: float  # seconds after that
    draft: bool  # or as soon as a draft is on the disk
    signals: tuple[int, ...]
    gap: float  # seconds between two signals
    group: bool  # as a terminal does it: the processes of environments get the signals too

    @classmethod
    def draw(cls, chance: random.Random, seconds: Mapping[str, Sequence[float]]) -> Moment:
        """A moment that comes in the earlier half of a run whose phases last so long."""
        (phase, draft), signals = (_drawn(chance, table) for table in (_WHERE, _SIGNALS))
        lengths = seconds[phase]
        return cls(
            phase,
            entry=chance.randint(1, max(1, len(lengths) // 2)),
            delay=chance.uniform(0.0, 1.2 * statistics.median(lengths)),
            draft=draft,
            signals=tuple(map(int, signals)),
            gap=chance.uniform(0.0, 0.05),
            group=signal.SIGINT in signals and chance.random() < 0.5,
        )


def _drawn(chance: random.Random, table: Mapping[Any, int]) -> Any:
    return chance.choices(list(table), list(table.values()))[0]


@dataclass
class Chain:
    """What became of a run that was killed again and again."""

    case: str
    number: int
    kills: list[dict[str, Any]] = field(default_factory=list)
    unresumable: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def findings(self) -> list[str]:
        return [*self.unresumable, *self.differences, *self.left_over]


class Stuck(RuntimeError):
    """A process that does not end."""


class Server:
    """The server that forks processes, one at a time. It is a context manager: leaving it ends the server."""

    def __init__(self, src: Path, names: Sequence[str], folder: Path) -> None:
        script = Path(__file__).resolve().with_name("kill_runs.py")
        self._words = folder / WORDS
        with self._words.open("w") as words:
            self._server = subprocess.Popen(
                [sys.executable, str(script), str(src), *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                bufsize=0,  # a reply is either in the pipe or read
                cwd=folder,
                env=child_environment(1, str(src)),
                start_new_session=True,
            )
        self.process = 0  # the id of the present one

    def start(self, folder: Path, settings: Mapping[str, Any], run: Path | None) -> Progress:
        """Start a process in a folder, which trains or resumes."""
        (folder / TEMPORARY).mkdir(parents=True, exist_ok=True)
        progress = Progress(folder / PROGRESS, new=True)
        order = {"folder": str(folder), "settings": settings, "run": None if run is None else str(run)}
        self._say(json.dumps(order))
        self.process = self._reply()
        return progress

    def ended(self, seconds: float) -> bool:
        """Whether the process has ended, or does so within some seconds."""
        assert self._server.stdout is not None
        return bool(select.select([self._server.stdout], [], [], seconds)[0])

    def exit_code(self) -> int:
        """Wait for the end of the process; a negative code is the signal that ended it."""
        stuck = not self.ended(_TIME_LIMIT)
        if stuck:
            os.kill(self.process, signal.SIGKILL)
        code, self.process = self._reply(), 0
        self._say("")
        if stuck:
            raise Stuck(f"did not end within {_TIME_LIMIT:g} seconds")
        return code

    def _say(self, line: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{line}\n".encode())

    def _reply(self) -> int:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise RuntimeError(f"the server of processes ended: {self._words.read_text().strip()}")
        return int(line)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process:
            os.kill(self.process, signal.SIGKILL)
        self._server.communicate()


def train_whole(server: Server, case: Case, folder: Path) -> tuple[Whole, dict[str, Any]]:
    """The run of a case that is never killed, and its settings."""
    settings = dict(case.settings)
    if case.before is not None:
        settings["start_from"] = str(_train(server, case.before, folder / "before"))
    run = _train(server, settings, folder / "whole")
    return Whole.read(run, json.loads((folder / "whole" / NOTES).read_text())), settings


def _train(server: Server, settings: Mapping[str, Any], folder: Path) -> Path:
    server.start(folder, settings, None)
    code = server.exit_code()
    if code != 0:
        raise RuntimeError(f"ended with {code}: {_words(folder)}")
    return runs_in(folder)[0]


def _words(folder: Path) -> str:
    """The last line that a process said."""
    return (folder / WORDS).read_text().strip().rpartition("\n")[2]


class Killer:
    """Drives one chain of processes."""

    def __init__(self, server: Server, whole: Whole, settings: Mapping[str, Any], folder: Path, chain: Chain) -> None:
        self._server, self._whole, self._settings, self._folder = server, whole, settings, folder
        self.chain = chain
        self._sessions: set[int] = set()
        self._extra: set[int] = set()  # the steps at which a signal stopped it
        self._shared = shared_memory()

    def run(self, chance: random.Random) -> None:
        """Kill and resume until the run has ended, and compare it."""
        began = time.monotonic()
        try:
            code = self._kill_again_and_again(chance)
        except Stuck as stuck:
            self.chain.unresumable.append(str(stuck))
        else:
            if code in (0, ENDED_BEFORE):
                self._compare(concluded=code == 0)
            else:
                self.chain.unresumable.append(f"ended with {code}: {_words(self._folder)}")
        self.chain.left_over += left_over(self._whole, self._folder, self._run, self._sessions, self._shared)
        self.chain.seconds = round(time.monotonic() - began, 2)

    @property
    def _run(self) -> Path | None:
        """The run, once it can be seen."""
        return next(iter(runs_in(self._folder)), None)

    def _compare(self, *, concluded: bool) -> None:
        run = self._run
        assert run is not None
        try:
            found = differences(self._whole, run, self._extra, concluded=concluded)
        except Exception as error:  # a damaged file may be anything
            found = [f"cannot be compared: {type(error).__name__}: {error}"]
        self.chain.differences += found

    def _kill_again_and_again(self, chance: random.Random) -> int:
        """The exit code of the process that was not killed."""
        for _ in range(_MOST_KILLS):
            saved = self._latest()
            moment = Moment.draw(chance, self._whole.seconds)
            code, how = self._kill_one(moment)
            if how is None or code in (0, ENDED_BEFORE):
                return code
            self.chain.kills.append(how)
            if not _is_due_to(moment, code):
                return code
            reached = self._latest()
            if saved is not None and (reached is None or reached < saved):
                self.chain.unresumable.append(f"step {saved} was saved, and then the latest was {reached}")
            if code == INTERRUPTED and reached is not None:
                self._extra.add(reached)
        self._start()
        return self._server.exit_code()

    def _latest(self) -> int | None:
        return None if self._run is None else pointed(self._run, "latest")

    def _start(self) -> Progress:
        """Start a process that resumes the run; if there is none yet, it begins anew."""
        progress = self._server.start(self._folder, self._settings, self._run)
        self._sessions.add(self._server.process)
        return progress

    def _kill_one(self, moment: Moment) -> tuple[int, dict[str, Any] | None]:
        """The exit code of a process, and how it was killed; nothing if it ended before the moment came."""
        left, resumed = hidden_in(self._folder), self._run is not None
        progress = self._start()
        if not self._wait(progress, moment, left):
            return self._server.exit_code(), None
        process = self._server.process
        for number, name in enumerate(moment.signals):
            if number > 0 and self._server.ended(moment.gap):
                break
            (os.killpg if moment.group else os.kill)(process, name)
        code = self._server.exit_code()
        drafts = sorted(path.name for path in hidden_in(self._folder) - left)
        return code, asdict(moment) | {"during": progress.phase, "drafts": drafts, "code": code, "resumed": resumed}

    def _wait(self, progress: Progress, moment: Moment, left: set[Path]) -> bool:
        """Until the moment has come; says whether it came before the process ended."""
        come: float | None = None
        give_up = time.monotonic() + _TIME_LIMIT
        while not self._server.ended(_GLANCE):
            now = time.monotonic()
            if now > give_up:
                return False
            entered = progress.entered(moment.phase)
            if come is None and entered >= moment.entry:
                come = now
            if come is None:
                continue
            if not moment.draft:
                if now - come >= moment.delay:
                    return True
            # Where no draft appears, the end of the phase is the moment.
            elif entered > moment.entry or progress.phase != moment.phase or hidden_in(self._folder) - left:
                return True
        return False


def _is_due_to(moment: Moment, code: int) -> bool:
    """Whether a process ended as it may after these signals."""
    asked = moment.signals[0] != signal.SIGKILL
    return code in {-number for number in moment.signals} or (asked and code == INTERRUPTED)
