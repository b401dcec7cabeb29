"""Checks of arguments that Python code passes, with error messages like those of a config."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Iterable
from typing import Any

from rl_training.runtime.callbacks import Callback
from rl_training.types import UserError


def whole_number(key: str, value: Any, *, least: int = 1) -> int:
    """Check a count; 1e5 and NumPy's numbers are allowed."""
    is_number = not isinstance(value, bool) and isinstance(value, numbers.Real)
    if not is_number or not float(value).is_integer() or value < least:
        raise UserError(f"{key}={value!r}: must be a whole number of at least {least}")
    return int(value)


def callback_list(key: str, given: Iterable[Callback] | None) -> list[Callback]:
    """Check that every item is a callback; None means an empty list."""
    if given is None:
        return []
    if isinstance(given, Callback):
        raise UserError(f"{key}: must be a list of callbacks; write [{type(given).__name__}(...)]")
    if not isinstance(given, Iterable):
        raise UserError(f"{key}={_shown(given)}: {_why_no_callback(given)}")
    callbacks = list(given)
    for item in callbacks:
        if not isinstance(item, Callback):
            raise UserError(f"{key}={_shown(item)}: {_why_no_callback(item)}")
    return callbacks


def _why_no_callback(item: Any) -> str:
    if inspect.isclass(item) and issubclass(item, Callback):
        return f"is a class; pass an instance of it: {item.__name__}(...)"
    return "must be an instance of a subclass of rl_training.Callback"


def _shown(item: Any) -> str:
    return getattr(item, "__qualname__", None) or repr(item)
