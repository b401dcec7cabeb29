"""User code by reference: `package.module:name`, found, and checked for what it is before anybody calls it."""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import os
import pkgutil
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.types import UserError

# What pip installs for the modules of known environments.
DISTRIBUTIONS = {
    "ale_py": "'rl-training[atari]'",
    "flappy_bird_gymnasium": "flappy-bird-gymnasium",
    "gymnasium_robotics": "gymnasium-robotics",
    "highway_env": "highway-env",
    "minigrid": "'rl-training[minigrid]'",
    "miniworld": "miniworld",
    "mo_gymnasium": "mo-gymnasium",
    "pettingzoo": "'rl-training[boards]'",
    "shimmy": "'rl-training[dmc]'",
    "sumo_rl": "sumo-rl",
}

# What the recorded name of code begins with that no reference leads back to.
CUSTOM = "custom "
# The settings that take a function or a class as well as its name; so do schedules.
_TAKE_OBJECTS = {"model"}


def is_reference(text: str) -> bool:
    """Whether this is `module:name` (and not an id of Gymnasium's own form `module:Env-v0`)."""
    module, colon, name = text.partition(":")
    return bool(colon) and is_module_name(module) and is_module_name(name)


def reference_to(value: Any) -> str | None:
    """The `module:name` of a function or a class, if that leads back to it; None for anything else."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or path is None:
        return None
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return f"{module}:{path}" if found is value else None


def name_of(value: Any) -> str:
    """The name under which a function or a class is recorded: its reference, or `custom ...` if none leads back to it.

    A name that does not lead back would load another one, or none.
    """
    kind = type(value)
    return reference_to(value) or f"{CUSTOM}{getattr(value, '__module__', kind.__module__)}:" + getattr(
        value, "__qualname__", kind.__name__
    )


def is_nameless(text: str) -> bool:
    """Whether this is what `name_of` says of an object that cannot be found by name."""
    return text.startswith(CUSTOM)


def leads_back(text: str) -> bool:
    """Whether another program finds the same object by this name: it is in a module, not in a script or notebook."""
    return not is_nameless(text) and text.partition(":")[0] != "__main__"


def by_name(layers: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Callable[..., Any]]]:
    """Layers of settings with names in place of functions and classes, and those that no name leads back to.

    What another layer replaces further up is not among them.
    """
    named = [dict(layer) for layer in layers]
    objects: dict[str, Callable[..., Any]] = {}
    for layer in named:
        if "tasks" in layer:
            layer["tasks"] = _tasks_by_name(layer["tasks"])
        for key in _TAKE_OBJECTS & layer.keys():
            value = layer[key]
            objects.pop(key, None)
            if callable(value):
                layer[key] = name_of(value)
                if not leads_back(layer[key]):
                    objects[key] = value
    return named, objects


def _tasks_by_name(tasks: Any) -> Any:
    """Tasks with names in place of the functions and classes that make their environments."""
    if isinstance(tasks, (list, tuple)):
        return [_maker_by_name("tasks", task) for task in tasks]
    if not isinstance(tasks, Mapping):
        return tasks
    return {
        name: {**task, "env_id": _maker_by_name(f"tasks.{name}.env_id", task["env_id"])}
        if isinstance(task, Mapping) and "env_id" in task
        else _maker_by_name(f"tasks.{name}", task)
        for name, task in tasks.items()
    }


def _maker_by_name(key: str, value: Any) -> Any:
    reference = reference_to(value) if callable(value) else value
    if callable(value) and reference is None:
        raise UserError(
            f"{key}={name_of(value)!r}: no name leads back to it; define it in a module, and name it as "
            "'module:function'"
        )
    return reference


def resolve_reference(text: str, *, key: str) -> Any:
    """The object that `module:name` names; modules of the current folder are found too."""
    if is_nameless(text):
        raise UserError(
            f"{key}={text!r}: was given as an object, which cannot be found by name; pass it again ({key}=)"
        )
    if not is_reference(text):
        raise UserError(f"{key}={text!r}: give it as 'module:name', for example 'my_package.my_module:MyName'")
    module_name, _, path = text.partition(":")
    value = import_given(module_name, asked_by=f"{key}={text!r}")
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            again = "" if leads_back(text) else ": it was in the script or notebook that trained the run; pass it again"
            raise UserError(f"{key}={text!r}: {module_name!r} has no {name!r}{again}") from None
    return value


def is_module_name(text: str) -> bool:
    """Whether this can be the name of a module, such as `my_package.my_module`."""
    return all(part.isidentifier() for part in text.split("."))


def import_given(module_name: str, *, asked_by: str) -> Any:
    """Import a module that the caller gives; modules of the current folder are found too."""
    folder = current_folder()
    if module_name not in sys.modules and folder is not None and folder not in sys.path:
        sys.path.append(folder)
    return _imported(module_name, asked_by, f"looked in {folder} too")


def current_folder() -> str | None:
    """The current folder, if it is still there."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _imported(module_name: str, asked_by: str, where: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UserError(f"{asked_by}: there is no module {error.name!r} ({where}){_remedy(error.name)}") from None
        raise UserError(f"{asked_by}: importing {module_name!r} failed: {error}") from error
    except Exception as error:
        raise UserError(f"{asked_by}: importing {module_name!r} failed: {error!r}") from error


def _remedy(module_name: str) -> str:
    """How to install a missing module, if it is known, or a module of a similar name. Other names are not guessed."""
    from rl_training.experiment.registry import suggest

    if module_name in DISTRIBUTIONS:
        return f"; install it: pip install {DISTRIBUTIONS[module_name]}"
    if "." in module_name:
        return ""
    return suggest(module_name, [*DISTRIBUTIONS, *(module.name for module in pkgutil.iter_modules())])


def import_apart(text: str, *, key: str, folder: str | None, barred: Sequence[Path]) -> None:
    """Import the module of a name out of a run's folder, so that `resolve_reference` finds it.

    It is looked for among the installed modules and in `folder`, not in the current folder, and never in `barred` ones.
    """
    module_name = text.partition(":")[0]
    if module_name in sys.modules:
        return
    where = "the current folder is not searched for what you do not give yourself"
    if folder is not None:
        where = f"looked in {folder} too"
    if folder is not None and _within(folder, barred):
        folder, where = None, "the run's own folder is never searched"

    here = current_folder()

    def is_barred(place: str) -> bool:
        real = os.path.realpath(place or here or os.sep)  # an empty place is the current folder
        if folder is not None and real == os.path.realpath(folder):
            return False
        return not place or (here is not None and real == os.path.realpath(here)) or _within(real, barred)

    parent = found_in(module_name)
    if parent is not None and is_barred(parent):  # a package of the current folder that was imported before
        raise UserError(f"{key}={text!r}: is in {parent}, which is not searched for it; give it yourself")
    with _searching(folder, is_barred):
        _imported(module_name, f"{key}={text!r}", where)


@contextmanager
def _searching(folder: str | None, is_barred: Callable[[str], bool]) -> Iterator[None]:
    """Look for modules in one folder more, and in no barred one. The former stays: code may import at a later time."""
    barred = [(index, entry) for index, entry in enumerate(sys.path) if is_barred(entry)]
    sys.path[:] = [entry for entry in sys.path if not is_barred(entry)]
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)
    try:
        yield
    finally:
        for index, entry in barred:
            sys.path.insert(index, entry)


def _within(place: str, folders: Sequence[Path]) -> bool:
    real = Path(os.path.realpath(place))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


def found_in(module_name: str) -> str | None:
    """The folder in which an imported module or its package was found; None for installed ones."""
    spec = getattr(sys.modules.get(module_name.partition(".")[0]), "__spec__", None)
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or ()), spec.origin if spec.has_location else None)
    if place is None:
        return None
    folder = os.path.dirname(os.path.abspath(place))
    return None if folder in sysconfig.get_paths().values() else folder


def resolve_maker(text: str, *, key: str, makes: str, kinds: tuple[type, ...] = ()) -> Callable[..., Any]:
    """The function or class that a reference names, checked before it is called; a class must be one of `kinds`."""
    value: Callable[..., Any] = resolve_reference(text, key=key)
    check_maker(value, text, key=key, makes=makes, kinds=kinds)
    return value


def check_maker(value: Any, text: str, *, key: str, makes: str, kinds: tuple[type, ...] = ()) -> None:
    """Raise a UserError unless this is a function or a class that may make what is wanted."""
    problem = _why_no_maker(value, kinds)
    if problem is not None:
        raise UserError(f"{key}={text!r}: must name a function or class that makes {makes}; {problem}")


def resolve_function(text: str, *, key: str, does: str) -> Callable[..., Any]:
    """The function that a reference names, or an object that is called like one; `does` says what it is for."""
    value = resolve_reference(text, key=key)
    problem = why_no_function(value)
    if problem is not None:
        raise UserError(f"{key}={text!r}: must name a function that {does}; {problem}")
    return value  # type: ignore[no-any-return]


def why_no_function(value: Any) -> str | None:
    """Why this cannot be called as a function of the user's own; None if it can."""
    return f"it is the class {value.__name__}" if inspect.isclass(value) else _why_no_maker(value, ())


def _why_no_maker(value: Any, kinds: tuple[type, ...]) -> str | None:
    if not callable(value):
        return f"it is a {type(value).__name__}"
    inner = _innermost(value)
    if _is_standard(inner):
        return f"{getattr(inner, '__qualname__', inner)!s} is a part of Python itself"
    if inspect.isclass(inner):
        if kinds and not issubclass(inner, kinds):
            return f"{inner.__name__} is no subclass of {' or '.join(kind.__name__ for kind in kinds)}"
        return None
    returned = _plain_return(inner) if kinds else None
    return None if returned is None else f"it says that it returns {returned}"


def _innermost(value: Any) -> Any:
    """What is called in the end: behind partial arguments, a bound object and decorators."""
    for _ in range(100):
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType):
            value = value.__func__
        elif hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        else:
            break
    return value


def _is_standard(value: Any) -> bool:
    """Whether Python itself defines this, wherever it was imported to: a built-in, or of the standard library."""
    homes = [getattr(value, "__module__", None)]
    if not isinstance(value, (type, types.FunctionType)):
        homes.append(type(value).__module__)
    return any(str(home).partition(".")[0] in sys.stdlib_module_names for home in homes)


def _plain_return(function: Any) -> str | None:
    """The type that a function says it returns, if that is one of Python's own, such as int or None."""
    said = getattr(function, "__annotations__", {}).get("return", object)
    name = said if isinstance(said, str) else "None" if said is None else getattr(said, "__name__", "")
    kind = getattr(builtins, name.partition("[")[0], object)
    is_own = isinstance(said, str) or said is None or getattr(said, "__module__", None) == "builtins"
    return name if is_own and kind is not object and (kind is None or isinstance(kind, type)) else None


def unfitting_call(function: Callable[..., Any], *arguments: Any, **named: Any) -> str | None:
    """Why a user's function cannot be called with these arguments; None if it can, or if its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some classes written in C have no signature
        return None
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        return str(error)
    return None
