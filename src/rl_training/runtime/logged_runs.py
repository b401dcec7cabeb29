"""The runs in folders, as they were logged: found, read, and put together where they differ only in their seed."""

from __future__ import annotations

import glob
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rl_training.data.checked_files import damaged
from rl_training.data.disk import read_own
from rl_training.experiment.tasks import names_in
from rl_training.runtime.places import Place, Where, place_names, places_of
from rl_training.types import Array, UserError

# Settings that may differ between runs of one experiment: the seed, and those that only affect what is written.
_NO_DIFFERENCE = ("seed", "output_dir", "tags", "loggers", "expected", "log_interval", "keep_checkpoints")
# What tells runs apart.
_KINDS: dict[str, type] = {"algo": str, "env_id": str, "seed": int}
_MOST_WORDS = 3
_LONGEST_VALUE = 24


@dataclass(frozen=True)
class LoggedRun:
    """A run as read from its folder."""

    path: Path
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    def curve(self, metric: str) -> tuple[Array, Array]:
        """Steps and values of a metric, from the rows that have a finite number for it."""
        points = [(row["step"], row[metric]) for row in self.rows if math.isfinite(row.get(metric, math.nan))]
        steps, values = np.array(points, np.float64).reshape(-1, 2).T
        return steps, values

    @cached_property
    def places(self) -> list[Place]:
        """What it is trained on: an environment, or several tasks."""
        return places_of(self.config)

    @cached_property
    def metrics(self) -> set[str]:
        return {name for row in self.rows for name in row} - {"step"}

    def columns(self, metric: str) -> dict[Where, str]:
        """Where it has a metric, and what it is called there: in every task, or else in the run as a whole.

        A metric with the name of a task, such as `cartpole/loss`, is of that task.
        """
        tasks = [place for place in self.places if place.task]
        found: dict[Where, str] = {(place,): f"{place.task}/{metric}" for place in tasks}
        found = {where: name for where, name in found.items() if name in self.metrics}
        named = [place for place in tasks if metric.startswith(f"{place.task}/")]
        return found or {tuple(named or sorted(self.places)): metric}


@dataclass(frozen=True)
class Group:
    """Runs of one config on different seeds; the label tells it from others in the same environment or task."""

    label: str
    environment: str
    runs: Sequence[LoggedRun]

    @property
    def places(self) -> list[Place]:
        return self.runs[0].places

    def columns(self, metric: str) -> dict[Where, str]:
        """Where its runs have a metric, and what it is called there."""
        return {where: name for run in self.runs for where, name in run.columns(metric).items()}

    def curves(self, metric: str) -> list[tuple[Array, Array]]:
        """The curves of the runs that have the metric."""
        return [(steps, values) for steps, values in (run.curve(metric) for run in self.runs) if len(steps)]


def read_runs(paths: Iterable[str | Path]) -> tuple[list[LoggedRun], list[str]]:
    """The runs of some paths, and notes on those that are left out: empty ones, and repetitions of a seed."""
    runs, notes = [], []
    for folder in find_runs(paths):
        run = read_run(folder)
        if run.rows:
            runs.append(run)
        else:
            notes.append(f"{folder} is left out: it has no metrics yet")
    if not runs:
        raise UserError("; ".join(f"{note.partition(' is left out')[0]!r}: has no metrics yet" for note in notes))
    kept, repeated = _without_repetitions(runs)
    return kept, notes + repeated


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run folders of some paths: each path itself, or all run folders up to two levels below it.

    A path may be a pattern such as `runs/ppo__*`.
    """
    found: dict[Path, Path] = {}
    for path in (match for given in paths for match in _matches(Path(given))):
        here = [path] if _is_run(path) else sorted(p for p in (*path.glob("*"), *path.glob("*/*")) if _is_run(p))
        if not here:
            raise UserError(f"{str(path)!r}: {'holds no run' if path.is_dir() else 'there is no such run'}")
        found |= {p.resolve(): p for p in here}
    return list(found.values())


def _matches(path: Path) -> list[Path]:
    """The paths that a pattern stands for; one that is there, or stands for nothing, is returned as it is."""
    return [path] if path.exists() else [Path(match) for match in sorted(glob.glob(str(path)))] or [path]


def _is_run(path: Path) -> bool:
    return os.path.lexists(path / "config.yaml") and not path.name.startswith(".")


def read_run(path: Path) -> LoggedRun:
    """A run's config and metrics; an incomplete last line, left by a crash, is skipped."""
    return LoggedRun(path, _read_config(path / "config.yaml"), _read_rows(path / "metrics.jsonl"))


def _read_config(file: Path) -> dict[str, Any]:
    try:
        text = read_own(file).decode()
        config = yaml.safe_load(text)
        # With aliases, a short file could describe something endless.
        plain = not any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
        json.dumps(config, sort_keys=True, default=str)  # as runs are compared: keys of several kinds have no order
    except UserError:
        raise
    except Exception as error:  # whatever YAML's constructors raise
        raise damaged(file, str(error) or repr(error)) from error
    if not plain or not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise damaged(file, "it is not a mapping of settings")
    for key, kind in _KINDS.items():
        if key in config and not isinstance(config[key], kind):
            raise damaged(file, f"its {key} is {config[key]!r:.60}")
    return config


def _read_rows(file: Path) -> list[dict[str, float]]:
    try:
        text = read_own(file).decode() if os.path.lexists(file) else ""
    except (OSError, ValueError) as error:
        raise damaged(file, str(error) or repr(error)) from error
    rows = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            row = json.loads(line)
            if not all(type(value) in (int, float) for value in row.values()) or not math.isfinite(row["step"]):
                raise ValueError("it must hold numbers, and a step")
            rows.append({name: float(value) for name, value in row.items()})
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise damaged(file, f"line {number}: {error}") from error
    return rows


def _identity(run: LoggedRun) -> str:
    """A string that is equal for all seeds of an experiment."""
    kept = {key: value for key, value in run.config.items() if key not in _NO_DIFFERENCE}
    return json.dumps(kept, sort_keys=True, default=str)


def _without_repetitions(runs: Sequence[LoggedRun]) -> tuple[list[LoggedRun], list[str]]:
    """Keep the longest run of each config and seed: a repetition adds no information, and would narrow the band."""
    kept: dict[tuple[str, Any], LoggedRun] = {}
    notes = []
    for run in runs:
        key = (_identity(run), run.config.get("seed"))
        other = kept.get(key)
        if other is None:
            kept[key] = run
            continue
        longer, shorter = (run, other) if run.rows[-1]["step"] > other.rows[-1]["step"] else (other, run)
        kept[key] = longer
        notes.append(f"{shorter.path} is left out: it has the config and the seed of {longer.path}")
    return list(kept.values()), notes


def group_runs(runs: Sequence[LoggedRun]) -> list[Group]:
    """Group runs that differ only in their seed.

    A group's label says what distinguishes it from the others in its environment or in one of its tasks, so that groups
    that share none may have the same.
    """
    members: dict[str, list[LoggedRun]] = {}
    for run in runs:
        members.setdefault(_identity(run), []).append(run)
    firsts = [group[0] for group in members.values()]
    names = place_names(place for run in firsts for place in run.places)
    where = [", ".join(names[place] for place in run.places) for run in firsts]
    return [Group(_label(group[0], firsts), place, group) for place, group in zip(where, members.values(), strict=True)]


def _label(run: LoggedRun, others: Sequence[LoggedRun]) -> str:
    """The algorithm, if it differs between groups; then the settings that differ, those of tasks by their full name."""
    algo = run.config.get("algo")
    names = [str(algo)] if len({other.config.get("algo") for other in others}) > 1 else []
    like = [other for other in others if other.config.get("algo") == algo and set(other.places) & set(run.places)]
    own, settings = _settings(run), [_settings(other) for other in like]
    keys = sorted({key for other in settings for key in other if key.partition(".")[0] not in _NO_DIFFERENCE})
    words = [
        f"{key}={_shown(own.get(key))}"
        for key in keys
        if any(other.get(key) != own.get(key) for other in settings if _has_task(own, key) and _has_task(other, key))
    ]
    words = [*_other_tasks(own, settings), *words]
    more = ["..."] if len(words) > _MOST_WORDS else []
    return ", ".join([*names, *words[:_MOST_WORDS], *more]) or str(algo)


def _settings(run: LoggedRun) -> dict[str, Any]:
    """A run's settings by their full names, such as `tasks.lander.time_limit`, and the names of its tasks."""
    return _flat(run.config) | {"tasks": names_in(run.config)}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        inner = _flat(value) if isinstance(value, Mapping) and value else None
        found |= {key: value} if inner is None else {f"{key}.{name}": one for name, one in inner.items()}
    return found


def _has_task(settings: Mapping[str, Any], key: str) -> bool:
    """Whether a setting is one of a task that is there, or one of no task."""
    first, *rest = key.split(".")
    return first != "tasks" or any(name in settings["tasks"] for name in rest[:1])


def _other_tasks(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of tasks as a word of a label, where not all have the same; if they are long, those that differ."""
    found = [set(other["tasks"]) for other in others]
    shared = set.intersection(*found)
    if all(names == shared for names in found):
        return []
    words = "+".join(own["tasks"])
    if len(words) > _LONGEST_VALUE:
        words = "+".join(["...", *(name for name in own["tasks"] if name not in shared)])
    return [f"tasks={words}"]


def _shown(value: Any) -> str:
    words = f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)
    return words if len(words) <= _LONGEST_VALUE else f"{words[: _LONGEST_VALUE - 3]}..."
