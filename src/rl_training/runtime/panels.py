"""What the panels of learning curves show: which metric of which groups, where, and the words on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rl_training.experiment.registry import REGISTRY
from rl_training.runtime.logged_runs import Group
from rl_training.runtime.places import Where, place_names
from rl_training.runtime.run_details import SHARES

DEFAULT_METRICS = ("eval_return_mean", "episode_return_mean")
_TITLES = {
    "eval_return_mean": ("Evaluation", "return per episode (reward)"),
    "episode_return_mean": ("Training: mean of the last 100 episodes", "return per episode (reward)"),
    SHARES: ("Share of tokens by expert", "share of tokens"),
}


class Cell(NamedTuple):
    """One panel: groups, each with its metric's full name, the words above the panel, and those beside it."""

    members: Sequence[tuple[Group, str]]
    title: str
    label: str


def in_several_places(groups: Sequence[Group]) -> bool:
    """Whether some groups are in other environments or tasks than others."""
    return len({frozenset(group.places) for group in groups}) > 1


def cells_of(groups: Sequence[Group], metrics: Sequence[str]) -> list[Cell]:
    """A panel for each metric; in several places, for each metric in each environment and each task."""
    if not in_several_places(groups):
        return [Cell([(group, metric) for group in groups], *titles(metric, groups)) for metric in metrics]
    names = place_names(place for group in groups for place in group.places)
    found: dict[str, dict[Where, list[tuple[Group, str]]]] = {metric: {} for metric in metrics}
    for metric in metrics:
        for group in groups:
            for where, column in group.columns(metric).items():
                found[metric].setdefault(where, []).append((group, column))
    places = {where: ", ".join(names[place] for place in where) for one in found.values() for where in one}
    cells = []
    for where in sorted(places, key=lambda where: (places[where], where)):
        for metric in (metric for metric in metrics if where in found[metric]):
            members = found[metric][where]
            own = metric.removeprefix(f"{where[0].task}/") if len(where) == 1 else metric
            title, label = titles(own, [group for group, _ in members])
            cells.append(Cell(members, places[where] if len(metrics) == 1 else f"{places[where]}: {title}", label))
    return cells


def titles(metric: str, groups: Sequence[Group]) -> tuple[str, str]:
    """What stands above a panel, and beside it."""
    task, _, name = metric.rpartition("/")
    if name not in _TITLES:
        return metric, metric
    title, label = _TITLES[name]
    title = title if name != DEFAULT_METRICS[0] else _evaluation_title(groups)
    return (f"{task}. {title}" if task else title), label


def _evaluation_title(groups: Sequence[Group]) -> str:
    """What the policies were judged by: runs that sample their actions log the returns of greedy ones beside them."""
    sampled = {"eval_return_mean_greedy" in run.metrics for group in groups for run in group.runs}
    return "Evaluation" if len(sampled) > 1 else f"Evaluation: {'sampled' if sampled == {True} else 'greedy'} actions"


def clock_of(groups: Sequence[Group]) -> str:
    """What the steps of some groups are."""
    entries = [REGISTRY.get(str(group.runs[0].config.get("algo"))) for group in groups]
    offline = all(entry is not None and entry.capabilities.offline for entry in entries)
    of_tasks = any(len(group.places) > 1 for group in groups)
    return "gradient steps" if offline else f"environment steps{' of all tasks' if of_tasks else ''}"


def heading_of(groups: Sequence[Group], metrics: Sequence[str]) -> str:
    """What stands above the picture."""
    algos = {str(group.runs[0].config.get("algo")) for group in groups}
    several = in_several_places(groups)
    words = [", ".join(algos)] if len(algos) == 1 else []
    if several and len(metrics) == 1:  # the titles of the panels name the environments alone
        named = titles(metrics[0], groups)[0]
        return ": ".join([*words, named[0].lower() + named[1:] if words else named])
    return " on ".join([*words, *([] if several else [groups[0].environment])]) or "Learning curves"


def usual_metrics(tasks: Sequence[str], known: Sequence[str]) -> list[str]:
    """The returns of runs in one environment, or those of every task: evaluated, or else in training. Shares follow."""
    if not tasks:
        return [name for name in (*DEFAULT_METRICS, SHARES) if name in known]
    panels = ([f"{task}/{metric}" for metric in metrics] for task in tasks for metrics in (DEFAULT_METRICS, (SHARES,)))
    return [name for names in panels for name in [name for name in names if name in known][:1]]


def columns_for(count: int) -> int:
    """In how many columns so many panels leave few holes."""
    return count if count <= 3 else 2 if count == 4 else 3


def columns_of(metrics: Sequence[str], cells: int) -> int:
    """As many columns as keep all metrics of a place side by side, or the returns and the shares of every task."""
    if 1 < len(metrics) < cells and cells % len(metrics) == 0:
        return len(metrics)
    pairs, rest = divmod(len(metrics), 2)
    if not rest and [name.endswith(SHARES) for name in metrics] == [False, True] * pairs:
        return 2 if pairs <= 3 else 4
    return columns_for(cells)
