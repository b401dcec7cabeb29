"""Checks of arguments that Python code passes, with error messages like those of a config."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterable
from typing import Any

from rl_training.experiment.references import resolve_reference, unfitting_call, why_no_function
from rl_training.experiment.registry import nearest
from rl_training.runtime.callbacks import Callback, FunctionCallback
from rl_training.types import UserError

# What can be a callback: an object of a subclass, or a function that is called with the run.
AnyCallback = Callback | Callable[[Any], Any]

# The hooks, and the names of what each is called with.
_HOOKS = {
    name: tuple(inspect.signature(hook).parameters)[1:] for name, hook in vars(Callback).items() if name[:3] == "on_"
}
_STEP_AFTER = "on_step(run, metrics), after every step of the loop: gathering and learning"
# Hooks of other libraries, and what takes their place.
_ELSEWHERE = {
    "_on_step": _STEP_AFTER,
    "_on_rollout_start": "on_start(run), before the first step, and on_step(run, metrics), after every step",
    "_on_rollout_end": _STEP_AFTER,
    "_on_training_start": "on_start(run)",
    "_on_training_end": "on_end(run)",
    "_on_event": "on_eval(run, metrics), after every evaluation",
    "_init_callback": "on_start(run)",
}
_OTHER_HOOKS = {
    **_ELSEWHERE,
    **{name.removeprefix("_"): words for name, words in _ELSEWHERE.items() if name != "_on_step"},
}


def whole_number(key: str, value: Any, *, least: int = 1) -> int:
    """Check a count; 1e5 and NumPy's numbers are allowed."""
    is_number = not isinstance(value, bool) and isinstance(value, numbers.Real)
    if not is_number or not float(value).is_integer() or value < least:
        raise UserError(f"{key}={value!r}: must be a whole number of at least {least}")
    return int(value)


def callback_list(key: str, given: Any) -> list[Callback]:
    """Check that every item is a callback; None means an empty list."""
    if given is None:
        return []
    if isinstance(given, Callback):
        raise UserError(f"{key}: must be a list of callbacks; write [{type(given).__name__}(...)]")
    if not isinstance(given, Iterable):
        if inspect.isfunction(given):
            raise UserError(f"{key}: must be a list of callbacks; write [{given.__name__}]")
        raise UserError(f"{key}={_shown(given)}: {_why_no_callback(given)}")
    return [as_callback(f"{key}={_shown(item)}", item) for item in given]


def as_callback(asked_by: str, item: Any) -> Callback:
    """A callback: an object of a subclass of `Callback`, whose hooks are checked, or a function of the run."""
    if isinstance(item, Callback):
        _check_hooks(asked_by, item)
        return item
    if why_no_function(item) is not None or _hooks_in(type(item)):
        raise UserError(f"{asked_by}: {_why_no_callback(item)}")
    problem = unfitting_call(item, "run")
    if problem is not None:
        raise UserError(f"{asked_by}: a function is called with the run alone, after every step: {problem}")
    return FunctionCallback(item, _shown(item))


def named_callback(reference: str) -> Callback:
    """The callback that `module:Name` names: a class, which is called without arguments, an object, or a function."""
    named, asked_by = resolve_reference(reference, key="callbacks"), f"callbacks={reference!r}"
    if inspect.isclass(named) and issubclass(named, Callback):
        problem = unfitting_call(named)
        if problem is not None:
            raise UserError(f"{asked_by}: is called without arguments: {problem}")
        named = named()
    elif not isinstance(named, Callback) and (why_no_function(named) is not None or _hooks_in(type(named))):
        kind = named if inspect.isclass(named) else type(named)
        what = f"the class {kind.__name__}" if kind is named else f"a {kind.__name__}"
        wanted = "must name a function that takes the run, a subclass of rl_training.Callback, or an object of one"
        raise UserError(f"{asked_by}: {wanted}; it is {what}{_renamed(kind)}")
    return as_callback(asked_by, named)


def _why_no_callback(item: Any) -> str:
    kind = item if inspect.isclass(item) else type(item)
    if inspect.isclass(item) and issubclass(item, Callback):
        return f"is a class; pass an instance of it: {item.__name__}(...)"
    return (
        f"must be an instance of a subclass of rl_training.Callback, or a function that takes the run{_renamed(kind)}"
    )


def _renamed(kind: type) -> str:
    """What the hooks of a foreign class are called here."""
    return "".join(f"; its {name} is {_OTHER_HOOKS[name]}" for name in vars(kind) if name in _OTHER_HOOKS)


def _hooks_in(kind: type) -> list[str]:
    """The methods of a class that are hooks, here or elsewhere."""
    return [name for name in dir(kind) if name in _HOOKS or name in _OTHER_HOOKS]


def _check_hooks(asked_by: str, callback: Callback) -> None:
    """A hook under a wrong name would never be called, and one with wrong arguments fails long after the start."""
    kind = type(callback)
    for name in (name for name in dir(kind) if name not in dir(Callback) and callable(getattr(kind, name))):
        if name in _OTHER_HOOKS:
            raise UserError(
                f"{asked_by}: {kind.__name__}.{name} would never be called; here it is {_OTHER_HOOKS[name]}"
            )
        near = nearest(name, _HOOKS, cutoff=0.8) if name.strip("_").startswith("on") else None
        if near is not None:
            raise UserError(f"{asked_by}: {kind.__name__}.{name} would never be called; did you mean {near!r}?")
    for name, arguments in _HOOKS.items():
        problem = unfitting_call(getattr(callback, name), *arguments)
        if problem is not None:
            called = f"{name}({', '.join(arguments)})"
            raise UserError(f"{asked_by}: {kind.__name__}.{name} is called as {called}: {problem}")


def _shown(item: Any) -> str:
    return getattr(item, "__qualname__", None) or repr(item)
