"""Plots the learning curves of runs: those that differ only in their seed become a mean and a confidence band."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.disk import own_name
from rl_training.experiment.registry import suggest
from rl_training.ops.statistics import bootstrap_interval, mean
from rl_training.runtime.extras import import_extra
from rl_training.runtime.logged_runs import Group, LoggedRun, find_runs, group_runs, read_run, read_runs
from rl_training.runtime.panels import (
    DEFAULT_METRICS,
    cells_of,
    clock_of,
    columns_of,
    heading_of,
    in_several_places,
    usual_metrics,
)
from rl_training.runtime.run_details import SHARES, mark_stages, mark_target, shares_of, stage_starts, wholes
from rl_training.types import Array, UserError

__all__ = [
    "Plot",
    "beside",
    "common_curves",
    "draw",
    "find_runs",
    "group_runs",
    "picture_file",
    "plot_runs",
    "read_run",
    "write_bytes",
    "write_picture",
]

FORMATS = (".png", ".svg", ".pdf")
_GRID = 200
_RESAMPLES = 2_000
_MOST_MARKERS = 30
_ABOVE_STAGES = 14.0  # points between a panel and its title where the labels of stages are between them
_HEADING_LETTERS = 8.5  # of a heading, in an inch
# Okabe and Ito's colours, which are safe for colour-blind readers; then the same colours with dashes, or hatches.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888")
_DASHES = ("-", "--", ":", "-.")
_HATCHES = (None, "////", "....", "xxxx")
# The background of dark pages, and what is written on it.
DARK = dict.fromkeys(("figure.facecolor", "axes.facecolor"), "#0d1117") | dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#e6edf3"
)


@dataclass(frozen=True)
class Plot:
    """The file of a plot, its groups, and notes on runs that were left out."""

    path: Path
    groups: Sequence[Group]
    notes: Sequence[str] = field(default_factory=tuple)


def plot_runs(
    paths: Iterable[str | Path],
    *,
    metrics: Sequence[str] = (),
    output: str | Path | None = None,
    dark: bool = False,
) -> Plot:
    """Draw the learning curves of runs, or of all runs in a folder, with a panel for each environment.

    Runs without metrics are left out, and said in the notes.

    Written to `output`, else to `plot.png` in the folder of a single run, or in the current one for several.
    With `dark` it is drawn for a dark background.
    """
    matplotlib = import_extra("matplotlib", "plot", asked_by="plot")
    paths = list(paths)
    folders = find_runs(paths)
    target = picture_file(output or own_name((folders[0] if len(folders) == 1 else Path()) / "plot.png"))
    runs, notes = read_runs(paths)
    drawn = _known_metrics(metrics, runs)
    groups = group_runs(runs)
    with matplotlib.rc_context(DARK if dark else {}):
        write_picture(draw(groups, drawn), target)
    return Plot(target, groups, notes)


def picture_file(path: str | Path) -> Path:
    """The file of a picture, whose name must say its format."""
    file = Path(path)
    if file.suffix.lower() not in FORMATS:
        raise UserError(f"--output={str(file)!r}: must end with one of {', '.join(FORMATS)}")
    return file


def beside(checkpoint: Path, name: str) -> Path:
    """Where a picture of a checkpoint is written: into its run, or the current folder if it is in no run."""
    return own_name((checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else Path()) / name)


def write_picture(figure: Any, file: Path) -> None:
    """Write a figure as a whole, or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, format=file.suffix[1:].lower())
    write_bytes(picture.getvalue(), file)


def write_bytes(content: bytes, file: Path) -> None:
    """Write a file, or say why not."""
    try:
        file.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write {str(file)!r}: {error.strerror or error}") from error


def _known_metrics(asked: Sequence[str], runs: Sequence[LoggedRun]) -> list[str]:
    known = sorted(set[str]().union(*(run.metrics for run in runs)))
    if len(runs) == 1:  # an expert of one run has nothing to do with that of the same number in another
        known += wholes(known)
    one_place = len({frozenset(run.places) for run in runs}) == 1
    if not one_place:  # metrics of tasks go by their own name, so that every task has its panel
        known = sorted({*known, *(name for name in (*DEFAULT_METRICS, *asked) if _curves(name, runs))})
    for name in asked:
        if name not in known:
            raise UserError(f"--metric={name!r}: no such metric{suggest(name, known)} (known: {', '.join(known)})")
    tasks = [place.task for place in runs[0].places if place.task] if one_place else []
    found = list(dict.fromkeys(asked)) or usual_metrics(tasks, known)
    if not found:
        raise UserError(f"there are no returns yet; choose with --metric (known: {', '.join(known)})")
    if asked or one_place:
        return found
    # One panel for each environment and each task: of evaluations, unless there is no more than the last one.
    return [next((name for name in found if any(len(steps) > 1 for steps, _ in _curves(name, runs))), found[0])]


def _curves(metric: str, runs: Sequence[LoggedRun]) -> list[tuple[Array, Array]]:
    """The curves of a metric in all environments and tasks."""
    found = [run.curve(column) for run in runs for column in run.columns(metric).values()]
    return [(steps, values) for steps, values in found if len(steps)]


def common_curves(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array] | None:
    """Curves on steps that all of them cover, as steps `[P]` and values `[P, N]`; None if there are no such steps.

    Curves with the same steps are taken as they are, others are interpolated. Single points, as from one evaluation at
    the end of each run, are put at their mean step.
    """
    first = curves[0][0]
    if all(np.array_equal(steps, first) for steps, _ in curves):
        return first, np.stack([values for _, values in curves], axis=-1)
    if all(len(steps) == 1 for steps, _ in curves):
        return np.array([np.mean([steps[0] for steps, _ in curves])]), np.array([[v[0] for _, v in curves]])
    start, end = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    if start > end:
        return None
    grid = np.linspace(start, end, _GRID if end > start else 1)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in curves], axis=-1)


def draw(groups: Sequence[Group], metrics: Sequence[str]) -> Any:
    """A matplotlib figure with a panel for each metric in each environment or task, and a colour for each label."""
    from matplotlib.figure import Figure

    several = in_several_places(groups)
    cells = cells_of(groups, metrics)
    alone = groups[0].runs[0] if len(groups) == len(groups[0].runs) == 1 else None
    columns = columns_of(metrics, len(cells))
    rows = math.ceil(len(cells) / columns)
    same_scale = not several and len(metrics) > 1 and all(name in DEFAULT_METRICS for name in metrics)
    width, height = (4.4, 3.1) if several else (5.0, 3.6)
    figure = Figure(figsize=(width * columns + 0.6, height * rows + 0.8), dpi=150, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=not several, sharey=same_scale, squeeze=False).flatten()
    looks = {label: index for index, label in enumerate(dict.fromkeys(group.label for group in groups))}
    for place, (panel, cell) in enumerate(zip(panels, cells, strict=False)):
        panel.set_title(cell.title, fontsize=10, pad=_ABOVE_STAGES if alone and stage_starts(alone) else None)
        panel.set_ylabel("" if several and place % columns and len(metrics) == 1 else cell.label)
        panel.set_xlabel(clock_of([group for group, _ in cell.members]))
        for group, metric in cell.members:
            _draw_group(panel, group, metric, _legend_label(group, groups), looks[group.label])
        if alone is not None:
            _draw_details(panel, alone, cell.members[0][1])
        _tidy(panel)
    for panel in panels[len(cells) :]:
        panel.remove()
    if not several:
        _label_lowest(list(panels[: len(cells)]), columns)
    for panel in panels[1:] if same_scale else ():
        panel.set_ylabel("")
        panel.tick_params(axis="y", length=0)
    layout: Any = figure.get_layout_engine()
    layout.set(wspace=0.05, hspace=0.06)
    letters = int(_HEADING_LETTERS * figure.get_figwidth())
    heading = textwrap.wrap(heading_of(groups, metrics), letters, break_on_hyphens=False)
    figure.set_figheight(figure.get_figheight() + 0.2 * (len(heading) - 1))
    figure.suptitle("\n".join(heading), fontsize=12, fontweight="bold")
    _draw_legend(figure, list(panels[: len(cells)]), groups)
    return figure


def _label_lowest(panels: Sequence[Any], columns: int) -> None:
    """Panels with the same steps are labelled in the lowest one of every column, which has a hole below or not."""
    for place, panel in enumerate(panels):
        lowest = place + columns >= len(panels)
        panel.tick_params(axis="x", labelbottom=lowest)
        panel.set_xlabel(panel.get_xlabel() if lowest else "")


def _draw_legend(figure: Any, panels: Sequence[Any], groups: Sequence[Group]) -> None:
    from matplotlib.patches import Patch

    found = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    labels = dict.fromkeys(_legend_label(group, groups) for group in groups)
    details = [handle for label, handle in found.items() if label not in labels]
    handles = details or [found[label] for label in labels]  # a run that has details is alone, and in the heading
    if any(len(group.runs) > 1 for group in groups):
        handles = [*handles, Patch(color="0.5", alpha=0.3, label="95% bootstrap confidence interval of the mean")]
    if len(handles) > 1 or details:
        inches = 0.7 + 0.065 * max(len(handle.get_label()) for handle in handles)
        columns = max(1, min(len(handles), int(figure.get_figwidth() / inches)))
        figure.set_figheight(figure.get_figheight() + 0.18 * math.ceil(len(handles) / columns))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)


def _legend_label(group: Group, groups: Sequence[Group]) -> str:
    """The label of a group with its number of seeds, which those of the same label may not share."""
    counts = {len(other.runs) for other in groups if other.label == group.label}
    if len(counts) > 1:
        return f"{group.label} (mean of {min(counts)} to {max(counts)} seeds)"
    return group.label if counts == {1} else f"{group.label} (mean of {len(group.runs)} seeds)"


def look(index: int) -> tuple[str, str]:
    """The colour and the dashes of a line."""
    return COLOURS[index % len(COLOURS)], _DASHES[index // len(COLOURS) % len(_DASHES)]


def _draw_group(panel: Any, group: Group, metric: str, label: str, index: int) -> None:
    colour, dash = look(index)
    style: dict[str, Any] = {"color": colour, "linestyle": dash, "linewidth": 1.8, "label": label}
    curves = group.curves(metric)
    if not curves:  # so that the group is in the legend anyway
        panel.plot([], [], **style)
        return
    together = common_curves(curves)
    if together is None:
        for number, (steps, values) in enumerate(curves):
            panel.plot(steps, values, **style | {"linewidth": 1.0, "label": label if number == 0 else None})
        return
    steps, values = together
    marker = {"marker": "o", "markersize": 3.5} if len(steps) <= _MOST_MARKERS else {}
    panel.plot(steps, mean(values), **style, **marker)
    if values.shape[-1] > 1:
        low, high = bootstrap_interval(values, resamples=_RESAMPLES)
        if len(steps) == 1:
            panel.vlines(steps, low, high, color=colour, linewidth=1.8, alpha=0.5)
        else:
            panel.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)


def _draw_details(panel: Any, run: LoggedRun, metric: str) -> None:
    """What only the picture of one run shows."""
    task, _, name = metric.rpartition("/")
    if name == SHARES:
        _draw_shares(panel, run, metric)
    if name in DEFAULT_METRICS:
        mark_target(panel, run, task)
    mark_stages(panel, run)


def _draw_shares(panel: Any, run: LoggedRun, metric: str) -> None:
    """Shares as areas on top of each other. They have edges where there is one step, which nothing else would show."""
    shares = shares_of(metric, run.metrics)
    together = common_curves([run.curve(name) for name in shares])
    if together is None:
        return
    steps, values = together
    tops = np.cumsum(values, axis=-1)
    width = 1.0 if len(steps) == 1 else 0.0
    for index, label in enumerate(shares.values()):
        again, colour = divmod(index, len(COLOURS))
        style: dict[str, Any] = {"facecolor": COLOURS[colour], "edgecolor": COLOURS[colour], "alpha": 0.8 * 0.45**again}
        style |= {"linewidth": width, "hatch": _HATCHES[again % len(_HATCHES)], "label": label}
        panel.fill_between(steps, tops[:, index] - values[:, index], tops[:, index], **style)
    panel.set_ylim(0.0, 1.0)


def _tidy(panel: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.yaxis.set_major_formatter(FuncFormatter(_thousands))
    panel.set_xlim(left=0)
    panel.grid(visible=True, axis="y", color="0.5", alpha=0.25, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _thousands(value: float, _: Any) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:g}"
