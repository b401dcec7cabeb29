"""The `dataset` commands: inspect, convert, collect. Imports are deferred until they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rl_training.cli_options import trust_option
from rl_training.types import UserError

if TYPE_CHECKING:
    from rl_training.data.datasets.dataset import OfflineDataset
    from rl_training.runtime.datasets import Behaviour, EnvSettings

_env = click.option("--env", "env_id", help="The environment: a Gymnasium id, or module:function.")
_env_kwargs = click.option("--env-kwargs", multiple=True, metavar="KEY=VALUE", help="An argument of the environment.")
_done_means = click.option(
    "--done-means",
    type=click.Choice(["terminal", "timeout", "auto"]),
    help="Why episodes ended, if the file does not say; `auto` needs --env and compares lengths with its time limit.",
)


@click.group()
def dataset() -> None:
    """Inspect, convert and collect datasets.

    NAME is a file (.npz, .hdf5), a folder in Minari's layout, a Minari id, a saved replay, or a run with a replay.
    OUTPUT is a file that ends with .npz, or a Minari id such as pendulum/medium-v0.
    """


@dataset.command()
@click.argument("name")
@_env
@_env_kwargs
@_done_means
@click.option("--strict", is_flag=True, help="Fail (exit code 1) when there is a problem.")
@click.pass_context
def inspect(
    ctx: click.Context, name: str, env_id: str | None, env_kwargs: tuple[str, ...], done_means: str | None, strict: bool
) -> None:
    """Show what NAME contains and what is suspicious about it; with --env also how it fits the environment."""
    from rl_training.data.datasets.audit import audit
    from rl_training.runtime.datasets import look_at, open_dataset

    settings = _settings(env_id, env_kwargs)
    info, time_limit = (None, None) if settings is None else look_at(settings)
    found = open_dataset(name, done_means=done_means, time_limit=time_limit)
    findings = audit(found, info, found.source.get("time_limit") if time_limit is None else time_limit)
    for finding in findings:
        click.echo(f"{finding.level:<8} {finding.text}")
    problems = sum(finding.level == "problem" for finding in findings)
    click.echo(f"{problems} problem{'' if problems == 1 else 's'}")
    ctx.exit(1 if strict and problems else 0)


@dataset.command()
@click.argument("name")
@click.argument("output")
@_env
@_env_kwargs
@_done_means
@click.option(
    "--action-units",
    type=click.Choice(["auto", "environment", "clipped", "normalized"]),
    default="auto",
    show_default=True,
    help="Units of the actions in the file; Minari's are in the environment's units.",
)
def convert(
    name: str,
    output: str,
    env_id: str | None,
    env_kwargs: tuple[str, ...],
    done_means: str | None,
    action_units: str,
) -> None:
    """Convert NAME to OUTPUT; a Minari dataset needs --env if the file does not name its environment."""
    from rl_training.runtime.datasets import EnvSettings, look_at, open_dataset

    _check_output(output)
    if output.endswith(".npz") and action_units != "auto":
        raise UserError(f"--action-units {action_units}: is for a Minari dataset; an .npz keeps actions as they are")
    settings = _settings(env_id, env_kwargs)
    time_limit = None if settings is None else look_at(settings)[1]
    found = open_dataset(name, done_means=done_means, time_limit=time_limit)
    if settings is None and not output.endswith(".npz"):
        settings = EnvSettings.of_file(found)
    _save(found, output, settings, action_units=action_units)


@dataset.command()
@click.argument("output")
@_env
@_env_kwargs
@click.option(
    "--from",
    "runs",
    multiple=True,
    metavar="RUN[=WEIGHT]",
    help="A run or a checkpoint whose policy acts, and its share.",
)
@click.option("--random", "at_random", is_flag=True, help="Random actions, with a share of 1.")
@click.option("--steps", type=click.IntRange(1), help="How many steps; the last episode is cut off there.")
@click.option("--episodes", type=click.IntRange(1), help="How many whole episodes.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of episodes and actions.", show_default=True)
@click.option("--deterministic", is_flag=True, help="Use the policies' greedy actions, without exploration.")
@click.option("--ref-min", type=float, help="The return that scores 0, for example of random actions.")
@click.option("--ref-max", type=float, help="The return that scores 100, for example of an expert.")
@trust_option
def collect(
    output: str,
    env_id: str | None,
    env_kwargs: tuple[str, ...],
    runs: tuple[str, ...],
    at_random: bool,
    ref_min: float | None,
    ref_max: float | None,
    **options: Any,
) -> None:
    """Run policies and write their transitions to OUTPUT; several policies share the steps, or the episodes."""
    from rl_training.runtime import datasets

    _check_output(output)
    sources = [_behaviour(text) for text in runs] + ([datasets.Behaviour()] if at_random else [])
    arguments = _arguments(env_kwargs) if env_kwargs else None
    made = datasets.collect(
        env_id, sources, env_kwargs=arguments, ref_min_score=ref_min, ref_max_score=ref_max, **options
    )
    _save(made, output, datasets.EnvSettings.named_in(made.source))


def _settings(env_id: str | None, env_kwargs: Sequence[str]) -> EnvSettings | None:
    from rl_training.runtime.datasets import EnvSettings

    if env_id is None:
        if env_kwargs:
            raise UserError(f"--env-kwargs {env_kwargs[0]}: needs --env")
        return None
    return EnvSettings(env_id, _arguments(env_kwargs))


def _arguments(env_kwargs: Sequence[str]) -> dict[str, Any]:
    from rl_training.experiment.overrides import parse_overrides

    return parse_overrides(env_kwargs)


def _behaviour(text: str) -> Behaviour:
    """Parse RUN or RUN=WEIGHT; the name of a run may contain a =."""
    from rl_training.runtime.datasets import Behaviour

    run, equals, weight = text.rpartition("=")
    if not equals or Path(text).exists():
        return Behaviour(text)
    try:
        return Behaviour(run, float(weight))
    except ValueError:
        raise UserError(f"--from {text}: {weight!r} must be a number, the weight of {run!r}") from None


def _check_output(output: str) -> None:
    """Refuse an output that cannot be written, before any work is done."""
    from rl_training.data.datasets.minari_layout import datasets_folder, free_place, is_minari_id

    if output.endswith(".npz"):
        if not Path(output).parent.is_dir():
            raise UserError(f"{output!r}: there is no folder {str(Path(output).parent)!r}")
    elif is_minari_id(output):
        free_place(datasets_folder(), output)
    else:
        raise UserError(f"{output!r}: must end with .npz, or be a Minari id such as pendulum/medium-v0")


def _save(found: OfflineDataset, output: str, settings: EnvSettings | None, **how: Any) -> None:
    from rl_training.data.datasets.files import save_npz
    from rl_training.runtime.datasets import save_minari

    if output.endswith(".npz"):
        path = save_npz(found, output)
    elif settings is None:
        raise UserError(f"{output!r}: Minari's layout describes the environment, which is not known here; give --env")
    else:
        path = save_minari(found, output, settings, **how)
    click.echo(f"transitions  {len(found):,} in {found.n_episodes:,} episodes")
    click.echo(f"return       {found.returns.mean():.2f} +- {found.returns.std():.2f}")
    click.echo(f"dataset      {path}")
