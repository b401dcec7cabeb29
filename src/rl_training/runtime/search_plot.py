"""Draws one search of a planning policy: its tree, the actions of the root, and the state that it began in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.ops.search_tree import SearchTree
from rl_training.runtime.extras import import_extra
from rl_training.runtime.plots import beside, picture_file, write_picture
from rl_training.runtime.search_view import RootAction, SearchView, view_search

_MOST_NODES, _DEEPEST = 50, 8
_MOST_ACTIONS = 18
_COLUMNS = ("action", "prior", "visits", "value", "policy target")
_MARK = "#D55E00"  # the chosen action
_GREY = "0.6"
_SIDE = 4.2  # inches of the column beside the tree
_ROW = 0.2  # inches of a line of the table


def plot_search(
    path: str | Path, *, which: str = "latest", output: str | Path | None = None, **asked: Any
) -> tuple[Path, SearchView]:
    """Draw a search of the policy of a run or checkpoint; `view_search` says what may be asked for.

    Written to `output`, else to `search.png` in the folder of the run, or in the current one for a checkpoint that is
    in no run.
    """
    import_extra("matplotlib", "plot", asked_by="plot")
    file = None if output is None else picture_file(output)
    view = view_search(path, which=which, **asked)
    file = beside(view.checkpoint, "search.png") if file is None else file
    write_picture(draw_search(view), file)
    return file, view


def draw_search(view: SearchView) -> Any:
    """A matplotlib figure: the tree on the left, the table of root actions and the state on the right."""
    from matplotlib.figure import Figure

    picture = TreePicture(view)
    listed = sorted(view.actions, key=lambda action: (-action.visits, -action.target))[:_MOST_ACTIONS]
    table = 0.5 + _ROW * (len(listed) + 1)
    width, height = picture.inches
    height = max(height, table + 1.8)
    figure = Figure(figsize=(width + _SIDE, height + 0.5), dpi=150, layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[width, _SIDE], height_ratios=[table, height - table])
    picture.draw(figure, figure.add_subplot(grid[:, 0]))
    _draw_table(figure.add_subplot(grid[0, 1]), listed, len(view.actions))
    _draw_state(figure.add_subplot(grid[1, 1]), view)
    figure.suptitle(f"{view.algo} on {view.env_id}, {view.place}", fontsize=11, fontweight="bold")
    return figure


def shown_nodes(tree: SearchTree, most: int = _MOST_NODES, deepest: int = _DEEPEST) -> list[int]:
    """The nodes near the root with the most visits, in the order in which they were made; parents are among them."""
    order = np.argsort(-tree.visits, kind="stable")  # no node has more visits than its parent, which is older
    return sorted(int(node) for node in order[tree.depth[order] <= deepest][:most])


def places(tree: SearchTree, nodes: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Where nodes are drawn: leaves side by side, every parent above the middle of its children."""
    children: dict[int, list[int]] = {node: [] for node in nodes}
    for node in nodes[1:]:
        children[int(tree.parents[node])].append(node)
    for siblings in children.values():
        siblings.sort(key=lambda node: int(tree.actions[node]))
    order, waiting = list[int](), [0]
    while waiting:
        order.append(waiting.pop())
        waiting += children[order[-1]]
    across: dict[int, float] = {}
    leaves = 0
    for node in reversed(order):  # from left to right, children before their parents
        below = children[node]
        if below:
            across[node] = (across[below[0]] + across[below[-1]]) / 2
        else:
            across[node], leaves = float(leaves), leaves + 1
    return {node: (across[node], -float(tree.depth[node])) for node in nodes}


class TreePicture:
    """The most visited part of a tree: visits are sizes and widths, values are colours, actions stand on the edges."""

    def __init__(self, view: SearchView) -> None:
        self.view, self.tree = view, view.tree
        self.nodes = shown_nodes(self.tree)
        self.places = places(self.tree, self.nodes)
        self.share = self.tree.visits / self.tree.visits[0]

    @property
    def inches(self) -> tuple[float, float]:
        """A good width and height."""
        columns = 1.0 + max(x for x, _ in self.places.values())
        levels = 1.0 - min(y for _, y in self.places.values())
        return float(np.clip(0.38 * columns, 4.5, 12.0)), float(np.clip(0.62 * levels + 0.9, 3.2, 9.0))

    def draw(self, figure: Any, panel: Any) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.ticker import MaxNLocator

        colours, norm = self._colours()
        for node in self.nodes[1:]:
            self._draw_edge(panel, node)
        self._draw_nodes(panel, colours, norm)
        self._draw_rest(panel)
        scale = ScalarMappable(norm, colours)
        bar = figure.colorbar(scale, ax=panel, location="bottom", shrink=0.6, aspect=40, pad=0.02)
        side = ", for the player to move at the top" if self.view.two_player else ""
        bar.set_label(f"value of a state{side}", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        bar.locator = MaxNLocator(5)
        bar.update_ticks()
        panel.set_title(self._caption(), fontsize=8, color="0.3")
        panel.margins(x=0.05, y=0.09)
        panel.axis("off")

    def _marked(self, node: int) -> bool:
        """Whether the chosen action leads here."""
        return bool(self.tree.parents[node] == 0 and self.tree.actions[node] == self.view.chosen.index)

    def _colours(self) -> tuple[Any, Any]:
        """From the lowest to the highest value; in a game for two, from lost (red) to won (blue)."""
        from matplotlib import colormaps
        from matplotlib.colors import Normalize

        values = self.view.values[self.nodes]
        if self.view.two_player:
            limit = max(1.0, float(np.abs(values).max()))
            return colormaps["RdBu"], Normalize(-limit, limit)
        low, high = float(values.min()), float(values.max())
        margin = 0.0 if high - low > 1e-6 else 0.5
        return colormaps["viridis"], Normalize(low - margin, high + margin)

    def _draw_edge(self, panel: Any, node: int) -> None:
        start, end = np.array(self.places[int(self.tree.parents[node])]), np.array(self.places[node])
        marked = self._marked(node)
        width = 0.7 + 5.0 * float(self.share[node])
        panel.plot(*zip(start, end, strict=True), color=_MARK if marked else _GREY, linewidth=width, zorder=1 + marked)
        panel.annotate(
            self.view.labels[node],
            tuple(end + 0.4 * (start - end)),
            ha="center",
            va="center",
            fontsize=7,
            color=_MARK if marked else "black",
            fontweight="bold" if marked else "normal",
            bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"},
            zorder=3,
        )

    def _draw_nodes(self, panel: Any, colours: Any, norm: Any) -> None:
        values, marked = self.view.values[self.nodes], [self._marked(node) for node in self.nodes]
        panel.scatter(
            *np.array([self.places[node] for node in self.nodes]).T,
            s=60.0 + 300.0 * self.share[self.nodes],
            c=values,
            cmap=colours,
            norm=norm,
            edgecolors=[_MARK if mark else "0.3" for mark in marked],
            linewidths=[2.0 if mark else 0.4 for mark in marked],
            zorder=4,
        )
        for node, value in zip(self.nodes, values, strict=True):
            red, green, blue, _ = colours(norm(value))
            ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
            number = str(int(self.tree.visits[node]))
            panel.annotate(number, self.places[node], ha="center", va="center", fontsize=6, color=ink, zorder=5)

    def _draw_rest(self, panel: Any) -> None:
        """Dots below every node of which some children are not drawn."""
        hidden = set(range(1, len(self.tree.parents))) - set(self.nodes)
        for node in {int(self.tree.parents[child]) for child in hidden} & set(self.nodes):
            panel.annotate(
                "...", self.places[node], (0, -11), textcoords="offset points", ha="center", fontsize=8, color="0.4"
            )

    def _caption(self) -> str:
        tree = self.tree
        drawn = (
            f"{len(self.nodes)} of {len(tree.parents)} states" if len(self.nodes) < len(tree.parents) else "all states"
        )
        words = f"{tree.visits[0] - 1} simulations, depth {tree.depth.max()}, {drawn} drawn"
        return f"{words}\nactions are on the edges, visits in the states"


def _draw_table(panel: Any, listed: list[RootAction], count: int) -> None:
    """The actions of the root, the most visited first."""
    table = panel.table(
        [_cells(action) for action in listed],
        colLabels=_COLUMNS,
        loc="upper center",
        cellLoc="right",
        edges="horizontal",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.auto_set_column_width(range(len(_COLUMNS)))
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor("0.85")
        if row == 0:
            cell.set_text_props(fontweight="bold")
        elif listed[row - 1].chosen:
            cell.set_text_props(color=_MARK, fontweight="bold")
    more = f" (the {len(listed)} most visited of {count})" if count > len(listed) else ""
    panel.set_title(f"actions at the top{more}; the chosen one is marked", fontsize=8, color="0.3")
    panel.axis("off")


def _cells(action: RootAction) -> list[str]:
    value = f"{action.value:.4g}" if action.visits else "-"
    return [action.label, f"{action.prior:.2f}", f"{action.visits}", value, f"{action.target:.2f}"]


def _draw_state(panel: Any, view: SearchView) -> None:
    panel.axis("off")
    panel.set_title("the state", fontsize=8, color="0.3")
    if isinstance(view.state, str):
        where = {"ha": "center", "va": "top", "transform": panel.transAxes}
        panel.text(0.5, 0.95, view.state, family="monospace", fontsize=9, **where)
    else:
        panel.imshow(view.state, cmap="gray", interpolation="nearest")
