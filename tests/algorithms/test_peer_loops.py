"""Whole runs equal those of other libraries, step by step, up to the rounding of single precision.

Both sides begin with the same weights and go through the same episodes with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from conformance import ENGINES
from peer_table import installed_loops, loop_table, words_of, written
from rl_training.algorithms.parts.actor_critic_policy import PolicyModelConfig
from rl_training.data.memory import ReplayMemory
from rl_training.runtime.actors.collector import Collector
from rl_training.types import Step

LIMIT = 1e-5

LOOPS = installed_loops()
needs_peer = pytest.mark.skipif(not LOOPS, reason="sb3-contrib is not installed")


@needs_peer
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pair", LOOPS or [None], ids=str)
def test_the_peer_sees_the_same_and_ends_with_the_same_weights(pair: Any, engine: str) -> None:
    found = pair.difference(engine)
    assert found.observation <= LIMIT
    assert found.weight <= LIMIT
    # There was something to compare.
    assert found.movement > 1e-2
    assert min(found.terminated, found.truncated) > 4


# Mistakes that a loop can make


def changed(change: Callable[[Collector, Step], Step]) -> AbstractContextManager[Any]:
    """Ours learns from other steps than those that it took."""
    step = Collector.step

    def wrong(collector: Collector, *arguments: Any) -> Step:
        return change(collector, step(collector, *arguments))

    return mock.patch.object(Collector, "step", wrong)


def truncated_is_terminated() -> AbstractContextManager[Any]:
    def change(collector: Collector, step: Step) -> Step:
        return replace(step, terminated=step.terminated | step.truncated, truncated=np.zeros_like(step.truncated))

    return changed(change)


def successor_is_of_the_next_episode() -> AbstractContextManager[Any]:
    return changed(lambda collector, step: replace(step, next_obs=collector.obs))


def actions_in_units_of_the_bounds() -> AbstractContextManager[Any]:
    return mock.patch.object(PolicyModelConfig, "unit", return_value=None)


def stored_one_step_late() -> AbstractContextManager[Any]:
    add, waiting = ReplayMemory.add, list[Step]()

    def late(memory: ReplayMemory, step: Step) -> None:
        waiting.append(step)
        if len(waiting) > 1:
            add(memory, waiting.pop(0))

    return mock.patch.object(ReplayMemory, "add", late)


def named(algorithm: str) -> Any:
    return next(pair for pair in LOOPS if pair.algorithm == algorithm)


@needs_peer
@pytest.mark.parametrize(
    ("mistake", "algorithm"),
    [
        (truncated_is_terminated, "PPO"),
        (truncated_is_terminated, "SAC"),
        (successor_is_of_the_next_episode, "A2C"),
        (successor_is_of_the_next_episode, "TD3"),
        (actions_in_units_of_the_bounds, "PPO with a falling learning rate"),
    ],
)
def test_a_mistake_of_the_loop_would_be_seen(mistake: Callable[[], Any], algorithm: str) -> None:
    with mistake():
        try:
            found = named(algorithm).difference("auto")
        except AssertionError:  # other actions lead to episodes of other lengths
            return
    assert max(found.observation, found.weight) > 100 * LIMIT


@needs_peer
def test_learning_before_storing_would_be_seen() -> None:
    with (
        stored_one_step_late(),
        pytest.raises(AssertionError, match="ours drew from 50 numbers, the peer draws from 51"),
    ):
        named("DDPG").difference("auto")


# The document


@needs_peer
def test_the_document_has_this_table() -> None:
    assert words_of(loop_table(LOOPS, lambda pair: (0.0, 0.0))) == words_of(written("loops")), (
        "run python tests/support/peer_table.py"
    )


@needs_peer
def test_no_online_algorithm_that_a_peer_has_is_left_out() -> None:
    compared = {pair.algorithm.split(" with ")[0] for pair in LOOPS}
    assert compared == {"PPO", "A2C", "TRPO", "Recurrent PPO", "DQN", "DDPG", "TD3", "SAC", "TQC"}
