"""Runs on a Ray cluster. On its node a run has a process of its own, as on one machine; an actor passes its words on.

So a run is not touched by what Ray does to its workers (threads, signals), and a frozen actor is told from a long step.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import wait
from typing import Any

from rl_training.runtime.extras import import_extra
from rl_training.runtime.jobs.job import ENDINGS, Job, Word, packed
from rl_training.runtime.jobs.processes import RunProcess
from rl_training.types import UserError

_LOG = logging.getLogger("rl_training")

# Seconds for which an actor listens to its run before it answers, and in which its answer must be here.
_LISTENING = 0.5
_DEADLINE = 60.0


class Host:
    """On a node: has the process of one run. As an actor it is asked again and again for what the run has said."""

    def __init__(self, name: str, carried: bytes, level: int, folder: str, surroundings: dict[str, Any]) -> None:
        self._process: RunProcess | None = None
        _move_to(surroundings)
        if not os.path.isdir(folder):
            words = f"the node {socket.gethostname()} does not see {folder!r}; put output_dir on a disk that all share"
            self._last = [Word("refused", words)]
        else:
            self._last = []
            self._process = RunProcess(name, carried, level)

    def words(self) -> list[Word]:
        """What the run has said, after a moment at the latest."""
        if self._process is None:
            return self._last
        wait([self._process.pipe], _LISTENING)
        words = self._process.words()
        if words and words[-1].kind in ENDINGS:
            self._process.leave()
        return words

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


def _surroundings() -> dict[str, Any]:
    """What code finds its modules by, and what the run's metadata says it was started with."""
    return {"folder": os.getcwd(), "path": list(sys.path), "argv": list(sys.argv)}


def _move_to(surroundings: dict[str, Any]) -> None:
    if os.path.isdir(surroundings["folder"]):
        os.chdir(surroundings["folder"])
    sys.path += [entry for entry in surroundings["path"] if entry not in sys.path]
    sys.argv = surroundings["argv"]


class _Actor:
    """The actor of one run, seen from here."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.answer = handle.words.remote()
        self.asked: float | None = None  # unknown until it has a place on the cluster

    def ask(self) -> None:
        self.answer, self.asked = self.handle.words.remote(), time.monotonic()

    @property
    def late(self) -> bool:
        return self.asked is not None and time.monotonic() - self.asked > _DEADLINE


class Cluster:
    """Every job in an actor of a Ray cluster, where there is room for it."""

    def __init__(self, address: str) -> None:
        # uv would send the current folder to every node, with all runs in it.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        self._ray = import_extra("ray", "ray", asked_by=f"--ray={address}")
        self._actors: dict[int, _Actor] = {}
        self._unheard: list[tuple[int, Word]] = []
        self._joined = not self._ray.is_initialized()
        if self._joined:
            _join(self._ray, address)

    def start(self, number: int, job: Job) -> None:
        carried, folder = packed(job), str(job.folder.absolute())
        self._check_room(job)
        # A run that is lost is never begun again by Ray: what is left of it must be resumed.
        options = {"num_cpus": job.cpus, "num_gpus": job.gpus, "max_restarts": 0, "max_task_retries": 0}
        made = self._ray.remote(**options)(Host)
        level = _LOG.getEffectiveLevel()
        self._actors[number] = _Actor(made.remote(job.name, carried, level, folder, _surroundings()))

    def _check_room(self, job: Job) -> None:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= job.cpus and node.get("GPU", 0) >= job.gpus for node in nodes):
            gpus = f" and {job.gpus} GPU" if job.gpus else ""
            raise UserError(f"threads={job.cpus}: no node of the cluster has {job.cpus} CPUs{gpus} for a run")

    def wait(self, seconds: float) -> list[tuple[int, Word]]:
        heard, self._unheard = self._unheard, []
        answers = {actor.answer: number for number, actor in self._actors.items()}
        ready = self._ray.wait(list(answers), num_returns=1, timeout=seconds)[0] if answers else []
        heard += [(answers[answer], word) for answer in ready for word in self._words(answers[answer])]
        heard += [(number, _lost("does not answer")) for number, actor in self._actors.items() if actor.late]
        for number, word in heard:
            if word.kind in ENDINGS and number in self._actors:
                self._ray.kill(self._actors.pop(number).handle)
        return heard

    def _words(self, number: int) -> list[Word]:
        actor = self._actors[number]
        try:
            words: list[Word] = self._ray.get(actor.answer)
        except self._ray.exceptions.RayActorError as error:
            return [_lost(f"is gone ({_first_line(error)})")]
        except self._ray.exceptions.RayError as error:
            return [Word("refused", f"the cluster: {_first_line(error)}")]
        if not (words and words[-1].kind in ENDINGS):
            actor.ask()
        return words

    def stop(self) -> None:
        for number, actor in list(self._actors.items()):
            actor.handle.stop.remote()
            if actor.asked is None:  # it may wait for room on the cluster, and has nothing to save
                self._ray.kill(self._actors.pop(number).handle)
                self._unheard.append((number, Word("unbegun")))

    def close(self) -> None:
        while self._actors:
            self._ray.kill(self._actors.popitem()[1].handle)
        if self._joined:
            self._ray.shutdown()


def _join(ray: Any, address: str) -> None:
    """Connect to a cluster. Ray puts a handler for SIGTERM in place of that of the process."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises errors of many kinds, and of none in particular
        raise UserError(f"--ray={address}: there is no cluster to connect to ({_first_line(error)})") from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _lost(how: str) -> Word:
    return Word("lost", f"its actor on the cluster {how}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
