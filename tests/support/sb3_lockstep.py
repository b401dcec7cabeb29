"""Whole runs of ours beside those of Stable-Baselines3 and sb3-contrib, step by step.

The peer runs its own loop. Before each of its phases (some steps, then updates), ours goes through the same phase; then
the peer draws what ours drew, in the order in which it asks for it. Weights are compared after every phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from peer_data import Draws, torch_draws
from peer_loops import Drawn, RecordedRun, World, apart, recorded_run
from peer_updates import modules_of
from peers import Twins
from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from sb3_pairs import Peer

# What ours drew in a phase, and the number of environments, become the draws of the peer.
Translate = Callable[[Sequence[Drawn], int], Iterable[Any]]


@dataclass(frozen=True)
class LoopDifference:
    """The largest differences on the way, how far weights moved, and how many episodes ended in which way."""

    observation: float
    weight: float
    movement: float
    terminated: int
    truncated: int


class Settings(NamedTuple):
    """Settings of both sides, and of one side only."""

    both: Mapping[str, Any]
    ours: Mapping[str, Any] = {}
    peer: Mapping[str, Any] = {}


@dataclass(frozen=True)
class LoopPair:
    """An algorithm of ours and of another library that learn in the same world.

    `make` makes the peer from its environments and settings; `during` changes it while it learns.
    """

    algorithm: str
    peer: str
    algo: str
    make: Callable[..., Peer]
    world: World
    num_envs: int
    steps: int
    updates: int
    settings: Settings
    translate: Translate
    during: Callable[[Any], AbstractContextManager[None]] = nullcontext

    def __str__(self) -> str:
        return f"{self.algorithm}, {self.peer}"

    def difference(self, engine: str) -> LoopDifference:
        """Compare the peer with ours, computed by this engine."""
        envs = DummyVecEnv([partial(self.world.watched, number) for number in range(self.num_envs)])
        made = self.make(envs=envs, **self.settings.both, **self.settings.peer)
        own = {"engine": engine, "total_timesteps": self.steps, **self.settings.both, **self.settings.ours}
        ours = recorded_run(self.algo, self.world, self.num_envs, **own)
        assert ours.run.algorithm.engine == ("mlp" if engine == "auto" else engine)
        with closing(ours.run), self.during(made[0]):
            found = in_lockstep(ours, made, self.translate)
        assert ours.run.steps == made[0].num_timesteps == self.steps
        assert ours.run.algorithm.n_updates == self.updates
        return found


# The draws of the peer


class LoopDraws(Draws):
    """All random numbers of a peer's loop. A whole number comes after the bound that it is drawn below."""

    def __init__(self, actions: gym.Space[Any]) -> None:
        super().__init__()
        self._actions = actions

    def randint(self, low: int, high: int | None = None, size: Any = ()) -> np.ndarray:
        ours, peer = int(self._next(())), low if high is None else high
        assert ours == peer, f"ours drew from {ours} numbers, the peer draws from {peer}"
        return self._next(np.atleast_1d(np.asarray(size, np.int64)))

    def rand(self) -> float:
        return float(self._next(()))

    def normal(self, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        return mean + deviation * self._next(mean.shape)

    def multinomial(self, probabilities: Tensor, *_: Any) -> Tensor:
        """The choice whose part of [0, 1) has a given number in it."""
        ends = probabilities.double().cumsum(dim=1)
        return (ends / ends[:, -1:] <= self.tensor((len(ends), 1))).sum(dim=1, keepdim=True)

    def action(self) -> np.ndarray:
        """A random action; ours are in [-1, 1]."""
        space = self._actions
        drawn = self._next(space.shape)
        if not isinstance(space, gym.spaces.Box):
            return drawn
        return (space.low + (drawn + 1.0) / 2.0 * (space.high - space.low)).astype(space.dtype)

    @contextmanager
    def given(self) -> Iterator[None]:
        """Torch, NumPy and the space of actions return these numbers."""
        with (
            torch_draws(self),
            mock.patch("torch.multinomial", self.multinomial),
            mock.patch.multiple(
                np.random, randint=self.randint, rand=self.rand, normal=self.normal, permutation=self.permutation
            ),
            mock.patch.object(self._actions, "sample", self.action),
        ):
            yield


# Two loops


class BeforeEveryPhase(BaseCallback):
    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def _on_rollout_start(self) -> None:
        self._act()

    def _on_step(self) -> bool:
        return True


def in_lockstep(ours: RecordedRun, made: Peer, translate: Translate) -> LoopDifference:
    """Let both sides learn, and compare them."""
    peer, networks = made
    run, draws = ours.run, LoopDraws(peer.action_space)
    algorithm: Any = run.algorithm
    modules = {"network": algorithm.network} if isinstance(algorithm, OnPolicyAlgorithm) else modules_of(algorithm)
    twins = Twins(modules, networks)
    trained = [name for name, group in networks.items() if group.optimizer is not None]
    found = [0.0]

    def compare(names: Iterable[str]) -> None:
        assert not draws.left, f"{len(draws.left)} draws of ours were not drawn by the peer"
        found.extend(twins.apart(name) for name in names)

    def phase() -> None:
        compare(trained)
        draws.left.extend(translate(ours.advance(), run.source.num_envs))

    with draws.given():
        peer.learn(run.config.run.total_timesteps, callback=BeforeEveryPhase(phase))
    compare(networks)
    return LoopDifference(
        apart(ours.watched, peer.env.envs),
        max(found),
        max(twins.moved(name) for name in networks),
        sum(len(env.terminated) for env in ours.watched),
        sum(len(env.truncated) for env in ours.watched),
    )
