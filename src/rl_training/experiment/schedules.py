"""Curves of a hyperparameter over a run, and the parser that reads them from a config.

They are in this layer, below the runtime, because a config is checked against the whole curve when it is read.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rl_training.experiment.references import is_reference, resolve_function
from rl_training.types import UserError

KINDS = {
    "constant": {"start"},
    "linear": {"start", "end", "steps", "fraction"},
    "cosine": {"start", "end", "steps", "fraction"},
    "exponential": {"start", "end", "steps", "fraction"},
    "polynomial": {"start", "end", "steps", "fraction", "power"},
    "step": {"start", "end", "every", "factor"},
    "piecewise": {"points"},
}
SHORTHANDS = ("linear", "cosine")
# A function of the progress of a run, from 0 at its start to 1 at its end, which returns the value.
Curve = Callable[[float], Any]
_FUNCTION = "function"
_CHECKED_AT = tuple(place / 1000 for place in range(1001))


class ScheduleError(ValueError):
    """A mistake in a schedule; the message is shown after the schedule's key."""


@dataclass(frozen=True)
class Schedule:
    """A curve from `start` to `end` over `steps` steps, or over the first `fraction` of the run if None."""

    kind: str
    start: float
    end: float
    steps: int | None = None
    fraction: float = 1.0
    power: float = 2.0
    every: int = 1
    factor: float = 0.5
    points: tuple[tuple[float, float], ...] = ()
    function: Curve | None = None

    def at(self, step: int, horizon: int | None) -> float:
        """The value at `step` of a run of `horizon` steps."""
        if self.kind == "constant":
            return self.start
        if self.kind == "step":
            drops = step // self.every
            if self.factor <= 1.0:
                return max(self.start * math.pow(self.factor, drops), self.end)
            enough = math.log(max(self.end / self.start, 1.0)) / math.log(self.factor)
            return self.end if drops >= enough else self.start * math.pow(self.factor, drops)
        if self.kind == "piecewise":
            return _interpolate(self.points, step)
        span = self.steps or (self.fraction * horizon if horizon else None)
        if not span:
            raise ScheduleError(f"a {self.kind} schedule needs total_timesteps, or its own 'steps'")
        progress = min(step / span, 1.0)
        if self.function is not None:
            return value_at(self.function, progress)
        if progress == 1.0:
            return self.end
        if self.kind == "linear":
            return self.start + (self.end - self.start) * progress
        if self.kind == "cosine":
            return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * progress))
        if self.kind == "exponential":
            return self.start * math.pow(self.end / self.start, progress)
        return self.end + (self.start - self.end) * math.pow(1.0 - progress, self.power)

    def __str__(self) -> str:
        """The curve in words, for tables of defaults."""
        if self.kind == "constant":
            return f"{self.start:g}"
        if self.kind == "step":
            return f"from {self.start:g}, times {self.factor:g} every {self.every} steps, until {self.end:g}"
        if self.kind == "piecewise":
            return "through " + ", ".join(f"{value:g} at step {step:g}" for step, value in self.points)
        if self.function is not None:
            return "a function of progress"
        whole = "the run" if self.fraction == 1.0 else f"the first {100 * self.fraction:g}% of the run"
        span = whole if self.steps is None else f"{self.steps} steps"
        return f"{self.kind} from {self.start:g} to {self.end:g} over {span}"

    def extremes(self) -> tuple[float, float]:
        """The lowest and the highest value of the curve, which is monotone between its knots.

        A function is asked at 1001 places.
        """
        if self.function is not None:
            values = [value_at(self.function, progress) for progress in _CHECKED_AT]
            return min(values), max(values)
        knots = [value for _, value in self.points] or [self.start, self.end]
        return min(knots), max(knots)


def value_at(function: Curve, progress: float) -> float:
    """What a function returns, which must be a number."""
    try:
        value = function(progress)
    except (ScheduleError, UserError):
        raise
    except Exception as error:  # whatever a user's function raises
        raise ScheduleError(f"at progress {progress:g} it raised {error!r}") from error
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ScheduleError(f"at progress {progress:g} it returned {value!r}, which is not a number")
    return float(value)


def _interpolate(points: tuple[tuple[float, float], ...], step: int) -> float:
    if step <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if step <= right:
            return low + (high - low) * (step - left) / (right - left)
    return points[-1][1]


def parse_schedule(value: Any, base: float | None) -> Schedule:
    """Read a schedule: its end value, its type, a mapping `{type, start, end, ...}`, or a function of progress.

    A function may be named, as `module:name`. `base` is the start value of all but functions.
    """
    if isinstance(value, str) and is_reference(value):
        value = resolve_function(value, key="schedule", does="takes the progress of the run, from 0 to 1")
    if callable(value):
        return Schedule(_FUNCTION, math.nan, math.nan, function=value)
    if isinstance(value, str):
        if value not in SHORTHANDS:
            raise ScheduleError(
                f"{value!r} is not a schedule; give a number, {' or '.join(map(repr, SHORTHANDS))}, or a mapping "
                f"with 'type' one of {', '.join(KINDS)}, or a function as 'module:name'"
            )
        value = {"type": value}
    elif not isinstance(value, Mapping):
        value = {"type": "linear", "end": _number("end", value)}
    return _parse_mapping(dict(value), base)


def _parse_mapping(mapping: dict[str, Any], base: float | None) -> Schedule:
    kind = mapping.pop("type", "linear")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ScheduleError(f"type {kind!r} is not known; allowed are {', '.join(KINDS)}")
    unknown = sorted(set(mapping) - KINDS[kind], key=str)
    if unknown:
        raise ScheduleError(f"{kind} does not take {unknown[0]!r}; it takes {', '.join(sorted(KINDS[kind]))}")
    if kind == "piecewise":
        points = _parse_points(mapping.get("points"))
        return Schedule(kind, points[0][1], points[-1][1], points=points)
    if mapping.get("start") is None and base is None:
        raise ScheduleError("has no value to start from; give the setting a value or the schedule a 'start'")
    start = _number("start", mapping["start"] if mapping.get("start") is not None else base)
    whole: dict[str, int] = {
        key: _whole(key, mapping[key]) for key in ("steps", "every") if mapping.get(key) is not None
    }
    other: dict[str, float] = {key: _number(key, mapping[key]) for key in ("power", "factor") if key in mapping}
    if mapping.get("fraction") is not None:
        other["fraction"] = _number("fraction", mapping["fraction"])
    if kind == "step":
        return _parse_step(start, mapping, whole, other)
    if "steps" in whole and "fraction" in other:
        raise ScheduleError("'steps' and 'fraction' both say how long it lasts; give one of them")
    if not 0.0 < other.get("fraction", 1.0) <= 1.0:
        raise ScheduleError(f"fraction={other['fraction']:g} must be above 0 and at most 1: a share of the run")
    end = start if kind == "constant" else _number("end", mapping.get("end", 0.0))
    if kind == "exponential" and (start <= 0.0 or end <= 0.0):
        raise ScheduleError(f"exponential needs start and end above 0, not {start:g} and {end:g}")
    if other.get("power", 1.0) <= 0.0:
        raise ScheduleError(f"power={other['power']:g} must be above 0")
    return Schedule(kind, start, end, **whole, **other)  # type: ignore[arg-type]


def _parse_step(start: float, mapping: Mapping[str, Any], whole: dict[str, int], other: dict[str, float]) -> Schedule:
    if "every" not in whole:
        raise ScheduleError("step needs 'every': the number of steps between two drops")
    factor = other.get("factor", 0.5)
    if factor <= 0.0:
        raise ScheduleError(f"factor={factor:g} must be above 0")
    if factor > 1.0 and "end" not in mapping:
        raise ScheduleError(f"factor={factor:g} grows without limit; give it an 'end'")
    end = _number("end", mapping.get("end", 0.0))
    if factor > 1.0 and not 0.0 < start <= end:
        raise ScheduleError(f"factor={factor:g} grows: it needs a start above 0 and an end that is not below it")
    if factor <= 1.0 and not (end <= start and start >= 0.0):
        raise ScheduleError(f"factor={factor:g} falls: start={start:g} must be at least 0, and at least end={end:g}")
    return Schedule("step", start, end, every=whole["every"], factor=factor)


def _parse_points(points: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(points, (list, tuple)) or not points:
        raise ScheduleError("piecewise needs 'points': a list of [step, value]")
    parsed = []
    for point in points:
        if not isinstance(point, (list, tuple)) or len(point) != 2:
            raise ScheduleError(f"point {point!r} must be [step, value]")
        parsed.append((_number("step", point[0]), _number("value", point[1])))
    if any(later <= earlier for (earlier, _), (later, _) in pairwise(parsed)):
        raise ScheduleError("the steps of 'points' must increase")
    return tuple(parsed)


def _number(key: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ScheduleError(f"{key}={value!r} is not a number")
    return number


def _whole(key: str, value: Any) -> int:
    number = _number(key, value)
    if number != int(number) or number < 1:
        raise ScheduleError(f"{key}={value!r} must be a whole number of at least 1")
    return int(number)


@dataclass(frozen=True)
class Control:
    """One hyperparameter over a run: a fixed value or a curve, with or without a warm-up."""

    base: float | None
    schedule: Schedule | None = None
    warmup_steps: int = 0

    def at(self, step: int, horizon: int | None) -> float:
        """The value at `step`. A warm-up multiplies it by min((step + 1) / warmup_steps, 1)."""
        value = self.schedule.at(step, horizon) if self.schedule is not None else self.base
        if value is None:
            raise ScheduleError("has no value")
        return value * min((step + 1) / self.warmup_steps, 1.0) if self.warmup_steps else value

    def extremes(self) -> tuple[float, float]:
        """Bounds of every value that `at` can return: a warm-up multiplies the curve by 1 / warmup_steps to 1."""
        if self.schedule is not None:
            low, high = self.schedule.extremes()
        else:
            low = high = self.base if self.base is not None else 0.0
        if self.warmup_steps > 1:
            low, high = min(low, low / self.warmup_steps), max(high, high / self.warmup_steps)
        return low, high


def parse_control(base: float | None, schedule: Any, warmup_steps: Any) -> Control:
    """Read the three settings `X`, `X_schedule` and `X_warmup_steps` (either of the latter may be None)."""
    warmup = 0 if warmup_steps is None else _whole("warmup_steps", warmup_steps) if warmup_steps != 0 else 0
    return Control(base, None if schedule is None else parse_schedule(schedule, base), warmup)
