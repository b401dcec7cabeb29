"""Restores environments by replay: from the seeds of their episodes, with the actions since."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rl_training.runtime.envs.fingerprints import PARTS, Fingerprints
from rl_training.runtime.envs.make import reset_each
from rl_training.runtime.rng import global_position
from rl_training.runtime.trees import check_like
from rl_training.types import Array, UserError

# Of an episode that is longer than this nothing is kept, so that checkpoints do not grow without end.
LONGEST_EPISODE = 100_000
_TRIM_EVERY = 4096
_NOT_KEPT = -1


@dataclass
class Restored:
    """Which environments could not be restored, as a mask, and why, by environment."""

    differs: Array
    faults: dict[int, str] = field(default_factory=dict)

    @property
    def why(self) -> list[str]:
        return by_environment(self.faults)


class StateKeeper(Protocol):
    """Keeps what is needed to restore the environments."""

    def begin(self, mask: Array, seeds: Array, obs: Any) -> None:
        """Record that episodes of the masked environments started from these seeds, with these observations."""

    def record(self, action: Array, obs: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        """Record the actions that the environments took, and what they returned."""

    def why_lost(self) -> list[str]:
        """Why running episodes could not be restored from the state of now; empty if they can be."""

    def state_dict(self) -> dict[str, Any]:
        """The state as plain data and tensors."""

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Restored:
        """Restore the environments, whose latest observations were `shown`."""


def by_environment(faults: Mapping[int, str]) -> list[str]:
    """One line for each fault, with the environments that have it."""
    indices = defaultdict(list)
    for index, words in sorted(faults.items()):
        indices[words].append(index)
    return [f"{_named(which)}: {words}" for words, which in indices.items()]


def _named(indices: list[int]) -> str:
    if len(indices) == 1:
        return f"environment {indices[0]}"
    first, last = indices[0], indices[-1]
    consecutive = last - first + 1 == len(indices)
    return f"environments {f'{first} to {last}' if consecutive else ', '.join(map(str, indices))}"


def other_parts(wrong: Array) -> dict[int, str]:
    """The names of the parts that a replay returned differently, from a mask `[B, 3]`, by environment."""
    found = enumerate(wrong.tolist())
    named = {b: [name for name, differs in zip(PARTS, row, strict=True) if differs] for b, row in found}
    return {b: f"other {' and '.join(names)}" for b, names in named.items() if names}


def all_lost(error: Exception, num_envs: int) -> Restored:
    """The result of a replay in which an environment raised an error: none is where it was."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return Restored(
        np.ones(num_envs, np.bool_), dict.fromkeys(range(num_envs), f"replaying its episode raised {words}")
    )


def unequal_rows(left: Any, right: Array) -> Array:
    """A mask of the rows that differ; of all, if the shapes do."""
    left = np.asarray(left)
    if left.shape != right.shape:
        return np.ones(len(right), np.bool_)
    mask: Array = (left != right).reshape(len(right), -1).any(axis=1)
    return mask


class Journal:
    """Keeps the seeds and actions of the running episode and of the one before it, and restores by reset and replay.

    The episode before shows what an environment carries over from one episode to the next, when the running one has
    only begun. Environments must be reset explicitly, one by one (Gymnasium's DISABLED autoreset).
    """

    def __init__(self, num_envs: int) -> None:
        # Of the episode before, and of the running one. If there is none before, both are the same.
        self._seeds = np.zeros((2, num_envs), np.int64)
        self._starts = np.full((2, num_envs), _NOT_KEPT, np.int64)
        self._prints = Fingerprints(num_envs)
        self._actions: list[Array] = []

    def begin(self, mask: Array, seeds: Array, obs: Any) -> None:
        for rows, now in ((self._seeds, seeds), (self._starts, np.full_like(seeds, len(self._actions)))):
            rows[0, mask], rows[1, mask] = rows[1, mask], now[mask]
        self._forget_before(mask & (self._starts[0] == _NOT_KEPT))
        self._prints.begin(mask, obs)

    def record(self, action: Array, obs: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        self._actions.append(action)
        self._prints.add(obs, reward, terminated, truncated)
        if len(self._actions) % _TRIM_EVERY == 0:
            self._trim()

    def _forget_before(self, mask: Array) -> None:
        for rows in (self._seeds, self._starts):
            rows[0, mask] = rows[1, mask]

    def _trim(self) -> None:
        """Forget what is too long, and the actions before the oldest episode that is kept."""
        most = len(self._actions) - LONGEST_EPISODE
        self._starts[1, self._starts[1] < most] = _NOT_KEPT
        self._forget_before((self._starts[0] < most) | (self._starts[1] == _NOT_KEPT))
        kept = self._starts[self._starts != _NOT_KEPT]
        oldest = int(kept.min()) if kept.size else len(self._actions)
        del self._actions[:oldest]
        self._starts[self._starts != _NOT_KEPT] -= oldest

    def why_lost(self) -> list[str]:
        self._trim()
        return by_environment(self._too_long())

    def _too_long(self) -> dict[int, str]:
        words = f"its episode is longer than {LONGEST_EPISODE:,} steps, of which no more are kept"
        return dict.fromkeys(np.flatnonzero(self._starts[1] == _NOT_KEPT).tolist(), words)

    def state_dict(self) -> dict[str, Any]:
        self._trim()
        actions = np.stack(self._actions) if self._actions else np.zeros((0,))
        return {
            "seeds": torch.from_numpy(self._seeds.copy()),
            "starts": torch.from_numpy(self._starts.copy()),
            "sums": torch.from_numpy(self._prints.sums.copy()),
            "actions": torch.from_numpy(actions),
        }

    def restore(self, envs: VectorEnv[Any, Any, Any], state: Mapping[str, Any], shown: Array) -> Restored:
        check_like(state, self.state_dict() | {"actions": torch.empty(0)}, "keeper")
        self._seeds, self._starts = state["seeds"].numpy().copy(), state["starts"].numpy().copy()
        self._prints.sums[:] = state["sums"].numpy()
        self._actions = list(state["actions"].numpy().copy())
        again, position = Journal(len(shown)), global_position()
        try:
            obs = self._replay(envs, again)
        except UserError:
            raise
        except Exception as error:
            self._starts[:] = _NOT_KEPT
            return all_lost(error, len(shown))
        wrong = self._prints.sums != again._prints.sums
        wrong[0, self._starts[0] == self._starts[1]] = False
        differs: Array = wrong.any(axis=0)
        differs[:, 0] |= unequal_rows(obs, shown)
        if global_position() != position:
            differs[:, 1] = False  # rewards came from global generators, which no replay repeats: they are saved apart
        faults = {b: f"replaying its episode gives {words}" for b, words in other_parts(differs).items()}
        faults |= self._too_long()
        lost = np.isin(np.arange(len(shown)), list(faults))
        self._starts[:, lost] = _NOT_KEPT
        return Restored(lost, faults)

    def _replay(self, envs: VectorEnv[Any, Any, Any], again: Journal) -> Array:
        """Repeat all that is kept, and record it in another journal; returns the latest observations."""
        seeds, begun = self._seeds_at(0), self._begun_at(0)
        obs = reset_each(envs, seeds.tolist())
        again.begin(begun, seeds, obs)
        step, moving = getattr(envs, "step_some", None), begun
        for time, action in enumerate(self._actions, start=1):
            # Others than ours cannot be stepped one by one. What is not to move yet is then only kept running.
            returned: Any = step(action.copy(), moving) if step is not None else envs.step(action.copy())
            obs, reward, terminated, truncated, _ = returned
            again.record(action, obs, reward, terminated, truncated)
            seeds, begun = self._seeds_at(time), self._begun_at(time)
            over = terminated | truncated
            moving = (moving & ~over) | begun
            if (over | begun).any():
                obs = reset_each(envs, seeds.tolist(), over | begun)
                again.begin(begun, seeds, obs)
        return obs

    def _begun_at(self, time: int) -> Array:
        mask: Array = (self._starts == time).any(axis=0)
        return mask

    def _seeds_at(self, time: int) -> Array:
        seeds: Array = np.where(self._starts[1] <= time, self._seeds[1], self._seeds[0])
        return seeds
