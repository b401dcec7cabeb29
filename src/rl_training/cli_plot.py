"""`rl-training plot`: curves of runs, a search, what a world model imagines."""

from __future__ import annotations

from typing import Any

import click

from rl_training.cli_options import print_table, trust_option
from rl_training.types import UserError

# The pictures of one run that an option is for.
_PICTURES_WITH = {
    "seed": ("search", "imagination"),
    "step": ("search", "imagination"),
    "which": ("search", "imagination"),
    "trust": ("search", "imagination"),
    "task": ("search",),
    "simulations": ("search",),
    "horizon": ("imagination",),
}


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--metric", "metrics", multiple=True, help="A metric to draw instead of the returns; may be repeated.")
@click.option("--output", help="The picture's file (png, svg or pdf).  [default: a png in the run]")
@click.option("--dark", is_flag=True, help="Draw learning curves for a dark background.")
@click.option("--compare", is_flag=True, help="Compare sets of runs instead: interquartile means with intervals.")
@click.option("--search", is_flag=True, help="Draw one search of a planning run instead; the options below say where.")
@click.option("--imagination", is_flag=True, help="Draw what a world model imagines instead, beside what happened.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the episode; in a game, even moves first.  [default: 0]")
@click.option("--step", type=click.IntRange(0), help="Steps before the search (default 0) or the dream (default 5).")
@click.option("--task", help="The task of the search, in a run with several.")
@click.option("--simulations", type=click.IntRange(1), help="Simulations of the search.  [default: those of the run]")
@click.option("--horizon", type=click.IntRange(1), help="Steps that are imagined.  [default: those of the run]")
@click.option("--checkpoint", "which", help="latest, best or step_N.  [default: latest]")
@trust_option
def plot(
    runs: tuple[str, ...],
    metrics: tuple[str, ...],
    output: str | None,
    dark: bool,
    compare: bool,
    search: bool,
    imagination: bool,
    **options: int | str | bool | None,
) -> None:
    """Draw the learning curves of RUNS (or folders of runs); seeds of one config become a mean and a band.

    With --compare, each of RUNS is a set of runs: a run, a folder of runs or a quoted pattern such as 'runs/ppo__*'.
    Their last evaluations are compared, in every environment that all sets have.

    With --search, draw what a planning algorithm thinks at one state of an evaluation episode. With --imagination, draw
    such an episode as a world model imagines it, beside what really happened.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    pictures = {"compare": compare, "search": search, "imagination": imagination}
    asked = [name for name, wanted in pictures.items() if wanted]
    if len(asked) > 1:
        raise UserError(f"{', '.join(f'--{name}' for name in asked)}: are different pictures; ask for one of them")
    flag = "search" if search else "imagination" if imagination else None
    if wrong := [name for name in given if flag not in _PICTURES_WITH[name]]:
        flags = " and ".join(f"--{word}" for word in _PICTURES_WITH[wrong[0]])
        raise UserError(f"--{wrong[0].replace('which', 'checkpoint')}: is for {flags} alone")
    if flag is not None:
        if dark:
            raise UserError("--dark: is for learning curves and comparisons alone")
        if len(runs) != 1 or metrics:
            raise UserError(
                f"--{flag}: draws one run and takes no --metric; got {len(runs)} runs, {len(metrics)} metrics"
            )
        (_plot_search if search else _plot_imagination)(runs[0], output, given)
        return
    if compare:
        _plot_comparison(runs, metrics, output, dark=dark)
        return
    from rl_training.runtime.panels import in_several_places
    from rl_training.runtime.plots import plot_runs

    drawn = plot_runs(runs, metrics=metrics, output=output, dark=dark)
    for note in drawn.notes:
        click.echo(f"note: {note}", err=True)
    several = in_several_places(drawn.groups)
    for group in drawn.groups:
        where = f"{group.environment}: " if several else ""
        click.echo(f"{where}{group.label}: {len(group.runs)} run{'' if len(group.runs) == 1 else 's'}")
    click.echo(f"plot     {drawn.path}")


def _plot_comparison(runs: tuple[str, ...], metrics: tuple[str, ...], output: str | None, *, dark: bool) -> None:
    from rl_training.runtime.comparison import METRIC, compare_runs
    from rl_training.runtime.comparison_plot import plot_comparison

    if len(metrics) > 1:
        raise UserError(f"--compare: compares one --metric; got {', '.join(metrics)}")
    compared = compare_runs(runs, metric=metrics[0] if metrics else METRIC)
    for note in compared.notes:
        click.echo(f"note: {note}", err=True)
    print_table(list(compared.table()))
    click.echo(f"plot     {plot_comparison(compared, output=output or 'comparison.png', dark=dark)}")


def _plot_imagination(run: str, output: str | None, options: dict[str, Any]) -> None:
    from rl_training.runtime.imagination_plot import plot_imagination

    paths, view = plot_imagination(run, output=output, **options)
    click.echo(f"imagined {view.steps - view.context} steps {view.place}")
    for path in paths:
        click.echo(f"plot     {path}")


def _plot_search(run: str, output: str | None, options: dict[str, Any]) -> None:
    from rl_training.runtime.saved_policy import tasks_of
    from rl_training.runtime.search_plot import plot_search

    tasks = tasks_of(run, options.get("which", "latest"))
    if "task" not in options and len(tasks) > 1:
        raise UserError(f"--task: give one of {', '.join(tasks)}, the tasks of {run}")
    path, view = plot_search(run, output=output, **options)
    click.echo(f"state    {view.place}")
    click.echo(f"action   {view.chosen.label} ({view.chosen.visits} of {view.tree.visits[0] - 1} simulations)")
    click.echo(f"plot     {path}")
