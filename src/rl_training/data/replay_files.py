"""A replay buffer saved as a folder: raw bytes, and a description in JSON. Nothing in it is executed."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from rl_training.data.checked_files import Entry, check_names, entry_of, read, seal, unseal
from rl_training.data.chunks import ChunkedArray
from rl_training.types import (
    ActionKind,
    Array,
    ArrayKind,
    Choices,
    Coding,
    ObsPart,
    Pixels,
    SpaceInfo,
    Text,
    UserError,
)

_FORMAT = 2
_DESCRIPTION = "replay.json"


def write_folder(folder: str | Path, description: Mapping[str, Any], arrays: Mapping[str, ChunkedArray]) -> Path:
    """Write under a draft name, then rename: the folder appears whole or not at all."""
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"{str(folder)!r}: already exists; give another name, or remove it")
    draft = folder.with_name(f".draft-{folder.name}-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        files = {}
        for name, array in arrays.items():
            for number, chunk in enumerate(array.chunks()):
                _write(draft / _chunk_name(name, number), chunk.data)
                files[_chunk_name(name, number)] = entry_of(chunk.data)
        _write(draft / _DESCRIPTION, seal({"format": _FORMAT, **description}, files))
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


def _chunk_name(array: str, number: int) -> str:
    return f"{array}_{number:05d}.bin"


def read_description(folder: Path) -> tuple[dict[str, Any], dict[str, Entry]]:
    """The description that `write_folder` wrote, and the entries of the files."""
    return unseal(folder / _DESCRIPTION, _FORMAT)


def read_info(plain: Any) -> SpaceInfo:
    """The SpaceInfo of a dictionary from `SpaceInfo.to_dict` that went through JSON; a ValueError if it is none."""
    if not isinstance(plain, Mapping):
        raise ValueError(f"the spaces are {plain!r:.80}, not a mapping")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    for name, value in values.items():
        if name not in _KINDS or not _KINDS[name](value):
            raise ValueError(f"{name} of the spaces is {value!r:.80}")
    choices = values.pop("obs_choices", None)  # of a Discrete space, before there were codings
    values["coding"] = _read_coding(values.get("coding")) if choices is None else _choices(*choices)
    values["parts"] = tuple(
        ObsPart(part["name"], tuple(part["shape"]), part["dtype"], _read_coding(part.get("coding")))
        for part in plain["parts"]
    )
    return SpaceInfo(**values)


def _choices(first: int, count: int) -> Choices:
    return Choices((first,), (count,), ())


def _read_coding(plain: Mapping[str, Any] | None) -> Coding | None:
    """The coding of a dictionary that `_coding` accepts."""
    if plain is None:
        return None
    kind = next(kind for kind, fields in _CODINGS.items() if fields.keys() == plain.keys())
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return kind(**values)


def read_kind(shape: Any, dtype: Any) -> ArrayKind:
    """The kind of a column out of a saved state; a ValueError if it is none."""
    if not _several(_count)(shape) or not _numeric(dtype):
        raise ValueError(f"a column is of {shape!r:.80} {dtype!r:.80}")
    return ArrayKind(tuple(shape), dtype)


def _whole(value: Any) -> bool:
    return type(value) is int


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _number(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value)


def _numeric(value: Any) -> bool:
    """Whether this names the type of numbers that arrays have."""
    return isinstance(value, str) and _NUMBERS.fullmatch(value) is not None


def _several(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple | list) and all(kind(item) for item in value)


def _part(value: Any) -> bool:
    if not isinstance(value, Mapping) or value.keys() | {"coding"} != {"name", "shape", "dtype", "coding"}:
        return False
    shaped = _several(_count)(value["shape"]) and _numeric(value["dtype"])
    return isinstance(value["name"], str) and shaped and _coding(value.get("coding"))


def _coding(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, Mapping):
        return False
    fields = next((fields for fields in _CODINGS.values() if fields.keys() == value.keys()), None)
    if fields is None or not all(fits(value[name]) for name, fits in fields.items()):
        return False
    return "counts" not in value or len(value["firsts"]) == len(value["counts"]) == math.prod(value["shape"])


_NUMBERS = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
# Which values the fields of a coding can have.
_CODINGS: dict[type[Coding], dict[str, Callable[[Any], bool]]] = {
    Choices: {"firsts": _several(_whole), "counts": _several(_count), "shape": _several(_count)},
    Text: {
        "symbols": _several(lambda value: isinstance(value, str)),
        "length": _count,
        "words": lambda value: isinstance(value, bool),
    },
    Pixels: {"highest": lambda value: _number(value) and value > 0},
}
# Which values the fields of a SpaceInfo can have.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "obs_shape": _several(_count),
    "obs_dtype": _numeric,
    "action_kind": lambda value: value in get_args(ActionKind),
    "action_shape": _several(_count),
    "action_size": _count,
    "action_counts": _several(_count),
    "action_starts": _several(_whole),
    "action_low": _several(_number),
    "action_high": _several(_number),
    "obs_choices": lambda value: value is None or (_several(_whole)(value) and len(value) == 2),
    "coding": _coding,
    "parts": _several(_part),
    "mask_size": _count,
    "two_player": lambda value: isinstance(value, bool),
}


def load_arrays(folder: Path, files: Mapping[str, Entry], arrays: Mapping[str, ChunkedArray]) -> None:
    """Fill arrays from the files of a folder; an error names a damaged file."""
    check_names(folder, {_DESCRIPTION, *files})
    for name, array in arrays.items():
        count = sum(file.startswith(f"{name}_") for file in files)
        array.load([_read(folder, _chunk_name(name, number), files, array) for number in range(count)])


def _read(folder: Path, name: str, files: Mapping[str, Entry], array: ChunkedArray) -> Array:
    content = read(folder, name, files)
    return np.frombuffer(content, array.data.dtype).reshape(-1, *array.data.shape[1:])
