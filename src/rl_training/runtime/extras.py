"""Imports optional packages, and names the extra that installs a missing one."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from rl_training.types import UserError

# Every extra but `dev`, and the main distribution that it installs.
EXTRAS = {
    "atari": "ale-py",
    "boards": "pettingzoo",
    "box2d": "box2d",
    "dmc": "dm-control",
    "minari": "h5py",
    "minigrid": "minigrid",
    "mujoco": "mujoco",
    "plot": "matplotlib",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}

# Extras whose distribution fails with later versions of another one than it says: what it needs is then said here.
_FITS = {"dmc": ("mujoco", "<4")}


def install_command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'rl-training[{extra}]'"


def missing(extra: str, error: object) -> str:
    """The message for a missing extra, to be shown after the key that needs it."""
    return f"needs an extra that is not installed: {install_command(extra)} ({' '.join(str(error).split())})"


def clash(extra: str) -> str | None:
    """The two distributions of an extra whose installed versions do not work together, as a sentence; None if none."""
    if extra not in _FITS:
        return None
    ours, (other, limit) = EXTRAS[extra], _FITS[extra]
    try:
        found, against = version(ours), version(other)
        from packaging.requirements import Requirement
        from packaging.specifiers import SpecifierSet
    except (PackageNotFoundError, ImportError):
        return None  # a missing package has a message of its own
    needed = SpecifierSet(limit)
    for requirement in map(Requirement, requires(ours) or []):
        if requirement.name == other:
            needed &= requirement.specifier
    if needed.contains(against, prereleases=True):
        return None
    return f"{ours} {found} needs {other}{needed}, but {other} {against} is installed: {install_command(extra)}"


def extra_behind(error: object) -> str | None:
    """The extra that an error message is about, if any."""
    words = str(error).lower()
    # As a word of its own: `ray` is in `array`.
    behind = (extra for extra, name in EXTRAS.items() if re.search(f"(?<![a-z]){re.escape(name)}(?![a-z])", words))
    return next(behind, None)


def import_extra(module: str, extra: str, *, asked_by: str) -> Any:
    """Import a module that an extra installs; `asked_by` begins the error message if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{asked_by}: {missing(extra, error)}") from error
