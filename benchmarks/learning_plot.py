"""Pictures of the learning benchmark: the mean of the curves of each side, with its interval over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from learning_summary import estimate
from libraries import OURS
from pair_parts import Pair
from seed_files import Curve

# Two colours that people with any kind of colour blindness can tell apart; the peer's line is dashed as well.
STYLES = {True: {"color": "#0072B2", "linestyle": "-"}, False: {"color": "#D55E00", "linestyle": "--"}}
COLUMNS = 3
PANEL = (3.6, 2.5)  # inches


def draw(
    path: Path, title: str, pairs: Mapping[str, Pair], curves: Mapping[str, Mapping[str, Sequence[Curve]]]
) -> None:
    """One panel for each pair that has curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in pairs if any(curves.get(name, {}).values())]
    rows = ceil(len(names) / COLUMNS)
    figure, axes = pyplot.subplots(
        rows, COLUMNS, figsize=(COLUMNS * PANEL[0], rows * PANEL[1] + 0.4), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for name, axis in zip(names, axes.flat, strict=False):
        draw_pair(axis, name, pairs[name], curves[name])
    figure.suptitle(f"{title}: mean return of the evaluations, with 95 % intervals over seeds", fontsize=11)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def draw_pair(axis: Any, name: str, pair: Pair, curves: Mapping[str, Sequence[Curve]]) -> None:
    for side, found in curves.items():
        if not found:
            continue
        style = STYLES[side == OURS]
        points = [estimate(column) for column in np.transpose([curve.returns for curve in found]).tolist()]
        steps = found[0].steps
        axis.fill_between(
            steps,
            [point.low for point in points],
            [point.high for point in points],
            color=style["color"],
            alpha=0.18,
            lw=0,
        )
        axis.plot(steps, [point.value for point in points], lw=1.6, label=f"{side} ({len(found)})", **style)
    axis.axhline(pair.task.threshold, color="#666666", lw=0.8, linestyle=":")
    axis.set_title(name, fontsize=10)
    axis.set_xlim(0, pair.total)
    axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k")
    axis.tick_params(labelsize=8)
    axis.set_xlabel("updates" if pair.dataset else "steps", fontsize=8)
    axis.legend(fontsize=8, loc="best", frameon=False)
