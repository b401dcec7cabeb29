"""What a preset claims, and how a run is measured against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rl_training.experiment.config import Config
from rl_training.experiment.settings import Expected
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.task_evaluation import SCORE
from rl_training.types import Metrics, UserError

if TYPE_CHECKING:
    from rl_training.runtime.run import Run


class Measured(Callback):
    """Keeps what a run's evaluations come to."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_eval(self, run: Run, metrics: Metrics) -> None:
        self.values.append(metrics.get(f"{SCORE}_mean", metrics["eval_return_mean"]))


def final_value(run: Run, episodes: int) -> float:
    """What a preset claims: the mean return of its policy, or the mean score if its tasks have scores."""
    evaluation = run.evaluate(episodes)
    return evaluation.mean if evaluation.score is None else evaluation.score


def claim_of(preset: str, config: Config) -> tuple[Expected, float]:
    """The `expected` block of a preset and the return that it claims; raises if it claims none."""
    expected, settings = config.run.expected, config.run
    if expected is None:
        raise UserError(f"{preset}: has no 'expected' block to compare with")
    if expected.return_ is None:
        raise UserError(
            f"{preset}: is marked long: no evidence is claimed for its {settings.total_timesteps:,} steps, so there is "
            f"nothing to verify; `rl-training train {preset}` trains it"
        )
    if expected.measure == "last_5_evaluations":
        interval = settings.eval_interval or settings.total_timesteps
        if settings.total_timesteps < 5 * interval:
            raise UserError(
                f"expected.measure={expected.measure!r}: eval_interval={settings.eval_interval} gives fewer than five "
                f"evaluations in total_timesteps={settings.total_timesteps}"
            )
    return expected, expected.return_


def mean_of_last(returns: Sequence[float], count: int) -> float:
    """The mean of the last evaluations; raises if there were fewer."""
    if len(returns) < count:
        raise UserError(f"expected.measure: the run ended after {len(returns)} evaluations; it needs {count}")
    return float(np.mean(returns[-count:]))
