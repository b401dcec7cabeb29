"""A policy in its environments: the one place that steps environments to learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from rl_training.algorithms.base import Policy
from rl_training.data.strips import Strip
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.trees import check_like, to_arrays, to_tensors
from rl_training.types import Carry, Metrics, Step, UserError

# Longer than any episode that is meant to end.
MOST_STEPS = 1_000_000


class Trajectory(Protocol):
    """Stores the steps of an actor, in order."""

    def add(self, step: Step) -> None:
        """Append the next step `[B]`."""


class Receiver(Trajectory, Protocol):
    """Stores the steps of one actor or of several."""

    def take(self, strip: Strip) -> None:
        """Append all steps of a strip."""


T = TypeVar("T", bound=Trajectory)
R = TypeVar("R", bound=Receiver)


class Steps(list[Step]):
    """A trajectory as a list of steps."""

    def add(self, step: Step) -> None:
        self.append(step)

    def take(self, strip: Strip) -> None:
        self.extend(strip.copy().steps())


class Actor:
    """Acts with a policy in its own environments, with its own random stream, and keeps the policy's carry."""

    def __init__(self, policy: Policy, collector: Collector, rng: np.random.Generator, *, explore: bool = True) -> None:
        self.policy = policy
        self.collector = collector
        self.carry: Carry = policy.initial_carry(collector.num_envs)
        self._rng = rng
        self._explore = explore
        self._acts, self._reported = 0, dict[str, float]()  # sums of the metrics since they were last read
        # The environments of a dataset keep their own dtype.
        self._cast = collector.info.obs_dtype != policy.info.obs_dtype

    def gather(self, count: int, into: T, *, randomly: bool = False) -> T:
        """Add the next `count` steps of every environment to a trajectory, with the policy's records.

        The behaviour policy acts, or uniform actions are taken.
        """
        if self.policy.carry_per_rollout:
            self.carry = self.policy.initial_carry(self.collector.num_envs)
        for _ in range(count):
            into.add(self._step(randomly=randomly))
        return into

    def play(self, most: int | None) -> Steps:
        """Play one episode of a single environment from its start, or its first `most` steps."""
        self.carry = self.policy.initial_carry(self.collector.num_envs)
        steps = Steps()
        while len(steps) != most:
            steps.add(self._step())
            if self.collector.terminated[0] or self.collector.truncated[0]:
                break
            if most is None and len(steps) == MOST_STEPS:
                raise UserError(f"an episode did not end in {MOST_STEPS:,} steps; give steps instead of episodes")
        return steps

    def _step(self, *, randomly: bool = False) -> Step:
        policy, collector = self.policy, self.collector
        obs = collector.obs.astype(policy.info.obs_dtype) if self._cast else collector.obs
        if randomly:
            chosen = policy.act_randomly(obs, self.carry, rng=self._rng)
        else:
            chosen = policy.act(obs, self.carry, explore=self._explore, rng=self._rng)
        if chosen.metrics:
            self._acts += 1
            for name, value in chosen.metrics.items():
                self._reported[name] = self._reported.get(name, 0.0) + value
        step = collector.step(chosen.action, chosen.records)
        if chosen.carry is not None:
            over = step.terminated | step.truncated | ~step.real
            self.carry = policy.begin_episodes(chosen.carry, over)
        return step

    def begin_anew(self) -> None:
        """Begin new episodes in all environments."""
        self.collector.begin_anew()
        self.carry = self.policy.initial_carry(self.collector.num_envs)

    def metrics(self) -> Metrics:
        """The statistics of episodes, and the means of what the policy reported since the last call."""
        acts, totals = self.take_reported()
        return self.collector.metrics() | {name: total / acts for name, total in totals.items()}

    def take_reported(self) -> tuple[int, dict[str, float]]:
        """How often the policy has reported since the last call, and the sums of what it said."""
        taken = self._acts, self._reported
        self._acts, self._reported = 0, {}
        return taken

    @property
    def _carry_lasts(self) -> bool:
        """Whether there is a carry that outlives a rollout."""
        return self.carry is not None and not self.policy.carry_per_rollout

    def state_dict(self) -> dict[str, Any]:
        carry = {"carry": to_tensors(self.carry)} if self._carry_lasts else {}
        return self.collector.state_dict() | carry

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.collector.load_state_dict(state)
        if self._carry_lasts:
            check_like(state["carry"], to_tensors(self.carry), "carry")
            self.carry = to_arrays(state["carry"])
            if self.collector.lost is not None:
                self.carry = self.policy.begin_episodes(self.carry, self.collector.lost)
