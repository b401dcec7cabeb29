"""Schedules during a run: the value of every scheduled hyperparameter at a step.

The curves and their parser are in `rl_training.experiment.schedules`, where a config is checked against them; they
are re-exported here, where users look for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_training.algorithms.base import Algorithm, Policy
from rl_training.experiment.config import Config
from rl_training.experiment.schedules import Control, Schedule, ScheduleError, parse_control, parse_schedule
from rl_training.types import UserError

__all__ = [
    "Control",
    "Schedule",
    "ScheduleError",
    "ScheduleSet",
    "parse_control",
    "parse_schedule",
    "restore_acting_values",
    "restore_hyperparameters",
    "set_by_hand",
]


class ScheduleSet:
    """All hyperparameters of a run with a schedule or a warm-up, over the horizon that the run had at its start."""

    def __init__(self, controls: Mapping[str, Control], horizon: int) -> None:
        self.controls = dict(controls)
        self.horizon = horizon

    def values(self, step: int) -> dict[str, float]:
        """The values to set on the algorithm at `step`."""
        return dict(self._values(step))

    def _values(self, step: int) -> Iterator[tuple[str, float]]:
        for name, control in self.controls.items():
            try:
                yield name, control.at(step, self.horizon)
            except ScheduleError as error:  # a function may return anything
                raise UserError(f"{name}_schedule: {error}") from error


def set_by_hand(config: Config, algorithm: Algorithm) -> dict[str, Any]:
    """The hyperparameters that were set directly on the algorithm, and differ from the config."""
    configured = config.algorithm.model_dump(mode="json")
    now = algorithm.cfg.model_dump(mode="json")
    return {name: value for name, value in now.items() if name not in config.controls and value != configured[name]}


def restore_hyperparameters(
    config: Config, algorithm: Algorithm, by_hand: Mapping[str, Any], saved_config: Mapping[str, Any]
) -> None:
    """Set them again, except those that a schedule or a changed config now controls."""
    configured = config.algorithm.model_dump(mode="json")
    kept = {
        name: value
        for name, value in by_hand.items()
        if name not in config.controls and configured[name] == saved_config.get(name)
    }
    for name, value in kept.items():
        if isinstance(configured[name], float) and not isinstance(value, int | float):
            raise TypeError(f"{name} is {value!r:.60}, which is no number")
    if kept:
        algorithm.set_hyperparameters(**kept)


def restore_acting_values(config: Config, policy: Policy, trainer: Mapping[str, Any], step: int) -> None:
    """Let a policy without its algorithm explore as it did at `step`.

    `trainer` is that part of the checkpoint's state.
    """
    acting = {name: control for name, control in config.controls.items() if name in policy.values}
    present = ScheduleSet(acting, trainer["horizon"]).values(step) | trainer["hyperparameters"]
    policy.values |= {name: float(present[name]) for name in policy.values.keys() & present.keys()}
