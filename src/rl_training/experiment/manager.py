"""The folder of a run: its name, its config, its metadata and its metrics."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rl_training import __version__
from rl_training.data.disk import open_own, own_name, read_own, write_atomically
from rl_training.experiment.commit import current_commit

# Bytes of a part of a folder's name. Names of files have at most 255, and drafts of folders have longer ones.
_LONGEST_PART = 80
_PACKAGES = ("torch", "numpy", "gymnasium", "numba", "mujoco", "box2d")


@functools.cache
def versions() -> dict[str, str]:
    """The versions that decide whether two runs can be equal to the bit."""
    found = {"rl_training": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def run_name(algo: str, env_id: str, seed: int | None) -> str:
    """`<algo>__<env>__seed<k>__<stamp>`, or `..seeds..` for a folder of several; safe as a file name.

    Of a long algorithm or environment, such as the names of many tasks, it has the beginning.
    """
    parts = (algo, env_id, "seeds" if seed is None else f"seed{seed}", time.strftime("%Y%m%d-%H%M%S"))
    plain = ("".join(c if c.isalnum() or c in "-._" else "-" for c in part) for part in parts)
    return "__".join(_beginning(re.sub("__+", "_", part)) for part in plain)


def _beginning(part: str) -> str:
    """A part of a name, or its beginning if it is long; file systems count bytes."""
    whole = part.encode()
    return part if len(whole) <= _LONGEST_PART else whole[:_LONGEST_PART].decode(errors="ignore").rstrip("-_.")


class RunFolder:
    """A run on disk: its files, and the folder of its checkpoints."""

    FILES = (".lock", "config.yaml", "metadata.json", "metrics.jsonl")
    FOLDERS = ("checkpoints", "tensorboard", "wandb")

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    def check_names(self) -> None:
        """Raise if a name that a run writes to is a link, or anything else that is not a plain file or folder."""
        for name in self.FOLDERS:
            own_name(self.path / name, folder=True)
        for name in (*self.FILES, "checkpoints/latest", "checkpoints/best"):
            own_name(self.path / name)

    def write_config(self, flat: Mapping[str, Any]) -> None:
        write_atomically(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(flat))))

    def metadata(self) -> dict[str, Any]:
        """What is noted of the run; raises a ValueError if that cannot be read. Nothing that is trained needs it."""
        try:
            known = json.loads(read_own(self.path / "metadata.json"))
        except FileNotFoundError:
            raise ValueError("metadata.json was missing") from None
        except (OSError, ValueError, RecursionError):
            known = None
        if not isinstance(known, dict):
            raise ValueError("metadata.json was damaged")
        return known

    @property
    def run_id(self) -> Any:
        """The random id of the run, if its metadata can be read."""
        try:
            return self.metadata().get("run_id")
        except ValueError:
            return None

    def update_metadata(self, **values: Any) -> None:
        """Add to what is noted of the run; what cannot be read is replaced."""
        try:
            known = self.metadata()
        except ValueError:
            known = {}
        write_atomically(self.path / "metadata.json", json.dumps(known | values, indent=2) + "\n")

    def note_resumption(self, step: int, notes: list[str]) -> None:
        """Record that the run was resumed, and what had changed."""
        entry = {"step": step, "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "changes": notes}
        try:
            known, new = self.metadata().get("resumed", []), {}
        except ValueError:
            known, new = [], describe_process() | {"result": None, "stop_reason": None}
        self.update_metadata(**new, resumed=[*(known if isinstance(known, list) else []), entry])

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        with open_own(self.metrics_file, "a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(row) + "\n")

    def metrics_length(self) -> int:
        """Flush the metrics to disk and return their length in bytes."""
        if not self.metrics_file.exists():
            return 0
        with open_own(self.metrics_file, "r+b") as file:  # Windows flushes only what is open for writing
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def cut_metrics(self, length: int) -> str | None:
        """Remove what was logged after a checkpoint: a resumed run writes it again. Returns what is wrong, if it is.

        The file is written anew, so that a backup that is hard-linked to it stays as it is.
        """
        if not own_name(self.metrics_file).exists():
            write_atomically(self.metrics_file, "")
            return "metrics.jsonl was missing: what was logged before is lost" if length else None
        status = self.metrics_file.stat()
        if status.st_size != length or status.st_nlink > 1:
            known = read_own(self.metrics_file, length)
            write_atomically(self.metrics_file, known[: known.rfind(b"\n") + 1])  # a row may be torn
        if status.st_size >= length:
            return None
        return f"metrics.jsonl had {status.st_size:,} of the {length:,} bytes that the checkpoint knows: rows are lost"


def describe_process() -> dict[str, Any]:
    """The command that started the run, and the versions that it uses."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "platform": platform.platform(),
        "git": current_commit(),
    }
