"""The options that several commands share."""

from __future__ import annotations

import click

trust_option = click.option(
    "--trust", is_flag=True, help="Import the code that a run's folder names, though you did not train it yourself."
)
