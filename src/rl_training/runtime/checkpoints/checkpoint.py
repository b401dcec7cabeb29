"""Checkpoints: folders that are written atomically, hold the whole state of a run, and run no code when loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Policy
from rl_training.data.checked_files import Entry, check_names, damaged, entry_of, read, refuse_link, seal, unseal
from rl_training.data.disk import sync
from rl_training.runtime.checkpoints.chunk_files import (
    ARRAYS_FOLDER,
    Chunks,
    describe_arrays,
    entries_of,
    read_arrays,
    write_arrays,
    write_file,
)
from rl_training.runtime.checkpoints.codec import decode, decode_tensors, encode, encode_tensors
from rl_training.types import UserError

FORMAT_VERSION = 3
_META = "meta.json"
_MODEL = "model.safetensors"
_META_KEYS = {"step", "config", "spaces", "versions", "threads"}
_STATE_KEYS = {"algorithm", "parts", "rng", "callbacks", "trainer"}


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: acting needs `policy` only, training needs the rest too.

    `envs` is the state of the environments, by actor. `arrays` are the large arrays of the loop's parts: the live
    arrays in a snapshot, memory-mapped files in a checkpoint that was read.
    """

    meta: dict[str, Any]
    policy: dict[str, Tensor]
    state: dict[str, Any] = field(default_factory=dict)
    envs: dict[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Chunks] = field(default_factory=dict)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> Path:
    """Write under a temporary name, sync, rename. An old checkpoint at `path` stays until the new one is complete."""
    draft = path.with_name(f".draft-{path.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        contents = _contents(checkpoint)
        for name, content in contents.items():
            write_file(draft / name, content)
        written = write_arrays(draft / ARRAYS_FOLDER, checkpoint.arrays)
        files = {name: entry_of(content) for name, content in contents.items()} | entries_of(written)
        arrays = {"arrays": describe_arrays(checkpoint.arrays)} if checkpoint.arrays else {}
        write_file(draft / _META, seal({"format": FORMAT_VERSION} | checkpoint.meta | arrays, files))
        sync(draft)
        _move(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for name, where in written.items():
        checkpoint.arrays[name].written = where._replace(folder=path / ARRAYS_FOLDER)
    return path


def _contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The files of a checkpoint, serialised before any is written, so that a full disk is always an OSError."""
    state, state_tensors = encode(checkpoint.state, "state")
    envs, envs_tensors = encode(checkpoint.envs, "envs")
    return {
        _MODEL: encode_tensors(checkpoint.policy),
        "state.json": state,
        "state.safetensors": state_tensors,
        "envs.json": envs,
        "envs.safetensors": envs_tensors,
    }


def _move(draft: Path, path: Path) -> None:
    replaced = path.with_name(f".replaced-{path.name}")
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(path, replaced)  # a crash between this rename and the next is repaired by `recover`
    os.rename(draft, path)
    sync(path.parent)  # before anything of the old one is removed
    shutil.rmtree(replaced, ignore_errors=True)


def read_meta(path: Path) -> dict[str, Any]:
    """A checkpoint's description, checked to be one that this version can read."""
    return _read_meta(path)[0]


def _read_meta(path: Path) -> tuple[dict[str, Any], dict[str, Entry]]:
    refuse_link(path)
    meta, files = unseal(path / _META, FORMAT_VERSION)
    del meta["format"]
    missing = sorted(_META_KEYS - meta.keys())
    if missing:
        raise damaged(path / _META, f"it has no {missing[0]!r}")
    return meta, files


def read_checkpoint(path: Path, *, policy_only: bool = False) -> Checkpoint:
    """Load a checkpoint; nothing in it is executed, and an error names a damaged file."""
    meta, files = _read_meta(path)
    described = meta.pop("arrays", {})
    policy = _read_tensors(path, _MODEL, files)
    if policy_only:
        return Checkpoint(meta, policy)
    check_names(path, {_META, *files}, ARRAYS_FOLDER)
    state, envs = _read_plain(path, "state", files, _STATE_KEYS), _read_plain(path, "envs", files, set())
    return Checkpoint(meta, policy, state, envs, read_arrays(path / ARRAYS_FOLDER, described, files))


def read_trainer_state(path: Path) -> dict[str, Any]:
    """The part of a checkpoint's state that the driver saved: its clock, and the hyperparameters set by hand."""
    return dict(_read_plain(path, "state", _read_meta(path)[1], _STATE_KEYS)["trainer"])


def _read_plain(path: Path, name: str, files: Mapping[str, Entry], keys: set[str]) -> dict[str, Any]:
    text, tensors = read(path, f"{name}.json", files), _read_tensors(path, f"{name}.safetensors", files)
    try:
        content = decode(text, tensors)
    except ValueError as error:
        raise damaged(path / f"{name}.json", str(error)) from None
    if not isinstance(content, dict):
        raise damaged(path / f"{name}.json", f"it holds a {type(content).__name__}, not a mapping")
    if not keys <= content.keys():
        raise damaged(path / f"{name}.json", f"it does not hold {', '.join(sorted(keys))}")
    return content


def _read_tensors(path: Path, name: str, files: Mapping[str, Entry]) -> dict[str, Tensor]:
    content = read(path, name, files)
    try:
        return decode_tensors(content)
    except ValueError as error:
        raise damaged(path / name, str(error)) from None


def fitting_policy(saved: Mapping[str, Tensor], policy: Policy, path: Path) -> Mapping[str, Tensor]:
    """Return the saved tensors of a policy; raises if they do not fit the network of its config."""
    wanted = {name: tuple(tensor.shape) for name, tensor in policy.policy_state().items()}
    found = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    if wanted != found:
        wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        raise UserError(f"{str(path)!r}: does not fit the network of its config ({wrong[0]} differs)")
    return saved
