"""Descriptions of the config fields: tables for `describe`, a JSON schema, and error messages."""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rl_training.algorithms.base import AlgorithmSpec, CollectingLoopConfig
from rl_training.algorithms.settings import ConfigPart, setting_extra
from rl_training.experiment.nested import fields_of, group_at, switches_for_numbers
from rl_training.experiment.other_words import in_our_words
from rl_training.experiment.registry import REGISTRY, suggest
from rl_training.experiment.schedules import Schedule, parse_schedule
from rl_training.experiment.settings import RunConfig
from rl_training.types import UserError

SUFFIXES = ("_schedule", "_warmup_steps")
# The settings of runs that say how experience is gathered.
_GATHERING = ("num_envs", "actors", "num_workers", "order", "rollout_deadline", "worker_restarts", "ray_address")
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
# What pydantic adds to the location of a mistake if a field allows several types.
_ALTERNATIVE = re.compile(r"bool|str|int|float|constrained-\w+|literal\[.*\]|for all|by network")
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "dict": "a mapping"}


@dataclass(frozen=True)
class Setting:
    """One config field, as a user sees it."""

    name: str
    part: str
    kind: str
    default: Any
    help: str
    limits: Mapping[str, float]
    aliases: tuple[str, ...]
    static: bool
    default_schedule: Mapping[str, Any] | None = None

    @property
    def default_curve(self) -> Schedule | None:
        """The curve of the default schedule, if there is one."""
        return None if self.default_schedule is None else parse_schedule(self.default_schedule, self.default)

    @property
    def default_text(self) -> str:
        """The default as text, for tables: a value, or a schedule in words."""
        return text_of(self.default) if self.default_curve is None else str(self.default_curve)

    @property
    def schedulable(self) -> bool:
        return self.part == "algorithm" and "float" in self.kind.split(" or ") and not self.static

    @property
    def why_not_schedulable(self) -> str:
        if self.static:
            return "it only matters when the run is built"
        return f"only the algorithm's real-valued settings do, and this is {_KINDS.get(self.kind, self.kind)}"

    @property
    def range(self) -> str:
        return " and ".join(f"{_LIMITS[limit]} {value:g}" for limit, value in self.limits.items())

    def out_of_range(self, value: float) -> str | None:
        """The limit that this value violates, in words; None if there is none."""
        kept = {
            "ge": lambda limit: value >= limit,
            "gt": lambda limit: value > limit,
            "le": lambda limit: value <= limit,
            "lt": lambda limit: value < limit,
        }
        for name, limit in self.limits.items():
            if not kept[name](limit):
                return f"must be {_LIMITS[name]} {limit:g}"
        return None


def text_of(value: Any) -> str:
    """A value as it is written in a config."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)


def settings_of(spec: AlgorithmSpec) -> dict[str, Setting]:
    """Every setting of a run of this algorithm, in the order run, algorithm, loop, model."""
    parts = (("run", RunConfig), ("algorithm", spec.config), ("loop", spec.loop), ("model", spec.model))
    found = (setting for part, kind in parts for setting in _settings_of_part(part, kind))
    return {
        setting.name: setting for setting in found if setting.part != "run" or why_without(setting.name, spec) is None
    }


def why_without(name: str, spec: AlgorithmSpec) -> str | None:
    """Why a setting of runs has no meaning for an algorithm; None if it has one."""
    if name == "bc_baseline_updates" and "dataset" not in spec.loop.model_fields:
        return "it is for algorithms that learn from a dataset"
    if name == "eval_opponent" and not spec.capabilities.two_player:
        return "it is for algorithms that play games for two players"
    if name == "tasks" and not spec.capabilities.multi_task:
        able = [other for other, entry in REGISTRY.items() if entry.capabilities.multi_task]
        return "it learns in one environment, which env_id names" + (f"; {', '.join(able)} can" if able else "")
    if name in _GATHERING and not issubclass(spec.loop, CollectingLoopConfig):
        return "it gathers nothing itself"
    return None


@cache
def _settings_of_part(part: str, kind: type[ConfigPart]) -> tuple[Setting, ...]:
    settings = []
    for name, info in kind.model_fields.items():
        extra = setting_extra(kind, name)
        limits = {
            limit: float(getattr(item, limit))
            for item in (*info.metadata, *_limits_of_members(info.annotation))
            for limit in _LIMITS
            if getattr(item, limit, None) is not None
        }
        default = "(required)" if info.is_required() else info.default
        settings.append(
            Setting(
                name,
                part,
                _kind(info.annotation),
                default,
                info.description or "",
                limits,
                tuple(extra.get("aliases", ())),
                bool(extra.get("static", False)),
                extra.get("default_schedule"),
            )
        )
    return tuple(settings)


def _limits_of_members(annotation: Any) -> list[Any]:
    """The limits of the members of a union, such as those of the number in "a number or text"."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return []
    members = [member for member in get_args(annotation) if get_origin(member) is Annotated]
    return [item for member in members for item in get_args(member)[1:]]


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if origin in (Union, types.UnionType):
        return " or ".join("null" if item is type(None) else _kind(item) for item in get_args(annotation))
    if origin is tuple:
        return f"list of {_kind(get_args(annotation)[0])}"
    if origin is dict:
        return "dict"
    return getattr(annotation, "__name__", str(annotation))


def explain(
    part: type[ConfigPart],
    given: Mapping[str, Any],
    complaints: Iterable[Mapping[str, Any]],
    settings: Collection[str] = (),
) -> list[str]:
    """One line per mistake: switches that are given for numbers, and pydantic's errors.

    The errors of a value's alternative types are joined into one. `settings` are those that the run has.
    """
    lines: dict[tuple[Any, ...], str] = {}
    switches = dict(switches_for_numbers(part, given))
    for place, value in switches.items():
        lines[place] = f"{'.'.join(map(str, place))}={value!r}: must be a number"
    for details in complaints:
        place = tuple(item for item in details["loc"] if not _ALTERNATIVE.fullmatch(str(item)))
        if place in switches:
            continue
        line = _explain_one(part, {**details, "loc": place}, settings)
        lines[place] = f"{lines[place]}, or {line.split(': must be ')[-1]}" if place in lines else line
    return list(lines.values())


_LONGEST_VALUE = 200


def _explain_one(part: type[ConfigPart], details: Mapping[str, Any], settings: Collection[str]) -> str:
    """One mistake: the key, the value, what is allowed, the nearest known name."""
    location = [item for item in details["loc"] if item != "return_"]
    kind, context, value = details["type"], details.get("ctx", {}), details.get("input")
    key = ".".join(str(item) for item in location)
    if kind == "missing":
        return f"{key}: is missing{_help(part, location)}".rstrip(".") + _or_tasks(location, settings)
    if kind == "extra_forbidden":
        return f"{key}: {_unknown_inside(group_at(part, location[:-1]), str(location[-1]), settings)}"
    if kind == "model_type" and (group := group_at(part, location)) is not None:
        example = f", as in {group.example}" if group.example else ""
        return f"{key}={_shown(value)}: must be a mapping{example}"
    if kind == "value_error":
        message = str(context.get("error", details["msg"]))
        return f"{key}: {message}" if key else message
    for complaint, limit in (
        ("greater_than_equal", "ge"),
        ("greater_than", "gt"),
        ("less_than_equal", "le"),
        ("less_than", "lt"),
    ):
        if kind == complaint:
            return f"{key}={value!r}: must be {_LIMITS[limit]} {context[limit]:g}"
    if kind == "literal_error":
        allowed = [str(item).strip("'") for item in str(context["expected"]).replace(" or ", ", ").split(", ")]
        return f"{key}={value!r}: must be one of {', '.join(allowed)}{suggest(str(value), allowed)}"
    word = kind.split("_")[0]
    wanted = {"string": "str", "tuple": "list", "finite": "float"}.get(word, word)
    if wanted in _KINDS or wanted == "list":
        instead = _or_tasks(location, settings) if isinstance(value, (list, tuple)) else ""
        return f"{key}={_shown(value)}: must be {_KINDS.get(wanted, 'a list')}{instead}"
    return f"{key}={_shown(value)}: {details['msg']}"


def _shown(value: Any) -> str:
    """The value as it was given, or its type if the text would be too long."""
    words = repr(value)
    return words if len(words) <= _LONGEST_VALUE else f"<{type(value).__name__}>"


def _help(part: type[ConfigPart], location: list[Any]) -> str:
    info = part.model_fields.get(str(location[0])) if len(location) == 1 else None
    return f": {info.description}" if info is not None and info.description else ""


def _or_tasks(location: Sequence[Any], settings: Collection[str]) -> str:
    """What may be given in place of env_id, if the run may have tasks."""
    if list(location) != ["env_id"] or "tasks" not in settings:
        return ""
    return "; several are given as tasks, as in tasks=[CartPole-v1, Acrobot-v1]"


def _unknown_inside(group: type[ConfigPart] | None, name: str, settings: Collection[str]) -> str:
    """What is wrong with a key that a group of settings inside of a field does not have."""
    known = [] if group is None else list(fields_of(group))
    if group is None or name.removesuffix("_schedule").removesuffix("_warmup_steps") not in settings:
        return f"unknown key{in_our_words(name, known) or suggest(name, known)}"
    return f"is a setting of the run, not of {group.called}, which has {', '.join(known)}"


class ConfigError(UserError):
    """All mistakes in a config, one line each."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        lines = (
            [f"{source}: {self.problems[0]}"]
            if len(self.problems) == 1
            else [f"{source}: {len(self.problems)} mistakes", *(f"  {problem}" for problem in self.problems)]
        )
        super().__init__("\n".join(lines))


def json_schema(spec: AlgorithmSpec) -> dict[str, Any]:
    """A JSON schema of the flat config, made from the same fields."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for part in (RunConfig, spec.config, spec.loop, spec.model):
        schema = part.model_json_schema()
        definitions |= schema.get("$defs", {})
        properties |= schema["properties"]
    settings = settings_of(spec)
    properties = {name: described for name, described in properties.items() if name in settings}
    for setting in settings.values():
        names = (setting.name, *setting.aliases)
        for alias in setting.aliases:
            properties[alias] = properties[setting.name]
        if setting.schedulable:
            curve: dict[str, Any] = {
                "type": ["number", "string", "object", "null"],
                "description": f"How {setting.name} changes: an end value, a type, or a mapping with a type.",
            }
            if setting.default_schedule is not None:
                curve["default"] = dict(setting.default_schedule)
            for name in names:
                properties[name + "_schedule"] = curve
                properties[name + "_warmup_steps"] = {"type": ["integer", "null"], "minimum": 0}
    rules = properties["early_stopping"]
    one_rule = {"$ref": "#/$defs/EarlyStoppingRule"}  # accepted by itself, without a list around it
    properties["early_stopping"] = {"anyOf": [one_rule, rules, {"type": "null"}]}
    properties["algo_kwargs"] = {"type": "object"}
    needed: dict[str, Any] = {"required": ["env_id"]}
    if "tasks" in properties:
        named = {"anyOf": [*properties["tasks"]["anyOf"], {"type": "array", "items": {"type": "string"}}]}
        properties["tasks"] = properties["tasks"] | named  # a list of ids is their short form
        needed = {"anyOf": [needed, {"required": ["tasks"]}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"rl_training config of {spec.name}",
        "type": "object",
        "properties": properties,
        **needed,
        "additionalProperties": False,
        "$defs": definitions,
    }
