"""Where the episodes of a ring of transitions begin and end."""

from __future__ import annotations

from rl_training.ops.kernels import jit
from rl_training.types import Array


@jit
def follow_episodes(
    slots: Array, terminated: Array, truncated: Array, running: Array, age: Array, length: Array
) -> None:
    """Note transitions, in the order in which they were stored: how old their episodes were, and how long they became.

    In the ring `[capacity]`, slot = position * environments + environment. `running` counts the steps of the episode
    that each environment is in. `age` is the number of steps before a transition in its episode. `length` is the
    episode's number of steps, in all of its transitions; 0 while it goes on.
    """
    envs = running.size
    for i in range(slots.size):
        slot = slots[i]
        env = slot % envs
        age[slot], length[slot] = running[env], 0
        running[env] += 1
        if terminated[slot] or truncated[slot]:
            end_episode(slot, running, length)


@jit
def end_episode(slot: int, running: Array, length: Array) -> None:
    """Note that an episode ends with the transition in a slot: its environment's newest."""
    envs, capacity = running.size, length.size
    env = slot % envs
    for _ in range(min(running[env], capacity // envs)):
        length[slot] = running[env]
        slot -= envs
        if slot < 0:
            slot += capacity
    running[env] = 0
