"""Reinforcement-learning training: one control surface, proven presets, exact resume, fast on a CPU.

The public names are those of `rl_training.api`. It is imported when one of them is first used, so that importing the
package stays cheap: it loads neither torch nor gymnasium.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rl_training.api import *  # noqa: F403


def _public_names() -> list[str]:
    api = vars(import_module("rl_training.api"))
    return sorted(name for name, value in api.items() if not (name.startswith("_") or isinstance(value, ModuleType)))


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *_public_names()]
    if not name.startswith("_") and name in _public_names():
        return getattr(import_module("rl_training.api"), name)
    if name.startswith("_"):
        raise AttributeError(f"module 'rl_training' has no attribute {name!r}")
    raise AttributeError(f"module 'rl_training' has no attribute {name!r}; it has {', '.join(_public_names())}")


def __dir__() -> list[str]:
    return ["__version__", *_public_names()]
