"""Plots the learning curves of runs: runs that differ only in their seed become a mean and a confidence band."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rl_training.data.checked_files import damaged
from rl_training.data.disk import own_name, read_own
from rl_training.experiment.registry import REGISTRY, suggest
from rl_training.experiment.tasks import names_in
from rl_training.ops.statistics import bootstrap_interval, mean
from rl_training.runtime.extras import import_extra
from rl_training.types import Array, UserError

DEFAULT_METRICS = ("eval_return_mean", "episode_return_mean")
FORMATS = (".png", ".svg", ".pdf")
# Settings that may differ between runs of one experiment: the seed, and those that only affect what is written.
_NO_DIFFERENCE = ("seed", "output_dir", "tags", "loggers", "expected", "log_interval", "keep_checkpoints")
# What tells runs apart.
_KINDS: dict[str, type] = {"algo": str, "env_id": str, "seed": int}
_GRID = 200
_RESAMPLES = 2_000
_MOST_MARKERS = 30
_MOST_WORDS = 3
_LONGEST_VALUE = 24
# Okabe and Ito's colours, which are safe for colour-blind readers; then the same colours with dashes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888")
_DASHES = ("-", "--", ":", "-.")
# The background of dark pages, and what is written on it.
_DARK = dict.fromkeys(("figure.facecolor", "axes.facecolor"), "#0d1117") | dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#e6edf3"
)
_TITLES = {
    "eval_return_mean": ("Evaluation", "return per episode (reward)"),
    "episode_return_mean": ("Training: mean of the last 100 episodes", "return per episode (reward)"),
}


@dataclass(frozen=True)
class LoggedRun:
    """A run as read from its folder."""

    path: Path
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    def curve(self, metric: str) -> tuple[Array, Array]:
        """Steps and values of a metric, from the rows that have a finite number for it."""
        points = [(row["step"], row[metric]) for row in self.rows if math.isfinite(row.get(metric, math.nan))]
        steps, values = np.array(points, np.float64).reshape(-1, 2).T
        return steps, values

    @property
    def metrics(self) -> set[str]:
        return {name for row in self.rows for name in row} - {"step"}


@dataclass(frozen=True)
class Group:
    """Runs of one config on different seeds."""

    label: str
    runs: Sequence[LoggedRun]

    def curves(self, metric: str) -> list[tuple[Array, Array]]:
        """The curves of the runs that have the metric."""
        return [(steps, values) for steps, values in (run.curve(metric) for run in self.runs) if len(steps)]


@dataclass(frozen=True)
class Plot:
    """The file of a plot, its groups, and notes on runs that were left out."""

    path: Path
    groups: Sequence[Group]
    notes: Sequence[str] = field(default_factory=tuple)


def _trained_on(config: Mapping[str, Any]) -> str:
    return ", ".join(names_in(config)) or str(config.get("env_id"))


def plot_runs(
    paths: Iterable[str | Path],
    *,
    metrics: Sequence[str] = (),
    output: str | Path | None = None,
    dark: bool = False,
) -> Plot:
    """Draw the learning curves of runs, or of all runs in a folder.

    Written to `output`, else to `plot.png` in the folder of a single run, or in the current one for several.
    With `dark` it is drawn for a dark background.
    """
    matplotlib = import_extra("matplotlib", "plot", asked_by="plot")
    folders = find_runs(paths)
    target = picture_file(output or own_name((folders[0] if len(folders) == 1 else Path()) / "plot.png"))
    runs, notes = _without_repetitions([read_run(folder) for folder in folders])
    groups = group_runs(runs)
    drawn = _known_metrics(metrics, runs)
    with matplotlib.rc_context(_DARK if dark else {}):
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


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run folders of some paths: each path itself, or all run folders up to two levels below it."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        here = [path] if _is_run(path) else sorted(p for p in (*path.glob("*"), *path.glob("*/*")) if _is_run(p))
        if not here:
            raise UserError(f"{str(path)!r}: {'holds no run' if path.is_dir() else 'there is no such run'}")
        found |= {p.resolve(): p for p in here}
    return list(found.values())


def _is_run(path: Path) -> bool:
    return os.path.lexists(path / "config.yaml") and not path.name.startswith(".")


def read_run(path: Path) -> LoggedRun:
    """A run's config and metrics; an incomplete last line, left by a crash, is skipped."""
    config, rows = _read_config(path / "config.yaml"), _read_rows(path / "metrics.jsonl")
    if not rows:
        raise UserError(f"{str(path)!r}: has no metrics yet")
    return LoggedRun(path, config, rows)


def _read_config(file: Path) -> dict[str, Any]:
    try:
        text = read_own(file).decode()
        config = yaml.safe_load(text)
        # With aliases, a short file could describe something endless.
        plain = not any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
        json.dumps(config, sort_keys=True, default=str)  # as runs are compared: keys of several kinds have no order
    except UserError:
        raise
    except Exception as error:  # whatever YAML's constructors raise
        raise damaged(file, str(error) or repr(error)) from error
    if not plain or not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise damaged(file, "it is not a mapping of settings")
    for key, kind in _KINDS.items():
        if key in config and not isinstance(config[key], kind):
            raise damaged(file, f"its {key} is {config[key]!r:.60}")
    return config


def _read_rows(file: Path) -> list[dict[str, float]]:
    try:
        text = read_own(file).decode() if os.path.lexists(file) else ""
    except (OSError, ValueError) as error:
        raise damaged(file, str(error) or repr(error)) from error
    rows = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            row = json.loads(line)
            if not all(type(value) in (int, float) for value in row.values()) or not math.isfinite(row["step"]):
                raise ValueError("it must hold numbers, and a step")
            rows.append({name: float(value) for name, value in row.items()})
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise damaged(file, f"line {number}: {error}") from error
    return rows


def _identity(run: LoggedRun) -> str:
    """A string that is equal for all seeds of an experiment."""
    kept = {key: value for key, value in run.config.items() if key not in _NO_DIFFERENCE}
    return json.dumps(kept, sort_keys=True, default=str)


def _without_repetitions(runs: Sequence[LoggedRun]) -> tuple[list[LoggedRun], list[str]]:
    """Keep the longest run of each config and seed: a repetition adds no information, and would narrow the band."""
    kept: dict[tuple[str, Any], LoggedRun] = {}
    notes = []
    for run in runs:
        key = (_identity(run), run.config.get("seed"))
        other = kept.get(key)
        if other is None:
            kept[key] = run
            continue
        longer, shorter = (run, other) if run.rows[-1]["step"] > other.rows[-1]["step"] else (other, run)
        kept[key] = longer
        notes.append(f"{shorter.path} is left out: it has the config and the seed of {longer.path}")
    return list(kept.values()), notes


def group_runs(runs: Sequence[LoggedRun]) -> list[Group]:
    """Group runs that differ only in their seed; a group's label names what distinguishes it from the others."""
    members: dict[str, list[LoggedRun]] = {}
    for run in runs:
        members.setdefault(_identity(run), []).append(run)
    configs = [group[0].config for group in members.values()]
    return [Group(_label(config, configs), group) for config, group in zip(configs, members.values(), strict=True)]


def _label(config: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> str:
    """The algorithm and the environment, if they differ between groups; then the settings that differ."""
    names = [key for key in ("algo", "env_id") if len({other.get(key) for other in configs}) > 1]
    like = [c for c in configs if all(c.get(key) == config.get(key) for key in ("algo", "env_id"))]
    keys = sorted({key for c in like for key in c} - set(_NO_DIFFERENCE))
    differing = [key for key in keys if any(c.get(key) != config.get(key) for c in like)]
    words = [f"{key}={_shown(config.get(key))}" for key in differing[:_MOST_WORDS]]
    more = ["..."] if len(differing) > _MOST_WORDS else []
    named = [_trained_on(config) if key == "env_id" else str(config.get(key)) for key in names]
    return ", ".join([*named, *words, *more]) or str(config.get("algo"))


def _shown(value: Any) -> str:
    words = f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)
    return words if len(words) <= _LONGEST_VALUE else f"{words[: _LONGEST_VALUE - 3]}..."


def _known_metrics(asked: Sequence[str], runs: Sequence[LoggedRun]) -> list[str]:
    known = sorted(set[str]().union(*(run.metrics for run in runs)))
    for name in asked:
        if name not in known:
            raise UserError(f"--metric={name!r}: no such metric{suggest(name, known)} (known: {', '.join(known)})")
    found = list(dict.fromkeys(asked)) or _usual_metrics(runs, known)
    if not found:
        raise UserError(f"there are no returns yet; choose with --metric (known: {', '.join(known)})")
    return found


def _usual_metrics(runs: Sequence[LoggedRun], known: Sequence[str]) -> list[str]:
    """The returns of runs in one environment, and those of every task of the others: evaluated, or in training."""
    tasks = [names_in(run.config) for run in runs]
    found = [name for name in DEFAULT_METRICS if name in known and not all(tasks)]
    for task in dict.fromkeys(task for its in tasks for task in its):
        found += [name for metric in DEFAULT_METRICS if (name := f"{task}/{metric}") in known][:1]
    return found


def _titles(metric: str, groups: Sequence[Group]) -> tuple[str, str]:
    """What stands above a panel, and beside it."""
    task, _, name = metric.rpartition("/")
    if name not in _TITLES:
        return metric, metric
    title, label = _TITLES[name]
    title = title if name != DEFAULT_METRICS[0] else _evaluation_title(groups)
    return (f"{task}. {title}" if task else title), label


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
    """A matplotlib figure with a panel for each metric and a colour for each group."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0 * len(metrics) + 0.6, 4.4), dpi=150, layout="constrained")
    same_scale = len(metrics) > 1 and all(name in DEFAULT_METRICS for name in metrics)
    panels = figure.subplots(1, len(metrics), sharex=True, sharey=same_scale, squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        title, label = _titles(metric, groups)
        panel.set_title(title, fontsize=10)
        panel.set_ylabel(label)
        panel.set_xlabel(_clock(groups))
        for index, group in enumerate(groups):
            _draw_group(panel, group, metric, index)
        _tidy(panel)
    for panel in panels[1:] if same_scale else ():
        panel.set_ylabel("")
        panel.tick_params(axis="y", length=0)
    layout: Any = figure.get_layout_engine()
    layout.set(wspace=0.05)
    figure.suptitle(_heading(groups), fontsize=12, fontweight="bold")
    _draw_legend(figure, panels[0], groups)
    return figure


def _draw_legend(figure: Any, panel: Any, groups: Sequence[Group]) -> None:
    from matplotlib.patches import Patch

    handles = panel.get_legend_handles_labels()[0]
    if any(len(group.runs) > 1 for group in groups):
        handles = [*handles, Patch(color="0.5", alpha=0.3, label="95% bootstrap confidence interval of the mean")]
    if len(handles) > 1:
        inches = 0.7 + 0.065 * max(len(handle.get_label()) for handle in handles)
        columns = max(1, min(len(handles), int(figure.get_figwidth() / inches)))
        figure.set_figheight(figure.get_figheight() + 0.18 * math.ceil(len(handles) / columns))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)


def _draw_group(panel: Any, group: Group, metric: str, index: int) -> None:
    colour, dash = _COLOURS[index % len(_COLOURS)], _DASHES[index // len(_COLOURS) % len(_DASHES)]
    label = group.label if len(group.runs) == 1 else f"{group.label} (mean of {len(group.runs)} seeds)"
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


def _evaluation_title(groups: Sequence[Group]) -> str:
    """What the policies were judged by: runs that sample their actions log the returns of greedy ones beside them."""
    sampled = {"eval_return_mean_greedy" in run.metrics for group in groups for run in group.runs}
    return "Evaluation" if len(sampled) > 1 else f"Evaluation: {'sampled' if sampled == {True} else 'greedy'} actions"


def _clock(groups: Sequence[Group]) -> str:
    entries = [REGISTRY.get(str(group.runs[0].config.get("algo"))) for group in groups]
    offline = all(entry is not None and entry.capabilities.offline for entry in entries)
    return "gradient steps" if offline else "environment steps"


def _heading(groups: Sequence[Group]) -> str:
    configs = [group.runs[0].config for group in groups]
    algos = {str(config.get("algo")) for config in configs}
    environments = {_trained_on(config) for config in configs}
    words = [", ".join(sorted(names)) for names in (algos, environments) if len(names) == 1]
    return " on ".join(words) or "Learning curves"
