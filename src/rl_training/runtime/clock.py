"""How long a run has been trained."""

from __future__ import annotations

import time

from rl_training.types import Metrics

# Metrics that differ between two equal runs.
WALL_CLOCK = (
    "seconds",
    "steps_per_second",
    "simulations_per_second",
    "queue_wait",
    "learner_idle",
    "worker_idle",
)


def by_wall_clock(name: str) -> bool:
    """Whether a metric, of a run or of one of its tasks, differs between two equal runs."""
    return name.rpartition("/")[2] in WALL_CLOCK


class Stopwatch:
    """Measures the seconds of training, in this process and in earlier ones."""

    def __init__(self) -> None:
        self._before = 0.0
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._started is None else time.perf_counter() - self._started)

    def set(self, seconds: float) -> None:
        """Continue from the seconds of earlier processes."""
        self._before = seconds

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._before, self._started = self.seconds, None

    def metrics(self, steps: int) -> Metrics:
        seconds = self.seconds
        return {"seconds": round(seconds, 3), "steps_per_second": round(steps / max(seconds, 1e-9), 1)}
