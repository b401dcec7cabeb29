"""What is inside of config fields: groups of settings in mappings and lists, and the values that are given for them."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from rl_training.algorithms.settings import ConfigPart

Place = tuple[Any, ...]


def alternatives(annotation: Any) -> Iterator[Any]:
    """The types that a field may have."""
    if get_origin(annotation) is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from alternatives(member)
    else:
        yield annotation


def is_group(annotation: Any) -> bool:
    """Whether a type is a group of settings."""
    return isinstance(annotation, type) and issubclass(annotation, ConfigPart)


def fields_of(group: type[ConfigPart]) -> dict[str, Any]:
    """The types of the settings of a group, by the names that they are given by."""
    return {info.alias or name: info.annotation for name, info in group.model_fields.items()}


def switches_for_numbers(annotation: Any, value: Any) -> Iterator[tuple[Place, bool]]:
    """Where true or false is given for a number; pydantic would take it for 1 or 0."""
    kinds = list(alternatives(annotation))
    if isinstance(value, bool):
        if bool not in kinds and (int in kinds or float in kinds):
            yield (), value
        return
    for kind in kinds:
        for key, inner, item in _entries(kind, value):
            yield from (((*key, *place), switch) for place, switch in switches_for_numbers(inner, item))


def _entries(kind: Any, value: Any) -> Iterator[tuple[Place, Any, Any]]:
    """What a value has inside if it is of this type: its place, its type and its value."""
    origin, members = get_origin(kind), get_args(kind)
    if isinstance(value, Mapping):
        if is_group(kind):
            fields = fields_of(kind)
            yield from (((key,), fields[key], item) for key, item in value.items() if key in fields)
        elif origin is dict:
            yield from (((key,), members[1], item) for key, item in value.items())
        elif origin is tuple and is_group(members[0]):  # one stands for a list of it
            yield (), members[0], value
    elif origin in (tuple, list) and isinstance(value, Sequence) and not isinstance(value, str):
        yield from (((index,), members[0], item) for index, item in enumerate(value))


def group_at(annotation: Any, place: Sequence[Any]) -> type[ConfigPart] | None:
    """The group of settings at a place inside of a field or of a group; None where there is none."""
    for kind in alternatives(annotation):
        if is_group(kind) and not place:
            return kind  # type: ignore[no-any-return]
        origin, members = get_origin(kind), get_args(kind)
        inner = members[1] if origin is dict else members[0] if origin in (tuple, list) else None
        inner = fields_of(kind).get(str(place[0])) if is_group(kind) else inner
        if inner is not None and place and (found := group_at(inner, place[1:])) is not None:
            return found
    return None
