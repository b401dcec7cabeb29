"""The spaces of a run in the description of a checkpoint: those of its environment, or of every task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.data.replay_files import read_info
from rl_training.experiment.config import Config
from rl_training.types import SpaceInfo, UserError

_TASKS = "tasks"


def write_spaces(spaces: Mapping[str, SpaceInfo]) -> dict[str, Any]:
    """The spaces as plain data."""
    if spaces.keys() == {""}:
        return spaces[""].to_dict()
    return {_TASKS: {task: info.to_dict() for task, info in spaces.items()}}


def read_spaces(plain: Any) -> dict[str, SpaceInfo]:
    """The spaces of every task, by name; a ValueError if this is not what `write_spaces` returned."""
    several = isinstance(plain, Mapping) and plain.keys() == {_TASKS}
    found = plain[_TASKS] if several else {"": plain}
    if not isinstance(found, Mapping) or not found:
        raise ValueError(f"the spaces of the tasks are {found!r:.80}")
    for one in found.values():
        if isinstance(one, Mapping) and not isinstance(one.get("parts"), (list, tuple)):
            raise ValueError("the spaces have no list of parts")
    return {task: read_info(one) for task, one in found.items()}


def spaces_for(config: Config, meta: Mapping[str, Any], path: Path) -> dict[str, SpaceInfo]:
    """The spaces that a checkpoint has for the tasks of its config, in their order."""
    found = read_spaces(meta["spaces"])
    if found.keys() != set(config.tasks):
        there, asked = (", ".join(map(repr, sorted(names))) for names in (found, config.tasks))
        raise UserError(f"{str(path)!r}: has the spaces of the tasks {there}; its config has {asked}")
    return {task: found[task] for task in config.tasks}
