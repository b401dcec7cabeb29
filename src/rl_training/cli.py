"""The command `rl-training`. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rl_training import __version__
from rl_training.cli_check import check
from rl_training.cli_dataset import dataset
from rl_training.cli_options import print_table, trust_option
from rl_training.cli_plot import plot
from rl_training.cli_results import evaluation_lines
from rl_training.cli_train import resume, train, watching, whole_numbers
from rl_training.cli_zoo import import_zoo
from rl_training.types import UserError

if TYPE_CHECKING:
    from rl_training.runtime.seeds import SeedsResult
    from rl_training.runtime.train import TrainResult

DONE, FAILED, USER_MISTAKE, INTERRUPTED = 0, 1, 2, 130


class InOrderOfUse(click.Group):
    """Lists the commands in the order in which they are defined."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrderOfUse, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rl-training")
def cli() -> None:
    """Train reinforcement-learning agents.

    \b
    rl-training train ppo/cartpole               a preset
    rl-training train my.yaml seed=1             a file, with an override
    rl-training train ppo env_id=Acrobot-v1      an algorithm
    """


cli.add_command(train)
cli.add_command(resume)


@cli.command("eval")
@click.argument("run")
@click.option("--episodes", type=click.IntRange(1), default=100, help="How many episodes.", show_default=True)
@click.option("--checkpoint", "which", default="latest", help="latest, best or step_N.", show_default=True)
@click.option(
    "--stochastic/--greedy",
    default=None,
    help="Explore as in training, or take greedy actions; by default what the algorithm is judged by.",
)
@click.option("--env", help="Another environment with the same spaces: an id or module:function.")
@click.option("--opponent", help="In a game for two players: random, perfect, or a run or checkpoint.")
@click.option("--openings", type=click.IntRange(0), default=0, help="Random moves before such a game.")
@click.option("--device", default="auto", show_default=True)
@trust_option
def evaluate(
    run: str,
    episodes: int,
    stochastic: bool | None,
    opponent: str | None,
    openings: int,
    trust: bool,
    **options: Any,
) -> None:
    """Evaluate the policy of RUN (a run's folder or a checkpoint).

    Its actions are greedy unless told otherwise; those of Dreamer are sampled.
    """
    from rl_training.runtime.workflows import judge_checkpoint, opposition

    asked = opposition(opponent, openings, trust=trust)
    deterministic = None if stochastic is None else not stochastic
    judged = judge_checkpoint(run, num_episodes=episodes, deterministic=deterministic, asked=asked, **options)
    for line in evaluation_lines(judged):
        click.echo(line)


@cli.command()
@click.argument("run")
@click.option(
    "--side",
    type=click.Choice(["first", "second", "alternate"]),
    default="alternate",
    help="Whether you move first or second, or in turn, game by game.",
    show_default=True,
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of what the game and the policy draw.")
@click.option("--checkpoint", "which", default="latest", help="latest, best or step_N.", show_default=True)
@click.option("--device", default="auto", show_default=True)
@trust_option
def play(run: str, side: str, seed: int, **options: Any) -> None:
    """Play a game for two players against the policy of RUN, in the terminal."""
    from rl_training.runtime.play import Table, open_game

    game, policy = open_game(run, **options)
    Table(game, policy, ask=_ask, say=click.echo, seed=seed).play(side)


@cli.command("list")
def list_algorithms() -> None:
    """List the algorithms and what each supports."""
    from rl_training.experiment.registry import REGISTRY

    names = ("algorithm", "family", "observations", "actions", "recurrent", "offline", "two players", "tasks", "")
    rows: list[tuple[str, ...]] = [names]
    for name, entry in REGISTRY.items():
        able = entry.capabilities
        named = {True: "yes", False: "-", "optional": "optional"}
        flags = [named[flag] for flag in (able.recurrent, able.offline, able.two_player, able.multi_task)]
        rows.append((name, entry.family, ", ".join(able.observations), ", ".join(able.actions), *flags, entry.summary))
    print_table(rows)


@cli.command()
@click.argument("algo")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON schema of the config instead.")
def describe(algo: str, as_json: bool) -> None:
    """Show every setting of ALGO: its default, its range, its other names, its meaning."""
    from rl_training.experiment.fields import json_schema, settings_of
    from rl_training.experiment.registry import load_spec

    spec = load_spec(algo)
    if as_json:
        import json

        click.echo(json.dumps(json_schema(spec), indent=2))
        return
    click.echo(f"{spec.name}: {spec.summary}\n{spec.config.__doc__}\n")
    for part in ("algorithm", "loop", "model", "run"):
        rows: list[tuple[str, ...]] = [(part, "type", "default", "range", "help")]
        for setting in settings_of(spec).values():
            if setting.part == part:
                name = " = ".join((setting.name, *setting.aliases)) + (" *" if setting.schedulable else "")
                rows.append((name, setting.kind, setting.default_text, setting.range, setting.help))
        print_table(rows)
        click.echo()
    click.echo("* takes X_schedule and X_warmup_steps too")


@cli.command()
def presets() -> None:
    """List the presets that come with the package, and the return that each reaches."""
    from rl_training.experiment.presets import preset_names, preset_steps, read_preset

    rows: list[tuple[str, ...]] = [("preset", "return", "steps", "seeds", "minutes", "published")]
    for name in preset_names():
        preset = read_preset(name)
        expected = preset["expected"]
        bar = "not measured here" if expected.get("long") else f">= {expected['return']:g}"
        seeds = ", ".join(str(seed) for seed in expected.get("seeds", []))
        minutes, published = (str(expected.get(key, "")) for key in ("minutes", "published"))
        rows.append((name, bar, f"{preset_steps(preset):,}", seeds, minutes, published))
    print_table(rows)
    click.echo("\nnot measured here: nothing is claimed for it")


@cli.command()
@click.argument("preset")
@click.argument("overrides", nargs=-1)
@click.option("--seeds", help="Other training seeds, for example 1,2,3.")
@click.option("--quiet", is_flag=True, help="Show nothing but the result.")
@click.pass_context
def verify(ctx: click.Context, preset: str, overrides: tuple[str, ...], seeds: str | None, quiet: bool) -> None:
    """Train PRESET on the seeds of its evidence and check that it still reaches its claimed return."""
    from rl_training.runtime.verification import verify_preset

    chosen = whole_numbers(seeds) if seeds else None
    with watching(quiet) as callbacks:
        outcome = verify_preset(preset, overrides, seeds=chosen, callbacks=callbacks)
    meaning = " (mean of the last 5 evaluations)" if outcome.measure == "last_5_evaluations" else ""
    for seed, value in outcome.returns.items():
        final = f", {outcome.final_returns[seed]:.2f} of the final policy" if outcome.final_returns else ""
        click.echo(f"seed {seed}: {outcome.unit} {value:.2f}{meaning}{final} in {outcome.minutes[seed]:.2f} minutes")
    verdict = "holds" if outcome.passed else "does NOT hold"
    claim = f"mean {outcome.mean:.2f}, expected at least {outcome.expected:g}"
    if outcome.final_expected is not None:
        claim += f"; final policies {outcome.final_mean:.2f}, expected at least {outcome.final_expected:g}"
    click.echo(f"{preset}: {claim}: {verdict}")
    ctx.exit(DONE if outcome.passed else FAILED)


@cli.command()
@click.argument("env_id", required=False)
@click.argument("env_kwargs", nargs=-1)
@click.option(
    "--steps", type=click.IntRange(1), default=6_000, help="Steps of all checks together, at most.", show_default=True
)
@click.pass_context
def doctor(ctx: click.Context, env_id: str | None, env_kwargs: tuple[str, ...], steps: int) -> None:
    """Check this machine, and an environment: ENV_ID (or module:function), with key=value ENV_KWARGS."""
    from rl_training.runtime.doctor.report import examine

    if env_id is None or not env_kwargs:
        arguments: dict[str, Any] = {}
    else:
        from rl_training.experiment.overrides import parse_overrides

        arguments = parse_overrides(env_kwargs)
    problems = 0
    for finding in examine(env_id, arguments, steps=steps):
        click.echo(str(finding))
        problems += finding.level == "PROBLEM"
    if problems:
        click.echo(f"{problems} problem{'' if problems == 1 else 's'}")
    ctx.exit(FAILED if problems else DONE)


cli.add_command(check)
cli.add_command(dataset)
cli.add_command(plot)
cli.add_command(import_zoo)


def _ask(question: str) -> str | None:
    """The next line that is typed, or None at the end of the input."""
    click.echo(question, nl=False)
    line = sys.stdin.readline()
    return line.strip() if line else None


def _what_is_left(stop: BaseException | None) -> str:
    """How to continue what a signal ended, if it can be continued."""
    result: TrainResult | None = getattr(stop, "result", None)
    outcome: SeedsResult | None = getattr(stop, "outcome", None)
    if outcome is not None and outcome.missing:
        return f"; continue with: rl-training resume {outcome.folder}"
    if result is None or result.run_dir is None:
        return ""
    if result.stop_reason == "interrupted":
        return f"; continue with: rl-training resume {result.run_dir}"
    return f"; this run has ended: {result.run_dir}"


def main() -> None:
    """Run the command; a user's mistake is one message and exit code 2, an interruption is 130."""
    try:
        sys.exit(cli.main(standalone_mode=False) or DONE)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(USER_MISTAKE)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(USER_MISTAKE)
    except (KeyboardInterrupt, click.exceptions.Abort) as stop:
        click.echo(f"interrupted{_what_is_left(stop.__cause__)}", err=True)  # click raises its own exception from ours
        sys.exit(INTERRUPTED)
