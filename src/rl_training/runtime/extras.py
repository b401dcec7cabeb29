"""What only an extra brings: imported when it is asked for, and named when it is missing."""

from __future__ import annotations

import importlib
from typing import Any

from rl_training.types import UserError

# Every extra but `dev`, and the distribution that it is there for.
EXTRAS = {
    "atari": "ale-py",
    "box2d": "box2d",
    "minari": "h5py",
    "mujoco": "mujoco",
    "plot": "matplotlib",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}


def install_command(extra: str) -> str:
    """What a user types to get an extra."""
    return f"pip install 'rl-training[{extra}]'"


def missing(extra: str, error: object) -> str:
    """What to say, behind what asked for it, when an extra is missing."""
    return f"needs an extra that is not installed: {install_command(extra)} ({' '.join(str(error).split())})"


def extra_behind(error: object) -> str | None:
    """The extra of which an error speaks, if it does."""
    words = str(error).lower()
    return next((extra for extra, distribution in EXTRAS.items() if distribution in words), None)


def import_extra(module: str, extra: str, *, asked_by: str) -> Any:
    """A module that an extra installs; `asked_by` begins the message that says what is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{asked_by}: {missing(extra, error)}") from error
