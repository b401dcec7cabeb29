"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rl_training.types import UserError


class SettingsCommand(click.Command):
    """A command that takes settings as key=value, and says so of what is given as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise UserError(_as_setting(error.option_name)) from None


def _as_setting(option: str) -> str:
    from rl_training.experiment.other_words import in_our_words, our_name
    from rl_training.experiment.settings import RunConfig

    name = option.lstrip("-").replace("-", "_")
    single = RunConfig.model_fields.keys() - {"tasks"}
    ours = name if name in RunConfig.model_fields else our_name(name, single) or our_name(name)
    words = None if ours else in_our_words(name)
    form = f"settings are given as key=value{f': {ours}=...' if ours else ', for example seed=1'}"
    return f"{option}: there is no such option{words or f'; {form}'}"


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


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Print rows of text in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
