"""Several seeds on the command line: how they are trained, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rl_training.types import UserError

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.seeds import SeedsResult
    from rl_training.runtime.train import TrainResult


def refuse_for_one_run(parallel: int | None, ray: str | None, why: str) -> None:
    """Say so if what is for several runs is given for one."""
    for key, value in (("--parallel", parallel), ("--ray", ray)):
        if value is not None:
            raise UserError(f"{key}={value}: is for several runs; {why}")


@contextmanager
def doing_seeds(parallel: int | None, ray: str | None, callbacks: Sequence[Callback]) -> Iterator[dict[str, Any]]:
    """Yield the arguments that train seeds as the options say; finished runs are reported also if others fail.

    `callbacks` show the progress in this process, if any is to be shown.
    """
    from rl_training.runtime.executor import Executor
    from rl_training.runtime.progress import RunsDisplay
    from rl_training.runtime.seeds import SeedsFailed, SeedsInterrupted

    several = ray is not None or (parallel or 1) > 1
    executor = Executor(parallel, ray=ray, display=RunsDisplay() if several and callbacks else None)
    try:
        yield {"executor": executor, "callbacks": [] if several else callbacks, "report": _report_seed}
    except (SeedsInterrupted, SeedsFailed) as stop:
        if stop.outcome.runs or isinstance(stop, SeedsInterrupted):
            report_seeds(stop.outcome)
        raise


def _report_seed(seed: int, result: TrainResult) -> None:
    scored = "eval_score_mean" in result
    value = f"score {result['eval_score_mean']:.3f}" if scored else f"return {result['eval_return_mean']:.2f}"
    # Not by click, which would write past the live lines of other runs.
    print(
        f"seed {seed}: {value} at step {result['step']:,.0f} in {result['seconds']:.1f} s ({result.stop_reason})",
        flush=True,
    )


def report_seeds(outcome: SeedsResult) -> None:
    """Print what several seeds came to."""
    if outcome.runs:
        unit, digits = ("score ", 3) if outcome.config.run.unit == "score" else ("", 2)
        for name, estimate in (("mean", outcome.mean), ("IQM", outcome.iqm)):
            low, high = estimate.interval or (None, None)
            between = "" if low is None else f"  (95% confidence interval {low:.{digits}f} to {high:.{digits}f})"
            click.echo(f"{name:<8} {unit}{estimate.value:.{digits}f}{between}")
        click.echo(f"interval {outcome.method}" if len(outcome.runs) > 1 else "interval needs at least two seeds")
    if outcome.missing:
        click.echo(f"missing  seeds {', '.join(map(str, outcome.missing))}")
    click.echo(f"runs     {outcome.folder}")
    click.echo(f"summary  {outcome.summary_file}")
