"""Runs in processes of this machine."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from rl_training.runtime.jobs.job import ENDINGS, Job, Word, packed, unpacked
from rl_training.runtime.progress import Meter
from rl_training.runtime.signals import be_led
from rl_training.runtime.spawning import Leash, Spawned
from rl_training.runtime.train import Interrupted
from rl_training.types import UserError

_LOG = logging.getLogger("rl_training")
_STOP = "stop"


class RunProcess:
    """The process of one run, seen from the one that started it."""

    def __init__(self, name: str, carried: bytes, level: int) -> None:
        # Not a daemon: environments and workers may need processes of their own.
        method = multiprocessing.get_start_method(allow_none=True)
        self._spawned = Spawned(_do, (level, method), name, daemon=False)
        self.pipe = self._spawned.pipe
        with suppress(OSError):  # it is gone already, which `words` says
            self.pipe.send_bytes(carried)
        self.ready = False

    @property
    def gone(self) -> bool:
        return self._spawned.process.exitcode is not None

    def words(self) -> list[Word]:
        """What it has said since the last call; nothing comes after an ending."""
        # Asked for first: what a process that is gone has said is in the pipe by then. Its pipe alone would not do,
        # which processes that an environment has forked may hold open.
        gone, words = self.gone, []
        try:
            while self.pipe.poll():
                words.append(self.pipe.recv())
                self.ready = True
        except (EOFError, OSError):
            gone = True
        if gone and not (words and words[-1].kind in ENDINGS):
            words.append(Word("lost", f"its process {self._spawned.ended()}"))
        return words

    def stop(self) -> None:
        self._spawned.say(_STOP)

    def leave(self) -> None:
        self._spawned.leave()

    def end(self) -> None:
        self._spawned.end()


class Processes:
    """Every job in a process of its own."""

    def __init__(self) -> None:
        self._running: dict[int, RunProcess] = {}
        self._leaving: list[RunProcess] = []  # they have said all, and need a moment to end
        self._unheard: list[tuple[int, Word]] = []

    def start(self, number: int, job: Job) -> None:
        self._running[number] = RunProcess(job.name, packed(job), _LOG.getEffectiveLevel())

    def wait(self, seconds: float) -> list[tuple[int, Word]]:
        wait([process.pipe for process in self._running.values()], seconds)
        heard, self._unheard = self._unheard, []
        heard += [(number, word) for number, process in self._running.items() for word in process.words()]
        for number, word in heard:
            if word.kind in ENDINGS and number in self._running:
                self._leaving.append(self._running.pop(number))
        for process in [process for process in self._leaving if process.gone]:
            self._leaving.remove(process)
            process.end()
        return heard

    def stop(self) -> None:
        for number, process in list(self._running.items()):
            process.stop()
            if not process.ready:  # it still imports, and has nothing to save
                self._running.pop(number).end()
                self._unheard.append((number, Word("unbegun")))

    def close(self) -> None:
        while self._running:
            self._running.popitem()[1].end()
        while self._leaving:
            self._leaving.pop().leave()


# In the process of the run.


class _Voice(logging.Handler):
    """Speaks through the pipe, for several threads; log lines too."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe, self._turn = pipe, threading.Lock()

    def say(self, kind: str, value: Any = None) -> None:
        with self._turn, suppress(OSError):  # the other is gone, and this process ends with it
            self._pipe.send(Word(kind, value))

    def emit(self, record: logging.LogRecord) -> None:
        self.say("logged", (record.levelno, self.format(record)))


def _do(pipe: Connection, leash: Leash, level: int, method: str | None) -> None:
    """Do a job, and say how it ended."""
    told = be_led()
    leash.hold(lambda word: told.set())
    # A spawned process would spawn those of its environments too, and each of them imports everything.
    multiprocessing.set_start_method(method, force=True)
    voice = _Voice(pipe)
    _LOG.addHandler(voice)
    _LOG.setLevel(level)
    _LOG.propagate = False
    try:
        job = unpacked(pipe)
        voice.say("ready")
        if told.is_set():
            voice.say("unbegun")
        else:
            voice.say("done", job.do([Meter(lambda reading: voice.say("told", reading))]))
    except Interrupted as stop:
        voice.say("interrupted", stop.result)
    except UserError as error:
        voice.say("refused", str(error))
    except Exception as error:
        # Not the error itself: not every one can be sent, and its class may be known here only.
        voice.say("failed", (f"{type(error).__name__}: {error}", traceback.format_exc()))
