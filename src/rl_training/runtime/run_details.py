"""What the picture of one run shows besides its curves: shares that add up to 1, stages, and the targets of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rl_training.runtime.logged_runs import LoggedRun

# The metrics `expert_0`, `expert_1`, ... of a task are shares of one whole, which is drawn under the name `expert_*`.
SHARES = "expert_*"
_SHARE = re.compile(r"((?:.*/)?)(expert)_(\d+)")
_STAGE = "stage"
_CROWDED = 0.12  # labels that are nearer, as a part of the run, would touch


def _marked() -> dict[str, Any]:
    """How lines are drawn that are seen on areas of any colour, on a page of either kind."""
    from matplotlib import rcParams

    return {"color": rcParams["text.color"], "alpha": 0.6, "linewidth": 0.9}


def wholes(metrics: Iterable[str]) -> list[str]:
    """The names under which shares are drawn, such as `cartpole/expert_*`."""
    return sorted({found[1] + SHARES for found in map(_SHARE.fullmatch, metrics) if found})


def shares_of(whole: str, metrics: Iterable[str]) -> dict[str, str]:
    """The metrics that are drawn under a name, in the order of their numbers, and what the legend calls each."""
    found = [match for match in map(_SHARE.fullmatch, metrics) if match and match[1] + SHARES == whole]
    return {match[0]: f"{match[2]} {match[3]}" for match in sorted(found, key=lambda match: int(match[3]))}


def stage_starts(run: LoggedRun) -> list[tuple[float, int]]:
    """Where stages begin, but for the first one: steps, and the numbers of the stages."""
    steps, stages = run.curve(_STAGE)
    changes = (stages[1:] != stages[:-1]).nonzero()[0] + 1
    return [(float(steps[row]), int(stages[row])) for row in changes]


def mark_stages(panel: Any, run: LoggedRun) -> None:
    """A line where every stage begins, with its number above the panel. Stages that begin together share one label."""
    together: list[list[tuple[float, int]]] = []
    for step, stage in stage_starts(run):
        panel.axvline(step, linestyle="-", **_marked())
        if together and step - together[-1][-1][0] < _CROWDED * run.rows[-1]["step"]:
            together[-1].append((step, stage))
        else:
            together.append([(step, stage)])
    for starts in together:
        (begin, first), (end, last) = starts[0], starts[-1]
        words = f"stage {first}" if len(starts) == 1 else f"stages {first}-{last}"
        panel.annotate(
            words,
            ((begin + end) / 2.0, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7,
            alpha=0.7,
        )


def mark_target(panel: Any, run: LoggedRun, task: str) -> None:
    """A line at the return at which a task counts as solved, if the config has one."""
    tasks = run.config.get("tasks")
    settings = tasks.get(task) if isinstance(tasks, dict) else None
    target = settings.get("target_return") if isinstance(settings, dict) else None
    if isinstance(target, (int, float)):
        panel.axhline(target, linestyle="--", label="target return", **_marked())
