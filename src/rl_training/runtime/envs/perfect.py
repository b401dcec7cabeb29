"""Games that are solved: the value of a position and its best moves, by searching all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from rl_training.types import Array

# The lines of TicTacToe. Rows and columns may be exchanged: the game stays the same.
_LINES = [
    *([3 * row, 3 * row + 1, 3 * row + 2] for row in range(3)),
    *([column, column + 3, column + 6] for column in range(3)),
    [0, 4, 8],
    [2, 4, 6],
]
_WON = [sum(1 << cell for cell in line) for line in _LINES]
_FULL = (1 << 9) - 1


@dataclass(frozen=True)
class Solution:
    """A solved game. Both functions take what the player to move sees.

    `value` is 1 if this player wins against perfect play, 0 if it is a draw and -1 if the player loses. `best_moves`
    are all moves that keep this value.
    """

    value: Callable[[Array], int]
    best_moves: Callable[[Array], list[int]]


@cache
def _value(own: int, other: int) -> int:
    """The value for the player to move, from the cells (as bits) of both players."""
    if any(other & line == line for line in _WON):
        return -1
    if own | other == _FULL:
        return 0
    return max(-_value(other, own | 1 << cell) for cell in _empty(own, other))


def _empty(own: int, other: int) -> list[int]:
    return [cell for cell in range(9) if not (own | other) >> cell & 1]


def _bits(plane: Array) -> int:
    return sum(1 << int(cell) for cell in np.flatnonzero(plane))


def tictactoe_value(obs: Array) -> int:
    """The value of a position `[3, 3, 2]` that is not over: own marks, and those of the other player."""
    return _value(_bits(obs[..., 0]), _bits(obs[..., 1]))


def tictactoe_best_moves(obs: Array) -> list[int]:
    """All moves that keep the value of a position `[3, 3, 2]`."""
    own, other = _bits(obs[..., 0]), _bits(obs[..., 1])
    best = _value(own, other)
    return [cell for cell in _empty(own, other) if -_value(other, own | 1 << cell) == best]


# By the name in the metadata of the game.
SOLVED: Mapping[str, Solution] = {"tictactoe_v3": Solution(tictactoe_value, tictactoe_best_moves)}
