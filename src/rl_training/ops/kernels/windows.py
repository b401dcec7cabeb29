"""Rows and windows of consecutive rows in a ring of slots.

A ring `[capacity]` holds the transitions of several environments: slot = position * environments + environment.
`heads` is the position that each environment writes next, `turns` how often its ring has been filled. The number of a
row, turn * capacity + slot, never repeats.
"""

from __future__ import annotations

from rl_training.ops.kernels import jit
from rl_training.types import Array

# As in rl_training.data.batches.
_TERMINATED, _TRUNCATED, _UNKNOWN = 1, 2, 3


@jit
def number_rows(slots: Array, heads: Array, turns: Array, capacity: int, number: Array) -> None:
    """Write the numbers of the rows that are in some slots now."""
    envs = heads.size
    for i in range(slots.size):
        position = slots[i] // envs
        env = slots[i] - position * envs
        number[i] = turns[env] * capacity + slots[i]
        if position >= heads[env]:
            number[i] -= capacity


@jit
def find_rows(number: Array, heads: Array, turns: Array, capacity: int, slots: Array) -> None:
    """Write the slots of the rows with these numbers; -1 if another row is there now, or the number is negative."""
    envs = heads.size
    positions = capacity // envs
    for i in range(number.size):
        slots[i] = -1
        if number[i] >= 0:
            place = number[i] // envs  # as if the ring had no end
            env = number[i] - place * envs
            newer = turns[env] * positions + heads[env] - place
            if 0 < newer <= positions:
                slot = number[i] - turns[env] * capacity
                slots[i] = slot if slot >= 0 else slot + capacity


@jit
def walk_windows(
    starts: Array,
    terminated: Array,
    truncated: Array,
    heads: Array,
    turns: Array,
    cuts: Array,
    gap: int,
    across: bool,
    slots: Array,
    first: Array,
    past: Array,
    number: Array,
) -> None:
    """For every start, write the slots `[T, B]` of the transitions that follow it in time, with their attributes.

    There are `gap` positions without a transition after the last one of an episode. A window ends with the newest
    transition, and with its episode unless it may run on `across` episodes; from there on `slots` repeats its last
    transition, `past` is the reason and `number` is -1. `cuts` are the numbers of truncated transitions whose episode
    was really lost. `first` says where an episode begins, except in the first row, which is not written.
    """
    capacity, envs = terminated.size, heads.size
    positions = capacity // envs
    length, count = slots.shape
    for b in range(count):
        slot = starts[b]
        position = slot // envs
        env = slot - position * envs
        head, turn = heads[env], turns[env]
        reason, row = 0, 0
        for t in range(length):
            if t > 0:
                ended = terminated[slot] or truncated[slot]
                if reason == 0:
                    following = position + 1
                    if ended:
                        following += gap
                    if following >= positions:
                        following -= positions
                    if ended and not across:
                        reason = _TERMINATED if terminated[slot] else _TRUNCATED
                        for k in range(cuts.size):
                            if cuts[k] == row:
                                reason = _UNKNOWN
                    elif following == head:
                        reason = _UNKNOWN
                    else:
                        position = following
                        slot = position * envs + env
                first[t, b] = ended and reason == 0
            row = turn * capacity + slot
            if position >= head:
                row -= capacity
            slots[t, b] = slot
            past[t, b] = reason
            number[t, b] = row if reason == 0 else -1


@jit
def newest_starts(ready: Array, heads: Array, length: int, distance: Array) -> None:
    """Write for every environment how far behind its head the newest window of `length` transitions starts, or 0.

    `ready` says which slots hold a transition that can be drawn. Of two neighbouring slots at least one does, back to
    the oldest transition.
    """
    envs = heads.size
    positions = ready.size // envs
    for env in range(envs):
        distance[env] = 0
        position, found, missed = heads[env], 0, 0
        for back in range(1, positions + 1):
            position -= 1
            if position < 0:
                position += positions
            if ready[position * envs + env]:
                found += 1
                missed = 0
                if found == length:
                    distance[env] = back
                    break
            else:
                missed += 1
                if missed == 2:
                    break
