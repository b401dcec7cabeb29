"""Workers as actors of a Ray cluster. Weights are put there once for all workers; a rollout comes back as one object.

Ray restarts no worker and repeats no call: a worker that came back by itself would have lost its episodes in silence.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from rl_training import __version__
from rl_training.data.frames import restacked
from rl_training.data.strips import Strip
from rl_training.runtime.actors.engines import (
    Delivery,
    Loss,
    WorkerFailed,
    WorkerLost,
    call_patience,
    silent,
    worker_envs,
)
from rl_training.runtime.actors.ray_cluster import Cluster, join
from rl_training.runtime.actors.ray_worker import Learner, RemotePlan, Rollout
from rl_training.runtime.actors.worker import Request, WorkerPlan
from rl_training.types import ArrayKind, UserError

# Seconds in which the first workers, and later one that takes another's place, must be placed in the cluster. The
# latter has time for a dead node to be noticed, on which Ray may want to place it at first.
STARTED_WITHIN = 60.0
PLACED_WITHIN = 20.0
# Once the cluster was found without room, others have this long.
_AND_THE_NEXT = 2.0
_LOOK_UP = 1.0  # seconds after which a wait looks whether the cluster is still there
_FETCHED_WITHIN = 60.0  # seconds for a rollout that is ready to cross the network


def _holder() -> type[Any]:
    """A class that Ray sends by value, since it is made here: so a node that lacks this package can say so itself."""

    class Holder:
        def place(self) -> str:
            import ray

            return str(ray.util.get_node_ip_address())

        def make(self, pickled: bytes, learner: Any) -> Any:
            try:
                from rl_training.runtime.actors.ray_worker import RemoteWorker
            except ImportError as error:
                return "mistake", f"cannot import {error.name or str(error)!r}; install rl_training there", ""
            self._worker = RemoteWorker()
            return self._worker.answer("make", pickled, learner)

        def answer(self, name: str, *arguments: Any) -> Any:
            return self._worker.answer(name, *arguments)

    return Holder


@dataclass
class _Actor:
    """One worker's actor, seen from the learner; `node` is the address of the machine that it is on."""

    plan: WorkerPlan
    handle: Any
    node: str = "?"
    # What was not answered: the request, the reference to its weights, and the reference to the rollout.
    unanswered: list[tuple[Request, Any, Any]] = field(default_factory=list)


class RayWorkers:
    """Every worker as an actor of a Ray cluster."""

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        layout: Mapping[str, ArrayKind],
        *,
        address: str | None,
        frames: int,
        patience: float | None,
        store: int,
    ) -> None:
        self._plans, self._layout, self._frames = plans, layout, frames
        self._patience = call_patience(patience)
        self._cluster: Cluster = join(address, workers=len(plans), store=store)
        self._ray = self._cluster.ray
        own = address is None
        # A cluster of its own has room for all: it is the user who says how many workers the machine has.
        self._class = self._ray.remote(
            num_cpus=0 if own else 1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )(_holder())
        self._learner = Learner(os.getpid(), sys.path) if own else None
        self._actors: list[_Actor] = []
        self._weights: tuple[int, Any] = (-1, None)  # the newest edition, and the reference to it
        self._full_since: float | None = None

    def start(self) -> None:
        self._actors = [_Actor(plan, self._class.remote()) for plan in self._plans]
        places = [actor.handle.place.remote() for actor in self._actors]
        placed, _ = self._ray.wait(places, num_returns=len(places), timeout=STARTED_WITHIN)
        if len(placed) < len(places):
            has = self._ray.cluster_resources().get("CPU", 0)
            raise UserError(
                f"num_workers={len(places)}: {len(placed)} found room in the Ray cluster within {STARTED_WITHIN:g} s; "
                f"it has {has:g} CPUs, and every worker needs one that is free"
            )
        made = []
        for actor, place in zip(self._actors, places, strict=True):  # all are made at the same time
            made.append(self._make(actor, place))
        for actor, answer in zip(self._actors, made, strict=True):
            try:
                self._answered(actor, answer)
            except WorkerLost as lost:
                raise UserError(f"worker {actor.plan.number} {lost} before it was ready") from None

    def _make(self, actor: _Actor, place: Any) -> Any:
        from ray import cloudpickle

        with suppress(self._ray.exceptions.RayError):  # it is gone already, which its answer says
            actor.node = self._ray.get(place)
        plan = RemotePlan(actor.plan, self._layout, self._frames, __version__)
        return actor.handle.make.remote(cloudpickle.dumps(plan), self._learner)

    def send(self, worker: int, request: Request, weights: Mapping[str, Tensor]) -> None:
        if self._cluster.is_lost:
            self._actors[worker].unanswered.append((request, None, None))
            return
        if request.edition != self._weights[0]:
            arrays = {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}
            self._weights = request.edition, self._ray.put(arrays)
        self._announce(self._actors[worker], request, self._weights[1])

    def _announce(self, actor: _Actor, request: Request, weights: Any) -> None:
        rollout = actor.handle.answer.remote("gather", request, weights)
        actor.unanswered.append((request, weights, rollout))

    def wait(self, seconds: float | None) -> Delivery | Loss | None:
        end = None if seconds is None else time.monotonic() + seconds
        # A worker answers in order: only its oldest request can be ready first.
        busy = {actor.unanswered[0][2]: actor for actor in self._actors if actor.unanswered}
        while busy:
            if self._cluster.is_lost:
                return self._lost_with_the_cluster(next(iter(busy.values())))
            left = _LOOK_UP if end is None else min(_LOOK_UP, max(0.0, end - time.monotonic()))
            ready, _ = self._ray.wait(list(busy), timeout=left)
            if ready:
                return self._delivered(busy[ready[0]])
            if end is not None and time.monotonic() >= end:
                break
        return None

    def _delivered(self, actor: _Actor) -> Delivery | Loss:
        request, _, reference = actor.unanswered[0]
        try:
            rollout: Rollout = self._answered(actor, reference)
        except WorkerLost as lost:
            return lost.loss
        del actor.unanswered[0]
        # Copied, so that the cluster may forget it at once, and may even be lost.
        arrays = restacked({name: array.copy() for name, array in rollout.arrays.items()})
        strip = Strip.on(arrays, rollout.rows, rollout.ends, worker_envs(actor.plan))
        return Delivery(actor.plan.number, request, rollout.report, strip)

    def _answered(self, actor: _Actor, reference: Any, seconds: float | None = None) -> Any:
        """What an actor answers; raises what it raised."""
        number = actor.plan.number
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            if self._cluster.is_lost:
                raise WorkerLost(self._lost_with_the_cluster(actor))
            if self._ray.wait([reference], timeout=_LOOK_UP)[0]:
                break
            if end is not None and time.monotonic() >= end:
                raise WorkerLost(silent(number, seconds))
        try:
            kind, value, trace = self._ray.get(reference, timeout=_FETCHED_WITHIN)
        except self._ray.exceptions.RayTaskError as error:  # what it wanted to say could not be sent
            raise WorkerFailed(number, f"{error.cause!r}", str(error)) from error
        except self._ray.exceptions.RayError as error:
            raise WorkerLost(Loss(number, _how(error, actor.node))) from None
        if kind == "answer":
            return value
        if kind == "mistake":
            about = f"worker {number}: "
            raise UserError(f"worker {number} on {actor.node}: {value.removeprefix(about)}")
        raise WorkerFailed(number, value, trace)

    def _lost_with_the_cluster(self, actor: _Actor) -> Loss:
        actor.unanswered.clear()
        host, port = self._cluster.head
        return Loss(actor.plan.number, f"is lost with the Ray cluster at {host}:{port}", final=True)

    def free(self, delivery: Delivery) -> None:
        """Nothing to do: the object is free when no array looks at it any more."""

    def call(self, worker: int, name: str, *arguments: Any) -> Any:
        actor = self._actors[worker]
        assert not actor.unanswered
        if self._cluster.is_lost:
            raise WorkerLost(self._lost_with_the_cluster(actor))
        return self._answered(actor, actor.handle.answer.remote("call", name, *arguments), self._patience)

    def replace(self, worker: int, life: int) -> None:
        old = self._actors[worker]
        if self._cluster.is_lost:
            raise WorkerLost(self._lost_with_the_cluster(old))
        self._end(old)
        new = _Actor(replace(self._plans[worker], life=life), self._class.remote())
        self._actors[worker] = new
        place = new.handle.place.remote()
        if not self._is_placed(place):
            self._end(new)
            if self._cluster.is_lost:
                raise WorkerLost(self._lost_with_the_cluster(new))
            how = f"found no room in the Ray cluster within {PLACED_WITHIN:g} seconds"
            raise WorkerLost(Loss(worker, how, final=True))
        try:
            self._answered(new, self._make(new, place), self._patience)
            self.call(worker, "start")
        except WorkerLost:  # whoever comes after this one owes the same
            new.unanswered = old.unanswered
            raise
        for request, weights, _ in old.unanswered:
            self._announce(new, request, weights)

    def _is_placed(self, place: Any) -> bool:
        """Wait until an actor has its place. The workers of a dead node do not wait one after the other."""
        now = time.monotonic()
        since = now if self._full_since is None else self._full_since
        end = max(since + PLACED_WITHIN, now + _AND_THE_NEXT)
        while not self._ray.wait([place], timeout=max(0.0, min(_LOOK_UP, end - time.monotonic())))[0]:
            if time.monotonic() >= end or self._cluster.is_lost:
                self._full_since = since
                return False
        self._full_since = None
        return True

    def _end(self, actor: _Actor) -> None:
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor.handle, no_restart=True)

    def close(self) -> None:
        for actor in self._actors:
            self._end(actor)
            actor.unanswered.clear()
        self._actors, self._weights = [], (-1, None)
        self._cluster.leave()


def _how(error: Exception, node: str) -> str:
    """What became of a worker, in the words of a sentence."""
    words = " ".join(str(error).lower().split())
    if "node died" in words or "node has died" in words or "node is dead" in words:
        return f"is gone: its node {node} died"
    if type(error).__name__ == "ActorUnavailableError":
        return f"cannot be reached on {node}"
    if "memory" in words and "killed" in words and "oom" not in words:
        return f"was ended by Ray on {node}: memory ran out"
    return f"is gone: its process on {node} ended"
