"""The works of ScaleZero: what they count, and that both sides do the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmark_helpers import load, works

scalezeros = load("scalezeros")


def test_a_search_is_as_large_as_it_says() -> None:
    for side in works.WORKS["scalezero_search"].sides.values():
        assert (side.keywords["roots"], side.keywords["simulations"]) == (8, 25)
    assert works.WORKS["scalezero_search"].build("ours", threads=1)(201) == 400  # whole searches


@pytest.mark.parametrize("side", ["ours", "autograd"])
def test_an_update_is_one_of_the_algorithm(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    made = scalezeros.scalezero_run
    monkeypatch.setattr(scalezeros, "scalezero_run", lambda side: runs.append(made(side)) or runs[-1])
    assert scalezeros.scalezero_updates(side, unit="updates", threads=1)(3) == 3
    assert runs[0].algorithm.n_updates == 3
    assert runs[0].algorithm.policy.engine == ("compiled" if side == "ours" else "autograd")


def test_both_sides_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.algorithms.parts.world_policy import WorldPlanner

    found: list[Any] = []
    search = WorldPlanner.search
    monkeypatch.setattr(WorldPlanner, "search", lambda *given: found.append(search(*given)) or found[-1])
    for side in ("ours", "autograd"):
        scalezeros.scalezero_search(side, unit="simulations", threads=1, roots=4, simulations=8)(1)
    ours, plain = (plan.result for plan in found)
    np.testing.assert_array_equal(ours.visits, plain.visits)
    np.testing.assert_allclose(ours.value, plain.value, atol=1e-4)
