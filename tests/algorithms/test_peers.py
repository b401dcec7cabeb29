"""Updates equal those of other libraries, from the same weights, batch and noise, where these are installed.

What is different has a name: the test changes one side accordingly, and then demands equality.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from peer_table import installed_pairs, missing, table, words_of, written
from peers import Difference, Pair

LIMIT = 1e-8

INSTALLED = installed_pairs()
NOT_INSTALLED = [
    pytest.param(None, id=package, marks=pytest.mark.skip(reason=f"{package} is not installed"))
    for package in missing()
]
needs_all = pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")


def deviations() -> Iterator[Any]:
    for pair in INSTALLED:
        for name in pair.deviations:
            yield pytest.param((pair, name), id=f"{pair}-{name}")


@pytest.mark.parametrize("pair", [*INSTALLED, *NOT_INSTALLED], ids=str)
def test_gradients_and_weights_equal_those_of_the_peer(pair: Pair) -> None:
    found = pair.difference()
    assert found.gradient <= LIMIT
    assert found.weight <= LIMIT
    # There was something to compare.
    assert found.steepest > 1e-3
    assert found.movement > 1e-3


@pytest.mark.parametrize("chosen", [*deviations(), *NOT_INSTALLED])
def test_every_named_deviation_makes_a_difference(chosen: tuple[Pair, str]) -> None:
    pair, name = chosen
    found = pair.difference(without=name)
    assert max(found.gradient, found.weight) > 100 * LIMIT


@needs_all
def test_the_document_has_this_table() -> None:
    without_figures = table(INSTALLED, lambda pair, without: Difference(0.0, 0.0, 0.0, 0.0))
    assert words_of(without_figures) == words_of(written("updates")), "run python tests/support/peer_table.py"


@needs_all
def test_no_algorithm_that_a_peer_has_is_left_out() -> None:
    named = {pair.algorithm.split(",")[0].split(" with ")[0] for pair in INSTALLED}
    online = {"PPO", "A2C", "TRPO", "Recurrent PPO", "DQN", "DDPG", "TD3", "SAC", "TQC"}
    assert named == online | {"BC", "TD3+BC", "IQL", "CQL", "AWAC"}
