"""Shortcuts of the rules of a search equal what they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.ops.kernels.tree import LOGIT, LOWEST, PRIOR, RAW, TRIED, VISITS, Q, new_tree
from rl_training.ops.kernels.tree_rules import complete, steady_choice


@pytest.mark.parametrize("rescale", [0.0, 1.0])
def test_the_choice_between_two_actions_equals_that_among_any_number(rescale: float) -> None:
    """The third action of the other node has no prior and no visits, and its logit is the lowest."""
    rng, numbers = np.random.default_rng(0), np.array([0, 0, 0, 0, 0, 50.0, 0.1, rescale])
    two, three = new_tree(1, 2, 2, 1, 0), new_tree(1, 2, 3, 1, 0)
    chosen = []
    for _ in range(2000):
        visits = rng.integers(0, 5, 2)
        visits[rng.integers(2)] += 1
        q, logits, raw = rng.normal(size=2) * (visits > 0), rng.normal(size=2), rng.normal()
        prior = np.exp(logits) / np.exp(logits).sum()
        for tree in (two, three):
            tree.nodes[0, 1, VISITS] = 1 + visits.sum()
            tree.values[0, 1, RAW] = raw
            tree.links[0, 1, TRIED] = 0
            tree.edges[0, 1] = 0.0
            tree.links[0, 1, TRIED, :2] = visits
            tree.edges[0, 1, Q, :2], tree.edges[0, 1, PRIOR, :2] = q, prior
            tree.edges[0, 1, LOGIT] = LOWEST
            tree.edges[0, 1, LOGIT, :2] = logits
        zero, one = np.int64(0), np.int64(1)
        if (visits == 0).any():
            # Then the mixed value is there anyway, and a third action changes nothing.
            assert steady_choice(two, zero, numbers, one, 2) == steady_choice(three, zero, numbers, one, 3)
        chosen.append(steady_choice(two, zero, numbers, one, 2))
        complete(two, zero, numbers, one, 2)
        shares = np.exp(two.row - two.row.max()) / np.exp(two.row - two.row.max()).sum()
        assert chosen[-1] == np.argmax(shares - visits / (1 + visits.sum()))
    assert 0.2 < np.mean(chosen) < 0.8
