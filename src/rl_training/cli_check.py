"""`rl-training check`: whether every file of a run is what was written."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run")
@click.pass_context
def check(ctx: click.Context, run: str) -> None:
    """Check every file of RUN (a run's folder or a checkpoint); exit code 1 if one is damaged.

    Nothing is changed.
    """
    from rl_training.runtime.checkpoints.scrub import check_run

    whole = True
    for finding in check_run(Path(run)):
        click.echo(str(finding))
        whole = whole and finding.whole
    ctx.exit(0 if whole else 1)
