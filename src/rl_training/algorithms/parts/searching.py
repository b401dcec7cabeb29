"""What a policy that searches offers for a picture of one search."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from rl_training.ops.search import SearchResult
from rl_training.ops.search_tree import SearchTree
from rl_training.types import Array, Carry


class Searched(NamedTuple):
    """A search from one state: what it found, its tree, and the index of the action that follows from it."""

    result: SearchResult
    tree: SearchTree
    chosen: int


@runtime_checkable
class Searching(Protocol):
    """A policy that searches before every action. Its config is a `PlanningConfig`."""

    def search_from(self, obs: Array, carry: Carry) -> Searched:
        """The search that decides the greedy action for one observation `[1, ...]`, as `act` makes it."""
        ...
