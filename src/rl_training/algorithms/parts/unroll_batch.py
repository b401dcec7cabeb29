"""What a model is trained on along a window: its actions, and the targets of every state that it reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from rl_training.data.batches import TERMINATED, Windows
from rl_training.ops.exploration import uniform_choices
from rl_training.ops.kernels.unroll_targets import bootstrap_rows, value_targets
from rl_training.ops.two_hot import Support, two_hot
from rl_training.types import Array, SpaceInfo

T = TypeVar("T", Array, Tensor)
S = TypeVar("S", Array, Tensor)


@dataclass(frozen=True)
class UnrollBatch:
    """Windows `[B]` along which a model learns K steps.

    A weight is the window's, times the step's share of the loss, over B; it is 0 where nothing is known.
    """

    obs: Array  # `[B, ...]`, scaled
    action: Array  # `[K, B]`, or `[K, B, D]` if continuous
    policy: Array  # `[K + 1, B, A]`
    value: Array  # `[K + 1, B]`
    reward: Array  # `[K, B]`
    policy_weight: Array  # `[K + 1, B]`
    value_weight: Array  # `[K + 1, B]`
    reward_weight: Array  # `[K, B]`
    sampled: Array | None = None  # `[K + 1, B, A, D]`: the actions that `policy` is a distribution over
    later_obs: Array | None = None  # `[K, B, ...]`, scaled: what was really seen at the later states

    def later_rows(self) -> Array:
        """What was seen at the later states, as rows `[K B, ...]`."""
        assert self.later_obs is not None
        return self.later_obs.reshape(-1, *self.later_obs.shape[2:])

    def later_weight(self) -> Array:
        """The weights `[K, B]` of the later states that were seen."""
        return self.policy_weight[1:]


@dataclass(frozen=True)
class Goals(Generic[T]):
    """The targets along windows as distributions, with their weights in the loss."""

    policy: T  # `[K + 1, B, A]`
    value: T  # `[K + 1, B, bins]`
    reward: T  # `[K, B, bins]`
    policy_weight: T  # `[K + 1, B]`
    value_weight: T  # `[K + 1, B]`
    reward_weight: T  # `[K, B]`
    sampled: T | None = None  # `[K + 1, B, A, D]`

    def map(self, function: Callable[[T], S]) -> Goals[S]:
        return Goals(
            policy=function(self.policy),
            value=function(self.value),
            reward=function(self.reward),
            policy_weight=function(self.policy_weight),
            value_weight=function(self.value_weight),
            reward_weight=function(self.reward_weight),
            sampled=None if self.sampled is None else function(self.sampled),
        )


def goals_of(batch: UnrollBatch, reward_support: Support, value_support: Support) -> Goals[Array]:
    """A batch's targets as distributions; rewards and values are two-hot."""
    return Goals(
        batch.policy,
        two_hot(batch.value, value_support),
        two_hot(batch.reward, reward_support),
        batch.policy_weight,
        batch.value_weight,
        batch.reward_weight,
        batch.sampled,
    )


def targets_from(windows: Windows, n_step: Array, steps: int) -> Array:
    """The window's rows `[K + 1, B]` whose successors the value targets bootstrap from."""
    rows = np.empty((steps + 1, len(windows)), np.int64)
    bootstrap_rows(windows.real, n_step, rows)
    return rows


def returns_to(windows: Windows, rows: Array, bootstrap: Array, discount: float) -> Array:
    """Value targets `[K + 1, B]` from the values `[K + 1, B]` of the successors of `rows`."""
    target = np.empty(rows.shape, np.float32)
    value_targets(windows.reward, windows.terminated, windows.real, rows, bootstrap, discount, target)
    return target


def known(windows: Windows, steps: int) -> tuple[Array, Array, Array]:
    """Which policies `[K + 1, B]`, values `[K + 1, B]` and rewards `[K, B]` there is something to learn about.

    Past a terminated episode every reward and value is 0, whatever is done there: an absorbing state. Past a truncated
    or interrupted one nothing is known.
    """
    acted = windows.real[: steps + 1]
    settled = acted | (windows.past[: steps + 1] == TERMINATED)
    return acted, settled, settled[:steps]


def actions_along(windows: Windows, steps: int, info: SpaceInfo, rng: np.random.Generator) -> Array:
    """The actions `[K, B, ...]` of the windows; past the end of an episode random ones, since none may matter."""
    action: Array = windows.action[:steps].copy()
    beyond = ~windows.real[:steps]
    count = int(np.count_nonzero(beyond))
    if count:
        if info.continuous:
            action[beyond] = rng.uniform(-1.0, 1.0, (count, info.action_size))
        else:
            action[beyond] = uniform_choices(rng, count, info.action_size, None)
    return action


def targets_along(
    windows: Windows,
    obs: Array,
    action: Array,
    value: Array,
    weights: tuple[Array, Array],
    *,
    sampled: Array | None = None,
    later_obs: Array | None = None,
) -> UnrollBatch:
    """The targets along windows whose value targets are `value` `[K + 1, B]`.

    `weights` are those of states and of rewards where all is known, of shapes that broadcast to `[K + 1, B]` and
    `[K, B]`.
    """
    steps, (of_states, of_rewards) = len(action), weights
    acted, settled, paid = known(windows, steps)
    return UnrollBatch(
        obs,
        action,
        windows.records["policy"][: steps + 1],
        value,
        np.where(windows.real[:steps], windows.reward[:steps], np.float32(0.0)),
        of_states * acted,
        of_states * settled,
        of_rewards * paid,
        sampled,
        later_obs,
    )


def step_weights(steps: int, weight: Array | None, count: int) -> Array:
    """The weight `[K + 1, B]` of every unrolled state in the loss."""
    share = np.full((steps + 1, 1), 1.0 / (steps * count), np.float32)
    share[0] = 1.0 / count
    weights: Array = share * (np.ones(count, np.float32) if weight is None else weight)
    return weights
