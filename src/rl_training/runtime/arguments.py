"""What Python code passes, checked in the same plain words as a config."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Iterable
from typing import Any

from rl_training.runtime.callbacks import Callback
from rl_training.types import UserError


def whole_number(key: str, value: Any, *, least: int = 1) -> int:
    """A count; 1e5 and NumPy's numbers are fine."""
    is_number = not isinstance(value, bool) and isinstance(value, numbers.Real)
    if not is_number or not float(value).is_integer() or value < least:
        raise UserError(f"{key}={value!r}: must be a whole number of at least {least}")
    return int(value)


def callback_list(key: str, given: Iterable[Callback] | None) -> list[Callback]:
    """Callbacks, each of which is one; None is none."""
    if given is None:
        return []
    if isinstance(given, Callback):
        raise UserError(f"{key}: must be a list of callbacks; write [{type(given).__name__}(...)]")
    if not isinstance(given, Iterable):
        raise UserError(f"{key}={_shown(given)}: {_no_callback(given)}")
    callbacks = list(given)
    for item in callbacks:
        if not isinstance(item, Callback):
            raise UserError(f"{key}={_shown(item)}: {_no_callback(item)}")
    return callbacks


def _no_callback(item: Any) -> str:
    if inspect.isclass(item) and issubclass(item, Callback):
        return f"this is the class; give an object of it: {item.__name__}(...)"
    return "must be an object of a class that extends rl_training.Callback"


def _shown(item: Any) -> str:
    return getattr(item, "__qualname__", None) or repr(item)
