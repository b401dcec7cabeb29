"""What the command says of evaluations, and of a run that has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.runtime.evaluations import Evaluation
    from rl_training.runtime.train import TrainResult
    from rl_training.runtime.workflows import Judged

_MEAN = "eval_return_mean"


def evaluation_lines(judged: Judged) -> Iterator[str]:
    """The evaluation of a checkpoint: a line for every task, and what they come to together."""
    whole = judged.evaluation
    tasks = whole.by_task
    width = max(map(len, tasks))
    for task, one in tasks.items():
        yield from (f"{task.ljust(width)}  {line}" if task else line for line in _lines(one, judged))
    if tasks.keys() != {""}:
        score = "" if whole.score is None else f", mean score {whole.score:.3f}"
        yield f"mean return over {len(tasks)} tasks {whole.mean:.2f}{score}"


def _lines(one: Evaluation, judged: Judged) -> Iterator[str]:
    metrics, match, episodes = one.metrics(), one.match, len(one.returns)
    if match is not None:
        yield f"against       {judged.opponent}: {match.different} different games of {episodes}"
        yield f"moved first   {match.first}"
        yield f"moved second  {match.second}"
    success = f", success {metrics['eval_success_rate']:.0%}" if "eval_success_rate" in metrics else ""
    counted = f"{episodes} episode{'' if episodes == 1 else 's'}"
    yield (
        f"return {metrics[_MEAN]:.2f} +- {metrics['eval_return_std']:.2f} over {counted} "
        f"(min {metrics['eval_return_min']:.2f}, max {metrics['eval_return_max']:.2f}, "
        f"length {metrics['eval_length_mean']:.1f}{success}) at step {judged.step}"
    )


def result_lines(result: TrainResult) -> Iterator[str]:
    """The last evaluation of a run, by task if it has several."""
    tasks = [name.removesuffix(_MEAN) for name in result if name.endswith(f"/{_MEAN}")]
    for task in tasks or [""] * (_MEAN in result):
        mean, deviation, episodes = (result[f"{task}{name}"] for name in (_MEAN, "eval_return_std", "eval_episodes"))
        counted = f"{episodes:.0f} evaluation episode{'' if episodes == 1 else 's'}"
        words = f"return      {mean:.2f} +- {deviation:.2f} ({counted})"
        yield f"{words} in {task.removesuffix('/')}" if task else words
    if "eval_score_mean" in result:
        yield f"score       {result['eval_score_mean']:.3f} (mean of the tasks)"
