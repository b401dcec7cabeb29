"""Checkpoints: folders that are written atomically, hold the whole state of a run, and run no code when loaded."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from rl_training.algorithms.base import Policy
from rl_training.runtime.checkpoints.chunk_files import (
    ARRAYS_FOLDER,
    Chunks,
    describe_arrays,
    read_arrays,
    sync,
    unreadable,
    write_arrays,
    write_file,
)
from rl_training.types import UserError

FORMAT_VERSION = 2
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
        for name, content in _contents(checkpoint).items():
            write_file(draft / name, content)
        written = write_arrays(draft / ARRAYS_FOLDER, checkpoint.arrays)
        sync(draft)
        _move(draft, path)
        sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for name, where in written.items():
        checkpoint.arrays[name].written = where._replace(folder=path / ARRAYS_FOLDER)
    return path


def _contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The files of a checkpoint, serialised before any is written, so that a full disk is always an OSError."""
    policy = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.policy.items()}
    arrays = {"arrays": describe_arrays(checkpoint.arrays)} if checkpoint.arrays else {}
    meta = json.dumps(checkpoint.meta | {"format": FORMAT_VERSION} | arrays, indent=2) + "\n"
    return {
        "model.safetensors": safetensors_bytes(policy),
        "state.pt": _torch_bytes(_plain(checkpoint.state, "state")),
        "envs.pt": _torch_bytes(_plain(checkpoint.envs, "envs")),
        "meta.json": meta.encode(),
    }


def _torch_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _plain(value: Any, where: str) -> Any:
    """The value, with NumPy's numbers as Python's; an error names what could not be loaded again."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, f"{where}[{index}]") for index, item in enumerate(value))
    if value is None or type(value) in (bool, int, float, str) or isinstance(value, Tensor):
        return value
    raise UserError(f"{where}: a checkpoint cannot hold a {type(value).__name__}, only plain data and tensors")


def _move(draft: Path, path: Path) -> None:
    if not path.exists():
        os.rename(draft, path)
        return
    replaced = path.with_name(f".replaced-{path.name}")
    shutil.rmtree(replaced, ignore_errors=True)
    os.rename(path, replaced)  # a crash between these two lines is repaired by `_recover`
    os.rename(draft, path)
    shutil.rmtree(replaced, ignore_errors=True)


def read_meta(path: Path) -> dict[str, Any]:
    """A checkpoint's description, checked to be one that this version can read."""
    try:
        meta = json.loads((path / "meta.json").read_text())
        written_by = meta["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{str(path)!r}: is not a checkpoint of rl_training, or is damaged ({error})") from None
    if written_by != FORMAT_VERSION:
        raise UserError(
            f"{str(path)!r}: has checkpoint format {written_by}; this version of rl_training reads {FORMAT_VERSION}"
        )
    missing = sorted(_META_KEYS - meta.keys())
    if missing:
        raise UserError(f"{str(path)!r}: is not a checkpoint of rl_training, or is damaged (no {missing[0]!r})")
    return dict(meta)


def read_checkpoint(path: Path, *, policy_only: bool = False) -> Checkpoint:
    """Load a checkpoint; nothing in it is executed, and an error names a damaged file."""
    meta = read_meta(path)
    described = meta.pop("arrays", {})
    policy = _read(path / "model.safetensors", load_file)
    if policy_only:
        return Checkpoint(meta, policy)
    state, envs = _read_plain(path / "state.pt", _STATE_KEYS), _read_plain(path / "envs.pt", set())
    return Checkpoint(meta, policy, state, envs, read_arrays(path / ARRAYS_FOLDER, described))


def read_trainer_state(path: Path) -> dict[str, Any]:
    """The part of a checkpoint's state that the driver saved: its clock, and the hyperparameters set by hand."""
    return dict(_read_plain(path / "state.pt", _STATE_KEYS)["trainer"])


def _read_plain(file: Path, keys: set[str]) -> dict[str, Any]:
    content = _read(file, _load_plain)
    if not isinstance(content, dict):
        raise UserError(f"{str(file)!r}: is damaged or foreign (it holds a {type(content).__name__}, not a mapping)")
    if not keys <= content.keys():
        raise UserError(f"{str(file)!r}: is damaged or foreign (it does not hold {', '.join(sorted(keys))})")
    return content


def _load_plain(file: Path) -> Any:
    if file.is_file() and not zipfile.is_zipfile(file):
        raise ValueError("it was not written by torch, or not completely")
    return torch.load(file, map_location="cpu", weights_only=True)


def _read(file: Path, load: Any) -> Any:
    try:
        return load(file)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, SafetensorError, pickle.UnpicklingError) as error:
        raise unreadable(file, str(error).strip().split("\n")[0][:120]) from None


def fitting_policy(saved: Mapping[str, Tensor], policy: Policy, path: Path) -> Mapping[str, Tensor]:
    """Return the saved tensors of a policy; raises if they do not fit the network of its config."""
    wanted = {name: tuple(tensor.shape) for name, tensor in policy.policy_state().items()}
    found = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    if wanted != found:
        wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        raise UserError(f"{str(path)!r}: does not fit the network of its config ({wrong[0]} differs)")
    return saved
