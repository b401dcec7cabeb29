"""A replay buffer saved as a folder: raw bytes, and a description in JSON. Nothing in it is executed."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.chunks import ChunkedArray
from rl_training.types import Array, ObsPart, SpaceInfo, UserError

_FORMAT = 1
_DESCRIPTION = "replay.json"


def write_folder(folder: str | Path, description: Mapping[str, Any], arrays: Mapping[str, ChunkedArray]) -> Path:
    """Write under a draft name, then rename: the folder appears whole or not at all."""
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"{str(folder)!r}: already exists; give another name, or remove it")
    draft = folder.with_name(f".draft-{folder.name}-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        sums: dict[str, list[int]] = {name: [] for name in arrays}
        for name, array in arrays.items():
            for number, chunk in enumerate(array.chunks()):
                _write(draft / f"{name}_{number:05d}.bin", chunk.data)
                sums[name].append(zlib.crc32(chunk.data))
        content = {"format": _FORMAT, **description, "checksums": sums}
        _write(draft / _DESCRIPTION, (json.dumps(content, indent=2) + "\n").encode())
        os.rename(draft, folder)
    except OSError as error:
        raise UserError(f"cannot write {str(folder)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _write(file: Path, content: Any) -> None:
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def read_description(folder: Path) -> dict[str, Any]:
    """The description that `write_folder` wrote, with the checksums; raises a ValueError if it is not valid."""
    content = json.loads((folder / _DESCRIPTION).read_text())
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"{_DESCRIPTION} is not of format {_FORMAT}")
    return content


def read_info(plain: Mapping[str, Any]) -> SpaceInfo:
    """The SpaceInfo of a dictionary from `SpaceInfo.to_dict` that went through JSON."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    values["parts"] = tuple(ObsPart(part["name"], tuple(part["shape"]), part["dtype"]) for part in plain["parts"])
    return SpaceInfo(**values)


def load_arrays(folder: Path, description: Mapping[str, Any], arrays: Mapping[str, ChunkedArray]) -> None:
    """Fill arrays from the files of a folder; raises a ValueError that names a damaged file."""
    for name, array in arrays.items():
        sums = description["checksums"][name]
        array.load([_read(folder / f"{name}_{number:05d}.bin", total, array) for number, total in enumerate(sums)])


def _read(file: Path, checksum: int, array: ChunkedArray) -> Array:
    content = file.read_bytes()
    if zlib.crc32(content) != checksum:
        raise ValueError(f"{file.name} is not what was written")
    return np.frombuffer(content, array.data.dtype).reshape(-1, *array.data.shape[1:])
