"""Where runs are trained: in an environment, or in tasks, each of which is an environment with a name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rl_training.experiment.tasks import names_in

_LONGEST = 60


class Place(NamedTuple):
    """An environment with its arguments. A task has a name too, a run in one environment has none."""

    task: str
    env_id: str
    arguments: str


# One place; or all places of a run, in alphabetical order, for what is of the run as a whole.
Where = tuple[Place, ...]


def places_of(config: Mapping[str, Any]) -> list[Place]:
    """The tasks of a run in their order, or its one environment, from settings that may come from anywhere."""
    tasks = config["tasks"].values() if names_in(config) else ()
    found = [_place(name, own, config) for name, own in zip(names_in(config), tasks, strict=True)]
    return found or [_place("", config, config)]


def _place(task: str, own: Any, run: Mapping[str, Any]) -> Place:
    own = own if isinstance(own, Mapping) else {"env_id": own}
    given = own.get("env_kwargs")
    return Place(task, str(own.get("env_id")), _written(run.get("env_kwargs") if given is None else given))


def _written(arguments: Any) -> str:
    if not isinstance(arguments, Mapping):
        return "" if arguments is None else str(arguments)
    words = {str(key): json.dumps(value, sort_keys=True, default=str) for key, value in arguments.items()}
    return ", ".join(f"{key}={words[key]}" for key in sorted(words))


def place_names(places: Iterable[Place]) -> dict[Place, str]:
    """What places are called: a task by its name, an environment by its id, with more where others have the same."""
    found = dict.fromkeys(places)
    names = {}
    for place in found:
        like = {other for other in found if (other.task or other.env_id) == (place.task or place.env_id)}
        more = [place.env_id] if place.task and len(like) > 1 else []
        if place.arguments and any(other.arguments != place.arguments for other in like):
            more.append(_cut(place.arguments))
        names[place] = f"{place.task or place.env_id}{' (' + ', '.join(more) + ')' if more else ''}"
    return names


def _cut(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."


def score_of(config: Mapping[str, Any], place: Place) -> tuple[float, float] | None:
    """The returns of a task that count as scores of 0 and of 1, if it has them."""
    tasks = config.get("tasks")
    own = tasks.get(place.task) if isinstance(tasks, Mapping) else None
    score = own.get("score") if isinstance(own, Mapping) else None
    low, high = (score.get(end) if isinstance(score, Mapping) else None for end in ("low", "high"))
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low < high:
        return float(low), float(high)
    return None
