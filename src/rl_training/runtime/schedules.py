"""Schedules while a run goes on: the value of every scheduled hyperparameter at a step.

The curves and their parser are in `rl_training.experiment.schedules`, where a config is checked against them; they
are given here too, under the name that people look for.
"""

from __future__ import annotations

from collections.abc import Mapping

from rl_training.experiment.schedules import Control, Schedule, ScheduleError, parse_control, parse_schedule

__all__ = ["Control", "Schedule", "ScheduleError", "ScheduleSet", "parse_control", "parse_schedule"]


class ScheduleSet:
    """All scheduled or warmed-up hyperparameters of a run, over a horizon that stays what the run first had."""

    def __init__(self, controls: Mapping[str, Control], horizon: int) -> None:
        self.controls = dict(controls)
        self.horizon = horizon

    def values(self, step: int) -> dict[str, float]:
        """What to set on the algorithm when the clock shows `step`."""
        return {name: control.at(step, self.horizon) for name, control in self.controls.items()}
