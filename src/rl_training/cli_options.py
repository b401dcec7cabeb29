"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

trust_option = click.option(
    "--trust", is_flag=True, help="Import the code that a run's folder names, though you did not train it yourself."
)

_parallel = click.option(
    "--parallel", type=click.IntRange(1), help="How many seeds are trained at a time, in processes of their own."
)
_ray = click.option("--ray", metavar="ADDRESS", help="Train the seeds on this Ray cluster, all at a time.")


def parallel_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where several runs are done, and how many at a time."""
    return _parallel(_ray(command))
