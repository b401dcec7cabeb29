"""Workers in processes of their own. Rollouts and weights cross in shared memory; pipes announce them.

A slot is a piece of memory that one worker and the learner share: the weights of a request, and the rollout that
answers it. So a slot is written by one side at a time, and nothing is torn. Slots have no names, and nothing of them is
left when the processes are gone, however they ended.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import DupFd
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector.utils import CloudpickleWrapper
from torch import Tensor

from rl_training.data.strips import Layout, Strip, StripWriter
from rl_training.runtime.actors.engines import (
    Delivery,
    Loss,
    WorkerFailed,
    WorkerLost,
    call_patience,
    silent,
    worker_envs,
)
from rl_training.runtime.actors.worker import Report, Request, Worker, WorkerPlan
from rl_training.runtime.checkpoints.codec import decode, decode_tensors, encode
from rl_training.runtime.libraries import Libraries
from rl_training.runtime.rng import seed_global_generators
from rl_training.runtime.spawning import Leash, Spawned
from rl_training.types import Array, ArrayKind, UserError


class SharedBlock:
    """Bytes that two processes share. They have no name, and pages that are never written take no room."""

    def __init__(self, size: int) -> None:
        self.size = max(size, 1)
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("rl_training")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        os.ftruncate(self._file, self.size)
        self.memory = memoryview(mmap.mmap(self._file, self.size))

    def __getstate__(self) -> tuple[int, Any]:
        return self.size, DupFd(self._file)

    def __setstate__(self, state: tuple[int, Any]) -> None:
        self.size, sent = state
        self._file = sent.detach()
        self.memory = memoryview(mmap.mmap(self._file, self.size))

    def close(self) -> None:
        """Let go of the file; the memory is free when nothing looks at it any more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Slots:
    """The slots of one worker, each with arrays for weights and for a rollout."""

    def __init__(self, weights: Mapping[str, ArrayKind], layout: Mapping[str, ArrayKind], count: int) -> None:
        self._weights, self._layout, self.count = Layout(weights), Layout(layout), count
        self.block = SharedBlock(count * (self._weights.size + self._layout.size))

    def weights(self, slot: int) -> dict[str, Array]:
        return self._weights.views(self.block.memory, slot * (self._weights.size + self._layout.size))

    def rollout(self, slot: int) -> dict[str, Array]:
        start = slot * (self._weights.size + self._layout.size) + self._weights.size
        return self._layout.views(self.block.memory, start)


class _Answer(NamedTuple):
    """What a worker sends: a rollout in a slot, the result of a call, or an error with its traceback."""

    kind: str
    value: Any


class _Process:
    """One worker's process, seen from the learner."""

    def __init__(self, plan: WorkerPlan, slots: Slots) -> None:
        self.plan, self.slots = plan, slots
        self.free = list(range(slots.count))
        self.unanswered: list[tuple[int, Request]] = []
        carried: Any = CloudpickleWrapper(plan)  # type: ignore[arg-type]
        self._spawned = Spawned(_work, (carried, slots), f"worker-{plan.number}", daemon=True)
        self.pipe = self._spawned.pipe

    def send(self, request: Request, weights: Mapping[str, Tensor]) -> None:
        slot = self.free.pop(0)
        for name, array in self.slots.weights(slot).items():
            array[...] = weights[name].detach().cpu().numpy()
        self.unanswered.append((slot, request))
        self.announce(slot, request)

    def announce(self, slot: int, request: Request) -> None:
        with suppress(OSError):  # it is gone, which `wait` says
            self.pipe.send(("gather", (slot, request)))

    def loss(self) -> Loss:
        """How it ended."""
        return Loss(self.plan.number, self._spawned.ended())

    def end(self) -> None:
        self._spawned.end()


class Processes:
    """Every worker in a process of its own."""

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        layout: Mapping[str, ArrayKind],
        weights: Mapping[str, Tensor],
        *,
        slots: int,
        patience: float | None,
    ) -> None:
        self._plans, self._layout, self._count, self._patience = plans, layout, slots, call_patience(patience)
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}
        self._weights = {name: ArrayKind(array.shape, array.dtype.str) for name, array in arrays.items()}
        self._processes: list[_Process] = []
        # Without `close`, the interpreter would wait at exit for processes that ignore its SIGTERM.
        Finalize(self, _end, args=(self._processes,), exitpriority=10)

    def start(self) -> None:
        for plan in self._plans:
            self._processes.append(_Process(plan, Slots(self._weights, self._layout, self._count)))
        for worker in range(len(self._plans)):  # all start at the same time
            try:
                self._answered(worker)
            except WorkerLost as lost:
                raise UserError(f"worker {worker} {lost} before it was ready") from None

    def send(self, worker: int, request: Request, weights: Mapping[str, Tensor]) -> None:
        self._processes[worker].send(request, weights)

    def wait(self, seconds: float | None) -> Delivery | Loss | None:
        busy = [process for process in self._processes if process.unanswered]
        ready = wait([process.pipe for process in busy], seconds)
        # In the order of the workers, though nothing depends on it.
        chosen = next((process for process in busy if process.pipe in ready), None)
        if chosen is None:
            return None
        try:
            rows, ends, report = self._answered(chosen.plan.number)
        except WorkerLost as lost:
            return lost.loss
        slot, request = chosen.unanswered.pop(0)
        strip = Strip.on(chosen.slots.rollout(slot), rows, ends, worker_envs(chosen.plan))
        return Delivery(chosen.plan.number, request, report, strip, slot)

    def _answered(self, worker: int, seconds: float | None = None) -> Any:
        """The next answer of a worker; raises what it raised."""
        process = self._processes[worker]
        try:
            if not process.pipe.poll(seconds):
                raise WorkerLost(silent(worker, seconds))
            kind, value = process.pipe.recv()
        except (EOFError, OSError):
            raise WorkerLost(process.loss()) from None
        if kind != "error":
            return value
        error, trace = value
        if isinstance(error, UserError):
            raise error
        raise WorkerFailed(worker, error, trace)

    def free(self, delivery: Delivery) -> None:
        if delivery.slot >= 0:
            self._processes[delivery.worker].free.append(delivery.slot)

    def call(self, worker: int, name: str, *arguments: Any) -> Any:
        process = self._processes[worker]
        assert not process.unanswered
        with suppress(OSError):
            process.pipe.send((name, [_packed(argument) for argument in arguments]))
        return _unpacked(self._answered(worker, self._patience))

    def replace(self, worker: int, life: int) -> None:
        old = self._processes[worker]
        old.end()
        new = _Process(replace(self._plans[worker], life=life), old.slots)
        self._processes[worker] = new
        try:
            self._answered(worker, self._patience)
            self.call(worker, "start")
        finally:  # whoever comes after this one owes the same
            new.free, new.unanswered = old.free, old.unanswered
        for slot, request in new.unanswered:  # their weights are still in the slots
            new.announce(slot, request)

    def close(self) -> None:
        _end(self._processes)


def _end(processes: Iterable[_Process]) -> None:
    for process in processes:
        process.end()
        process.slots.block.close()


def _packed(value: Any) -> tuple[bytes, bytes]:
    """A value as bytes. Torch would send its tensors as files that both sides must keep open."""
    return encode(value, "it")


def _unpacked(value: tuple[bytes, bytes]) -> Any:
    text, tensors = value
    return decode(text, decode_tensors(tensors))


# In the worker's process.


def _work(pipe: Connection, leash: Leash, carried: Any, slots: Slots) -> None:
    """Answer the learner until it is gone."""
    leash.hold()
    try:
        plan: WorkerPlan = carried.fn
        with Libraries(plan.settings["threads"]):
            seed_global_generators(plan.settings["seed"])
            worker = Worker(plan)
            pipe.send(_Answer("ready", None))
            _serve(worker, slots, pipe)
    except (EOFError, OSError):  # the learner is gone
        pass
    except Exception as error:
        _send_error(pipe, error)


def _serve(worker: Worker, slots: Slots, pipe: Connection) -> None:
    answer: Any
    while True:
        name, arguments = pipe.recv()
        try:
            if name == "gather":
                answer = _gathered(worker, slots, *arguments)
            else:
                answer = _packed(getattr(worker, name)(*map(_unpacked, arguments)))
        except Exception as error:
            _send_error(pipe, error)
        else:
            pipe.send(_Answer("answer", answer))


def _gathered(worker: Worker, slots: Slots, slot: int, request: Request) -> tuple[int, int, Report]:
    writer, began = StripWriter(slots.rollout(slot)), time.perf_counter()
    weights = {name: torch.from_numpy(np.array(array)) for name, array in slots.weights(slot).items()}
    report = worker.gather(request, weights, writer)
    rows, ends = writer.written
    return rows, ends, report._replace(seconds=time.perf_counter() - began)


def _send_error(pipe: Connection, error: Exception) -> None:
    trace = traceback.format_exc()
    with suppress(OSError):
        pipe.send(_Answer("error", (error if type(error) is UserError else _words(error), trace)))


def _words(error: Exception) -> str:
    """What an error says, since not every one can be sent to another process."""
    return f"{type(error).__name__}: {error}"
