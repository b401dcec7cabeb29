"""The tasks of a run that learns in several environments: their short forms, and their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_training.experiment.registry import suggest
from rl_training.types import UserError

# Names are part of the names of metrics, of random streams and of files.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_VERSION = re.compile(r"-v\d+$")
_TASK = "tasks."
_LONGEST = 100  # characters of a name


def name_from_id(env_id: str) -> str:
    """The name of a task of which only the id is given: `cartpole` of `CartPole-v1`, `pong` of `ALE/Pong-v5`."""
    last = re.split("[:/]", env_id)[-1]
    return re.sub("[^a-z0-9_-]", "-", _VERSION.sub("", last).lower()).lstrip("-_")


def named(tasks: Any) -> Any:
    """Tasks by their names, which are texts, or a list of ids as it is; a ValueError if two would have one name.

    A number is a name too, as YAML reads `1:`.
    """
    if not isinstance(tasks, Mapping):
        return tasks
    found: dict[str, Any] = {}
    names: dict[str, Any] = {}
    for name, task in tasks.items():
        if isinstance(name, bool) or not isinstance(name, (str, int, float)):
            raise ValueError(f"{name!r} is no name of a task, which is a text")
        first, colon, rest = str(name).partition(":")
        if colon and task is None:  # one key, as YAML reads {name:id}
            raise ValueError(f"{name!r}: a space is missing after the colon, as in {first}: {rest}")
        other = names.setdefault(str(name), name)
        if str(name) in found:
            raise ValueError(f"{other!r} and {name!r} would both be named {str(name)!r}")
        found[str(name)] = task
    return found


def written_out(tasks: Any) -> Any:
    """Tasks as a mapping of mappings, whatever form they are given in; a ValueError if two would have one name.

    A list of ids is named after them, and an id stands for a task without other settings. A task that is null is left
    out, which takes it away from the tasks of a preset. Anything else is for the check of settings to refuse.
    """
    if isinstance(tasks, (list, tuple)) and all(isinstance(task, str) for task in tasks):
        by_name: dict[str, str] = {}
        for env_id in tasks:
            other = by_name.setdefault(name_from_id(env_id), env_id)
            if other != env_id or tasks.count(env_id) > 1:
                raise ValueError(
                    f"{other!r} and {env_id!r} would both be named {name_from_id(env_id)!r}; give names, as in "
                    f"tasks: {{first: {{env_id: {other}}}, ...}}"
                )
        tasks = by_name
    if not isinstance(tasks, Mapping):
        return tasks
    given = {name: task for name, task in tasks.items() if task is not None}
    return {name: {"env_id": task} if isinstance(task, str) else task for name, task in given.items()}


def stands_for_tasks(key: str, value: Any) -> bool:
    """Whether the value of a setting is a short form of tasks (or no tasks), or of one of them."""
    if key == "tasks":
        return value is None or (isinstance(value, list) and all(isinstance(task, str) for task in value))
    return key.startswith(_TASK) and key.count(".") == 1 and isinstance(value, str)


def check_form(tasks: Any) -> None:
    """Raise a ValueError if these are no tasks, or a task without an environment has nearly the name of another."""
    if not isinstance(tasks, Mapping):
        example = "{first: {env_id: CartPole-v1}, second: {env_id: Acrobot-v1}}"
        raise ValueError(f"{tasks!r} is neither a list of ids nor a mapping, as in {example}")
    without = [str(name) for name, task in tasks.items() if isinstance(task, Mapping) and "env_id" not in task]
    for name in without:
        if near := suggest(name, [str(other) for other in tasks if other not in without]):
            raise ValueError(f"{name!r} has no env_id{near}")


def check_names(names: Iterable[str]) -> None:
    """Raise a ValueError if a name cannot be one, or differs from another in upper case only."""
    seen: dict[str, str] = {}
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a task; letters, digits, - and _ make one")
        if len(name) > _LONGEST:
            shown = f"{name[:20]}..."
            raise ValueError(f"{shown!r} has {len(name)} characters; the name of a task has at most {_LONGEST}")
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise ValueError(f"{other!r} and {name!r}: the names of two tasks must differ in more than upper case")
    if not seen:
        raise ValueError("names no task")


def one_of(tasks: Sequence[str], asked: str | None) -> str:
    """The task that is asked for, or the only one of a run."""
    if asked is None and len(tasks) == 1:
        return tasks[0]
    if asked is None or asked not in tasks:
        known = ", ".join(tasks) if any(tasks) else "none: it is a run in one environment"
        near = suggest(asked, tasks) if isinstance(asked, str) else ""
        raise UserError(f"task={asked!r}: must be one of the tasks of the run ({known}){near}")
    return asked


def task_key(task: str, key: str) -> str:
    """The full name of a setting of a task, such as `tasks.lander.env_id`."""
    return f"{_TASK}{task}.{key}"


def without_task(key: str) -> str:
    """The setting without the task that it belongs to: `env_id` of `tasks.lander.env_id`."""
    return key.split(".", 2)[2] if key.startswith(_TASK) else key


def spread(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings in which every setting of a task has its full name."""
    tasks = settings.get("tasks")
    if not isinstance(tasks, Mapping) or not all(isinstance(task, Mapping) for task in tasks.values()):
        return dict(settings)  # none, or not what they should be
    plain = {key: value for key, value in settings.items() if key != "tasks"}
    return plain | {task_key(name, key): value for name, task in tasks.items() for key, value in task.items()}


def part_of_score(key: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """Of two different scores of a task: `low` or `high`, whichever differs first, if both are given."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return key, old, new
    part = next(part for part in (*new, *old) if old.get(part) != new.get(part))
    return f"{key}.{part}", old.get(part), new.get(part)


def in_effect(spread_out: Mapping[str, Any], key: str) -> Any:
    """The value of a full name in what `spread` returned: what a task does not give is that of the run."""
    value = spread_out.get(key)
    return spread_out.get(without_task(key)) if value is None else value


def names_in(settings: Mapping[str, Any]) -> list[str]:
    """The names of the tasks in settings that may come from anywhere, in their order."""
    tasks = settings.get("tasks")
    return [str(name) for name in tasks] if isinstance(tasks, Mapping) else []
