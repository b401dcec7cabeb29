"""n-step returns in a ring buffer of transitions."""

from __future__ import annotations

from rl_training.ops.kernels import jit
from rl_training.types import Array


@jit
def n_step_chains(
    index: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    heads: Array,
    n_step: int,
    gamma: float,
    last: Array,
    total: Array,
    discount: Array,
) -> None:
    """For every slot of `index`, find the last of at most `n_step` consecutive transitions, and sum their rewards.

    `reward`, `terminated` and `truncated` are the ring `[capacity]`, in which slot = position * environments +
    environment; `heads` is the position that each environment writes next. A chain ends with its episode, and with
    the newest transition of its environment. Writes `last`, `total` = sum of gamma**k r_k over its m steps, and
    `discount` = gamma**m.
    """
    capacity, envs = reward.size, heads.size
    for i in range(index.size):
        slot = index[i]
        env = slot % envs
        newest = (heads[env] - 1) * envs + env
        if newest < 0:
            newest += capacity
        summed, factor = float(reward[slot]), gamma
        for _ in range(n_step - 1):
            if slot == newest or terminated[slot] or truncated[slot]:
                break
            slot += envs
            if slot >= capacity:
                slot -= capacity
            summed += factor * reward[slot]
            factor *= gamma
        last[i], total[i], discount[i] = slot, summed, factor
