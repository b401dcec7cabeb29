"""The columns of a flat file of transitions: found by their keys, checked, and converted to their dtypes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rl_training.types import Array, UserError

# The keys of each column in the common layouts: D4RL's key first, which is also ours.
KEYS = {
    "obs": ("observations", "obs"),
    "action": ("actions",),
    "reward": ("rewards",),
    "next_obs": ("next_observations", "next_obs"),
    "terminated": ("terminals", "terminations"),
    "truncated": ("timeouts", "truncations"),
    "done": ("dones",),
    "episode_start": ("episode_starts",),
}
FACTS = ("env_id", "action_units", "ref_min_score", "ref_max_score")
NOTES = "notes"
USED_KEYS = frozenset([NOTES, *FACTS, *(key for keys in KEYS.values() for key in keys)])
_ENDS = ("terminated", "done", "episode_start")
_TOLERANCE = 1e-6
_MOST_NOTES, _LONGEST_NOTE = 100, 10_000
_BLOCK = 4096  # rows at a time: comparing all images at once would double the memory


def place_of(source: Mapping[str, Any]) -> str:
    """The beginning of a message about a dataset."""
    return repr(str(source["path"])) if source.get("path") else "the dataset"


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known word is similar, else an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def read_columns(arrays: Mapping[str, Any], place: str, *, rewards_needed: bool = True) -> dict[str, Array]:
    """The columns in the file, by our names: all equally long, contiguous and finite."""
    names = _names(arrays, place, ("obs", "action", "reward") if rewards_needed else ("obs", "action"))
    columns = {column: _column(column, key, arrays[key], place) for column, key in names.items()}
    rows = len(columns["obs"])
    if rows == 0:
        raise UserError(f"{place}: {names['obs']} is empty; there is nothing to learn from")
    for column, array in columns.items():
        if len(array) != rows:
            raise UserError(
                f"{place}: {names[column]} has {len(array)} rows and {names['obs']} has {rows}; every key needs one "
                "row for each step"
            )
    obs, next_obs = columns["obs"], columns.get("next_obs", columns["obs"])
    if (obs.shape, obs.dtype) != (next_obs.shape, next_obs.dtype):
        raise UserError(
            f"{place}: rows of {names['next_obs']} are {next_obs.shape[1:]} {next_obs.dtype}, those of {names['obs']} "
            f"{obs.shape[1:]} {obs.dtype}; they must be the same"
        )
    return columns


def read_facts(arrays: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The file's metadata, and `notes`: those stored in it, and one on its unused keys."""
    facts = {name: np.asarray(arrays[name]).item() for name in FACTS if name in arrays and np.ndim(arrays[name]) == 0}
    for name, value in facts.items():
        text = name in ("env_id", "action_units")
        if not (isinstance(value, str) if text else isinstance(value, (int, float)) and np.isfinite(value)):
            raise UserError(f"{place}: {name} is {value!r:.80}; {'a text' if text else 'a finite number'} is needed")
    if facts.get("action_units", "environment") not in ("environment", "normalized"):
        raise UserError(f"{place}: action_units is {facts['action_units']!r:.80}; it is environment or normalized")
    unused = [key for key in arrays if key not in facts and (key not in USED_KEYS or key in FACTS)]
    listed = [f"keys that have no use here: {_one_line(', '.join(unused))}"] if unused else []
    return {**facts, "notes": [*_read_notes(arrays.get(NOTES, [])), *listed]}


def _read_notes(stored: Any) -> list[str]:
    """The notes of a file, fit to be printed."""
    notes = np.ravel(np.asarray(stored))
    return [_one_line(str(note)) for note in notes[:_MOST_NOTES]] if notes.dtype.kind == "U" else []


def _one_line(text: str) -> str:
    """A text of a file as it may be shown: without what a terminal would obey, and of a length that can be read."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST_NOTE])
    return shown + ("..." if len(text) > _LONGEST_NOTE else "")


def jumps(obs: Array, next_obs: Array) -> Array:
    """Where the successor of a row is not the observation of the row after it, `[N - 1]`."""
    after, parts = obs[1:], tuple(range(1, obs.ndim))
    found = np.zeros(len(after), np.bool_)
    for first in range(0, len(after), _BLOCK):
        mine, following = next_obs[:-1][first : first + _BLOCK], after[first : first + _BLOCK]
        other = np.flatnonzero((mine != following).any(axis=parts))
        near = np.isclose(mine[other], following[other], rtol=_TOLERANCE, atol=_TOLERANCE)
        found[first + other] = ~near.all(axis=parts)
    return found


def _names(arrays: Mapping[str, Any], place: str, needed: Iterable[str]) -> dict[str, str]:
    """The key of every column in the file."""
    names: dict[str, str] = {}
    for column, keys in KEYS.items():
        given = [key for key in keys if key in arrays]
        if len(given) > 1:
            raise UserError(f"{place}: has both {given[0]} and {given[1]}, which mean the same; keep one")
        if given:
            names[column] = given[0]
    for column in needed:
        if column not in names:
            raise _missing(KEYS[column], arrays, place)
    if not names.keys() & set(_ENDS):
        raise _missing([key for column in _ENDS for key in KEYS[column]], arrays, place)
    return names


def _missing(wanted: Iterable[str], arrays: Mapping[str, Any], place: str) -> UserError:
    first, *others = wanted
    also = f" (or {', '.join(others)})" if others else ""
    there = ", ".join(sorted(arrays)) or "nothing"
    return UserError(f"{place}: {first}{also} is missing{nearest(first, arrays)} (there is: {there})")


def _column(column: str, key: str, value: Any, place: str) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        raise UserError(f"{place}: {key} is not one array; every row needs the same shape") from None
    if array.dtype.kind not in "fiub":
        raise UserError(f"{place}: {key} holds {array.dtype}; numbers are needed")
    if column in ("obs", "next_obs"):
        if array.ndim < 2:
            raise UserError(f"{place}: {key} has shape {array.shape}; it needs a row of numbers for each step")
        return _finite(array, key, place, "uint8" if array.dtype == np.uint8 else "float32")
    if column == "action":
        if array.ndim < 1:
            raise UserError(f"{place}: {key} has shape {array.shape}; it needs one action for each step")
        return _finite(array, key, place, "float32" if array.dtype.kind == "f" else "int64")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(f"{place}: {key} has shape {array.shape}; it needs one number for each step")
    numbers = _finite(array, key, place, "float32")
    return numbers if column == "reward" else _flags(numbers, key, place)


def _finite(array: Array, key: str, place: str, dtype: str) -> Array:
    """A contiguous array of this dtype; a NaN, or a number that the dtype cannot hold, is an error with its row."""
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(array, dtype)
    if converted.dtype.kind == "f":
        bad = ~np.isfinite(converted)
        if bad.any():
            first = tuple(int(axis[0]) for axis in np.nonzero(bad))
            rows = int(bad.reshape(len(bad), -1).any(axis=1).sum())
            raise UserError(
                f"{place}: {key} is {array[first]} in row {first[0]}; all must be finite numbers ({rows} rows are not)"
            )
    return converted


def _flags(numbers: Array, key: str, place: str) -> Array:
    bad = np.flatnonzero((numbers != 0) & (numbers != 1))
    if bad.size:
        raise UserError(f"{place}: {key} is {numbers[bad[0]]} in row {bad[0]}; it must be 0 or 1")
    return numbers.astype(np.bool_)
