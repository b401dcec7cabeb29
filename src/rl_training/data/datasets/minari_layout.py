"""Minari's layout of datasets on disk, read and written with h5py alone.

A dataset is a folder `<namespace>/<name>-v<k>/data` of two files: the episodes, one HDF5 group each, and metadata in
JSON. An episode of T steps has T + 1 observations.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.data.datasets.columns import jumps, place_of, read_columns
from rl_training.data.datasets.dataset import OfflineDataset
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
    h5py = load_h5py(str(folder))
    metadata = _read_metadata(folder / "data" / _METADATA_FILE)
    shapes = dict.fromkeys(_COLUMNS, ()) | {
        name: _stored_shape(metadata, name, folder) for name in ("observations", "actions")
    }
    file = folder / "data" / _EPISODES_FILE
    try:
        with h5py.File(file, "r") as opened:
            numbered = sorted((int(name.removeprefix("episode_")), name) for name in opened)
            episodes = [_read_episode(opened[name], f"{str(file)!r}, {name}", shapes) for _, name in numbered]
            seeds = [opened[name].attrs.get("seed") for _, name in numbered]
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{str(file)!r}: is missing, damaged or foreign ({' '.join(str(error).split())})") from None
    expected = metadata.get("total_episodes", len(episodes))
    if not episodes or len(episodes) != expected:
        raise UserError(f"{str(file)!r}: has {len(episodes)} episodes; {_METADATA_FILE} says {expected}")
    return from_episodes(episodes, _source(folder, metadata, seeds))


def load_h5py(asked_by: str) -> Any:
    """Import h5py, or raise a UserError that says how to install it."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise UserError(
            f"{asked_by!r}: needs an extra that is not installed: pip install 'rl-training[minari]' ({error})"
        ) from error


def _read_metadata(file: Path) -> dict[str, Any]:
    try:
        metadata = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{str(file)!r}: is missing or damaged ({error})") from None
    if not isinstance(metadata, dict):
        raise UserError(f"{str(file)!r}: is damaged (it is not a mapping)")
    if metadata.get("data_format", "hdf5") != "hdf5":
        raise UserError(f"{str(file)!r}: data_format is {metadata['data_format']!r}; only hdf5 can be read")
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
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{str(folder / 'data' / _METADATA_FILE)!r}: {key} is damaged ({error!r})") from None
    raise UserError(f"{str(folder)!r}: {name} of {kind} are not supported, only of {', '.join(_SUPPORTED[name])}")


def _shape_of(space: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of the elements of a space in Minari's JSON."""
    if space["type"] == "MultiDiscrete":
        return np.shape(space["nvec"])
    if space["type"] == "Discrete":
        return ()
    sizes = space["shape"] if space["type"] == "Box" else space["n"]
    return tuple(int(size) for size in np.atleast_1d(sizes))


def _read_episode(group: Any, where: str, shapes: Mapping[str, tuple[int, ...] | None]) -> dict[str, Array]:
    columns = {name: group.get(name) for name in _COLUMNS}
    for name, column in columns.items():
        if column is None:
            raise UserError(f"{where}: has no {name!r}")
    steps = len(columns["rewards"])
    if steps == 0:
        raise UserError(f"{where}: has no steps")
    for name, column in columns.items():
        more = _COLUMNS[name]
        if not hasattr(column, "dtype"):
            raise UserError(f"{where}: {name!r} has several parts (a Dict or a Tuple), which is not supported")
        if len(column) != steps + more:
            raise UserError(f"{where}: has {len(column)} {name} for {steps} rewards; it must be {steps + more}")
        shape = shapes[name]
        if shape is not None and column.shape[1:] != shape:
            if len(shape) > 1 and column.dtype.kind in "uO":
                raise UserError(f"{where}: {name} are JPEG-encoded; write the dataset with jpeg_encoding=False")
            raise UserError(f"{where}: {name} have the shape {column.shape[1:]}; it must be {shape}")
        if column.dtype.kind not in "fiub":
            raise UserError(f"{where}: {name} are {column.dtype}, not numbers")
    return {name: column[()] for name, column in columns.items()}


def _source(folder: Path, metadata: Mapping[str, Any], seeds: Sequence[Any]) -> dict[str, Any]:
    source: dict[str, Any] = {"format": "minari", "path": str(folder), "action_units": "environment"}
    known = ("dataset_id", "minari_version", "ref_min_score", "ref_max_score")
    source |= {key: metadata[key] for key in known if metadata.get(key) is not None}
    with suppress(ValueError, KeyError, TypeError):  # the environment is optional, and nothing here depends on it
        spec = json.loads(metadata["env_spec"])
        source["env_id"] = spec["id"]
        source |= {"env_kwargs": spec["kwargs"], "time_limit": spec["max_episode_steps"]}
    if all(seed is not None for seed in seeds):
        source["episode_seeds"] = [int(seed) for seed in seeds]
    return source


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
