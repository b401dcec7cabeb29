"""Clears up after a learner that was killed with a Ray cluster of its own.

Ray's processes end when they notice that the learner is gone, its agents after a minute; its folder stays. This file
is also run as a program, beside the cluster: it waits for the learner's end and removes what is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any


class Cleanup:
    """The program beside the cluster that this process has just started, with its files in `folder`."""

    def __init__(self, folder: str) -> None:
        import psutil  # which Ray brings

        family = psutil.Process().children(recursive=True)
        agents = [str(process.pid) for process in family if "Agent" in process.name()]
        command = [sys.executable, "-I", "-S", __file__, folder, *agents]
        # In a session of its own: Ctrl-C reaches all processes of a terminal.
        self._program: subprocess.Popen[Any] = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def leave(self) -> None:
        """Let it go to work now: the cluster has ended."""
        self._program.communicate()


def _main(folder: str, *agents: str) -> None:
    descriptors = []
    for pid in agents if hasattr(os, "pidfd_open") else ():  # a number alone might be another process by then
        with suppress(OSError):  # it has ended already
            descriptors.append(os.pidfd_open(int(pid)))
    sys.stdin.buffer.read()  # it ends with the process that holds the other end
    for descriptor in descriptors:
        with suppress(OSError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
