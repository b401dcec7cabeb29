"""Datasets on disk: found by path or Minari id, read in any supported format, written as npz."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.claims import check_plain_file
from rl_training.data.datasets.arrays import from_arrays, from_replay
from rl_training.data.datasets.columns import FACTS, KEYS, NOTES, USED_KEYS, nearest
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.npz import read_npz
from rl_training.types import UserError

_EPISODES_FILE = "main_data.hdf5"
_FORMATS = "an .npz or .hdf5 file, a folder in Minari's layout, or the folder of a saved replay"


def read_dataset(
    name: str, *, done_means: str | None = None, time_limit: int | None = None, rewards_needed: bool = True
) -> OfflineDataset:
    """Read the dataset at a path, or a local Minari dataset by its id; nothing in it is executed."""
    path = Path(name).expanduser()
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        return _read_id(name)
    check_plain_file(path)
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise UserError(f"{name!r}: cannot be read as a dataset; it must be {_FORMATS}")
    arrays = read(path, USED_KEYS)
    if not arrays and path.name == _EPISODES_FILE:
        return _read_folder(path.parent)
    source = {"format": path.suffix.lower().removeprefix("."), "path": str(path)}
    return from_arrays(
        arrays, source=source, done_means=done_means, time_limit=time_limit, rewards_needed=rewards_needed
    )


def to_arrays(dataset: OfflineDataset) -> dict[str, Any]:
    """The dataset in our own flat layout, which `from_arrays` reads."""
    columns = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    arrays: dict[str, Any] = {KEYS[column][0]: getattr(dataset, column) for column in columns}
    if dataset.n_episodes - 1 in dataset.partial:  # a last row without an end marks the episode as incomplete
        arrays[KEYS["truncated"][0]] = np.append(dataset.truncated[:-1], False)
    arrays |= {name: np.asarray(dataset.source[name]) for name in FACTS if dataset.source.get(name) is not None}
    return arrays | {NOTES: np.asarray(dataset.source.get("notes", ()), np.str_)}


def save_npz(dataset: OfflineDataset, path: str | Path) -> Path:
    """Write the dataset in the flat layout, replacing an existing file; it appears whole or not at all."""
    path = Path(path)
    if path.suffix != ".npz":
        raise UserError(f"{str(path)!r}: must end with .npz, or it could not be read again")
    arrays = to_arrays(dataset)
    draft = path.with_name(f".draft-{path.name}-{os.getpid()}")
    try:
        with draft.open("wb") as opened:
            np.savez_compressed(opened, **arrays)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def _read_folder(folder: Path) -> OfflineDataset:
    if (folder / "data" / _EPISODES_FILE).is_file():
        return _read_minari(folder)
    if folder.name == "data" and (folder / _EPISODES_FILE).is_file():
        return _read_minari(folder.parent)
    if (folder / "replay.json").is_file():
        from rl_training.data.replay import Replay

        return from_replay(Replay.load(folder), {"format": "replay", "path": str(folder)})
    raise UserError(f"{str(folder)!r}: is a folder, but no dataset; it must be {_FORMATS}")


def _read_minari(folder: Path) -> OfflineDataset:
    from rl_training.data.datasets.minari_layout import read_minari

    return read_minari(folder)


def _read_id(name: str) -> OfflineDataset:
    from rl_training.data.datasets.minari_layout import datasets_folder, is_minari_id

    if not is_minari_id(name):
        raise UserError(f"{name!r}: there is no such file or folder (and a Minari id looks like 'namespace/name-v0')")
    root = datasets_folder()
    if not (root / name).is_dir():
        known = sorted(str(found.parents[1].relative_to(root)) for found in root.rglob(f"data/{_EPISODES_FILE}"))
        raise UserError(
            f"{name!r}: there is no such file, and no Minari dataset of this id in {str(root)!r}{nearest(name, known)} "
            "(nothing is downloaded: `minari download` does that)"
        )
    return _read_folder(root / name)


def _read_hdf5(path: Path, wanted: Container[str]) -> dict[str, Any]:
    from rl_training.data.datasets.hdf5 import read_hdf5

    return read_hdf5(path, wanted)


_READERS: dict[str, Callable[[Path, Container[str]], dict[str, Any]]] = {
    ".npz": read_npz,
    ".hdf5": _read_hdf5,
    ".h5": _read_hdf5,
}
