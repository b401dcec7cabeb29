"""Restores environments by their own `get_state` and `set_state`, and checks that nothing is missing from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.runtime.envs.fingerprints import Fingerprints
from rl_training.runtime.envs.journal import Journal, Restored, StateKeeper, all_lost, other_parts, unequal_rows
from rl_training.runtime.envs.limits import find_time_limit
from rl_training.runtime.envs.make import NATIVE, reset_each
from rl_training.runtime.rng import global_position
from rl_training.runtime.trees import equal, to_arrays, to_tensors
from rl_training.types import Array, UserError

# After how many steps an earlier state is replaced. There are twice as many to replay at most.
ANCHOR_EVERY = 128


class _Anchor(NamedTuple):
    """A state of the environments: after which of the kept actions, in episodes from which seeds."""

    time: int
    seeds: Array
    state: Any


class _Reset(NamedTuple):
    """Episodes of the masked environments that began from these seeds, after this many of the kept actions."""

    time: int
    mask: Array
    seeds: Array


class OwnVectorState:
    """Uses the `get_state` and `set_state` of a vector environment.

    What a state lacks cannot be seen in it. So an earlier state is kept too, an anchor, with the actions since and the
    fingerprints of what they led to: a resume goes on from there, and must arrive at the latest state.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        self._envs: Any = envs
        self._all = np.ones(envs.num_envs, np.bool_)
        self._one_by_one = envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED
        self._seeds = np.zeros(envs.num_envs, np.int64)
        self._prints = Fingerprints(envs.num_envs)
        self._anchors: list[_Anchor] = []  # one or two: the first is where a replay starts
        self._actions: list[Array] = []
        self._resets: list[_Reset] = []

    def begin(self, mask: Array, seeds: Array, obs: Any) -> None:
        self._seeds = np.where(mask, seeds, self._seeds)
        if not self._one_by_one:  # all begin together, which a replay from an earlier state would not repeat
            self._anchors = []
        if self._anchors:
            self._resets.append(_Reset(len(self._actions), mask.copy(), self._seeds))
            self._prints.look(mask, obs)
        else:
            self._actions, self._resets = [], []
            self._anchors.append(self._anchor())
            self._prints.turn()

    def record(self, action: Array, obs: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        self._actions.append(action)
        self._prints.add(obs, reward, terminated, truncated)
        if len(self._actions) - self._anchors[-1].time >= ANCHOR_EVERY:
            self._move_on()

    def _move_on(self) -> None:
        """Take another anchor, and forget what came before the last one."""
        last = self._anchors[-1]
        del self._actions[: last.time]
        since = [reset for reset in self._resets if reset.time >= last.time]
        self._resets = [reset._replace(time=reset.time - last.time) for reset in since]
        self._anchors = [last._replace(time=0), self._anchor()]
        self._prints.turn()

    def _anchor(self) -> _Anchor:
        return _Anchor(len(self._actions), self._seeds, self._get())

    def _get(self) -> Any:
        return to_tensors(self._envs.get_state())

    def _set(self, state: Any) -> None:
        self._envs.set_state(to_arrays(state))

    def _unequal(self, then: Any, now: Any) -> Array:
        """A mask of the environments whose states differ."""
        return self._all & (not equal(then, now))

    def why_lost(self) -> list[str]:
        return []

    def state_dict(self) -> dict[str, Any]:
        actions = np.stack(self._actions) if self._actions else np.zeros((0,))
        return {
            "seeds": torch.from_numpy(self._seeds.copy()),
            "anchors": [to_tensors(anchor._asdict()) for anchor in self._anchors],
            "actions": torch.from_numpy(actions),
            "resets": [to_tensors(reset._asdict()) for reset in self._resets],
            "sums": torch.from_numpy(self._prints.sums.copy()),
            "own": self._get(),
        }

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Restored:
        self._load(state)
        again, position = Fingerprints(len(shown)), global_position()
        try:
            obs = self._replay(envs, again)
        except UserError:
            raise
        except Exception as error:
            self._anchors = []
            return all_lost(error, len(shown))
        wrong = (self._prints.sums != again.sums)[2 - len(self._anchors) :].any(axis=0)
        if obs is not None:
            wrong[:, 0] |= unequal_rows(obs, shown)
        if global_position() != position:  # which no replay repeats: they are saved apart
            wrong[:] = False
            self._set(state["own"])
        how = "going on from an earlier get_state gives"
        faults = {b: f"{how} {words}" for b, words in other_parts(wrong).items()}
        for b in np.flatnonzero(self._unequal(state["own"], self._get())).tolist():
            faults.setdefault(b, f"{how} another get_state")
        if faults:
            self._anchors = []  # where the next episode begins is the first one to go on from
        return Restored(np.isin(np.arange(len(shown)), list(faults)), faults)

    def _load(self, state: Mapping[str, Any]) -> None:
        anchors = [_Anchor(**anchor) for anchor in state["anchors"]]
        self._anchors = [anchor._replace(seeds=to_arrays(anchor.seeds)) for anchor in anchors]
        self._seeds = to_arrays(state["seeds"])
        self._actions = list(to_arrays(state["actions"]))
        self._resets = [_Reset(**to_arrays(reset)) for reset in state["resets"]]
        self._prints.sums[:] = state["sums"].numpy()

    def _replay(self, envs: VectorEnv[Any, Any, Any], again: Fingerprints) -> Any:
        """Go on from the first anchor; returns the latest observations, or None if nothing has happened since."""
        anchor, turn, obs = self._anchors[0], self._anchors[-1].time, None
        if self._one_by_one:
            reset_each(envs, anchor.seeds.tolist())
        else:
            envs.reset(seed=int(anchor.seeds[0]))
        self._set(anchor.state)
        resets = {reset.time: reset for reset in self._resets}
        for time in range(len(self._actions) + 1):
            over = ~self._all
            if time > 0:
                obs, reward, terminated, truncated, _ = envs.step(self._actions[time - 1].copy())
                again.add(obs, reward, terminated, truncated)
                over = terminated | truncated
            if time == turn > 0:
                again.turn()
            due = resets.get(time, _Reset(time, ~self._all, anchor.seeds))
            if self._one_by_one and (due.mask | over).any():  # what ends too early only has to be kept running
                obs = reset_each(envs, due.seeds.tolist(), due.mask | over)
                again.look(due.mask, obs)
        return obs


class KnownVectorState(OwnVectorState):
    """Uses a `get_state` of this package's own, which lacks nothing: no earlier state is kept, and none is replayed."""

    def begin(self, mask: Array, seeds: Array, obs: Any) -> None:
        self._seeds = np.where(mask, seeds, self._seeds)

    def record(self, action: Array, obs: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        """Nothing to do: the state says it all."""

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Restored:
        self._load(state)
        envs.reset(seed=int(self._seeds[0]))
        self._set(state["own"])
        return Restored(~self._all | (not equal(state["own"], self._get())))


class OwnStates(OwnVectorState):
    """Uses the `get_state` and `set_state` of every environment, and saves their time limits and generators."""

    def _get(self) -> Any:
        return [
            {
                "own": to_tensors(env.unwrapped.get_state()),
                "elapsed": _elapsed(env),
                "rng": to_tensors(_generator_state(env)),
            }
            for env in self._envs.envs
        ]

    def _set(self, state: Any) -> None:
        for env, kept in zip(self._envs.envs, state, strict=True):
            env.unwrapped.set_state(to_arrays(kept["own"]))
            if kept["rng"] is not None:
                env.unwrapped.np_random.bit_generator.state = to_arrays(kept["rng"])
            limit = find_time_limit(env)
            if limit is not None:
                limit._elapsed_steps = kept["elapsed"]

    def _unequal(self, then: Any, now: Any) -> Array:
        return np.array([not equal(a, b) for a, b in zip(then, now, strict=True)], np.bool_)


class Forgetful:
    """For environments that reset themselves and have no `get_state`: their episodes restart after a resume."""

    WHY = "the environments reset themselves and have no get_state, so their episodes start again"

    def begin(self, mask: Array, seeds: Array, obs: Any) -> None:
        pass

    def record(self, action: Array, obs: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        pass

    def why_lost(self) -> list[str]:
        return [self.WHY]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Restored:
        return Restored(np.ones(len(shown), np.bool_))


def keep_state_of(envs: VectorEnv[Any, Any, Any]) -> StateKeeper:
    """The most exact keeper that these environments allow."""
    if isinstance(envs, tuple(NATIVE.values())):  # type: ignore[arg-type]
        return KnownVectorState(envs)
    if _has_state(envs):
        return OwnVectorState(envs)
    if isinstance(envs, SyncVectorEnv) and all(_has_state(env.unwrapped) and _plain(env) for env in envs.envs):
        return OwnStates(envs)
    if envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED:
        return Journal(envs.num_envs)
    return Forgetful()


def _has_state(env: Any) -> bool:
    return callable(getattr(env, "get_state", None)) and callable(getattr(env, "set_state", None))


def _plain(env: gym.Env[Any, Any]) -> bool:
    """Whether no wrapper has state other than the elapsed time."""
    plain_wrappers = (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker)
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, plain_wrappers):
            return False
        env = env.env
    return True


def _elapsed(env: gym.Env[Any, Any]) -> int | None:
    limit = find_time_limit(env)
    return None if limit is None else limit._elapsed_steps


def _generator_state(env: gym.Env[Any, Any]) -> Any:
    """The state of Gymnasium's own generator; None if the environment does not use it."""
    generator = env.unwrapped._np_random
    return None if generator is None else generator.bit_generator.state
