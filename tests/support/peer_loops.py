"""A whole run of ours for a peer to follow: worlds that both see alike, and a record of what ours draws.

Both sides compute in single precision, as they do for users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from conformance import boxed, built, in_mode
from peer_networks import SIZES
from rl_training.runtime.rng import make_streams
from rl_training.runtime.train import Run

# Worlds


class Watched(gym.Wrapper[Any, Any, Any, Any]):
    """Episodes with seeds of their own, whatever seeds it is given. It notes all observations and how episodes end."""

    def __init__(self, env: gym.Env[Any, Any], number: int) -> None:
        super().__init__(env)
        self.number, self.episode, self.time = number, 0, 0
        self.seen: dict[tuple[int, int], np.ndarray] = {}
        self.terminated: list[int] = []
        self.truncated: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.time > 0:  # else, the same episode begins once more
            self.episode, self.time = self.episode + 1, 0
        obs, info = self.env.reset(seed=1000 * self.number + self.episode, options=options)
        self.seen[self.episode, 0] = obs.copy()
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.time += 1
        self.seen[self.episode, self.time] = obs.copy()
        if terminated:
            self.terminated.append(self.episode)
        elif truncated:
            self.truncated.append(self.episode)
        return obs, reward, terminated, truncated, info


def apart(ours: Sequence[Watched], peer: Sequence[Watched]) -> float:
    """How far the observations of two sides are from each other; their episodes must be equally long."""
    most = 0.0
    for own, other in zip(ours, peer, strict=True):
        assert own.seen.keys() == other.seen.keys(), "episodes are not equally long"
        assert (own.terminated, own.truncated) == (other.terminated, other.truncated), "episodes end in other ways"
        most = max([most, *(float(np.abs(own.seen[key] - other.seen[key]).max()) for key in own.seen)])
    return most


class Drift(gym.Env[np.ndarray, np.ndarray]):
    """A linear system, pushed by actions within +-3; far from its rest, an episode is terminated."""

    turn = np.array([[0.9, 0.2, 0.0], [-0.2, 0.9, 0.1], [0.0, -0.1, 1.0]])
    push = np.array([[0.2, 0.0], [0.0, 0.2], [0.1, -0.1]])

    def __init__(self) -> None:
        self.observation_space, self.action_space = boxed(3), boxed(2, 3.0)
        self.state = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1.0, 1.0, 3)
        return self.state.astype(np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action)
        self.state = self.turn @ self.state + self.push @ action.astype(np.float64)
        reward = 1.0 - float(self.state @ self.state) - 0.1 * float(action @ action)
        return self.state.astype(np.float32), reward, bool(np.abs(self.state).max() > 1.2), False, {}


@dataclass(frozen=True)
class World:
    """An environment whose episodes also end by a time limit."""

    words: str
    make: Callable[[], gym.Env[Any, Any]]

    def watched(self, number: int) -> Watched:
        return Watched(self.make(), number)


CARTPOLE = World("CartPole-v1, at most 12 steps", lambda: gym.make("CartPole-v1", max_episode_steps=12))
DRIFT = World("a linear system, actions in [-3, 3], at most 9 steps", lambda: gym.wrappers.TimeLimit(Drift(), 9))


# A run of ours


class Drawn(NamedTuple):
    """What ours drew: from which stream, what was asked for, and the result. Whole numbers are `below` a bound."""

    stream: str
    kind: str
    array: np.ndarray
    below: int | None


class Recorded:
    """A random stream that writes down what is drawn from it."""

    def __init__(self, stream: np.random.Generator, name: str, tape: list[Drawn]) -> None:
        self._stream, self._name, self._tape = stream, name, tape

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        draw = getattr(self._stream, kind)

        def recorded(*arguments: Any, **options: Any) -> Any:
            drawn = draw(*arguments, **options)
            below = arguments[1] if kind == "integers" else None
            self._tape.append(Drawn(self._name, kind, np.array(drawn), below))
            return drawn

        return recorded


@dataclass(frozen=True)
class RecordedRun:
    """A run of ours that has not begun, and the tape that its draws are written to."""

    run: Run
    tape: list[Drawn]

    @property
    def watched(self) -> list[Watched]:
        source: Any = self.run.source
        return list(source.actor.collector.envs.envs)

    def advance(self) -> list[Drawn]:
        """One step of the loop; returns what was drawn for it."""
        self.run.advance()
        drawn = self.tape.copy()
        self.tape.clear()
        return drawn


def recorded_run(algo: str, world: World, num_envs: int, **settings: Any) -> RecordedRun:
    """A run with networks of the same shape as the peer's."""
    tape: list[Drawn] = []

    def streams(*arguments: Any) -> dict[str, Any]:
        made = make_streams(*arguments)
        return made | {name: Recorded(made[name], name, tape) for name in ("policy", "batch")}

    envs = in_mode(world.watched, AutoresetMode.DISABLED, numbered=True)
    with mock.patch("rl_training.runtime.train.make_streams", streams):
        run = built(algo, envs, num_envs=num_envs, hidden_sizes=SIZES, **settings)
    return RecordedRun(run, tape)
