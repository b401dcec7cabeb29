"""One side of a work in its own process, which trains a slice on request.

Parent and child exchange lines: a count goes to the child's standard input, the slice's time and memory come back as
JSON from its standard output. As a program this file is the child: `python sides.py WORK SIDE THREADS [SRC]`.
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

# Thread settings that libraries read when they are loaded; the last is JAX's, whose pool otherwise uses all cores.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")


class SideFailed(Exception):
    """A child process ended unexpectedly."""


class Side:
    """The parent's handle of a child process. It is a context manager: leaving it ends the child.

    The child runs in its own folder, since some libraries write logs to the working directory. Its output goes to a
    file there, which is only shown if it fails. With `src` it loads the package from that source folder.
    """

    def __init__(self, work: str, name: str, threads: int, folder: Path, src: Path | None = None) -> None:
        self.name = name
        self._words = folder / "words.txt"
        source = [] if src is None else [str(src.resolve())]
        with self._words.open("w") as words:
            self._child = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), work, name, str(threads), *source],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                cwd=folder,
                env=child_environment(threads, *source),
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
        # The child ends at the end of its input.
        self._child.communicate()


def child_environment(threads: int, src: str | None = None) -> dict[str, str]:
    """This process's environment variables, with the number of threads set, and the package from a source folder."""
    source = {} if src is None else {"PYTHONPATH": src}
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)), **source}


def check_source(src: str) -> None:
    """Check that the package is loaded from a source folder, and not from where it is installed."""
    import rl_training

    found = Path(rl_training.__file__).resolve()
    if not found.is_relative_to(Path(src).resolve()):
        sys.exit(f"rl_training was loaded from {found.parent}, not from {src}")


def train_slice(advance: Advance, count: int) -> Slice:
    """Train, and measure time and memory; the CPU seconds are those of all threads of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    done = advance(count)
    return Slice(done, time.perf_counter() - wall, time.process_time() - cpu, peak_memory())


def peak_memory() -> int:
    """The peak memory of this process in bytes.

    On Linux a process starts with the peak of the one that started it: the parent must import nothing heavy.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def serve(work: str, name: str, threads: str, src: str | None = None) -> None:
    """The child: build a side, then train a slice for every line that comes in."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not end up among the replies
    if src is not None:
        check_source(src)
    advance = WORKS[work].build(name, int(threads))
    for line in sys.stdin:
        print(json.dumps(asdict(train_slice(advance, int(line)))), file=replies, flush=True)


if __name__ == "__main__":
    try:
        serve(*sys.argv[1:])
    except KeyboardInterrupt:  # the terminal tells the parent too
        sys.exit(130)
