"""The folder of a run: its name, its config, its metadata and its metrics."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rl_training import __version__
from rl_training.types import UserError

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
    """`<algo>__<env>__seed<k>__<stamp>`, or `..seeds..` for a folder of several; safe as a file name."""
    parts = (algo, env_id, "seeds" if seed is None else f"seed{seed}", time.strftime("%Y%m%d-%H%M%S"))
    plain = ("".join(c if c.isalnum() or c in "-._" else "-" for c in part) for part in parts)
    return "__".join(re.sub("__+", "_", part) for part in plain)


class RunFolder:
    """A run on disk. It gets its name only once a checkpoint in it can be resumed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @classmethod
    def create(cls, path: Path | None, output_dir: str, name: str, fill: Callable[[RunFolder], None]) -> RunFolder:
        """Create a folder and fill it before it gets its name; an existing run is never overwritten."""
        if path is not None and path.exists() and any(path.iterdir() if path.is_dir() else [path]):
            raise UserError(f"run_dir={str(path)!r}: exists already; resume it, or choose another")
        parent = Path(output_dir) if path is None else path.parent
        final = parent / name if path is None else path
        draft = cls(parent / f".{final.name}.{os.urandom(6).hex()}")  # process ids repeat on a shared disk
        try:
            draft.checkpoints.mkdir(parents=True)
            fill(draft)
            return cls(draft._publish(final, numbered=path is None))
        except OSError as error:
            raise UserError(f"cannot write the run to {str(final)!r}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(draft.path, ignore_errors=True)

    def _publish(self, final: Path, *, numbered: bool) -> Path:
        for attempt in range(1, 1000):
            target = final if attempt == 1 else final.with_name(f"{final.name}-{attempt}")
            if target.is_dir() and any(target.iterdir()):
                if numbered:
                    continue
                break
            try:
                os.rename(self.path, target)
                return target
            except OSError:
                if not (numbered and target.exists()):
                    raise
        raise UserError(f"run_dir={str(final)!r}: exists already; resume it, or choose another")

    def write_config(self, flat: Mapping[str, Any]) -> None:
        write_atomically(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(flat))))

    def update_metadata(self, **values: Any) -> None:
        path = self.path / "metadata.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        write_atomically(path, json.dumps(known | values, indent=2) + "\n")

    def note_resumption(self, step: int, notes: list[str]) -> None:
        """Record that the run was resumed, and what had changed."""
        known = json.loads((self.path / "metadata.json").read_text()) if (self.path / "metadata.json").exists() else {}
        entry = {"step": step, "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "changes": notes}
        self.update_metadata(resumed=[*known.get("resumed", []), entry])

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def metrics_length(self) -> int:
        """Flush the metrics to disk and return their length in bytes."""
        if not self.metrics_file.exists():
            return 0
        with self.metrics_file.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def cut_metrics(self, length: int) -> None:
        """Remove what was logged after a checkpoint: a resumed run writes it again."""
        if self.metrics_file.exists() and self.metrics_file.stat().st_size > length:
            os.truncate(self.metrics_file, length)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole, or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def describe_process() -> dict[str, Any]:
    """The command that started the run, and the versions that it uses."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "platform": platform.platform(),
        "git": _git_commit(),
    }


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
