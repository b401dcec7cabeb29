"""What the class of an algorithm can be called with: a signature and a documentation, made from the config fields."""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from keyword import iskeyword
from typing import Annotated, Any, Union, get_args, get_origin

from rl_training.algorithms.settings import ConfigPart
from rl_training.experiment.fields import SUFFIXES, Setting, settings_of
from rl_training.experiment.registry import load_spec
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.envs.given import Env

_CURVE = float | str | Mapping[str, Any] | Callable[[float], float] | None
# What Python code may give besides what a config holds.
_TAKEN: dict[str, Any] = {
    "activation": str | type,
    "early_stopping": Mapping[str, Any] | Sequence[Mapping[str, Any]],
    "env_packages": str | Sequence[str],
    "her": bool | str | Mapping[str, Any] | None,
    "loggers": str | Sequence[str],
    "model": str | Callable[..., Any],
    "tasks": Sequence[str] | Mapping[str, Mapping[str, Any]] | None,
}
# The environment is an argument of its own, the algorithm that of the class; and evidence is for presets.
_LEFT_OUT = ("algo", "env_id", "expected")
_ORDER = ("algorithm", "loop", "model", "run")
_WIDTH = 110


@cache
def signature_of(algo: str) -> inspect.Signature:
    """The environment, then every setting by keyword, with its schedules and its other names."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    first = inspect.Parameter("env", kind, annotation=Env)
    if load_spec(algo).capabilities.multi_task:  # it may have tasks instead
        first = first.replace(annotation=Env | None, default=None)
    return inspect.Signature([first, *_parameters(algo)], return_annotation=None)


@cache
def documentation_of(algo: str, summary: str) -> str:
    """A summary, and every setting with its type, its default and its help."""
    lines = [summary, "", "Settings, of which those marked with * also take X_schedule and X_warmup_steps:", ""]
    for setting in _settings(algo):
        kind, star = _text(_annotation(algo, setting)), "*" if setting.schedulable else ""
        default = _quoted(setting.default) if setting.default_curve is None else setting.default_text
        lines.append(f"{setting.name}{star}: {kind} = {default}")
        also = f" Also: {', '.join(setting.aliases)}." if setting.aliases else ""
        limits = f" It is {setting.range}." if setting.limits else ""
        lines += textwrap.wrap(setting.help + limits + also, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def as_code(parameter: inspect.Parameter) -> str:
    """A parameter as it is written in a stub."""
    default, annotation = parameter.default, _text(parameter.annotation)
    if default is inspect.Parameter.empty:
        return f"{parameter.name}: {annotation}"
    plain = default is None or isinstance(default, (bool, int, float, str, tuple))
    return f"{parameter.name}: {annotation} = {_quoted(default) if plain else '...'}"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _settings(algo: str) -> list[Setting]:
    found = [setting for setting in settings_of(load_spec(algo)).values() if setting.name not in _LEFT_OUT]
    return sorted(found, key=lambda setting: _ORDER.index(setting.part))


def _parameters(algo: str) -> Iterator[inspect.Parameter]:
    def keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)

    for setting in _settings(algo):
        kind, (curve, warmup) = _annotation(algo, setting), SUFFIXES
        for name in (setting.name, *setting.aliases):
            if iskeyword(name):  # such as `from`, which only a file can say
                continue
            yield keyword(name, kind, setting.default)
            if setting.schedulable:
                yield keyword(name + curve, _CURVE, setting.default_schedule)
                yield keyword(name + warmup, int | None, None)
    yield keyword("algo_kwargs", Mapping[str, Any] | None, None)


def _annotation(algo: str, setting: Setting) -> Any:
    spec = load_spec(algo)
    parts: dict[str, type[ConfigPart]] = {
        "run": RunConfig,
        "algorithm": spec.config,
        "loop": spec.loop,
        "model": spec.model,
    }
    taken = _TAKEN.get(setting.name)
    return _given(parts[setting.part].model_fields[setting.name].annotation) if taken is None else taken


def _given(annotation: Any) -> Any:
    """The type of what may be given where a config holds another: any sequence for a tuple, any mapping for a dict."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _given(members[0])
    if origin in (Union, types.UnionType):
        return Union[tuple(_given(member) for member in members)]  # noqa: UP007 - they are known at run time only
    if origin is tuple:
        return Sequence[_given(members[0])]  # type: ignore[misc]
    if origin is dict:
        return Mapping[members[0], _given(members[1])]  # type: ignore[misc, valid-type]
    return annotation


def _text(annotation: Any) -> str:
    """A type as it is written in code, where the names of `typing` and `collections.abc` are imported."""
    for known, words in ((Env, "Env"), (Env | None, "Env | None")):
        if annotation == known:
            return words
    if annotation is type(None):
        return "None"
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(_text(member) for member in get_args(annotation))
    words = inspect.formatannotation(annotation).replace("collections.abc.", "").replace("typing.", "")
    return words.replace("'", '"')
