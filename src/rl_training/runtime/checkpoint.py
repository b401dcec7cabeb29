"""Checkpoints: folders that appear whole or not at all, hold all that a run needs, and run no code when loaded."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl_training.types import UserError

FORMAT_VERSION = 1
_STEP = re.compile(r"step_(\d+)$")


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: `policy` is what acting needs, `state` and `envs` what training needs besides."""

    meta: dict[str, Any]
    policy: dict[str, Tensor]
    state: dict[str, Any] = field(default_factory=dict)
    envs: dict[str, Any] = field(default_factory=dict)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> Path:
    """Write under a temporary name, sync, rename. What was at `path` stays until the new one is complete."""
    draft = path.with_name(f".draft-{path.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        policy = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.policy.items()}
        save_file(policy, draft / "model.safetensors")
        torch.save(checkpoint.state, draft / "state.pt")
        torch.save(checkpoint.envs, draft / "envs.pt")
        (draft / "meta.json").write_text(json.dumps(checkpoint.meta | {"format": FORMAT_VERSION}, indent=2) + "\n")
        for file in (*draft.iterdir(), draft):
            _sync(file)
        _move(draft, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _move(draft: Path, path: Path) -> None:
    if not path.exists():
        os.rename(draft, path)
        return
    replaced = path.with_name(f".replaced-{path.name}")
    shutil.rmtree(replaced, ignore_errors=True)
    os.rename(path, replaced)  # a crash between these two lines is mended by `_recover`
    os.rename(draft, path)
    shutil.rmtree(replaced, ignore_errors=True)


def _recover(folder: Path) -> None:
    for replaced in folder.glob(".replaced-*"):
        path = folder / replaced.name.removeprefix(".replaced-")
        if not path.exists():
            os.rename(replaced, path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def point(folder: Path, name: str, path: Path) -> None:
    """Let the one-line file `name` (`latest` or `best`) name a checkpoint."""
    draft = folder / f".{name}.{os.getpid()}"
    draft.write_text(path.name + "\n")
    _sync(draft)
    os.replace(draft, folder / name)


def pointed(folder: Path, name: str) -> Path | None:
    """The checkpoint that `latest` or `best` names, if it is there."""
    file = folder / name
    path = folder / file.read_text().strip() if file.is_file() else None
    return path if path is not None and (path / "meta.json").is_file() else None


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder, newest first."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _STEP.match(path.name))]
    return sorted(found, reverse=True)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and what crashes left behind."""
    best = pointed(folder, "best")
    for _, path in _by_step(folder)[keep:]:
        if path != best:
            shutil.rmtree(path, ignore_errors=True)
    for leftover in (*folder.glob(".draft-*"), *folder.glob(".replaced-*")):
        shutil.rmtree(leftover, ignore_errors=True)


def find_checkpoint(path: str | Path, which: str = "latest") -> Path:
    """The checkpoint that a path means: itself, or the latest (or best, or `step_N`) of a run's folder."""
    path = Path(path)
    if (path / "meta.json").is_file():
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not folder.is_dir():
        raise UserError(f"{str(path)!r}: there is no such run or checkpoint")
    if folder.name == "checkpoints":
        _recover(folder)
    if which not in ("latest", "best"):
        if not (folder / which / "meta.json").is_file():
            known = ", ".join(["latest", "best", *(found.name for _, found in _by_step(folder))])
            raise UserError(f"{str(path)!r}: has no checkpoint {which!r}; it has {known}")
        return folder / which
    found = pointed(folder, which)
    if found is None and which == "latest":
        found = next((path for _, path in _by_step(folder) if (path / "meta.json").is_file()), None)
    if found is None:
        raise UserError(f"{str(path)!r}: holds no {which} checkpoint of rl_training")
    return found


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
    return dict(meta)


def read_checkpoint(path: Path, *, policy_only: bool = False) -> Checkpoint:
    """Load a checkpoint; nothing in it is executed, and a damaged file is said by name."""
    meta = read_meta(path)
    policy = _read(path / "model.safetensors", load_file)
    if policy_only:
        return Checkpoint(meta, policy)
    return Checkpoint(meta, policy, _read(path / "state.pt", _load_plain), _read(path / "envs.pt", _load_plain))


def _load_plain(file: Path) -> Mapping[str, Any]:
    return torch.load(file, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]


def _read(file: Path, load: Any) -> Any:
    try:
        return load(file)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).strip().split("\n")[0][:120]
        raise UserError(f"{str(file)!r}: is missing, damaged or foreign ({reason})") from None
