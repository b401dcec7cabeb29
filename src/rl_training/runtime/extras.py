"""What only an extra brings: imported when it is asked for, and named when it is missing."""

from __future__ import annotations

import importlib
from typing import Any

from rl_training.types import UserError


def install_command(extra: str) -> str:
    """What a user types to get an extra."""
    return f"pip install 'rl-training[{extra}]'"


def import_extra(module: str, extra: str, *, asked_by: str) -> Any:
    """A module that an extra installs; `asked_by` begins the message that says what is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        command = install_command(extra)
        raise UserError(f"{asked_by}: needs an extra that is not installed: {command} ({error})") from error
