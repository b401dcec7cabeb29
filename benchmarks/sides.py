"""One side of a work in a process of its own, which trains a slice whenever it is asked to.

Parent and child talk in lines: a count goes to the child's standard input, what the slice took comes back as JSON from
its standard output. As a program this file is the child: `python sides.py WORK SIDE THREADS`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from summary import Slice
from trainers import Advance
from works import WORKS

# What libraries read when they are loaded; the last is JAX's, whose pool is otherwise as large as the machine.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")


class SideFailed(Exception):
    """A child ended before it was asked to."""


class Side:
    """The parent's end. It is a context: leaving it ends the child.

    The child stands in a folder of its own, for libraries that write logs where they are started, and speaks into a
    file there: what it said is only shown if it fails.
    """

    def __init__(self, work: str, name: str, threads: int, folder: Path) -> None:
        self.name = name
        self._words = folder / "words.txt"
        with self._words.open("w") as words:
            self._child = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), work, name, str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                cwd=folder,
                env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads)),
            )

    def advance(self, count: int) -> Slice:
        """Let the child train and wait for it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            print(count, file=self._child.stdin, flush=True)
            reply = self._child.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            code = self._child.wait()
            raise SideFailed(f"{self.name} ended with exit code {code}; it said:\n{self._words.read_text().strip()}")
        return Slice(**json.loads(reply))

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._child.kill()
        # The end of its input is where the child ends by itself.
        self._child.communicate()


def train_slice(advance: Advance, count: int) -> Slice:
    """Train, and say what it took; the CPU seconds are those of all threads of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    done = advance(count)
    return Slice(done, time.perf_counter() - wall, time.process_time() - cpu, peak_memory())


def peak_memory() -> int:
    """The most bytes that this process has held at once.

    On Linux a process starts with the peak of the one that started it: the parent must import nothing heavy.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def serve(work: str, name: str, threads: str) -> None:
    """The child: build a side, then train a slice for every line that comes in."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not end up among the replies
    advance = WORKS[work].build(name, int(threads))
    for line in sys.stdin:
        print(json.dumps(asdict(train_slice(advance, int(line)))), file=replies, flush=True)


if __name__ == "__main__":
    try:
        serve(*sys.argv[1:])
    except KeyboardInterrupt:  # the terminal tells the parent too
        sys.exit(130)
