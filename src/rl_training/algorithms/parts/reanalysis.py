"""Targets of old windows, made fresh: what a search finds there now, and what it found before."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rl_training.data.batches import Windows
from rl_training.data.memory import Memory
from rl_training.types import Array


def reanalyze(
    memory: Memory,
    windows: Windows,
    ratio: float,
    steps: int,
    rng: np.random.Generator,
    search: Callable[[Array], Mapping[str, Array]],
    seen: Array | None = None,
) -> float:
    """Search a share of the windows again, at their first `steps` + 1 states, and keep what is found.

    `search` is given the mask `[steps + 1, B]` of these states, and returns their records. `seen` of the same shape
    says where a search sees as much as the one did that acted; elsewhere, what it finds is not written to the memory.
    Returns the share.
    """
    count = round(ratio * len(windows))
    if count == 0:
        return 0.0
    chosen = np.sort(rng.permutation(len(windows))[:count])
    again = np.zeros_like(windows.real[: steps + 1])
    again[:, chosen] = windows.real[: len(again), chosen]
    columns = search(again)
    for name, values in columns.items():
        windows.records[name][: len(again)][again] = values
    kept = np.ones(np.count_nonzero(again), np.bool_) if seen is None else seen[again]
    noted = {name: values[kept] for name, values in columns.items()}
    memory.note(windows.index[: len(again)][again][kept], columns=noted)
    return count / len(windows)


def with_search_values(target: Array, windows: Windows, ages: Array, oldest: int | None) -> Array:
    """Value targets `[K + 1, B]`; windows older than `oldest` get the values that their (latest) search found."""
    if oldest is None:
        return target
    searched = windows.real[: len(target)] & (ages > oldest)
    return np.where(searched, windows.records["search_value"][: len(target)], target)
