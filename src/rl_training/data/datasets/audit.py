"""The audit of a dataset: its contents, and what is suspicious about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from rl_training.data.datasets.arrays import fit_dataset
from rl_training.data.datasets.columns import jumps
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.types import Array, SpaceInfo, UserError


class Finding(NamedTuple):
    """One line of an audit: `ok` is a fact, a `note` is worth a look, a `problem` harms training."""

    level: Literal["ok", "note", "problem"]
    text: str


def audit(dataset: OfflineDataset, info: SpaceInfo | None = None, time_limit: int | None = None) -> list[Finding]:
    """All findings about a dataset; with the spaces of an environment also whether it fits them."""
    return [
        *_contents(dataset),
        *_alignment(dataset),
        *_ends(dataset, time_limit),
        *_observations(dataset),
        *(_actions(dataset) if info is None else _fit(dataset, info)),
        *(Finding("note", note) for note in dataset.source.get("notes", ())),
    ]


def _contents(dataset: OfflineDataset) -> Iterator[Finding]:
    yield Finding("ok", f"{len(dataset)} transitions in {dataset.n_episodes} episodes")
    yield Finding("ok", f"length of episodes: {_quantiles(dataset.lengths)}")
    yield Finding("ok", f"return of episodes: {_quantiles(dataset.returns)}")
    kinds = (f"{name} {array.shape[1:]} {array.dtype}" for name, array in _spaces(dataset).items())
    yield Finding("ok", ", ".join(kinds))


def _spaces(dataset: OfflineDataset) -> dict[str, Array]:
    return {"observations": dataset.obs, "actions": dataset.action}


def _quantiles(values: Array) -> str:
    low, quarter, middle, upper, high = np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0])
    return f"min {low:g}, 25% {quarter:g}, median {middle:g}, 75% {upper:g}, max {high:g}, mean {np.mean(values):g}"


def _last_rows(dataset: OfflineDataset) -> Array:
    return dataset.starts + dataset.lengths - 1


def _alignment(dataset: OfflineDataset) -> Iterator[Finding]:
    """Check that successors are the next row's observations inside episodes, and are not at their ends."""
    if len(dataset) < 2:
        return
    jumped = jumps(dataset.obs, dataset.next_obs)
    inside = np.ones(len(jumped), np.bool_)
    inside[_last_rows(dataset)[:-1]] = False
    wrong, rows = int((jumped & inside).sum()), int(inside.sum())
    if wrong:
        yield Finding("problem", f"{wrong} of {rows} rows inside episodes have a successor that is not the next row's")
    elif rows:
        yield Finding("ok", "the successor of every row inside an episode is the observation of the next row")
    if np.median(dataset.lengths) == 1:
        text = "most episodes are one step long: the rows are not in time order, or observations and successors are off"
        yield Finding("problem", text)
    cut = ~inside & ~dataset.terminated[:-1]  # a terminal row may have any successor
    leaked = int((cut & ~jumped).sum())
    if leaked:
        yield Finding(
            "problem",
            f"{leaked} of {cut.sum()} episodes that were cut off have the first observation of the next one as their "
            "last successor: values are taken across the reset",
        )


def _ends(dataset: OfflineDataset, time_limit: int | None) -> Iterator[Finding]:
    lengths, terminal = dataset.lengths, dataset.terminated[_last_rows(dataset)]
    yield Finding("ok", f"{terminal.sum()} episodes ended at a terminal state, {(~terminal).sum()} were cut off")
    limit = int(lengths.max()) if time_limit is None else time_limit
    at_limit = int((terminal & (lengths == limit)).sum())
    if time_limit is not None:
        if at_limit:
            yield Finding(
                "problem",
                f"{at_limit} episodes are terminal after exactly {limit} steps, the time limit: if it ended them, "
                "they should bootstrap; done_means=auto takes them as cut off",
            )
        longer = int((lengths > limit).sum())
        if longer:
            yield Finding("problem", f"{longer} episodes are longer than the time limit of {limit} steps")
    elif at_limit > 1 and at_limit == terminal.sum():
        text = f"all {at_limit} terminal episodes are {limit} steps long, as if a time limit ended them"
        yield Finding("note", text)
    others = lengths[:-1][~terminal[:-1]]
    if not terminal[-1] and lengths[-1] < (others.max() if others.size else limit):
        yield Finding("note", f"the last episode is unfinished: the data ends after {lengths[-1]} steps of it")


def _observations(dataset: OfflineDataset) -> Iterator[Finding]:
    if dataset.obs.ndim == 2:
        constant = np.flatnonzero(np.ptp(dataset.obs, axis=0) == 0)
        if constant.size:
            yield Finding("note", f"observations never change in columns {', '.join(map(str, constant))}")


def _actions(dataset: OfflineDataset) -> Iterator[Finding]:
    units = dataset.source.get("action_units", "unknown")
    yield Finding("ok", f"actions from {dataset.action.min():g} to {dataset.action.max():g}, units: {units}")


def _fit(dataset: OfflineDataset, info: SpaceInfo) -> Iterator[Finding]:
    """Whether the dataset fits an environment; an error in fitting it is a problem."""
    yield from _actions(dataset)
    try:
        fitted = fit_dataset(dataset, info)
    except UserError as error:
        yield Finding("problem", str(error))
        return
    yield Finding("ok", "observations and actions fit the environment")
    known = len(dataset.source.get("notes", ()))
    yield from (Finding("note", note) for note in fitted.source["notes"][known:])
    if info.continuous:
        share = float((np.abs(fitted.action) > 0.999).mean())
        yield Finding("note" if share > 0.5 else "ok", f"{share:.1%} of the actions' numbers are at their bounds")
