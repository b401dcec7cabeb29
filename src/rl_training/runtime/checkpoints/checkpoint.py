"""Checkpoints: folders that are written atomically, hold the whole state of a run, and run no code when loaded."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Policy
from rl_training.data.checked_files import (
    DamagedError,
    Entry,
    check_names,
    damaged,
    entry_of,
    own,
    read,
    seal,
    unseal,
)
from rl_training.data.disk import sync
from rl_training.runtime.checkpoints.catalogue import ARRAYS_FOLDER, listed
from rl_training.runtime.checkpoints.chunk_files import (
    Chunks,
    describe_arrays,
    entries_of,
    read_arrays,
    write_arrays,
    write_file,
)
from rl_training.runtime.checkpoints.codec import decode, decode_tensors, encode, encode_tensors
from rl_training.runtime.checkpoints.spaces import read_spaces
from rl_training.runtime.trees import check_like
from rl_training.types import UserError

FORMAT_VERSION = 3
_META = "meta.json"
_MODEL = "model.safetensors"
# What everybody who reads a description relies on, and an example of its kind.
_META_KINDS = {
    "step": 0,
    "config": {"algo": "", "env_id": "", "output_dir": ""},
    "spaces": {},
    "versions": {"rl_training": ""},
    "engine": "",
    "threads": 1,
    "resume": "",
    "eval": {},
}
_STATE_KINDS: dict[str, Any] = {"algorithm": {}, "parts": {}, "rng": {}, "callbacks": {}, "trainer": {}}


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: acting needs `policy` only, training needs the rest too.

    `envs` is the state of the environments, by actor. `arrays` are the large arrays of the loop's parts: the live
    arrays in a snapshot, memory-mapped files in a checkpoint that was read from `path`.
    """

    meta: dict[str, Any]
    policy: dict[str, Tensor]
    state: dict[str, Any] = field(default_factory=dict)
    envs: dict[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Chunks] = field(default_factory=dict)
    path: Path | None = None


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
    own(path, folder=True)
    meta, files = unseal(path / _META, FORMAT_VERSION)
    del meta["format"]
    try:
        check_like(meta, _META_KINDS, "it", complete=True)
        read_spaces(meta["spaces"])
    except (ValueError, TypeError) as error:
        raise damaged(path / _META, str(error)) from None
    return meta, files


def read_checkpoint(path: Path, *, policy_only: bool = False) -> Checkpoint:
    """Load a checkpoint; nothing in it is executed, and an error names a damaged file and a whole checkpoint.

    Large arrays are checked when they are asked for.
    """
    with way_out(path, "eval" if policy_only else "resume"):
        return _read(path, policy_only=policy_only)


def _read(path: Path, *, policy_only: bool) -> Checkpoint:
    meta, files = _read_meta(path)
    described = meta.pop("arrays", {})
    policy = _read_tensors(path, _MODEL, files)
    if policy_only:
        return Checkpoint(meta, policy, path=path)
    check_names(path, {_META, *files}, ARRAYS_FOLDER)
    state, envs = _read_plain(path, "state", files, _STATE_KINDS), _read_plain(path, "envs", files, {})
    arrays = read_arrays(path / ARRAYS_FOLDER, described, files)
    return Checkpoint(meta, policy, state, envs, arrays, path)


def scrub(path: Path) -> dict[str, Entry]:
    """Read and check every file of a checkpoint; returns the entries of those that its description names."""
    for array in _read(path, policy_only=False).arrays.values():
        array.chunks()
    return _read_meta(path)[1]


@contextmanager
def way_out(path: Path | None, command: str) -> Iterator[None]:
    """Let an error about a damaged checkpoint of a run name the newest one that is whole, and how to go on from it."""
    try:
        yield
    except DamagedError as error:
        if path is None or path.parent.name != "checkpoints":
            raise
        whole = next((step for step, other in listed(path.parent) if other != path and _is_whole(other)), None)
        if whole is None:
            raise DamagedError(f"{error}; no other checkpoint of this run is whole") from None
        call = f"rl-training {command} {shlex.quote(str(path.parent.parent))} --checkpoint step_{whole}"
        raise DamagedError(f"{error}; step_{whole} is the newest checkpoint that is whole: {call}") from None


def _is_whole(path: Path) -> bool:
    try:
        scrub(path)
    except UserError:
        return False
    return True


def read_trainer_state(path: Path) -> dict[str, Any]:
    """The part of a checkpoint's state that the driver saved: its clock, and the hyperparameters set by hand."""
    with way_out(path, "eval"):
        return dict(_read_plain(path, "state", _read_meta(path)[1], _STATE_KINDS)["trainer"])


def _read_plain(path: Path, name: str, files: Mapping[str, Entry], kinds: dict[str, Any]) -> dict[str, Any]:
    text, tensors = read(path, f"{name}.json", files), _read_tensors(path, f"{name}.safetensors", files)
    try:
        content: dict[str, Any] = decode(text, tensors)
        check_like(content, kinds, "it", complete=True)
    except ValueError as error:
        raise damaged(path / f"{name}.json", str(error)) from None
    return content


def _read_tensors(path: Path, name: str, files: Mapping[str, Entry]) -> dict[str, Tensor]:
    content = read(path, name, files)
    try:
        return decode_tensors(content)
    except ValueError as error:
        raise damaged(path / name, str(error)) from None


def fitting_policy(saved: Mapping[str, Tensor], policy: Policy, path: Path) -> Mapping[str, Tensor]:
    """Return the saved tensors of a policy; raises if they do not fit the network of its config."""
    wanted = {name: (tensor.shape, tensor.dtype) for name, tensor in policy.policy_state().items()}
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in saved.items()}
    if wanted != found:
        wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        raise UserError(f"{str(path)!r}: does not fit the network of its config ({wrong[0]} differs)")
    return saved
