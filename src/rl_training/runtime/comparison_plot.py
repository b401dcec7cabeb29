"""Draws a comparison of runs: interquartile means and the probability of improvement, with their intervals."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.runtime.comparison import ALL, SCORES, Comparison, Estimate
from rl_training.runtime.extras import import_extra
from rl_training.runtime.panels import columns_for
from rl_training.runtime.plots import COLOURS, DARK, picture_file, write_picture

# What the rows of all environments are scaled by.
_SCALES = {ALL: "from the lowest run to the highest", SCORES: "score"}

# Letters of a title over one panel, and of a line beside one; inches of such a letter, and of the narrowest picture.
_TITLE_LETTERS = 44
_NAME_LETTERS = 32
_LETTER = 0.078
_NARROWEST = 6.4


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

    labels, count, rows = compared.labels, len(compared.sides), len(compared.rows)
    columns = columns_for(rows)
    lines = math.ceil(rows / columns)
    chances = _chance_names(compared)
    title = textwrap.wrap(_question(compared), _TITLE_LETTERS * columns, break_on_hyphens=False)
    below = 0.2 * len(chances) + 0.14 * _lines(chances) + 0.17 * len(title) + 0.73
    heights = [0.42 * count + 0.9] * lines + [below]
    beside = _LETTER * max(len(line) for name in (*labels, *chances) for line in name.splitlines())
    size = (max(3.6 * columns + beside + 0.6, _NARROWEST), sum(heights) + 0.7)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = figure.add_gridspec(lines + 1, columns, height_ratios=heights)
    for place, row in enumerate(compared.rows):
        panel = figure.add_subplot(grid[place // columns, place % columns])
        panel.set_title(_cut(row.environment), fontsize=10)
        for index, mean in enumerate(row.means):
            _draw_estimate(panel, index, mean, COLOURS[index % len(COLOURS)])
        _name_rows(panel, labels if place % columns == 0 else [""] * count)
        panel.set_xlabel(_SCALES.get(row.environment, f"last {compared.metric}"))
    _draw_chances(figure.add_subplot(grid[lines, :]), compared, chances, "\n".join(title))
    layout: Any = figure.get_layout_engine()
    layout.set(h_pad=0.09, wspace=0.05)
    figure.suptitle("Interquartile means with 95% stratified bootstrap intervals", fontsize=12, fontweight="bold")
    return figure


def _cut(words: str) -> str:
    return words if len(words) <= _TITLE_LETTERS else f"{words[: _TITLE_LETTERS - 3]}..."


def _lines(names: Sequence[str]) -> int:
    return sum(name.count("\n") + 1 for name in names)


def _chance_names(compared: Comparison) -> list[str]:
    """What stands beside each probability: where, and of several sides which."""
    names = [
        row.environment if len(compared.sides) == 2 else f"{row.environment}: {side}"
        for row in compared.rows
        for side in compared.labels[1:]
    ]
    return ["\n".join(textwrap.wrap(name, _NAME_LETTERS, break_on_hyphens=False)) for name in names]


def _question(compared: Comparison) -> str:
    """What the probabilities are of."""
    first, second, *more = compared.labels
    return f"Probability that {'a run' if more else second} is better than {first}"


def _draw_chances(panel: Any, compared: Comparison, names: Sequence[str], title: str) -> None:
    chances = [(index, chance) for row in compared.rows for index, chance in enumerate(row.better, 1)]
    for place, (index, chance) in enumerate(chances):
        _draw_estimate(panel, place, chance, COLOURS[index % len(COLOURS)])
    _name_rows(panel, names)
    panel.axvline(0.5, color="0.5", linewidth=1.0, linestyle="--")
    panel.set_xlim(-0.02, 1.02)
    panel.set_title(title, fontsize=10)


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
