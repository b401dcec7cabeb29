"""Datasets from flat arrays in the common layouts, or from a replay buffer; fitted to an environment's spaces."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.data.datasets.columns import jumps, place_of, read_columns, read_facts
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.ops.observations import coded
from rl_training.types import Array, Choices, SpaceInfo, UserError

if TYPE_CHECKING:
    from rl_training.data.replay import Replay

_LOG = logging.getLogger("rl_training")
_BLOCK = 4096  # transitions of a replay that are gathered at once
DONE_MEANS = {
    "terminal": "the episode ended in a terminal state",
    "timeout": "a time limit cut the episode off",
    "auto": "episodes as long as the time limit were cut off, the others ended in a terminal state",
}
ACTION_UNITS = ("auto", "environment", "clipped", "normalized")


def from_arrays(
    arrays: Mapping[str, Any],
    *,
    source: Mapping[str, Any],
    done_means: str | None = None,
    time_limit: int | None = None,
    rewards_needed: bool = True,
) -> OfflineDataset:
    """Transitions from columns `[N, ...]` in time order: our own layout, D4RL's, or Stable-Baselines 2's.

    The keys determine the layout. `done_means` says why episodes ended if the keys do not (only `dones`, or only
    `episode_starts`); with `terminals` but without `timeouts` it may correct them. Without next observations the
    successor is the observation of the next row; a row at which an episode was truncated has none and is left out.
    If rewards are not needed and there are none, they are 0.
    """
    place = place_of(source)
    if done_means not in (None, *DONE_MEANS):
        raise UserError(f"done_means={done_means!r}: must be one of {', '.join(DONE_MEANS)}")
    columns, facts = read_columns(arrays, place, rewards_needed=rewards_needed), read_facts(arrays, place)
    notes: list[str] = facts["notes"]
    if "reward" not in columns:
        columns["reward"] = np.zeros(len(columns["obs"]), np.float32)
        facts["rewarded"] = False
        notes.append("it has no rewards: they are taken as 0")
    ends = _ends(columns, place)
    terminated = _terminated(columns, ends, done_means, time_limit, place, notes)
    rows: dict[str, Array] = {
        name: columns[name] for name in ("obs", "action", "reward", "next_obs") if name in columns
    }
    rows |= {"terminated": terminated, "truncated": columns.get("truncated", False) | (ends & ~terminated)}
    rows["begins"] = np.append(True, ends[:-1])
    if "next_obs" not in rows:
        rows = _with_successors(rows, ends, place, notes)
    starts = np.flatnonzero(rows.pop("begins"))
    flags = ("terminated", "truncated", "done")
    said = "episode_start" in columns or any(columns[name][-1] for name in flags if name in columns)
    whole_source = {**source, **facts, "notes": (*source.get("notes", ()), *notes)}
    return OfflineDataset(**rows, starts=starts, source=whole_source, partial=() if said else (len(starts) - 1,))


def _ends(columns: Mapping[str, Array], place: str) -> Array:
    """The last rows of episodes, from the flags, or from the successors if the flags are incomplete."""
    obs, next_obs = columns["obs"], columns.get("next_obs")
    ends = np.zeros(len(obs), np.bool_)
    for name in ("terminated", "truncated", "done"):
        ends |= columns.get(name, False)
    if "episode_start" in columns:
        ends[:-1] |= columns["episode_start"][1:]
    if next_obs is not None:
        jumped = jumps(obs, next_obs) & ~ends[:-1]
        if not columns.keys() & {"truncated", "done", "episode_start"}:
            ends[:-1] |= jumped
        elif jumped.any():
            share = jumped.sum() / max(1, (~ends[:-1]).sum())
            raise UserError(
                f"{place}: the next observation of row {jumped.argmax()} is not the observation of the row after it, "
                f"though no episode ends there (the same holds for {share:.1%} of the rows inside episodes): the "
                "columns do not belong to the same steps (or rows are not in time order: then leave timeouts and "
                "dones out)"
            )
    ends[-1] = True
    return ends


def _terminated(
    columns: Mapping[str, Array],
    ends: Array,
    done_means: str | None,
    time_limit: int | None,
    place: str,
    notes: list[str],
) -> Array:
    """The terminal rows: those that the file states, or those of its episode ends that `done_means` calls terminal."""
    stated = columns.get("terminated")
    marked = stated if stated is not None else columns.get("done", ends)
    if "truncated" in columns:
        return stated if stated is not None else marked & ~columns["truncated"]
    if done_means is None:
        if stated is None:
            answers = "; ".join(f"{answer}: {meaning}" for answer, meaning in DONE_MEANS.items())
            raise UserError(f"{place}: says where episodes end but not why: give done_means ({answers})")
        return stated
    last = np.flatnonzero(ends)
    if done_means == "terminal":
        over = np.ones(len(last), np.bool_)
    elif done_means == "timeout":
        over = np.zeros(len(last), np.bool_)
    else:
        over = ~_limited(np.diff(last, prepend=-1), time_limit)
    terminated = np.zeros(len(ends), np.bool_)
    terminated[last] = marked[last] & over
    notes.append(f"done_means={done_means}: {terminated.sum()} of {len(last)} episodes ended at a terminal state")
    return terminated


def _limited(lengths: Array, time_limit: int | None) -> Array:
    """Which episodes a time limit ended: those as long as it, or one step shorter if the file omits last steps."""
    if time_limit is None:
        raise UserError(
            "done_means=auto: needs the time limit of the environment, which is not known; give terminal or timeout"
        )
    full: Array = lengths == time_limit
    return full if full.any() else lengths == time_limit - 1


def _with_successors(rows: Mapping[str, Array], ends: Array, place: str, notes: list[str]) -> dict[str, Array]:
    """Use the next row's observation as the successor, and leave out truncated rows, which have no successor.

    The row before a left-out one is then the last of its episode. A terminal row gets its own observation as the
    successor, since its value is never used.
    """
    obs, over = rows["obs"], rows["terminated"]
    lost = ends & ~over
    if lost.all():
        raise UserError(f"{place}: no row has a successor; give next_observations, or episodes of several steps")
    following = np.concatenate([obs[1:], obs[-1:]])
    following[over] = obs[over]
    truncated = rows["truncated"].copy()
    truncated[:-1] |= lost[1:] & ~ends[:-1]
    if over.any():
        notes.append(f"{over.sum()} terminal rows have their own observation as the next one, since none is given")
    if lost.any():
        notes.append(f"{lost.sum()} rows left out: an episode was cut off there, and its next observation is unknown")
    whole = {**rows, "next_obs": following, "truncated": truncated}
    return {name: array[~lost] for name, array in whole.items()}


def from_replay(replay: Replay, source: Mapping[str, Any]) -> OfflineDataset:
    """The contents of a replay buffer: environment after environment, from the oldest to the newest transition."""
    full, histories = replay.full_rings(), replay.histories()
    full = np.array([there for there, slots in zip(full, histories, strict=True) if slots.size], np.bool_)
    histories = [slots for slots in histories if slots.size]
    if not histories:
        raise UserError(f"{place_of(source)}: the replay is empty; there is nothing to learn from")
    slots = np.concatenate(histories)
    (action_shape, action_dtype), obs = replay.info.stored_action, (len(slots), *replay.info.obs_shape)
    columns = {
        "obs": np.empty(obs, replay.info.obs_dtype),
        "action": np.empty((len(slots), *action_shape), action_dtype),
        "reward": np.empty(len(slots), np.float32),
        "next_obs": np.empty(obs, replay.info.obs_dtype),
        "terminated": np.empty(len(slots), np.bool_),
        "truncated": np.empty(len(slots), np.bool_),
    }
    for first in range(0, len(slots), _BLOCK):
        step = replay.gather(slots[first : first + _BLOCK], gamma=1.0)
        for name, column in columns.items():
            column[first : first + _BLOCK] = getattr(step, name)
    sizes = np.array([history.size for history in histories])
    newest = np.cumsum(sizes) - 1
    unfinished = ~(columns["terminated"] | columns["truncated"])[newest]
    columns["truncated"][newest] |= unfinished
    ends = columns["terminated"] | columns["truncated"]
    starts = np.flatnonzero(np.append(True, ends[:-1]))
    # A full ring buffer has overwritten the beginning of its oldest episode.
    cut_rows = np.concatenate([newest[unfinished], (newest - sizes + 1)[full]])
    partial = tuple(np.unique(np.searchsorted(starts, cut_rows, side="right") - 1).tolist())
    return OfflineDataset(**columns, starts=starts, source={**source, "action_units": "normalized"}, partial=partial)


def fit_dataset(dataset: OfflineDataset, info: SpaceInfo, action_units: str = "auto") -> OfflineDataset:
    """The dataset in the policy's units; raises a UserError if it does not fit the environment's spaces.

    `action_units` are those of a continuous action in the file: the environment's own, `normalized` to [-1, 1],
    `clipped` (the environment's own, clipped to the bounds), or `auto`: stated in the file, or guessed from the data.
    """
    if action_units not in ACTION_UNITS:
        raise UserError(f"action_units={action_units!r}: must be one of {', '.join(ACTION_UNITS)}")
    place, notes = place_of(dataset.source), list(dataset.source.get("notes", ()))
    obs, next_obs = (_fit_observations(array, info, place) for array in (dataset.obs, dataset.next_obs))
    if info.continuous:
        action = _fit_numbers(dataset, info, action_units, place, notes)
    else:
        action = _fit_choices(dataset, info, place)
    source = {**dataset.source, "action_units": "normalized", "notes": tuple(notes)}
    return replace(dataset, obs=obs, next_obs=next_obs, action=action, source=source)


def _fit_observations(obs: Array, info: SpaceInfo, place: str) -> Array:
    if isinstance(info.coding, Choices) and obs.shape[1:] in (info.coding.shape, (*info.coding.shape, 1)):
        try:
            obs = coded(obs.reshape(-1, *info.coding.shape).astype(np.int64), info.coding)
        except ValueError as error:
            raise UserError(f"{place}: an observation {error}, as those of the environment") from None
    if obs.shape[1:] != info.obs_shape:
        if info.packed:
            kind = "are a Dict" if info.obs_kind == "dict" else "come with an action mask"
            raise UserError(
                f"{place}: observations have shape {obs.shape[1:]}, and those of the environment {kind}: for such a "
                "dataset give a function, module:function of a SpaceInfo, that packs observations as the policy sees "
                "them (rl_training.ops.observations.pack), or a run, whose replay is used"
            )
        raise UserError(
            f"{place}: observations have shape {obs.shape[1:]}, those of the environment {info.obs_shape}: the data "
            "is from another environment"
        )
    if info.obs_dtype == "uint8" and obs.dtype != np.uint8 and ((obs < 0) | (obs > 255) | (obs % 1 != 0)).any():
        raise UserError(f"{place}: observations are {obs.dtype}; those of the environment are bytes (0 to 255)")
    return np.ascontiguousarray(obs, info.obs_dtype)


def _fit_shape(action: Array, shapes: tuple[tuple[int, ...], ...], place: str) -> Array:
    """Actions as rows of the last of `shapes`; all of `shapes` are accepted."""
    if action.shape[1:] not in shapes:
        raise UserError(f"{place}: actions have shape {action.shape[1:]}, those of the environment {shapes[0]}")
    return action.reshape(len(action), *shapes[-1])


def _fit_numbers(dataset: OfflineDataset, info: SpaceInfo, asked: str, place: str, notes: list[str]) -> Array:
    """Continuous actions in [-1, 1], `[N, size]` of float32."""
    scalar: tuple[tuple[int, ...], ...] = ((),) if info.action_size == 1 else ()
    shapes = (info.action_shape, *scalar, (info.action_size,))
    action = _fit_shape(dataset.action, shapes, place).astype(np.float64)
    bounds = np.asarray(info.action_low, np.float64), np.asarray(info.action_high, np.float64)
    units = asked if asked in ("environment", "normalized") else dataset.source.get("action_units")
    if units is None:
        units = "normalized" if _looks_normalized(action, *bounds) else "environment"
        if units == "normalized":
            notes.append(f"actions lie in [-1, 1] and the bounds are {_span(*bounds)}: taken as normalized")
            _LOG.info("%s: %s", place, notes[-1])
    low, high = bounds if units == "environment" else (-np.ones_like(bounds[0]), np.ones_like(bounds[1]))
    span = high - low
    outside = ((action < low - 1e-3 * span) | (action > high + 1e-3 * span)).any(axis=1)
    if outside.any():
        found = f"{outside.sum()} of {len(action)} actions, from {action.min():g} to {action.max():g}, are outside"
        if asked != "clipped":
            raise UserError(
                f"{place}: {found} the bounds {_span(low, high)}; action_units=clipped brings them to the bounds, "
                "action_units=normalized takes all as in [-1, 1]"
            )
        notes.append(f"{found} the bounds {_span(low, high)}: clipped")
        _LOG.info("%s: %s", place, notes[-1])
    scaled = 2.0 * (action - low) / np.where(span > 0.0, span, 1.0) - 1.0 if units == "environment" else action
    return np.clip(scaled, -1.0, 1.0).astype(np.float32)


def _looks_normalized(action: Array, low: Array, high: Array) -> bool:
    """Whether actions fill [-1, 1] and do not leave it, although the environment's bounds are different."""
    others = np.maximum(np.abs(low + 1.0), np.abs(high - 1.0)) > 0.01
    largest = np.abs(action).max(axis=0)
    return bool(others.any() and (largest <= 1.0).all() and (largest[others] >= 0.99).all())


def _span(low: Array, high: Array) -> str:
    """The bounds of an action as text, printed once if they are the same for all of its numbers."""
    if len(np.unique(low)) == len(np.unique(high)) == 1:
        return f"[{low[0]:g}, {high[0]:g}]"
    return f"{[f'{x:g}' for x in low]} to {[f'{x:g}' for x in high]}"


def _fit_choices(dataset: OfflineDataset, info: SpaceInfo, place: str) -> Array:
    """Discrete actions counted from 0, `[N]` or `[N, choices]` of int64."""
    size = math.prod(info.action_shape)
    shapes = ((), (1,), ()) if info.action_kind == "discrete" else (info.action_shape, (size,))
    given = _fit_shape(dataset.action, shapes, place)
    broken = np.flatnonzero((given % 1 != 0).reshape(len(given), -1).any(axis=1))
    if broken.size:
        raise UserError(f"{place}: the action of row {broken[0]} is {given[broken[0]]}; a whole number is needed")
    normalized = dataset.source.get("action_units") == "normalized"
    starts = np.zeros(size, np.int64) if normalized else np.asarray(info.action_starts, np.int64)
    counted = given.astype(np.int64).reshape(len(given), -1) - starts
    outside = ((counted < 0) | (counted >= np.asarray(info.action_counts))).any(axis=1)
    if outside.any():
        row = outside.argmax()
        allowed = ", ".join(f"{first} to {first + n - 1}" for first, n in zip(starts, info.action_counts, strict=True))
        raise UserError(
            f"{place}: the action of row {row} is {given[row]}; the environment allows {allowed} "
            f"({outside.sum()} of {len(given)} actions are outside)"
        )
    return np.ascontiguousarray(counted.reshape(given.shape))
