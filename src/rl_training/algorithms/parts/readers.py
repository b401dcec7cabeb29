"""How a policy reads a rollout: row by row or, if it is recurrent, as sequences of steps.

Algorithms that train either kind of policy are written once: a reader knows how minibatches are made, how successors
are judged, and which closed form fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from rl_training.algorithms.parts.actor_critic_policy import ActorCriticPolicy
from rl_training.algorithms.parts.objectives import Batch, EngineForm
from rl_training.algorithms.parts.recurrent_policy import PackedEngineForm, RecurrentPolicy, one_step
from rl_training.data.rollout import Rollout
from rl_training.data.sequence import Packed, Sequences
from rl_training.models.actor_critic_engine import ActorCriticEngine
from rl_training.models.recurrent_engine import RecurrentEngine
from rl_training.types import Array, SpaceInfo


class Judged(NamedTuple):
    """What a policy with its current weights says of a rollout that an older one may have made.

    Log-probabilities of the actions taken and values, both `[T, B]`, and the values of `Rollout.bootstrap_obs`.
    """

    log_prob: Array
    value: Array
    bootstrap: Array


class Reader(Protocol):
    """Reads rollouts for a policy."""

    def engine_form(self, info: SpaceInfo) -> EngineForm:
        """The closed form of the default network."""

    def bootstrap_values(self, rollout: Rollout) -> Array:
        """The values of `rollout.bootstrap_obs`, for a rollout that the policy itself has made."""

    def judge(self, rollout: Rollout) -> Judged:
        """Compute the whole rollout again, with the current weights and statistics."""

    def arranged(self, obs: Array, rollout: Rollout, length: int | None = None) -> Any:
        """The (scaled) observations `[N, ...]` of the real steps, as `Batch.obs` of all of them.

        `length` is how many steps gradients flow through, if the policy is recurrent; the whole rollout if None.
        """

    def whole(self, data: Batch[Array]) -> Batch[Array]:
        """All steps as one minibatch."""

    def epoch(self, data: Batch[Array], size: int, rng: np.random.Generator) -> Iterator[Batch[Array]]:
        """Minibatches of about `size` steps, which together are all steps in a random order."""


class RowReader:
    """For a policy without memory, whose rows have nothing to do with each other."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self._policy = policy

    def engine_form(self, info: SpaceInfo) -> EngineForm:
        return EngineForm(self._policy, ActorCriticEngine(self._policy.network, info))

    def bootstrap_values(self, rollout: Rollout) -> Array:
        values: Array = self._policy.acting.outputs(self._policy.observer.scaled(rollout.bootstrap_obs()))[1]
        return values

    def judge(self, rollout: Rollout) -> Judged:
        policy, shape = self._policy, rollout.real.shape
        rows, action = (column.reshape(-1, *column.shape[2:]) for column in (rollout.obs, rollout.action))
        params, value = policy.acting.outputs(policy.observer.scaled(rows))
        value = value.reshape(shape).copy()  # the next call may overwrite results of the last
        log_prob = policy.acting.log_prob(params, policy.to_network(action)).reshape(shape)
        return Judged(log_prob, value, self.bootstrap_values(rollout).copy())

    def arranged(self, obs: Array, rollout: Rollout, length: int | None = None) -> Any:
        return obs

    def whole(self, data: Batch[Array]) -> Batch[Array]:
        return data

    def epoch(self, data: Batch[Array], size: int, rng: np.random.Generator) -> Iterator[Batch[Array]]:
        order = rng.permutation(len(data))
        shuffled = data.map(lambda column: column.take(order, axis=0))
        for start in range(0, len(data), size):
            yield shuffled.map(lambda column: column[start : start + size])  # noqa: B023


class SequenceReader:
    """For a recurrent policy. Every sequence starts from the state that was recorded while acting."""

    def __init__(self, policy: RecurrentPolicy) -> None:
        self._policy = policy

    def engine_form(self, info: SpaceInfo) -> EngineForm:
        return PackedEngineForm(self._policy, RecurrentEngine(self._policy.network, info))

    def bootstrap_values(self, rollout: Rollout) -> Array:
        """The step before each successor is computed again, since only the state before that step is recorded."""
        before = rollout.bootstrap_places()
        count = len(before[0])
        rows = self._policy.observer.scaled(np.concatenate([rollout.obs[before], rollout.bootstrap_obs()]))
        _, value, _ = self._policy.acting.run(Packed(rows, np.array([count, count]), rollout.records["state"][before]))
        return value[count:]

    def judge(self, rollout: Rollout) -> Judged:
        """Of the recorded states, only those at the start of the rollout are used: later ones are an older network's.

        What is not a real step is given as 0.
        """
        policy, real = self._policy, rollout.real
        sequences = self.arranged(policy.observer.scaled(rollout.obs[real]), rollout)
        picked, steps = self._packed(sequences, np.arange(len(sequences)))
        params, value, after = policy.acting.run(steps)
        columns = np.zeros((2, real.sum()), np.float32)
        columns[1, picked] = value
        columns[0, picked] = policy.acting.log_prob(params, policy.to_network(rollout.action[real][picked]))
        judged = np.zeros((2, *real.shape), np.float32)
        judged[:, real] = columns
        # A successor goes on from the state after the part that ends with the step before it.
        part = np.full(real.shape, -1)
        part[real] = _part_that_ends(picked, steps.sizes)
        part = part[rollout.bootstrap_places()]
        state = np.where(part[:, None] >= 0, after[part], np.float32(0.0))
        _, bootstrap, _ = policy.acting.run(one_step(policy.observer.scaled(rollout.bootstrap_obs()), state))
        return Judged(judged[0], judged[1], bootstrap.copy())

    def arranged(self, obs: Array, rollout: Rollout, length: int | None = None) -> Sequences:
        real = rollout.real
        length = min(length or len(real), len(real))
        return Sequences(obs, rollout.records["state"][real], real, rollout.starts, length)

    def whole(self, data: Batch[Array]) -> Batch[Array]:
        return self._minibatch(data, np.arange(len(data.obs)))

    def epoch(self, data: Batch[Array], size: int, rng: np.random.Generator) -> Iterator[Batch[Array]]:
        """Minibatches are whole sequences, at least one."""
        sequences: Sequences = data.obs
        count = max(1, size // sequences.length)
        order = rng.permutation(len(sequences))
        for start in range(0, len(sequences), count):
            yield self._minibatch(data, order[start : start + count])

    def _minibatch(self, data: Batch[Array], chosen: Array) -> Batch[Array]:
        picked, steps = self._packed(data.obs, chosen)
        mini = replace(data, obs=data.action).map(lambda column: column.take(picked, axis=0))
        return replace(mini, obs=steps)

    @staticmethod
    def _packed(sequences: Sequences, chosen: Array) -> tuple[Array, Packed]:
        """The numbers of the steps of some sequences, in packed order, and their observations."""
        picked, sizes = sequences.pack(chosen)
        return picked, Packed(sequences.rows.take(picked, axis=0), sizes, sequences.state[picked[: sizes[0]]])


def _part_that_ends(picked: Array, sizes: Array) -> Array:
    """For every step the part whose last step it is, or -1; steps are those of `Sequences.pack`."""
    part = np.full(picked.size, -1)
    ends = np.cumsum(sizes)
    # Of the parts that have a step t, the last ones, from sizes[t + 1] on, have no step t + 1.
    for end, size, following in zip(ends, sizes, np.append(sizes[1:], 0), strict=True):
        part[picked[end - size + following : end]] = np.arange(following, size)
    return part


def reader_of(policy: ActorCriticPolicy) -> Reader:
    """The reader that fits a policy."""
    return SequenceReader(policy) if isinstance(policy, RecurrentPolicy) else RowReader(policy)
