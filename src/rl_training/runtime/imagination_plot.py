"""Draws what a world model imagines beside what really happened: curves of numbers, frames of images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.runtime.extras import import_extra
from rl_training.runtime.imagination_view import ImaginationView, view_imagination
from rl_training.runtime.plots import beside, picture_file, write_bytes, write_picture
from rl_training.runtime.search_view import picture_of
from rl_training.types import Array

_REAL, _DREAMT = "#0072B2", "#D55E00"
_MOST_NUMBERS = 8
_MOST_FRAMES = 10
_COLUMNS = 3
_HEADS = {"reward": "reward", "value": "value", "continuation": "probability of going on"}
_FRAME_SIDE, _FRAME_MILLISECONDS = 160, 150


def plot_imagination(
    path: str | Path, *, which: str = "latest", output: str | Path | None = None, **asked: Any
) -> tuple[list[Path], ImaginationView]:
    """Draw dreams of the model of a run or checkpoint; `view_imagination` says what may be asked for.

    Written to `output`, else to `imagination.png` in the folder of the run, or in the current one for a checkpoint that
    is in no run. The first image is a film too, `.gif` beside the picture.
    """
    import_extra("matplotlib", "plot", asked_by="plot")
    file = None if output is None else picture_file(output)
    view = view_imagination(path, which=which, **asked)
    file = beside(view.checkpoint, "imagination.png") if file is None else file
    write_picture(draw_imagination(view), file)
    files = [file]
    if view.images:
        files.append(file.with_suffix(".gif"))
        write_bytes(film(view, view.images[0]), files[-1])
    return files, view


def draw_imagination(view: ImaginationView) -> Any:
    """A matplotlib figure: frames of every image, then curves of numbers, rewards, values and continuation."""
    from matplotlib.figure import Figure

    curves = _curves(view)
    lines = -(-len(curves) // _COLUMNS)
    heights = [1.9] * len(view.images) + [1.9 * lines]
    figure = Figure(figsize=(10.5, sum(heights) + 0.6), dpi=150, layout="constrained")
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, name in zip(parts, view.images, strict=False):
        _draw_frames(part, view, name)
    panels = parts[-1].subplots(lines, _COLUMNS, squeeze=False).ravel()
    for panel, (title, real, dreamt) in zip(panels, curves, strict=False):
        _draw_curve(panel, view, title, real, dreamt)
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    panels[0].legend(fontsize=8, loc="best")
    figure.suptitle(f"{view.algo} on {view.env_id}: imagined {view.place}", fontsize=11, fontweight="bold")
    return figure


def _curves(view: ImaginationView) -> list[tuple[str, Array, Array]]:
    """The title, the real numbers `[N + 1]` and the dreamt ones `[dreams, steps]` of every panel."""
    numbers = []
    for name in view.real.parts:
        if name in view.images:
            continue
        real = view.real.parts[name].reshape(view.steps + 1, -1)
        dreamt = view.dreamt.parts[name].reshape(*view.dreamt.heads["reward"].shape, -1)
        words = name or "observation"
        numbers += [(f"{words} {k}", real[:, k], dreamt[..., k]) for k in range(real.shape[1])]
    if len(numbers) > _MOST_NUMBERS:
        # Those that move most say most.
        spread = [float(np.std(real)) for _, real, _ in numbers]
        numbers = [numbers[k] for k in sorted(np.argsort(spread)[::-1][:_MOST_NUMBERS])]
    return numbers + [(title, view.real.heads[name], view.dreamt.heads[name]) for name, title in _HEADS.items()]


def _draw_curve(panel: Any, view: ImaginationView, title: str, real: Array, dreamt: Array) -> None:
    later = np.arange(view.context + 1, view.steps + 1)
    low, middle, high = np.percentile(dreamt, [10, 50, 90], axis=0)
    panel.axvspan(0, view.context, color="0.93", lw=0)
    panel.plot(real, color=_REAL, label="real", lw=1.5)
    panel.plot(later, middle, color=_DREAMT, label="imagined, median", lw=1.5, ls="--")
    panel.fill_between(later, low, high, color=_DREAMT, alpha=0.2, lw=0, label="80% of the dreams")
    if title == _HEADS["continuation"]:
        panel.set_ylim(-0.05, 1.05)
    panel.set_title(title, fontsize=9)
    panel.set_xlabel("step", fontsize=8)
    panel.tick_params(labelsize=7)
    panel.margins(x=0.01)


def _draw_frames(part: Any, view: ImaginationView, name: str) -> None:
    """The real frames above those of the first dream."""
    count = min(_MOST_FRAMES, view.steps - view.context)
    shown = np.linspace(view.context + 1, view.steps, count).round().astype(int)
    panels = part.subplots(2, count, squeeze=False)
    for column, step in enumerate(shown):
        frames = (view.real.parts[name][step], view.dreamt.parts[name][0, step - view.context - 1])
        for row, frame in enumerate(frames):
            panel = panels[row, column]
            panel.imshow(picture_of(frame[None]), cmap="gray", vmin=0, vmax=255)
            panel.set_xticks([])
            panel.set_yticks([])
        panels[0, column].set_title(f"step {step}", fontsize=8)
    for row, word in enumerate(("real", "imagined")):
        panels[row, 0].set_ylabel(f"{name}\n{word}".strip(), fontsize=8, color=(_REAL, _DREAMT)[row])


def film(view: ImaginationView, name: str) -> bytes:
    """A gif: real frames on the left, those of the first dream on the right; before the dream begins both are real."""
    from PIL import Image

    frames = []
    for step in range(view.steps + 1):
        real = view.real.parts[name][step]
        dreamt = real if step <= view.context else view.dreamt.parts[name][0, step - view.context - 1]
        sides = [picture_of(frame[None]) for frame in (real, dreamt)]
        gap = np.full((len(sides[0]), 2, *sides[0].shape[2:]), 255, np.uint8)
        picture = Image.fromarray(np.concatenate([sides[0], gap, sides[1]], axis=1))
        zoom = max(1, _FRAME_SIDE // len(sides[0]))
        frames.append(picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST))
    written = io.BytesIO()
    frames[0].save(written, format="GIF", save_all=True, append_images=frames[1:], duration=_FRAME_MILLISECONDS, loop=0)
    return written.getvalue()
