"""Changes to a checkpoint whose checksums fit all the same: as another version, or somebody on purpose, writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from rl_training.data.checked_files import entry_of, seal
from rl_training.runtime.checkpoints.codec import decode, decode_tensors, encode, encode_tensors


def reseal(folder: Path, description: str = "meta.json", **changes: Any) -> None:
    """Describe the files of a folder as they are now, with changes to the description itself."""
    described = json.loads((folder / description).read_text())
    del described["crc32"], described["files"]
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != description)
    files = {str(path.relative_to(folder)): entry_of(path.read_bytes()) for path in found}
    (folder / description).write_bytes(seal(described | changes, files))


def write_state(folder: Path, name: str, value: Any) -> None:
    """Replace the value of `state` or `envs`."""
    text, tensors = encode(value, name)
    (folder / f"{name}.json").write_bytes(text)
    (folder / f"{name}.safetensors").write_bytes(tensors)
    reseal(folder)


@contextmanager
def changed_state(folder: Path, name: str) -> Iterator[Any]:
    """The value of `state` or `envs`, to be changed in place."""
    tensors = decode_tensors((folder / f"{name}.safetensors").read_bytes())
    value = decode((folder / f"{name}.json").read_bytes(), tensors)
    yield value
    write_state(folder, name, value)


@contextmanager
def changed_model(folder: Path) -> Iterator[dict[str, Tensor]]:
    """The tensors of the policy, to be changed in place."""
    file = folder / "model.safetensors"
    tensors = decode_tensors(file.read_bytes())
    yield tensors
    file.write_bytes(encode_tensors(tensors))
    reseal(folder)
