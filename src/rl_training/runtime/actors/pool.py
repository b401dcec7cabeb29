"""A pool: several workers gather while a learner learns. In fixed order every engine gives the same rollouts."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rl_training.algorithms.base import Policy
from rl_training.data.strips import Strip, joined
from rl_training.runtime.actors.actor import R
from rl_training.runtime.actors.engines import Delivery, Engine, Loss, WorkerLost, WorkersLost
from rl_training.runtime.actors.episodes import Episodes
from rl_training.runtime.actors.sources import actor_name
from rl_training.runtime.actors.worker import Report, Request
from rl_training.runtime.trees import to_arrays, to_tensors
from rl_training.types import Array, Metrics, UserError

_LOG = logging.getLogger("rl_training")
_POOL = "pool"


@dataclass(frozen=True)
class PoolPlan:
    """Who gathers what, with which policy.

    A round is what one update learns from: `per_round` rollouts, each of another worker. Those of round r are gathered
    with the policy after max(0, r - lag) updates. In fixed order rollout u comes from worker u mod `num_workers`;
    otherwise rounds consist of what arrives first, and workers that are lost for good may be done without.
    """

    num_workers: int
    num_envs: int  # of all workers
    per_round: int
    lag: int
    fixed: bool
    deadline: float | None = None  # seconds that a rollout may take
    restarts: int = 0  # how many workers may be lost
    alone: bool = False  # rollouts need not follow from earlier ones: a worker may give two of a round


class Pool:
    """A source of several workers. The clock counts the real steps of the rollouts that were learned from."""

    def __init__(self, engine: Engine, policy: Policy, plan: PoolPlan) -> None:
        self._engine, self._policy, self.plan = engine, policy, plan
        self.num_envs = plan.num_envs
        self.width = plan.per_round * plan.num_envs // plan.num_workers
        self.steps = 0
        self._round = 0
        self._version = self._gradient_steps = self._edition = 0
        self._inbox: dict[int, Delivery] = {}
        self._arrived: dict[int, float] = {}
        self._asked: dict[int, int] = {}  # the workers of the rollouts that were asked for and did not arrive
        self._began: dict[int, float] = {}  # when each worker began with what it is doing
        self._lives = [0] * plan.num_workers
        self._gone: set[int] = set()
        self._over = ""  # why the run cannot go on
        self._lost: Array | None = None
        self._episodes = Episodes()
        self._seen = _Seen()

    @property
    def exact(self) -> bool:
        return not self.why_not_exact

    @property
    def why_not_exact(self) -> list[str]:
        if not self.plan.fixed:
            return ["order=arrival: rollouts are learned from as they arrive, which no second run repeats"]
        found = [words for kept in self._ask_all("why_not_exact").values() for words in kept]
        return [f"worker {k} was lost, and with it its episodes" for k in sorted(self._gone)] + found

    def start(self) -> None:
        for k in self._present():
            self._call(k, "start")

    def begin_anew(self) -> None:
        raise UserError("the environments of workers cannot begin new episodes together")

    def go_on_anew(self, state: Mapping[str, Any], why: str) -> None:
        raise UserError(f"{why}: a run with workers keeps its environments; start a new run instead")

    def gather(self, count: int, into: R, *, randomly: bool = False) -> R:
        self._check_possible()
        if randomly:
            self._take(self._gathered_at_random(count), into)
            self._edition += 1  # statistics of the observations may follow from them
            return into
        self._count = count
        self._ask_due()
        chosen = self._await_round()
        self._round += 1
        self._take(chosen, into)
        return into

    def publish(self, weights: Callable[[], Mapping[str, Tensor]], values: Mapping[str, float], version: int) -> None:
        self._version += 1
        self._edition += 1
        self._gradient_steps = version
        if self.plan.lag:
            self._ask_due()

    def take_lost(self) -> Array | None:
        """Environments that a resume lost, and those of workers that were replaced."""
        lost, self._lost = self._lost, None
        return lost

    def metrics(self) -> Metrics:
        return self._episodes.metrics() | self._seen.metrics(len(self._present())) | {"restarts": float(self.restarts)}

    def returns(self) -> list[float]:
        return self._episodes.returns()

    @property
    def restarts(self) -> int:
        """How many workers were replaced."""
        return sum(self._lives)

    # Rounds.

    def _ask_due(self) -> None:
        """Ask for the rollouts of this round and of the rounds after it, up to the lag."""
        first, under_way = self._round * self.plan.per_round, self.plan.per_round * (1 + self.plan.lag)
        if self.plan.fixed:
            for number in range(first, first + under_way):
                if number not in self._inbox and number not in self._asked:
                    self._ask(number % self.plan.num_workers, number, self._count)
            return
        while (present := len(self._inbox) + len(self._asked)) < under_way:
            self._ask(self._least_asked(), first + present, self._count)

    def _least_asked(self) -> int:
        """Of the workers that are left, the one with the fewest rollouts that were not learned from."""
        held = Counter([*self._asked.values(), *(delivery.worker for delivery in self._inbox.values())])
        return min(self._present(), key=lambda k: (held[k], self._began.get(k, 0.0)))

    def _ask(self, worker: int, number: int, count: int, *, randomly: bool = False) -> None:
        request = Request(
            number, self._version, self._gradient_steps, self._edition, count, randomly, dict(self._policy.values)
        )
        if worker not in self._asked.values():
            self._began[worker] = time.monotonic()
        self._asked[number] = worker
        self._engine.send(worker, request, self._policy.policy_state())

    def _gathered_at_random(self, count: int) -> list[Delivery]:
        """Random steps of all workers. They have no numbers of their own, since no round consists of them."""
        for k in self._present():
            self._ask(k, -1 - k, count, randomly=True)
        while any(number < 0 for number in self._asked):
            self._receive()
        return [self._inbox.pop(number) for number in sorted(self._inbox, reverse=True) if number < 0]

    def _await_round(self) -> list[Delivery]:
        """Wait for the rollouts of this round. Nothing is taken before all are there, in case a worker is lost."""
        while (numbers := self._complete()) is None:
            self._receive()
        return [self._inbox.pop(number) for number in numbers]

    def _complete(self) -> list[int] | None:
        """The numbers of the rollouts of this round, if all are there."""
        size = self.plan.per_round
        if self.plan.fixed:
            numbers = list(range(self._round * size, (self._round + 1) * size))
            return numbers if all(number in self._inbox for number in numbers) else None
        first_of = {delivery.worker: number for number, delivery in reversed(self._inbox.items())}
        numbers = sorted(first_of.values(), key=list(self._inbox).index)[:size]
        if len(self._present()) < size:  # some must give several
            numbers = [*numbers, *(number for number in self._inbox if number not in numbers)][:size]
        if len(numbers) < size:
            return None
        # In the order of the workers: a memory may keep what its columns were given before.
        return sorted(numbers, key=lambda number: (self._inbox[number].worker, number))

    def _take(self, chosen: list[Delivery], into: R) -> None:
        now, clock = time.monotonic(), (self._version, self._gradient_steps)
        strip = joined([delivery.strip for delivery in chosen])
        into.take(strip)
        self.steps += int(strip.real.sum())
        for delivery in chosen:
            self._episodes.add(delivery.report.episodes, delivery.report.ended)
            waited = now - self._arrived.pop(delivery.request.number, now)
            self._seen.add(delivery, clock, waited)
            self._engine.free(delivery)

    # What happens to workers.

    def _present(self) -> list[int]:
        return [k for k in range(self.plan.num_workers) if k not in self._gone]

    def _receive(self) -> None:
        """Wait for one rollout, and replace workers that are lost or too slow."""
        began = time.monotonic()
        event = self._engine.wait(self._patience(began))
        now = time.monotonic()
        self._seen.waited += now - began
        if event is None:
            for worker in {k for k in self._asked.values() if self._is_late(k, now)}:
                limit = f"rollout_deadline={self.plan.deadline:g}"
                self._replace(Loss(worker, f"did not deliver a rollout within {limit} seconds"))
        elif isinstance(event, Loss):
            self._replace(event)
        else:
            number = event.request.number
            del self._asked[number]
            self._inbox[number], self._arrived[number] = event, now
            self._began[event.worker] = now

    def _patience(self, now: float) -> float | None:
        if self.plan.deadline is None:
            return None
        return max(0.0, min(self._began[k] for k in self._asked.values()) + self.plan.deadline - now)

    def _is_late(self, worker: int, now: float) -> bool:
        return self.plan.deadline is not None and now - self._began[worker] >= self.plan.deadline

    def _replace(self, loss: Loss) -> None:
        worker, each = loss.worker, self.num_envs // self.plan.num_workers
        self._lost = np.zeros(self.num_envs, np.bool_) if self._lost is None else self._lost
        self._lost[worker * each : (worker + 1) * each] = True
        if not loss.final and self.restarts < self.plan.restarts:
            _LOG.warning(f"worker {worker} {loss.how}; it is replaced, and its episodes are broken off")
            try:
                self._engine.replace(worker, self._lives[worker] + 1)
            except WorkerLost as lost:
                if not lost.loss.final:
                    self._lives[worker] += 1
                return self._replace(lost.loss)
            self._lives[worker] += 1
            self._began[worker] = time.monotonic()
            return None
        self._gone.add(worker)
        unanswered = [number for number, k in self._asked.items() if k == worker]
        for number in unanswered:
            del self._asked[number]
        how = f"worker {worker} {loss.how}"
        if not loss.final:
            self._over = f"{how}, and worker_restarts={self.plan.restarts} were made before; the run can be resumed"
        self._check_possible(how)
        _LOG.warning(f"worker {worker} {loss.how}; {len(self._present())} of {self.plan.num_workers} workers go on")
        for number in unanswered:
            if number >= 0:  # random steps have no place in a round
                self._ask(self._least_asked(), number, self._count)

    def _check_possible(self, how: str = "") -> None:
        """Raise if no round can be gathered any more."""
        there, size = len(self._present()), self.plan.per_round
        if self._over:
            raise WorkersLost(self._over)
        if not self._gone or (not self.plan.fixed and there > 0 and (there >= size or self.plan.alone)):
            return
        needs = "order=fixed needs every worker" if self.plan.fixed else "this memory needs every worker"
        self._over = f"{how}, and {needs if there else 'none is left'}; the run can be resumed"
        raise WorkersLost(self._over)

    def _call(self, worker: int, name: str, *arguments: Any) -> Any:
        """Call a method of a worker that has nothing else to do, or of its successor if it is lost."""
        while worker not in self._gone:
            try:
                return self._engine.call(worker, name, *arguments)
            except WorkerLost as lost:
                self._replace(lost.loss)
        return None

    def _ask_all(self, name: str) -> dict[int, Any]:
        """What a method says of every worker that is left, once all have answered what they were asked for.

        Losses do not end this: a run that is about to end for want of workers is saved first.
        """
        while self._asked:
            with suppress(WorkersLost):
                self._receive()
        found = {}
        for k in self._present():
            with suppress(WorkersLost):
                answer = self._call(k, name)
                if k not in self._gone:
                    found[k] = answer
        return found

    # State.

    def state_dict(self) -> dict[str, Any]:
        workers = self._ask_all("state_dict")
        return {actor_name(k): state for k, state in workers.items()} | {
            _POOL: {
                "steps": self.steps,
                "round": self._round,
                "version": self._version,
                "gradient_steps": self._gradient_steps,
                "edition": self._edition,
                "lives": list(self._lives),
                **self._episodes.state(),
                "inbox": [_kept(self._inbox[number]) for number in self._in_order()],
            }
        }

    def _in_order(self) -> list[int]:
        """The numbers of the rollouts that are there; when they arrived counts only if it decides what is next."""
        return sorted(self._inbox) if self.plan.fixed else list(self._inbox)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        names = {actor_name(k): k for k in range(self.plan.num_workers)}
        if not state.keys() <= {_POOL, *names} or _POOL not in state:
            there = ", ".join(map(repr, state)) or "none"
            raise UserError(f"the checkpoint has the environments of {there}; this run has those of {', '.join(names)}")
        own = state[_POOL]
        self.steps, self._round = own["steps"], own["round"]
        self._version, self._gradient_steps, self._edition = own["version"], own["gradient_steps"], own["edition"]
        self._lives = list(own["lives"])
        self._episodes.load(own["episodes"], own["recent"])
        self._inbox = {kept["request"]["number"]: _restored(kept) for kept in own["inbox"]}
        for name, k in names.items():
            if name in state:
                self._call(k, "load_state_dict", state[name])
            else:  # it was lost; its successor has streams of its own
                self._lives[k] += 1
                self._engine.replace(k, self._lives[k])
        self._note_lost()

    def _note_lost(self) -> None:
        lost = [self._call(k, "take_lost") for k in range(self.plan.num_workers)]
        if any(one is not None for one in lost):
            none = [False] * (self.num_envs // self.plan.num_workers)
            self._lost = np.array([flag for one in lost for flag in one or none], np.bool_)

    def close(self) -> None:
        self._engine.close()


class _Seen:
    """Sums of what is said of the rollouts since the metrics were last asked for."""

    def __init__(self) -> None:
        self.waited = 0.0
        self._since = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        self._rollouts = self._acts = 0
        self._lag = self._gradient_lag = 0
        self._queued = self._busy = 0.0
        self._reported: dict[str, float] = {}

    def add(self, delivery: Delivery, clock: tuple[int, int], queued: float) -> None:
        request, report = delivery.request, delivery.report
        self._rollouts += 1
        self._lag += clock[0] - request.version
        self._gradient_lag += clock[1] - request.gradient_steps
        self._queued += queued
        self._busy += report.seconds
        self._acts += report.acts
        for name, total in report.reported.items():
            self._reported[name] = self._reported.get(name, 0.0) + total

    def metrics(self, workers: int) -> Metrics:
        """Means over the rollouts, and the share of time that learner and workers waited."""
        now = time.monotonic()
        seconds, rollouts = max(now - self._since, 1e-9), max(self._rollouts, 1)
        found = {name: total / max(self._acts, 1) for name, total in self._reported.items()} | {
            "lag": self._lag / rollouts,
            "lag_gradient_steps": self._gradient_lag / rollouts,
            "queue_wait": self._queued / rollouts,
            "learner_idle": min(self.waited / seconds, 1.0),
            "worker_idle": min(max(1.0 - self._busy / (seconds * workers), 0.0), 1.0),
        }
        self.waited, self._since = 0.0, now
        self._clear()
        return found


def _kept(delivery: Delivery) -> dict[str, Any]:
    """A rollout that was not learned from, as a checkpoint has it."""
    arrays = {name: array.copy() for name, array in delivery.strip.arrays().items()}
    report = delivery.report._replace(seconds=0.0)._asdict()
    return {
        "worker": delivery.worker,
        "request": delivery.request._asdict(),
        "report": report,
        "envs": to_tensors(delivery.strip.envs),
        "arrays": to_tensors(arrays),
    }


def _restored(kept: Mapping[str, Any]) -> Delivery:
    arrays = to_arrays(kept["arrays"])
    strip = Strip.on(arrays, len(arrays["reward"]), len(arrays["ends"]), to_arrays(kept["envs"]))
    report = dict(kept["report"])
    report["episodes"] = [(ret, length) for ret, length in report["episodes"]]
    return Delivery(kept["worker"], Request(**kept["request"]), Report(**report), strip, slot=-1)
