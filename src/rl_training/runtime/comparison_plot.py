"""Draws a comparison of runs: interquartile means and the probability of improvement, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.runtime.comparison import ALL, SCORES, Comparison, Estimate
from rl_training.runtime.extras import import_extra
from rl_training.runtime.panels import columns_for
from rl_training.runtime.plots import COLOURS, DARK, picture_file, write_picture

# What the rows of all environments are scaled by.
_SCALES = {ALL: "from the lowest run to the highest", SCORES: "score"}


def plot_comparison(compared: Comparison, *, output: str | Path, dark: bool = False) -> Path:
    """Draw a comparison of runs, for a dark background if asked for."""
    matplotlib = import_extra("matplotlib", "plot", asked_by="plot")
    target = picture_file(output)
    with matplotlib.rc_context(DARK if dark else {}):
        write_picture(draw_comparison(compared), target)
    return target


def draw_comparison(compared: Comparison) -> Any:
    """A matplotlib figure: a panel of interquartile means for each row, and one of probabilities below."""
    from matplotlib.figure import Figure

    count, rows = len(compared.sides), len(compared.rows)
    columns = columns_for(rows)
    lines = math.ceil(rows / columns)
    heights = [0.42 * count + 0.9] * lines + [0.34 * rows * (count - 1) + 0.9]
    figure = Figure(figsize=(3.6 * columns + 2.4, sum(heights) + 0.7), dpi=150, layout="constrained")
    grid = figure.add_gridspec(lines + 1, columns, height_ratios=heights)
    for place, row in enumerate(compared.rows):
        panel = figure.add_subplot(grid[place // columns, place % columns])
        panel.set_title(row.environment, fontsize=10)
        for index, mean in enumerate(row.means):
            _draw_estimate(panel, index, mean, COLOURS[index % len(COLOURS)])
        _name_rows(panel, compared.sides if place % columns == 0 else [""] * count)
        panel.set_xlabel(_SCALES.get(row.environment, f"last {compared.metric}"))
    _draw_chances(figure.add_subplot(grid[lines, :]), compared)
    layout: Any = figure.get_layout_engine()
    layout.set(h_pad=0.09, wspace=0.05)
    figure.suptitle("Interquartile means with 95% stratified bootstrap intervals", fontsize=12, fontweight="bold")
    return figure


def _draw_chances(panel: Any, compared: Comparison) -> None:
    two, names = len(compared.sides) == 2, list[str]()
    for row in compared.rows:
        for index, chance in enumerate(row.better, 1):
            _draw_estimate(panel, len(names), chance, COLOURS[index % len(COLOURS)])
            names.append(row.environment if two else f"{row.environment}: {compared.sides[index]}")
    _name_rows(panel, names)
    panel.axvline(0.5, color="0.5", linewidth=1.0, linestyle="--")
    panel.set_xlim(-0.02, 1.02)
    which = compared.sides[1] if two else "a run"
    panel.set_title(f"Probability that {which} is better than {compared.sides[0]}", fontsize=10)


def _draw_estimate(panel: Any, place: int, estimate: Estimate, colour: str) -> None:
    if estimate.low is not None and estimate.high is not None:
        panel.barh(place, estimate.high - estimate.low, left=estimate.low, height=0.5, color=colour, alpha=0.45)
    panel.vlines(estimate.value, place - 0.25, place + 0.25, color=colour, linewidth=2.4)


def _name_rows(panel: Any, names: Sequence[str]) -> None:
    panel.set_yticks(range(len(names)), names, fontsize=9)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.tick_params(axis="y", length=0)
    panel.grid(visible=True, axis="x", color="0.5", alpha=0.25, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.use_sticky_edges = False  # bars would end at the border otherwise
    panel.margins(x=0.08)
    panel.locator_params(axis="x", nbins=5)
    panel.spines[["top", "right", "left"]].set_visible(False)
