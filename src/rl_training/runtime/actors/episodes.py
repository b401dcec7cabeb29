"""Returns and lengths of the latest episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from rl_training.types import Metrics

_WINDOW = 100
# Known as soon as the first episode has ended.
EPISODE_METRICS = ("episode_return_mean", "episode_length_mean")


class Episodes:
    """Counts the episodes that have ended, and remembers the latest."""

    def __init__(self) -> None:
        self.count = 0
        self.recent: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._metrics: Metrics | None = None

    def add(self, ended: Iterable[tuple[float, int]], count: int) -> None:
        """Add returns and lengths of the latest of `count` episodes."""
        self.recent.extend(ended)
        self.count += count
        self._metrics = None

    def latest(self, count: int) -> list[tuple[float, int]]:
        """Returns and lengths of the latest episodes, as many as are remembered."""
        return list(self.recent)[max(0, len(self.recent) - count) :]

    def returns(self) -> list[float]:
        """The returns of the latest episodes, the newest last."""
        return [ret for ret, _ in self.recent]

    def metrics(self) -> Metrics:
        if self._metrics is None:  # an episode has ended since the last call
            means = [float(np.mean(column)) for column in zip(*self.recent, strict=True)]
            self._metrics = dict(zip(EPISODE_METRICS, means, strict=bool(means)))
        return {"episodes": float(self.count)} | self._metrics

    def state(self) -> dict[str, object]:
        return {"episodes": self.count, "recent": [list(episode) for episode in self.recent]}

    def load(self, count: int, recent: Iterable[tuple[float, int]]) -> None:
        self.count = count
        self.recent = deque(((float(ret), int(length)) for ret, length in recent), maxlen=_WINDOW)
        self._metrics = None
