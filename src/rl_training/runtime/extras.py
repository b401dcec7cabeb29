"""Imports optional packages, and names the extra that installs a missing one."""

from __future__ import annotations

import importlib
from typing import Any

from rl_training.types import UserError

# Every extra but `dev`, and the main distribution that it installs.
EXTRAS = {
    "atari": "ale-py",
    "boards": "pettingzoo",
    "box2d": "box2d",
    "minari": "h5py",
    "mujoco": "mujoco",
    "plot": "matplotlib",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}


def install_command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'rl-training[{extra}]'"


def missing(extra: str, error: object) -> str:
    """The message for a missing extra, to be shown after the key that needs it."""
    return f"needs an extra that is not installed: {install_command(extra)} ({' '.join(str(error).split())})"


def extra_behind(error: object) -> str | None:
    """The extra that an error message is about, if any."""
    words = str(error).lower()
    return next((extra for extra, distribution in EXTRAS.items() if distribution in words), None)


def import_extra(module: str, extra: str, *, asked_by: str) -> Any:
    """Import a module that an extra installs; `asked_by` begins the error message if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{asked_by}: {missing(extra, error)}") from error
