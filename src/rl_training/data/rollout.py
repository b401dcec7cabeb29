"""The rollout buffer of the on-policy algorithms."""

from __future__ import annotations

import math

import numpy as np

from rl_training.data.strips import Strip
from rl_training.types import Array, Records, SpaceInfo, Step


class Rollout:
    """`n_steps` steps of every environment, `[T, B]`, with the policy's records; overwritten by each collection.

    Observations are stored once: a step's successor is the next row's observation, except where an episode was
    truncated and after the last row. `bootstrap_obs` holds those few successors.

    `envs` says which of the run's environments the columns are: all of them, in order, unless workers have gathered it.
    """

    @staticmethod
    def bytes_needed(n_steps: int, num_envs: int, info: SpaceInfo) -> int:
        """The RAM that it takes at least, in bytes: without the records, of which only a policy knows."""
        action_shape, action_dtype = info.stored_action
        action = math.prod(action_shape) * np.dtype(action_dtype).itemsize
        flags_and_reward = 3 + 4
        return n_steps * num_envs * (info.obs_bytes + action + flags_and_reward)

    def __init__(self, n_steps: int, num_envs: int, info: SpaceInfo, records: Records) -> None:
        shape = (n_steps, num_envs)
        action_shape, action_dtype = info.stored_action
        self.obs = np.zeros(shape + info.obs_shape, dtype=info.obs_dtype)
        self.action = np.zeros(shape + action_shape, action_dtype)
        self.reward = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, np.bool_)
        self.truncated = np.zeros(shape, np.bool_)
        self.real = np.zeros(shape, np.bool_)
        self.records = {name: np.zeros(shape + kind.shape, kind.dtype) for name, kind in records.items()}
        self.last_obs = np.zeros((num_envs, *info.obs_shape), dtype=info.obs_dtype)
        self.envs: slice | Array = slice(None)
        self._truncations: list[tuple[int, int, Array]] = []
        self._row = 0

    @property
    def done(self) -> Array:
        done: Array = self.terminated | self.truncated
        return done

    @property
    def starts(self) -> Array:
        """Where a row does not follow from the one before: an episode begins, or the environment was reset."""
        starts = np.zeros_like(self.real)
        starts[1:] = (self.done | ~self.real)[:-1]
        return starts

    def clear(self) -> None:
        self._row = 0
        self._truncations.clear()

    def add(self, step: Step) -> None:
        """Write the next row."""
        row = self._row
        self.obs[row] = step.obs
        self.action[row] = step.action
        self.reward[row] = step.reward
        self.terminated[row] = step.terminated
        self.truncated[row] = step.truncated
        self.real[row] = step.real
        for name, column in self.records.items():
            column[row] = step.records[name]
        if step.truncated.any():
            self._truncations += [(row, int(b), step.next_obs[b].copy()) for b in np.flatnonzero(step.truncated)]
        self.last_obs[:] = step.next_obs
        self._row = row + 1

    def take(self, strip: Strip) -> None:
        """Write all rows at once, from steps of as many rows and environments."""
        for name in ("obs", "action", "reward", "terminated", "truncated", "real", "last_obs"):
            getattr(self, name)[...] = getattr(strip, name)
        for name, column in self.records.items():
            column[...] = strip.records[name]
        ends = [tuple(place) for place in np.argwhere(strip.done).tolist()]
        self._truncations += [
            (row, b, obs.copy()) for (row, b), obs in zip(ends, strip.ends, strict=True) if strip.truncated[row, b]
        ]
        self.envs = strip.envs
        self._row = len(strip)

    def bootstrap_obs(self) -> Array:
        """The successors that no row holds: those of the last row `[B]`, then those of truncated steps `[N]`."""
        truncated = [obs for _, _, obs in self._truncations]
        return np.concatenate([self.last_obs, np.stack(truncated)]) if truncated else self.last_obs

    def bootstrap_places(self) -> tuple[Array, Array]:
        """Rows and environments of the steps that `bootstrap_obs` are the successors of."""
        rows, envs = self.real.shape
        row = [rows - 1] * envs + [row for row, _, _ in self._truncations]
        return np.array(row), np.array([*range(envs), *(b for _, b, _ in self._truncations)])

    def next_values(self, value: Array, bootstrap: Array) -> Array:
        """The value of every step's true successor `[T, B]`, given those of the rows and of `bootstrap_obs`."""
        num_envs = self.last_obs.shape[0]
        next_value = np.empty_like(value)
        next_value[:-1] = value[1:]
        next_value[-1] = bootstrap[:num_envs]
        for (row, b, _), successor in zip(self._truncations, bootstrap[num_envs:], strict=True):
            next_value[row, b] = successor
        return next_value
