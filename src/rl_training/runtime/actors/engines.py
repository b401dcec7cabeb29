"""What runs the workers of a pool: the interface, and the simplest one, in this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from rl_training.data.strips import Layout, Strip, StripWriter
from rl_training.runtime.actors.worker import Report, Request, Worker, WorkerPlan
from rl_training.types import Array, ArrayKind, UserError

_CALLED = 60.0


class Delivery(NamedTuple):
    """A rollout that a worker has gathered. Its strip is valid until it is given back to the engine."""

    worker: int
    request: Request
    report: Report
    strip: Strip
    slot: int = 0


class Loss(NamedTuple):
    """A worker that is gone; with `final`, no other can be made in its place."""

    worker: int
    how: str
    final: bool = False


class WorkerLost(Exception):
    """A worker is gone, or does not answer."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.how)
        self.loss = loss


class WorkerFailed(UserError):
    """Code of the user's, mostly an environment, raised an error in a worker; `trace` is where."""

    def __init__(self, worker: int, words: str, trace: str) -> None:
        super().__init__(f"worker {worker}: {' '.join(words.split())}")
        self.trace = f"In worker {worker}:\n{trace}"


class WorkersLost(UserError):
    """Too many workers are gone for the run to go on. It is at a safe point, so that it can be saved."""


class Engine(Protocol):
    """Runs workers, moves what they are asked for and what they gather, and notices if one is gone."""

    def start(self) -> None:
        """Make all workers."""

    def send(self, worker: int, request: Request, weights: Mapping[str, Tensor]) -> None:
        """Ask a worker for a rollout; its requests are carried out in order."""

    def wait(self, seconds: float | None) -> Delivery | Loss | None:
        """The next rollout, or a loss; None after so many seconds without one."""

    def free(self, delivery: Delivery) -> None:
        """The strip of a delivery is not read any more."""

    def call(self, worker: int, name: str, *arguments: Any) -> Any:
        """Call a method of a worker that has nothing else to do; raises `WorkerLost`."""

    def replace(self, worker: int, life: int) -> None:
        """End a worker, make another in its place, and send it what its predecessor did not answer.

        Raises `WorkerLost` if that fails; what was not answered is forgotten if the loss is final.
        """

    def close(self) -> None:
        """End all workers."""


def worker_envs(plan: WorkerPlan) -> Array:
    """The numbers of a worker's environments among all of the run."""
    return np.arange(plan.number * plan.num_envs, (plan.number + 1) * plan.num_envs)


def call_patience(deadline: float | None) -> float | None:
    """Seconds in which a worker must start or answer a call. To restore environments may take longer than a rollout."""
    return None if deadline is None else max(deadline, _CALLED)


def silent(worker: int, seconds: float | None) -> Loss:
    """A worker that did not answer a call."""
    return Loss(worker, f"did not answer within {seconds:g} seconds")


class Inline:
    """Workers in this process. A rollout is gathered when it is waited for, so nothing runs at the same time."""

    def __init__(self, plans: list[WorkerPlan], layout: Mapping[str, ArrayKind]) -> None:
        self._plans, self._layout = plans, Layout(layout)
        self._workers: list[Worker] = []
        self._waiting: deque[tuple[int, Request, Mapping[str, Tensor]]] = deque()

    def start(self) -> None:
        self._workers = [Worker(plan) for plan in self._plans]

    def send(self, worker: int, request: Request, weights: Mapping[str, Tensor]) -> None:
        # Copied, since the learner goes on while the request waits.
        self._waiting.append((worker, request, {name: tensor.clone() for name, tensor in weights.items()}))

    def wait(self, seconds: float | None) -> Delivery | None:
        if not self._waiting:
            return None
        worker, request, weights = self._waiting.popleft()
        arrays = self._layout.views(bytearray(self._layout.size))
        writer, began = StripWriter(arrays), time.perf_counter()
        report = self._workers[worker].gather(request, weights, writer)
        report = report._replace(seconds=time.perf_counter() - began)
        strip = Strip.on(arrays, *writer.written, worker_envs(self._plans[worker]))
        return Delivery(worker, request, report, strip)

    def free(self, delivery: Delivery) -> None:
        """Nothing to do: every strip has memory of its own."""

    def call(self, worker: int, name: str, *arguments: Any) -> Any:
        return getattr(self._workers[worker], name)(*arguments)

    def replace(self, worker: int, life: int) -> None:
        self._workers[worker].close()
        self._workers[worker] = Worker(replace(self._plans[worker], life=life))
        self._workers[worker].start()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
