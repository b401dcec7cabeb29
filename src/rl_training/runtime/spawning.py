"""Processes that live no longer than the one that starts them, whatever ends it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, NamedTuple

# Seconds in which a process whose pipe is closed must have ended by itself.
_PATIENCE = 5.0
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOK = 0.2  # seconds between two looks for a process, where the kernel does not tell when it ends


class Leash(NamedTuple):
    """What ties a new process to the one that starts it. `lifeline` is closed when that is gone."""

    lifeline: Connection
    bound: bool

    def hold(self, heard: Callable[[Any], None] = lambda word: None) -> None:
        """In the new process, first of all: leave signals to the other, and end when it ends.

        With `bound` the kernel ends this process as soon as the thread that started it is gone. The lifeline does so on
        every system, unless code in another language never lets Python run. `heard` gets what is said on the lifeline.
        """
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if self.bound:
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)

        def watch() -> None:
            with suppress(EOFError, OSError):
                while True:
                    heard(self.lifeline.recv())
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


def end_with(pid: int) -> None:
    """End this process when another one of this machine has ended, which did not start it."""

    def watch() -> None:
        with suppress(OSError):  # it is gone
            if hasattr(os, "pidfd_open"):
                select.select([os.pidfd_open(pid)], [], [])
            else:
                while True:
                    os.kill(pid, 0)
                    time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Spawned:
    """A process that calls `target(pipe, leash, *arguments)`, and the pipe's other end.

    A `daemon` cannot start processes of its own.
    """

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...], name: str, *, daemon: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        lifeline, self._lifeline = context.Pipe(duplex=False)
        # A process would die with the thread that started it, so only the main thread's may.
        bound = sys.platform == "linux" and threading.current_thread() is threading.main_thread()
        passed = (theirs, Leash(lifeline, bound), *arguments)
        self.process = context.Process(target=target, args=passed, name=name, daemon=daemon)
        with _without_main(), _without_signals():
            self.process.start()
        theirs.close()
        lifeline.close()

    def say(self, word: Any) -> None:
        """Say something on the lifeline, which is heard whatever the process is doing."""
        with suppress(OSError):  # it is gone, which others notice
            self._lifeline.send(word)

    def leave(self) -> None:
        """Let a process end by itself that has nothing more to do; one that does not is ended."""
        self.process.join(_PATIENCE)
        self.end()

    def ended(self) -> str:
        """How a process ended whose pipe is closed."""
        self.process.join(_PATIENCE)  # its exit code is known a moment later
        code = self.process.exitcode or 0
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self._lifeline.close()


@contextmanager
def _without_main() -> Iterator[None]:
    """A process that is spawned imports the main module again, which would run a user's script: hide it."""
    hidden = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = hidden


@contextmanager
def _without_signals() -> Iterator[None]:
    """A new process is deaf until it holds its leash: Ctrl-C reaches all of a terminal, those that still import too."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would let signals in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
