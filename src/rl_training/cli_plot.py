"""`rl-training plot`: curves of runs, a search, what a world model imagines."""

from __future__ import annotations

from typing import Any

import click

from rl_training.cli_options import trust_option
from rl_training.types import UserError

# The pictures of one run that an option is for.
_PICTURES_WITH = {
    "seed": ("search", "imagination"),
    "step": ("search", "imagination"),
    "which": ("search", "imagination"),
    "trust": ("search", "imagination"),
    "simulations": ("search",),
    "horizon": ("imagination",),
}


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--metric", "metrics", multiple=True, help="A metric to draw instead of the returns; may be repeated.")
@click.option("--output", help="The picture's file (png, svg or pdf).  [default: a png in the run]")
@click.option("--dark", is_flag=True, help="Draw learning curves for a dark background.")
@click.option("--search", is_flag=True, help="Draw one search of a planning run instead; the options below say where.")
@click.option("--imagination", is_flag=True, help="Draw what a world model imagines instead, beside what happened.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the episode; in a game, even moves first.  [default: 0]")
@click.option("--step", type=click.IntRange(0), help="Steps before the search (default 0) or the dream (default 5).")
@click.option("--simulations", type=click.IntRange(1), help="Simulations of the search.  [default: those of the run]")
@click.option("--horizon", type=click.IntRange(1), help="Steps that are imagined.  [default: those of the run]")
@click.option("--checkpoint", "which", help="latest, best or step_N.  [default: latest]")
@trust_option
def plot(
    runs: tuple[str, ...],
    metrics: tuple[str, ...],
    output: str | None,
    dark: bool,
    search: bool,
    imagination: bool,
    **options: int | str | bool | None,
) -> None:
    """Draw the learning curves of RUNS (or folders of runs); seeds of one config become a mean and a band.

    With --search, draw what a planning algorithm thinks at one state of an evaluation episode. With --imagination, draw
    such an episode as a world model imagines it, beside what really happened.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if search and imagination:
        raise UserError("--search, --imagination: are two pictures; ask for one of them")
    flag = "search" if search else "imagination" if imagination else None
    if wrong := [name for name in given if flag not in _PICTURES_WITH[name]]:
        flags = " and ".join(f"--{word}" for word in _PICTURES_WITH[wrong[0]])
        raise UserError(f"--{wrong[0].replace('which', 'checkpoint')}: is for {flags} alone")
    if flag is not None:
        if dark:
            raise UserError("--dark: is for learning curves alone")
        if len(runs) != 1 or metrics:
            raise UserError(
                f"--{flag}: draws one run and takes no --metric; got {len(runs)} runs, {len(metrics)} metrics"
            )
        (_plot_search if search else _plot_imagination)(runs[0], output, given)
        return
    from rl_training.runtime.plots import plot_runs

    drawn = plot_runs(runs, metrics=metrics, output=output, dark=dark)
    for note in drawn.notes:
        click.echo(f"note: {note}", err=True)
    for group in drawn.groups:
        click.echo(f"{group.label}: {len(group.runs)} run{'' if len(group.runs) == 1 else 's'}")
    click.echo(f"plot     {drawn.path}")


def _plot_imagination(run: str, output: str | None, options: dict[str, Any]) -> None:
    from rl_training.runtime.imagination_plot import plot_imagination

    paths, view = plot_imagination(run, output=output, **options)
    click.echo(f"imagined {view.steps - view.context} steps {view.place}")
    for path in paths:
        click.echo(f"plot     {path}")


def _plot_search(run: str, output: str | None, options: dict[str, Any]) -> None:
    from rl_training.runtime.search_plot import plot_search

    path, view = plot_search(run, output=output, **options)
    click.echo(f"state    {view.place}")
    click.echo(f"action   {view.chosen.label} ({view.chosen.visits} of {view.tree.visits[0] - 1} simulations)")
    click.echo(f"plot     {path}")
