"""Schedules that are functions of progress: given as they are, or named and found behind the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_training.experiment.fields import Setting
from rl_training.experiment.references import is_nameless, is_reference, leads_back, name_of, resolve_function
from rl_training.experiment.schedules import Curve, ScheduleError, value_at
from rl_training.experiment.trust import Gate, curves_in
from rl_training.types import UserError


class UserCurve:
    """A user's function for one setting; every value that it returns must be in the range of the setting.

    One that is only named is looked for when it is first called: what does not need it imports nothing.
    """

    def __init__(self, setting: Setting, name: str, function: Curve | None, gate: Gate | None) -> None:
        self._setting = setting
        self._key, self._name = f"{setting.name}_schedule", name
        self._function = function
        self._gate = gate

    def __call__(self, progress: float) -> float:
        if self._function is None:
            self._function = self._found()
        value = value_at(self._function, progress)
        complaint = self._setting.out_of_range(value)
        if complaint is not None:
            raise ScheduleError(f"at progress {progress:g} it returned {value:g}, but {self._setting.name} {complaint}")
        return value

    def _found(self) -> Curve:
        if is_nameless(self._name):
            raise UserError(
                f"{self._key}={self._name!r}: was a function of a script, which no name leads to; give it again, as "
                f"{self._key}= in Python"
            )
        if self._gate is not None:
            self._gate.admit(curves_in({self._key: self._name}))
        return resolve_function(self._name, key=self._key, does="takes the progress of the run, from 0 to 1")


@dataclass
class Curves:
    """The functions among the schedules of a config that is being read.

    `checked` says whether they are needed, so that mistakes in them are found now.
    """

    gate: Gate | None = None
    checked: bool = True
    given: dict[str, Curve] = field(default_factory=dict)

    def take(self, layer: Mapping[str, Any]) -> dict[str, Any]:
        """A layer of settings with names in place of functions, which are kept until another layer replaces them."""
        functions = {key: value for key, value in layer.items() if key.endswith("_schedule") and callable(value)}
        self.given = {key: function for key, function in self.given.items() if key not in layer} | functions
        return {**layer, **{key: name_of(function) for key, function in functions.items()}}

    @property
    def objects(self) -> dict[str, Curve]:
        """The functions whose names lead nobody back to them."""
        return {key: function for key, function in self.given.items() if not leads_back(name_of(function))}

    def admit(self, merged: Mapping[str, Any]) -> None:
        """Ask the gate about what is needed, before any of it is looked for."""
        if self.gate is not None and self.checked:
            self.gate.admit(curves_in(merged))

    def curve_of(self, setting: Setting, schedule: Any) -> Any:
        """The function that a schedule names; other schedules are returned as they are."""
        if not isinstance(schedule, str) or not (is_reference(schedule) or is_nameless(schedule)):
            return schedule
        return UserCurve(setting, schedule, self.given.get(f"{setting.name}_schedule"), self.gate)
