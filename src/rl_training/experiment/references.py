"""User code by reference: `package.module:name`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from rl_training.types import UserError


def is_reference(text: str) -> bool:
    """Whether this is `module:name` (and not an id of Gymnasium's own form `module:Env-v0`)."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def reference_to(value: Any) -> str | None:
    """The `module:name` of a function or a class, if that leads back to it; None for anything else."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or path is None:
        return None
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return f"{module}:{path}" if found is value else None


def resolve_reference(text: str, *, key: str) -> Any:
    """The object that `module:name` names; modules of the current folder are found too."""
    if not is_reference(text):
        raise UserError(f"{key}={text!r}: give it as 'module:name', for example 'my_package.my_module:MyName'")
    module_name, _, path = text.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UserError(f"{key}={text!r}: there is no module {error.name!r} (looked in {folder} too)") from None
        raise UserError(f"{key}={text!r}: importing {module_name!r} failed: {error}") from error
    except Exception as error:
        raise UserError(f"{key}={text!r}: importing {module_name!r} failed: {error!r}") from error
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise UserError(f"{key}={text!r}: {module_name!r} has no {name!r}") from None
    return value


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
