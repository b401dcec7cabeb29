"""The processes that kills.py kills: each trains or resumes one run, and says in a shared file what it is doing.

As a program this file is the server that forks them: `python kill_runs.py SRC CASE...`. It has loaded everything that
the cases need, so that a process starts within milliseconds. It reads orders from its standard input, one process each,
{"folder": PATH, "settings": {...}, "run": PATH | null}, and answers with two lines: its id, and its exit code; an
empty line says that this was read.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from bit_records import needed_module
from kill_cases import CASES
from sides import check_source

# What a process is doing. `starting` ends with the first step, `ending` begins after the last checkpoint.
PHASES = ("starting", "stepping", "evaluating", "saving", "ending")
STARTING, STEPPING, EVALUATING, SAVING, ENDING = PHASES
# Exit codes beside 0 (the run is complete) and 1 (a traceback).
MISTAKE, ENDED_BEFORE, INTERRUPTED = 2, 3, 130
_HAS_ENDED = "this run has ended"  # how `resume_training` refuses a run that is complete
RUNS, WORDS, NOTES, PROGRESS, TEMPORARY, STATE = "runs", "words.txt", "notes.json", "progress", "tmp", "state"
_NUMBERS = 1 + len(PHASES)


class Progress:
    """The phase of a process, and how often it has entered each: a file that two processes map into memory."""

    def __init__(self, file: Path, *, new: bool = False) -> None:
        if new:
            file.write_bytes(bytes(8 * _NUMBERS))
        with file.open("r+b") as opened:
            self._numbers = memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")

    @property
    def phase(self) -> str:
        return PHASES[self._numbers[0]]

    def entered(self, phase: str) -> int:
        return self._numbers[1 + PHASES.index(phase)]

    def enter(self, phase: str) -> None:
        self._numbers[1 + PHASES.index(phase)] += 1
        self.back_to(phase)

    def back_to(self, phase: str) -> None:
        self._numbers[0] = PHASES.index(phase)


@dataclass
class Watch:
    """Follows a run through its phases, and measures how long each lasts."""

    progress: Progress
    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    saved: list[int] = field(default_factory=lambda: [0])  # the steps of checkpoints
    _since: float = field(default_factory=time.monotonic)

    def enter(self, phase: str, back_to: bool = False) -> None:
        now = time.monotonic()
        self.seconds[self.progress.phase].append(now - self._since)
        self._since = now
        (self.progress.back_to if back_to else self.progress.enter)(phase)

    def install(self) -> None:
        """Wrap the methods between which the phases change."""
        from rl_training.runtime.checkpoints.archive import Archive
        from rl_training.runtime.run import Run

        advance, save, notify = Run.advance, Archive.save, Run.notify

        def watched_advance(run: Run) -> None:
            self.enter(STEPPING)
            advance(run)

        def watched_save(archive: Archive, run: Run) -> Path | None:
            self.saved.append(run.steps)
            return save(archive, run)

        def watched_notify(run: Run, hook: str, *arguments: Any) -> None:
            notify(run, hook, *arguments)
            if hook == "on_end":
                self.enter(ENDING)

        self.progress.enter(STARTING)
        for owner, name, method in (
            (Run, "advance", watched_advance),
            (Run, "evaluate", self._within(EVALUATING, Run.evaluate)),
            (Archive, "save", self._within(SAVING, watched_save)),
            (Run, "notify", watched_notify),
        ):
            setattr(owner, name, method)

    def _within(self, phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            before = self.progress.phase
            self.enter(phase)
            try:
                return method(*arguments, **options)
            finally:
                self.enter(before, back_to=True)

        return call

    def write(self, file: Path) -> None:
        self.enter(ENDING)
        file.write_text(json.dumps({"seconds": self.seconds, "saved": sorted(set(self.saved))}))


def work(folder: Path, settings: dict[str, Any], run: str | None) -> int:
    """Train the settings in a folder, or resume a run there; gives the exit code.

    What it prints goes to a file, its phases to another. It is in a session of its own, by which the processes that it
    starts can be found.
    """
    os.setsid()
    os.chdir(folder)
    os.environ.update(XDG_STATE_HOME=str(folder / STATE), TMPDIR=str(folder / TEMPORARY))
    words = os.open(WORDS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream, file in enumerate((os.open(os.devnull, os.O_RDONLY), words, words)):
        os.dup2(file, stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    watch = Watch(Progress(folder / PROGRESS))
    watch.install()
    return _outcome(watch, settings, run)


def _outcome(watch: Watch, settings: dict[str, Any], run: str | None) -> int:
    from rl_training import resume_training, train
    from rl_training.types import UserError

    try:
        train(settings) if run is None else resume_training(run)
    except UserError as error:
        print(error, flush=True)
        return ENDED_BEFORE if _HAS_ENDED in str(error) else MISTAKE
    except KeyboardInterrupt:
        return INTERRUPTED
    watch.write(Path(NOTES))
    return 0


def warm_up(names: Sequence[str]) -> None:
    """Load what the runs of some cases need: the package, their environments, the registries of the compiler."""
    import numba

    import rl_training.runtime.workflows
    from rl_training.experiment.references import resolve_reference
    from rl_training.experiment.registry import load_spec
    from rl_training.runtime.loops import LOOPS

    assert rl_training.runtime.workflows is not None
    for case in (CASES[name] for name in names):
        resolve_reference(LOOPS[load_spec(case.settings["algo"]).family], key="family")
        module = needed_module(case.worlds)
        if module is not None:
            import_module(module)
    numba.njit(lambda value: value)(1.0)


def _leave(code: int) -> NoReturn:
    """End a process with all that is registered for its end, but without tidying up the memory of the server."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def serve(src: str, names: Sequence[str]) -> None:
    """The server: a process for every order, one after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # kills.py ends it
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    check_source(src)
    warm_up(names)
    gc.freeze()  # or the first collection of every process would copy all that was loaded
    for line in sys.stdin:
        order = json.loads(line)
        process = os.fork()
        if process == 0:
            replies.close()
            _leave(work(Path(order["folder"]), order["settings"], order["run"]))
        print(process, file=replies, flush=True)
        # It keeps its id until kills.py has been told that it has ended, and will not signal it any more.
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        print(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status, file=replies, flush=True)
        sys.stdin.readline()
        os.waitpid(process, 0)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
