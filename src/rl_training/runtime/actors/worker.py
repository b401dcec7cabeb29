"""A worker: an actor with a policy and random streams of its own, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from rl_training.algorithms.base import CollectingLoopConfig
from rl_training.data.strips import StripWriter
from rl_training.experiment.config import load_config
from rl_training.runtime.actors.actor import Actor
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.envs.make import EnvFactory, EnvMaker
from rl_training.runtime.rng import actor_streams
from rl_training.types import SpaceInfo, UserError


class Request(NamedTuple):
    """What a worker is asked for: rollout `number`, of so many steps, with the policy after `version` updates.

    `edition` tells the policy's state from any other that was sent before. Statistics change between updates, too.
    """

    number: int
    version: int
    gradient_steps: int
    edition: int
    steps: int
    randomly: bool
    values: Mapping[str, float]  # the hyperparameters that acting uses


class Report(NamedTuple):
    """What a worker says of a rollout."""

    episodes: list[tuple[float, int]]  # returns and lengths of the latest that have ended in it
    ended: int
    acts: int
    reported: dict[str, float]  # sums over the acts
    seconds: float  # that it took


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker is made from, wherever it runs: the settings of the run, and the function of its environment.

    A worker of one of several tasks is told the spaces of all, since its policy is that of all.
    """

    settings: Mapping[str, Any]
    factory: EnvFactory | None
    num_envs: int  # of this worker
    number: int
    life: int = 0  # how often the worker was replaced before
    task: str = ""
    spaces: Mapping[str, SpaceInfo] = field(default_factory=dict)


class Worker:
    """Gathers rollouts on request, with the weights that come with the request."""

    def __init__(self, plan: WorkerPlan) -> None:
        from rl_training.runtime.train import policy_for

        config = load_config(plan.settings, device="cpu")
        own = config.for_task(plan.task)
        loop = own.loop
        assert isinstance(loop, CollectingLoopConfig)
        self._plan = plan
        maker = EnvMaker(own.run, loop, plan.factory)
        envs = maker.masking(maker.vector(plan.num_envs))
        info = maker.describe(envs)
        env_rng, self._rng = actor_streams(config.run.seed, plan.number, plan.life, plan.task)
        self._collector = Collector(envs, info, env_rng, reward_clip=loop.reward_clip)
        policy = policy_for(config, plan.spaces or {"": info}).for_task(plan.task)
        self._actor = Actor(policy, self._collector, self._rng)
        self._edition = -1

    def start(self) -> None:
        """Begin the first episodes."""
        self._collector.start()

    def gather(self, request: Request, weights: Mapping[str, Tensor], into: StripWriter) -> Report:
        """Act for `request.steps` steps with these weights."""
        policy = self._actor.policy
        if request.edition != self._edition:
            policy.load_policy_state(weights)
            self._edition = request.edition
        policy.values.update(request.values)
        before = self._collector.episodes.count
        try:
            self._actor.gather(request.steps, into, randomly=request.randomly)
        except UserError as error:
            raise UserError(f"worker {self._plan.number}: {error}") from error
        ended = self._collector.episodes.count - before
        acts, reported = self._actor.take_reported()
        return Report(self._collector.episodes.latest(ended), ended, acts, reported, 0.0)

    def why_not_exact(self) -> list[str]:
        """Why a run that is resumed from here does not continue as if it had never stopped."""
        return [f"worker {self._plan.number}: {words}" for words in self._collector.why_not_exact]

    def take_lost(self) -> list[bool] | None:
        """Of its environments, those whose running episodes a resume has lost since the last call, if any."""
        lost = self._collector.take_lost()
        return None if lost is None else [bool(one) for one in lost]

    def state_dict(self) -> dict[str, Any]:
        streams = {"env": self._collector.rng, "policy": self._rng}
        return {
            "actor": self._actor.state_dict(),
            "rng": {name: stream.bit_generator.state for name, stream in streams.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        streams: dict[str, np.random.Generator] = {"env": self._collector.rng, "policy": self._rng}
        for name, stream in streams.items():  # first: an episode that is lost begins anew with a seed from them
            stream.bit_generator.state = state["rng"][name]
        self._actor.load_state_dict(state["actor"])

    def close(self) -> None:
        self._collector.close()
