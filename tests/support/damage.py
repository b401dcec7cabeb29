"""Damage to files, drawn from a seed: to their bytes, to their names, and to what they say behind a valid checksum."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.random import Generator
from torch import Tensor

from forgery import reseal
from rl_training.data.checked_files import Entry, entry_of, seal
from rl_training.runtime.checkpoints.codec import decode_tensors, encode_tensors
from sb3_files import changed_data, changed_program

Damage = Callable[[Path, Path, Generator], None]  # of a file in a folder

# Bytes.


def one_bit(content: bytes, rng: Generator) -> bytes:
    return _flipped(content, rng, 1)


def several_bits(content: bytes, rng: Generator) -> bytes:
    return _flipped(content, rng, int(rng.integers(2, 20)))


def _flipped(content: bytes, rng: Generator, count: int) -> bytes:
    changed = bytearray(content)
    for bit in rng.integers(0, 8 * len(content), count).tolist() if content else ():
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def truncated(content: bytes, rng: Generator) -> bytes:
    return content[: int(rng.integers(0, len(content)))] if content else content


def extended(content: bytes, rng: Generator) -> bytes:
    return content + rng.bytes(int(rng.integers(1, 100)))


def repeated(content: bytes, rng: Generator) -> bytes:
    return content * 2


def zeroed(content: bytes, rng: Generator) -> bytes:
    """A block of zeros, as a sector that was never written has."""
    start = int(rng.integers(0, max(1, len(content))))
    length = min(len(content) - start, int(rng.choice([1, 16, 512, 4096])))
    return content[:start] + bytes(length) + content[start + length :]


def noise(content: bytes, rng: Generator) -> bytes:
    return rng.bytes(len(content))


def emptied(content: bytes, rng: Generator) -> bytes:
    return b""


def _of_bytes(change: Callable[[bytes, Generator], bytes]) -> Damage:
    def damage(folder: Path, file: Path, rng: Generator) -> None:
        file.write_bytes(change(file.read_bytes(), rng))

    return damage


# Names.


def missing(folder: Path, file: Path, rng: Generator) -> None:
    file.unlink()


def a_folder(folder: Path, file: Path, rng: Generator) -> None:
    file.unlink()
    file.mkdir()


def swapped_beside(folder: Path, file: Path, rng: Generator) -> None:
    """With another file of the same folder, such as one of the same checkpoint."""
    _swap(file, sorted(path for path in file.parent.iterdir() if path.is_file() and path != file), rng)


def swapped_namesake(folder: Path, file: Path, rng: Generator) -> None:
    """With a file of the same name in another folder, such as another checkpoint, or the run of another seed."""
    _swap(file, sorted(path for path in folder.rglob(file.name) if path.is_file() and path != file), rng)


def of_another_run(folder: Path, file: Path, rng: Generator) -> None:
    """With that of a run that differs in its seed alone, if there is one beside the folder."""
    other = folder.with_name("twin") / file.relative_to(folder)
    if other.is_file():
        file.write_bytes(other.read_bytes())


def _swap(file: Path, others: list[Path], rng: Generator) -> None:
    if others:
        other = others[int(rng.integers(len(others)))]
        mine, theirs = file.read_bytes(), other.read_bytes()
        file.write_bytes(theirs)
        other.write_bytes(mine)


PLAIN: dict[str, Damage] = {
    **{
        change.__name__: _of_bytes(change)
        for change in (one_bit, several_bits, truncated, extended, repeated, zeroed, noise, emptied)
    },
    **{damage.__name__: damage for damage in (missing, a_folder, swapped_beside, swapped_namesake, of_another_run)},
}

# What is said behind a checksum that fits.

_OTHER_KINDS: list[Any] = [None, True, False, 0, 1, -1, 7, 1.5, -0.5, "", "x", "3", [], [1], {}, {"x": 1}, [[]], ["x"]]
_HUGE: list[Any] = [2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, -1e308, 1e-320, float("nan"), float("inf")]


def removed(tree: Any, rng: Generator) -> Any:
    return _edited(tree, rng, lambda owner, key: owner.pop(key))


def of_another_kind(tree: Any, rng: Generator) -> Any:
    return _edited(tree, rng, lambda owner, key: owner.__setitem__(key, _OTHER_KINDS[rng.integers(len(_OTHER_KINDS))]))


def huge(tree: Any, rng: Generator) -> Any:
    return _edited(tree, rng, lambda owner, key: owner.__setitem__(key, _HUGE[rng.integers(len(_HUGE))]))


def off_by_some(tree: Any, rng: Generator) -> Any:
    """A number that is a little larger, smaller or of another sign; anything else is said twice."""

    def change(owner: Any, key: Any) -> None:
        value, by = owner[key], int(rng.choice([-100, -2, -1, 1, 2, 100]))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        owner[key] = value + by if number else [value, value] if not isinstance(value, list) else value + value

    return _edited(tree, rng, change)


def nested(tree: Any, rng: Generator) -> Any:
    def change(owner: Any, key: Any) -> None:
        for _ in range(int(rng.choice([1, 90, 300]))):
            owner[key] = [owner[key]] if rng.integers(2) else {"x": owner[key]}

    return _edited(tree, rng, change)


def shorter(tree: Any, rng: Generator) -> Any:
    def change(owner: Any, key: Any) -> None:
        if isinstance(owner[key], list | str):
            owner[key] = owner[key][:-1]

    return _edited(tree, rng, change)


def moved(tree: Any, rng: Generator) -> Any:
    """What one place says is said in another."""
    places = list(_places(tree))
    if len(places) > 1:
        (one, a), (other, b) = (places[int(index)] for index in rng.choice(len(places), 2, replace=False))
        one[a], other[b] = json.loads(json.dumps(other[b])), json.loads(json.dumps(one[a]))
    return tree


def _edited(tree: Any, rng: Generator, change: Callable[[Any, Any], Any]) -> Any:
    """The tree after a change at some place, of whatever depth."""
    places = list(_places(tree))
    if places:
        change(*places[int(rng.integers(len(places)))])
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


TREES = (removed, of_another_kind, huge, off_by_some, nested, shorter, moved)


def _write_tree(file: Path, tree: Any) -> None:
    if file.suffix == ".yaml":
        file.write_text(yaml.safe_dump(tree))
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in tree))
    else:
        file.write_text(json.dumps(tree, indent=2))


def _read_tree(file: Path) -> Any:
    if file.suffix == ".yaml":
        return yaml.safe_load(file.read_text())
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in file.read_text().splitlines()]
    return json.loads(file.read_text())


def reshaped(tensor: Tensor, rng: Generator) -> Tensor:
    shapes = [(*tensor.shape, 1), (1, *tensor.shape), (-1,), (0,)]
    shape = shapes[int(rng.integers(len(shapes)))]
    return tensor.reshape(shape) if shape != (0,) else tensor.reshape(-1)[:0]


def retyped(tensor: Tensor, rng: Generator) -> Tensor:
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
    return tensor.to(kinds[int(rng.integers(len(kinds)))])


def lengthened(tensor: Tensor, rng: Generator) -> Tensor:
    return torch.cat([tensor, tensor]) if tensor.ndim else tensor.repeat(2)


def of_extremes(tensor: Tensor, rng: Generator) -> Tensor:
    """Numbers that no training gives, in the same shape."""
    if tensor.dtype.is_floating_point:
        return torch.full_like(tensor, float(rng.choice([np.nan, np.inf, -1e30, 0.0])))
    if tensor.dtype == torch.bool:
        return ~tensor
    limits = torch.iinfo(tensor.dtype)
    return torch.full_like(tensor, int(rng.choice([limits.min, limits.max, 1])))


TENSORS = (reshaped, retyped, lengthened, of_extremes)


def _of_tree(change: Callable[[Any, Generator], Any]) -> Damage:
    def damage(folder: Path, file: Path, rng: Generator) -> None:
        tree = _read_tree(file)
        if file.name in ("meta.json", "replay.json", "summary.json"):
            described = {key: value for key, value in tree.items() if key not in ("crc32", "files")}
            file.write_bytes(seal(change(described, rng), _entries_beside(file)))
        else:
            _write_tree(file, change(tree, rng))
        _reseal(file)

    return damage


def _of_tensors(change: Callable[[Tensor, Generator], Tensor]) -> Damage:
    def damage(folder: Path, file: Path, rng: Generator) -> None:
        tensors = decode_tensors(file.read_bytes())
        if tensors:
            name = sorted(tensors)[int(rng.integers(len(tensors)))]
            tensors[name] = change(tensors[name], rng).contiguous()
            file.write_bytes(encode_tensors(tensors))
        _reseal(file)

    return damage


def without_a_tensor(folder: Path, file: Path, rng: Generator) -> None:
    tensors = decode_tensors(file.read_bytes())
    if tensors:
        del tensors[sorted(tensors)[int(rng.integers(len(tensors)))]]
    file.write_bytes(encode_tensors(tensors))
    _reseal(file)


def with_another_tensor(folder: Path, file: Path, rng: Generator) -> None:
    file.write_bytes(encode_tensors(decode_tensors(file.read_bytes()) | {"one more": torch.zeros(3)}))
    _reseal(file)


def _entries_beside(file: Path) -> dict[str, Entry] | None:
    """The entries of the files that a description describes; a summary describes none."""
    if file.name == "summary.json":
        return None
    beside = sorted(path for path in file.parent.rglob("*") if path.is_file() and path != file)
    return {path.relative_to(file.parent).as_posix(): entry_of(path.read_bytes()) for path in beside}


def _reseal(file: Path) -> None:
    """Describe a changed file of a checkpoint in the checkpoint's description."""
    place = file.parent.parent if file.parent.name == "replay" else file.parent
    if file.name != "meta.json" and (place / "meta.json").is_file():
        reseal(place)


def forgeries(file: str) -> Mapping[str, Damage]:
    """The changes to what a file says, by its name; there are none for raw bytes."""
    name = os.path.basename(file)
    if name.endswith((".json", ".yaml", ".jsonl")):
        return {change.__name__: _of_tree(change) for change in TREES}
    if name.endswith(".safetensors"):
        return {
            **{change.__name__: _of_tensors(change) for change in TENSORS},
            "without_a_tensor": without_a_tensor,
            "with_another_tensor": with_another_tensor,
        }
    if name.endswith(".npz"):
        return {change.__name__: _of_archive(change) for change in ARRAYS}
    if name.endswith(".hdf5"):
        return {change.__name__: _of_hdf5(change) for change in ARRAYS}
    if name.endswith(".zip"):  # a model of Stable-Baselines3
        programs = (one_bit, several_bits, truncated, repeated, zeroed, noise, emptied)
        return {
            **{f"data_{change.__name__}": changed_data(change) for change in TREES},
            **{f"program_{change.__name__}": changed_program(change) for change in programs},
        }
    return {}


def _as_array(change: Callable[[Tensor, Generator], Tensor]) -> Callable[[Any, Generator], Any]:
    def changed(array: Any, rng: Generator) -> Any:
        if array.dtype.kind not in "fiub":
            return array
        return change(torch.from_numpy(np.array(array)), rng).to(torch.float32).numpy()

    changed.__name__ = change.__name__
    return changed


def as_text(array: Any, rng: Generator) -> Any:
    return np.full(np.shape(array), b"x")


def as_scalar(array: Any, rng: Generator) -> Any:
    return np.float32(3.0)


def off(array: Any, rng: Generator) -> Any:
    return array[1:] if np.ndim(array) else array


ARRAYS = (*map(_as_array, TENSORS), as_text, as_scalar, off)


def _of_archive(change: Callable[[Any, Generator], Any]) -> Damage:
    def damage(folder: Path, file: Path, rng: Generator) -> None:
        with np.load(file) as opened:
            arrays = dict(opened)
        name = sorted(arrays)[int(rng.integers(len(arrays)))]
        arrays[name] = change(arrays[name], rng)
        np.savez(file, **arrays)

    return damage


def _of_hdf5(change: Callable[[Any, Generator], Any]) -> Damage:
    def damage(folder: Path, file: Path, rng: Generator) -> None:
        import h5py

        with h5py.File(file, "a") as opened:
            names: list[str] = []
            opened.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            name = sorted(names)[int(rng.integers(len(names)))]
            array = opened[name][()]
            if isinstance(array, np.ndarray):
                del opened[name]
                opened[name] = change(array, rng)

    return damage


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder, but for the lock, whose contents belong to whoever trains."""
    found = sorted(path for path in folder.rglob("*") if path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in found}


def fresh_copy(source: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(source, place))
