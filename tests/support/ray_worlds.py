"""Environments and clusters for tests of workers on Ray. Workers import this module by name."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.train import Run
from rl_training.types import Metrics
from run_helpers import tiny

# As docs/cluster.md says for a head: a dead node is seen within 10 seconds.
HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
# `ray start` would take an address of this machine that others can reach, whatever it is told.
_ON_LOOPBACK = """
import ray._private.services as services
services.get_node_ip_address = lambda address=None: "127.0.0.1"
from ray.scripts.scripts import main
main()
"""


class Busy(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose steps take a while of work."""

    def __init__(self, seconds: float) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass
        return super().step(action)


class Head:
    """A cluster on the loopback interface: its head, and nodes that are added and killed. Each is ended by its pid."""

    def __init__(self, folder: str, token: str, cpus: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._folder = folder
        self._environment = os.environ | HEALTH | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        self._environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        port = self.address.partition(":")[2]
        self._nodes = [self._started("--head", f"--port={port}", "--include-dashboard=false", f"--num-cpus={cpus}")]

    def _started(self, *arguments: str) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-c", _ON_LOOPBACK, "start", "--block", "--node-ip-address=127.0.0.1"]
        if "--head" in arguments:
            program += [f"--temp-dir={self._folder}"]
        store = f"--object-store-memory={100 << 20}"
        with open(f"{self._folder}/started.log", "ab") as log:
            return subprocess.Popen(
                [*program, store, *arguments], env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def add(self, cpus: int = 1) -> int:
        """Another node; returns its number."""
        self._nodes.append(self._started(f"--address={self.address}", f"--num-cpus={cpus}"))
        return len(self._nodes) - 1

    def wait_until_ready(self, nodes: int) -> None:
        """Wait for so many nodes: their raylets have answered when they are in the head's log."""
        end = time.monotonic() + 90
        while time.monotonic() < end:
            said = Path(self._folder, "started.log").read_text(errors="replace")
            if said.count("Ray runtime started.") >= nodes:
                return
            time.sleep(0.2)
        raise AssertionError(Path(self._folder, "started.log").read_text(errors="replace"))

    def processes(self, number: int) -> list[Any]:
        """All processes of a node, as `psutil` knows them."""
        import psutil

        top = psutil.Process(self._nodes[number].pid)
        return [top, *top.children(recursive=True)]

    def kill(self, number: int) -> None:
        """What a machine does that loses its power: all processes of the node are gone at once."""
        for process in self.processes(number):
            process.kill()
        self._nodes[number].wait()

    def end(self) -> None:
        for number, node in reversed(list(enumerate(self._nodes))):
            if node.poll() is None:
                self.kill(number)


@contextmanager
def cluster(token: str, cpus: int = 1) -> Iterator[Head]:
    """A head of one's own."""
    import ray  # noqa: F401  (brings psutil)

    with tempfile.TemporaryDirectory(prefix="rlt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        head = Head(folder, token, cpus)
        try:
            head.wait_until_ready(1)
            yield head
        finally:
            head.end()


# Runs.


def settings(**changes: Any) -> dict[str, Any]:
    base = {"env_id": "pool_worlds:Uneven", "num_envs": 4, "num_workers": 2, "actors": "ray", "eval_episodes": 1}
    return tiny(**{**base, "n_steps": 16, "total_timesteps": 256, **changes})


def fateful(at: Path, fate: str, **changes: Any) -> dict[str, Any]:
    kwargs = {"at": str(at), "fate": fate, "seconds": 0.001}
    return settings(**{"env_id": "pool_worlds:Fateful", "env_kwargs": kwargs, **changes})


class Touch(Callback):
    """Makes a file after so many steps, and notes when."""

    def __init__(self, file: Path, step: int = 64) -> None:
        self.file, self.step, self.when = file, step, 0.0

    def on_step(self, run: Run, metrics: Metrics) -> None:
        if run.steps >= self.step and not self.when:
            self.when = time.monotonic()
            self.file.touch()


class When(logging.Handler):
    """Notes when each line is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((time.monotonic(), record.getMessage()))


def alive(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
