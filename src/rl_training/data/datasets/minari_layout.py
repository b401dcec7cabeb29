"""Minari's layout of datasets on disk, read and written with h5py alone.

A dataset is a folder `<namespace>/<name>-v<k>/data` of two files: the episodes, one HDF5 group each, and metadata in
JSON. An episode of T steps has T + 1 observations.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.data.claims import Claims, read_json
from rl_training.data.datasets.columns import jumps, place_of, read_columns
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.hdf5 import (
    claimed,
    is_array,
    load_h5py,
    member,
    names_in,
    open_hdf5,
    read_array,
    whole_attribute,
)
from rl_training.types import Array, UserError

_EPISODES_FILE = "main_data.hdf5"
_METADATA_FILE = "metadata.json"
_NAMESPACE_FILE = "namespace_metadata.json"
# The first version with a setting for images that are not JPEG-encoded.
_MINARI_VERSION = "0.5.4"
_ID = re.compile(r"(?P<namespace>[-\w]{2,}(?:/[-\w]+)*/)?[-\w]+-v\d+")
_SUPPORTED = {"observations": ("Box",), "actions": ("Box", "Discrete", "MultiDiscrete", "MultiBinary")}
# How many more rows than rewards each column of an episode has.
_COLUMNS = {"observations": 1, "actions": 0, "rewards": 0, "terminations": 0, "truncations": 0}


def is_minari_id(name: str) -> bool:
    """Whether this is `name-v0`, optionally with a namespace as in `pendulum/medium-v0`."""
    return _ID.fullmatch(name) is not None


def datasets_folder() -> Path:
    """Where Minari keeps its datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def read_minari(folder: Path) -> OfflineDataset:
    """All episodes of a dataset, in their order; `folder` is the one with `data` in it."""
    load_h5py(str(folder))
    metadata = _read_metadata(folder / "data" / _METADATA_FILE)
    shapes = dict.fromkeys(_COLUMNS, ()) | {
        name: _stored_shape(metadata, name, folder) for name in ("observations", "actions")
    }
    file = folder / "data" / _EPISODES_FILE
    claims = Claims(file)
    with open_hdf5(file) as opened:
        names = _episode_names(opened, file)
        for name in names:
            for column, array in _columns_of(opened, name, file, shapes).items():
                claims.add(f"{column} of {name}", claimed(array, f"{str(file)!r}, {name}: {column!r}"))
        claims.check()
        episodes, seeds = [], []
        for name in names:
            group = member(opened, name, repr(str(file)))
            episodes.append({column: read_array(member(group, column, name)) for column in _COLUMNS})
            seeds.append(whole_attribute(group, "seed"))
    expected = metadata.get("total_episodes", len(episodes))
    if not episodes or len(episodes) != expected:
        raise UserError(f"{str(file)!r}: has {len(episodes)} episodes; {_METADATA_FILE} says {expected!r:.80}")
    return from_episodes(episodes, _source(folder, metadata, seeds))


def _episode_names(opened: Any, file: Path) -> list[str]:
    """The groups of the episodes, in the order of their numbers."""
    numbers = {name: name.removeprefix("episode_") for name in names_in(opened)}
    for name, number in numbers.items():
        if not (number.isascii() and number.isdigit()):
            raise UserError(f"{str(file)!r}: has {name!r:.80} among its episodes, which are called episode_<number>")
    return sorted(numbers, key=lambda name: int(numbers[name]))


def _read_metadata(file: Path) -> dict[str, Any]:
    try:
        metadata = read_json(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{str(file)!r}: is missing or damaged ({error})") from None
    if not isinstance(metadata, dict):
        raise UserError(f"{str(file)!r}: is damaged (it is not a mapping)")
    if metadata.get("data_format", "hdf5") != "hdf5":
        raise UserError(f"{str(file)!r}: data_format is {metadata['data_format']!r:.80}; only hdf5 can be read")
    return metadata


def _stored_shape(metadata: Mapping[str, Any], name: str, folder: Path) -> tuple[int, ...] | None:
    """The shape of one observation or action, or None if unknown; an unsupported space is an error."""
    key = f"{name.removesuffix('s')}_space"
    if key not in metadata:  # old datasets have only the environment
        return None
    try:
        space = json.loads(metadata[key])
        kind = space["type"]
        if kind in _SUPPORTED[name]:
            return _shape_of(space)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(f"{str(folder / 'data' / _METADATA_FILE)!r}: {key} is damaged ({error!r:.80})") from None
    known = ", ".join(_SUPPORTED[name])
    raise UserError(f"{str(folder)!r}: {name} of {kind!s:.80} are not supported, only of {known}")


def _shape_of(space: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of the elements of a space in Minari's JSON."""
    if space["type"] == "MultiDiscrete":
        return np.shape(space["nvec"])
    if space["type"] == "Discrete":
        return ()
    sizes = space["shape"] if space["type"] == "Box" else space["n"]
    return tuple(int(size) for size in np.atleast_1d(sizes))


def _columns_of(opened: Any, name: str, file: Path, shapes: Mapping[str, tuple[int, ...] | None]) -> dict[str, Any]:
    """The arrays of an episode, which have not been read yet."""
    where = f"{str(file)!r}, {name}"
    group = member(opened, name, repr(str(file)))
    if is_array(group):
        raise UserError(f"{where}: is an array; an episode is a group of them")
    columns = {column: member(group, column, where) for column in _COLUMNS}
    for column, array in columns.items():
        if array is None:
            raise UserError(f"{where}: has no {column!r}")
        if not is_array(array):
            raise UserError(f"{where}: {column!r} has several parts (a Dict or a Tuple), which is not supported")
    steps = columns["rewards"].shape[0]
    if steps == 0:
        raise UserError(f"{where}: has no steps")
    for column, array in columns.items():
        _check_column(column, array, steps, where, shapes[column])
    return columns


def _check_column(column: str, array: Any, steps: int, where: str, shape: tuple[int, ...] | None) -> None:
    """Raise a UserError if a column of an episode is not as long, or not of the shape or kind, that it must be."""
    (found, *each), rows, dtype = array.shape, steps + _COLUMNS[column], array.dtype
    if found != rows:
        raise UserError(f"{where}: has {found} {column} for {steps} rewards; it must be {rows}")
    if shape is not None and tuple(each) != shape:
        if len(shape) > 1 and dtype.kind in "uO":
            raise UserError(f"{where}: {column} are JPEG-encoded; write the dataset with jpeg_encoding=False")
        raise UserError(f"{where}: {column} have the shape {tuple(each)}; it must be {shape}")
    if dtype.kind not in "fiub":
        raise UserError(f"{where}: {column} are {dtype}, not numbers")


def _source(folder: Path, metadata: Mapping[str, Any], seeds: Sequence[int | None]) -> dict[str, Any]:
    source: dict[str, Any] = {"format": "minari", "path": str(folder), "action_units": "environment"}
    for key, is_kind in _FACTS.items():
        value = metadata.get(key)
        if value is not None and not is_kind(value):
            raise UserError(f"{str(folder / 'data' / _METADATA_FILE)!r}: {key} is {value!r:.80}, which it cannot be")
        source |= {} if value is None else {key: value}
    source |= _environment(metadata.get("env_spec"))
    if all(seed is not None for seed in seeds):
        source["episode_seeds"] = [*seeds]
    return source


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# What is taken over from the metadata, and which kind of value it must be.
_FACTS = {"dataset_id": _is_text, "minari_version": _is_text, "ref_min_score": _is_number, "ref_max_score": _is_number}


def _environment(env_spec: Any) -> dict[str, Any]:
    """What Gymnasium's description of the environment says; it is optional, and no number here depends on it."""
    try:
        spec = json.loads(env_spec)
        env_id, more = spec["id"], {"env_kwargs": spec.get("kwargs"), "time_limit": spec.get("max_episode_steps")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    limit = more["time_limit"]
    whole = isinstance(more["env_kwargs"], dict) and (limit is None or (type(limit) is int and limit > 0))
    return {"env_id": env_id} | (more if whole else {}) if isinstance(env_id, str) else {}


def from_episodes(episodes: Sequence[Mapping[str, Array]], source: Mapping[str, Any]) -> OfflineDataset:
    """Episodes as Minari has them, with T + 1 `observations` each, as one dataset."""

    def joined(name: str, rows: slice = slice(None)) -> Array:
        return np.concatenate([episode[name][rows] for episode in episodes])

    lengths = np.array([len(episode["rewards"]) for episode in episodes])
    ends = np.cumsum(lengths)
    flat = {name: joined(name) for name in _COLUMNS if name != "observations"} | {
        "observations": joined("observations", slice(None, -1)),
        "next_observations": joined("observations", slice(1, None)),
    }
    columns = read_columns(flat, place_of(source))
    unfinished = ~(columns["terminated"] | columns["truncated"])[ends - 1]
    columns["truncated"][ends - 1] |= unfinished  # the data ends there
    partial = tuple(np.flatnonzero(unfinished).tolist())
    return OfflineDataset(**columns, starts=ends - lengths, source=source, partial=partial)


def write_minari(
    folder: Path,
    dataset: OfflineDataset,
    *,
    dataset_id: str,
    observation_space: Space[Any],
    action_space: Space[Any],
    env_spec: str | None = None,
    seeds: Sequence[int] | None = None,
    description: str | None = None,
) -> Path:
    """Write a dataset below `folder`, the place of all datasets, under its id; it appears whole or not at all.

    `env_spec` is the JSON of Gymnasium's spec; `seeds` are those that the episodes were reset with.
    """
    h5py, target = load_h5py(dataset_id), free_place(folder, dataset_id)
    if dataset.source.get("action_units") != "environment":
        raise UserError(f"{dataset_id!r}: actions must be in the environment's units, as they are in Minari's layout")
    metadata = {
        "dataset_id": dataset_id,
        "total_episodes": dataset.n_episodes,
        "total_steps": len(dataset),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "minari_version": _MINARI_VERSION,
        "observation_space": json.dumps(_described(observation_space)),
        "action_space": json.dumps(_described(action_space)),
        "env_spec": env_spec,
        "description": description,
        **{key: dataset.source.get(key) for key in ("ref_min_score", "ref_max_score")},
    }
    draft = target.with_name(f".draft-{target.name}-{os.getpid()}")
    try:
        (draft / "data").mkdir(parents=True)
        file = draft / "data" / _EPISODES_FILE
        with h5py.File(file, "w") as opened:
            _write_episodes(opened, dataset, seeds or [None] * dataset.n_episodes)
        metadata["dataset_size"] = round(file.stat().st_size / 1e6, 1)
        known = {key: value for key, value in metadata.items() if value is not None}
        (draft / "data" / _METADATA_FILE).write_text(json.dumps(known))
        _describe_namespaces(folder, target)
        os.rename(draft, target)
    except OSError as error:
        raise UserError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def free_place(folder: Path, dataset_id: str) -> Path:
    """The folder of a new dataset; raises a UserError if h5py is missing or the id is malformed or taken."""
    load_h5py(dataset_id)
    if not is_minari_id(dataset_id):
        raise UserError(f"{dataset_id!r}: is not a Minari id; they look like medium-v0 or pendulum/medium-v0")
    target = folder / dataset_id
    if target.exists():
        raise UserError(f"{dataset_id!r}: already exists ({target}); give another version, or remove it")
    return target


def _described(space: Space[Any]) -> dict[str, Any]:
    """A space as Minari writes it."""
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": str(space.dtype), **numbers}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(size) for size in space.n]}
    if isinstance(space, spaces.Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
    raise UserError(f"{space}: cannot be written in Minari's layout, only {', '.join(_SUPPORTED['actions'])}")


def _write_episodes(file: Any, dataset: OfflineDataset, seeds: Sequence[int | None]) -> None:
    for number, (start, length, seed) in enumerate(zip(dataset.starts, dataset.lengths, seeds, strict=True)):
        rows = slice(start, start + length)
        obs, next_obs = dataset.obs[rows], dataset.next_obs[rows]
        if jumps(obs, next_obs).any():
            raise UserError(
                f"episode {number}: a next observation is not the next row's observation; Minari's layout stores both "
                "once"
            )
        group = file.create_group(f"episode_{number}")
        group.attrs["id"], group.attrs["total_steps"] = number, int(length)
        if seed is not None:
            group.attrs["seed"] = seed
        columns = {
            "observations": np.concatenate([obs, next_obs[-1:]]),
            "actions": dataset.action[rows],
            "rewards": dataset.reward[rows].astype(np.float64),
            "terminations": dataset.terminated[rows],
            "truncations": dataset.truncated[rows],
        }
        for name, column in columns.items():
            group.create_dataset(name, data=column)


def _describe_namespaces(folder: Path, target: Path) -> None:
    """Write the metadata file that Minari expects in every namespace folder above a dataset."""
    for namespace in target.parents:
        if namespace == folder:
            break
        file = namespace / _NAMESPACE_FILE
        if not file.exists():
            file.write_text("{}")
