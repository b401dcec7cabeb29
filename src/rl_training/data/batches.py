"""What a memory returns: transitions, or windows of consecutive steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rl_training.types import Array

# Why a row of a window is past the end of the window's episode.
WITHIN = 0  # it is not past the end
TERMINATED = 1
TRUNCATED = 2
UNKNOWN = 3  # no newer row is stored, or the episode was interrupted: how it went on is not known


@dataclass(slots=True)
class Transitions:
    """Transitions `[B]` drawn from a memory: single ones, or the first and last of chains of n steps.

    For a chain, `reward` is the discounted sum of its rewards; `next_obs`, `terminated` and `truncated` are those of
    its last transition. A chain that ends early is bootstrapped from there: `discount` is gamma to the power of its
    real length. The arrays are reused by the next call.
    """

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    truncated: Array
    discount: Array
    weight: Array | None = None  # in the loss, after a prioritised draw
    index: Array | None = None  # names the rows for `note`, where there is something to note
    records: Mapping[str, Array] = field(default_factory=dict)  # of the first transition
    between: Between | None = None  # the states inside of chains, if they were asked for

    def __len__(self) -> int:
        return len(self.reward)


@dataclass(slots=True)
class Between:
    """The states `[n - 1, B]` of chains of n steps after their first one; `discount` is 0 where a chain has ended."""

    obs: Array
    discount: Array


@dataclass(slots=True)
class Windows:
    """Consecutive steps `[T, B]` (time first) of single environments. The arrays are reused by the next call."""

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    truncated: Array
    first: Array  # an episode begins at this row
    real: Array  # the row is a stored transition; if not, it repeats the last one that is
    past: Array  # uint8: WITHIN, or why the row is past the end of the window's episode
    weight: Array | None  # `[B]`, in the loss, after a prioritised draw
    index: Array  # names the rows for `note`; -1 where a row is not real
    records: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.reward.shape[1])


def chains_of(windows: Windows, gamma: float) -> Transitions:
    """Windows that end with their episodes as chains of transitions, with the states inside of them."""
    powers = np.power(gamma, np.arange(len(windows.real)))[:, None] * windows.real
    return Transitions(
        windows.obs[0],
        windows.action[0],
        (powers * windows.reward).sum(axis=0).astype(np.float32),
        # Rows past the end of a chain repeat its last transition.
        windows.next_obs[-1],
        windows.terminated[-1],
        windows.truncated[-1],
        np.power(gamma, windows.real.sum(axis=0)).astype(np.float32),
        weight=windows.weight,
        index=windows.index[0],
        records={name: column[0] for name, column in windows.records.items()},
        between=Between(windows.obs[1:], powers[1:].astype(np.float32)),
    )
