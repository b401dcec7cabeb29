"""The loop in which ours and its peer learn from the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from conformance import CONTINUOUS, agent
from peer_data import ACTIONS, RATE, ROWS, Draws, batch_of, normal, peer_draws
from peer_networks import SIZES
from peers import Difference, Group, Sides
from rl_training.data.batches import Transitions
from rl_training.types import SpaceInfo

Update = Callable[[Transitions], Any]
# The settings of all algorithms of ours.
OURS: dict[str, Any] = {"engine": "autograd", "hidden_sizes": SIZES, "learning_rate": RATE}


def replay_learner(algo: str, info: SpaceInfo, **settings: Any) -> Any:
    """An algorithm of ours that learns from batches."""
    return agent(algo, info, batch_size=ROWS, **(OURS | settings))


class Given(NamedTuple):
    """A batch for both sides, and what each side draws in its update, in its order."""

    batch: Transitions
    ours: Sequence[np.ndarray] = ()
    peer: Sequence[np.ndarray] = ()


def without_noise(info: SpaceInfo, updates: int) -> list[Given]:
    return [Given(batch_of(info, seed)) for seed in range(updates)]


def with_smoothing(updates: int) -> list[Given]:
    """Both sides draw noise for the next actions of their targets alone."""
    noise = [[normal(seed, ROWS, ACTIONS)] for seed in range(updates)]
    return [Given(batch_of(CONTINUOUS, seed), drawn, drawn) for seed, drawn in enumerate(noise)]


def compare_updates(
    ours: Any,
    peer: Mapping[str, Group],
    given: Iterable[Given],
    update_peer: Update,
    update_ours: Update | None = None,
) -> Difference:
    """Let an algorithm that learns from batches and its peer learn from the same, and compare them.

    `peer` has the networks of the peer that correspond to our learners and, as `slow ...`, to our target networks.
    """
    sides = _replay_sides(ours, peer)
    for batch, own, other in given:
        ours.batch_rng = Draws(*own)
        (update_ours or ours.update)(batch)
        with peer_draws(*other):
            update_peer(batch)
    return sides.difference()


def modules_of(ours: Any) -> dict[str, torch.nn.Module]:
    """The trained networks of an algorithm that learns from batches, and its target networks."""
    slow = {f"slow {name}": follower.module for name, follower in ours.followers.items()}
    return {name: learner.module for name, learner in ours.learners.items()} | slow


def _replay_sides(ours: Any, peer: Mapping[str, Group]) -> Sides:
    modules = modules_of(ours)
    assert modules.keys() == peer.keys()
    sides = Sides(modules, peer)
    for name, learner in ours.learners.items():
        sides.watch(name, learner.optimizer)
    return sides
