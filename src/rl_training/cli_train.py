"""`rl-training train` and `resume`: what is asked for, what is shown meanwhile, and the result."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rl_training.cli_options import SettingsCommand, parallel_options, trust_option
from rl_training.cli_results import result_lines
from rl_training.cli_seeds import doing_seeds, refuse_for_one_run, report_seeds
from rl_training.types import UserError

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.train import TrainResult


@click.command(cls=SettingsCommand)
@click.argument("target", required=False)
@click.argument("overrides", nargs=-1)
@click.option("--algo", help="The algorithm, if there is no TARGET.")
@click.option("--env", help="The environment: the same as env_id=ENV.")
@click.option("--total-timesteps", "-n", type=int, help="How many steps: the same as total_timesteps=N.")
@click.option("--seeds", help="Train on each of these seeds, for example 101,102,103.")
@parallel_options
@click.option("--quiet", is_flag=True, help="Show nothing but the result.")
@trust_option
def train(
    target: str | None,
    overrides: tuple[str, ...],
    seeds: str | None,
    parallel: int | None,
    ray: str | None,
    quiet: bool,
    trust: bool,
    **named: Any,
) -> None:
    """Train a preset, a YAML file or an algorithm, with key=value OVERRIDES.

    After an algorithm its environment may stand by itself: `train ppo CartPole-v1`.
    """
    from rl_training.experiment.config import load_config
    from rl_training.runtime import train as driver

    target, settings = _asked_for(target, list(overrides), **named)
    config = load_config(target, settings, trust=trust)
    if seeds is None:
        refuse_for_one_run(parallel, ray, "give several --seeds")
        with watching(quiet) as callbacks:
            _report(driver.train(config, callbacks=callbacks, trust=trust))
        return
    from rl_training.runtime.seeds import train_seeds

    if any(setting.startswith("seed=") for setting in settings):
        raise UserError(f"seed and --seeds={seeds}: give one of them")
    with watching(quiet) as callbacks, doing_seeds(parallel, ray, callbacks) as options:
        report_seeds(train_seeds(config, whole_numbers(seeds), trust=trust, **options))


def _asked_for(
    target: str | None, overrides: list[str], algo: str | None, env: str | None, total_timesteps: int | None
) -> tuple[str, list[str]]:
    """What is trained, and its settings, in whichever form they are given."""
    from rl_training.experiment.registry import REGISTRY, proper_name

    if target is not None and "=" in target:
        overrides.insert(0, target)
        target = None
    if target is not None and algo is not None:
        raise UserError(f"{target!r} and --algo={algo}: both say what is trained; give one of them")
    target = algo if target is None else target
    if target is None:
        raise UserError("give a preset, a YAML file or an algorithm, for example: train ppo env_id=CartPole-v1")
    if overrides and "=" not in overrides[0] and proper_name(target) in REGISTRY:
        if env is not None:
            raise UserError(f"{overrides[0]!r} and --env={env}: two environments; give one of them")
        env = overrides.pop(0)
    named = {"env_id": env, "total_timesteps": total_timesteps}
    return target, [*(f"{key}={value}" for key, value in named.items() if value is not None), *overrides]


@click.command(cls=SettingsCommand)
@click.argument("run")
@click.argument("overrides", nargs=-1)
@click.option("--checkpoint", "which", default="latest", help="latest, best or step_N.", show_default=True)
@parallel_options
@click.option("--quiet", is_flag=True, help="Show nothing but the result.")
@trust_option
def resume(
    run: str,
    overrides: tuple[str, ...],
    which: str,
    parallel: int | None,
    ray: str | None,
    quiet: bool,
    trust: bool,
) -> None:
    """Resume RUN (its folder, or a checkpoint in it) exactly where it stopped.

    RUN may also be the folder of `train --seeds`: what is missing of it is trained.
    """
    from rl_training.runtime.seeds import holds_seeds, resume_seeds
    from rl_training.runtime.workflows import resume_training

    if not holds_seeds(run):
        refuse_for_one_run(parallel, ray, f"{run!r} is not a folder of several seeds")
        with watching(quiet) as callbacks:
            _report(resume_training(run, which=which, overrides=overrides, callbacks=callbacks, trust=trust))
        return
    if overrides or which != "latest":
        raise UserError(
            f"{run!r}: holds several seeds, which go on as they were; resume one of its runs to change that"
        )
    with watching(quiet) as callbacks, doing_seeds(parallel, ray, callbacks) as options:
        report_seeds(resume_seeds(run, trust=trust, **options))


def whole_numbers(text: str) -> list[int]:
    """The seeds in a text such as 1,2,3."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds={text!r}: must be whole numbers with commas between them, as in 1,2,3") from None


class _PlainLines(logging.Handler):
    """Writes the package's log lines to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)  # click would write past a live line


@contextmanager
def watching(quiet: bool) -> Iterator[list[Callback]]:
    """Yield callbacks that show a run's progress; log lines are shown too, for as long as this lasts."""
    if quiet:
        yield []
        return
    from rl_training.runtime.loggers import ProgressDisplay

    log, lines = logging.getLogger("rl_training"), _PlainLines()
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        yield [ProgressDisplay()]
    finally:
        log.setLevel(level)
        log.removeHandler(lines)


def _report(result: TrainResult) -> None:
    for line in result_lines(result):
        click.echo(line)
    if "eval_win_rate" in result:
        shares = [f"{result[f'eval_{word}_rate']:.0%}" for word in ("win", "draw", "loss")]
        click.echo("games       {} won, {} drawn, {} lost".format(*shares))
    if "dataset_return_mean" in result:
        click.echo(f"compare     {_comparison(result)}")
    click.echo(f"steps       {result.get('step', 0.0):,.0f} in {result['seconds']:.1f} s ({result.stop_reason})")
    click.echo(f"run         {result.run_dir}")
    click.echo(f"checkpoint  {result.checkpoint}")


def _comparison(result: TrainResult) -> str:
    """The numbers that the result of an offline run is compared with."""
    found = {
        "dataset {:.2f}": "dataset_return_mean",
        "behaviour cloning {:.2f}": "bc_return_mean",
        "last five evaluations {:.2f}": "eval_return_last5_mean",
        "normalised score {:.1f}": "eval_score",
    }
    return ", ".join(words.format(result[name]) for words, name in found.items() if name in result)
