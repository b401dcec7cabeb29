"""Checks a whole run, or one checkpoint: every file is read, and nothing is changed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from rl_training.data.checked_files import own, read_plain
from rl_training.data.ram import readable
from rl_training.runtime.checkpoints.catalogue import listed
from rl_training.runtime.checkpoints.checkpoint import scrub
from rl_training.types import UserError

_CHECKPOINT = re.compile(r"step_[0-9]+")


class Finding(NamedTuple):
    """What was found of one thing: that it is whole, or what is wrong with it."""

    name: str
    text: str
    whole: bool

    def __str__(self) -> str:
        return f"{self.name:<14} {self.text}"


def check_run(path: Path) -> Iterator[Finding]:
    """Check a run's folder or a checkpoint, thing by thing."""
    folder = own(path / "checkpoints", folder=True)
    if folder.is_dir():
        for step, checkpoint in reversed(listed(folder)):
            yield _found(f"step_{step}", checkpoint, _check_checkpoint)
        for name in ("latest", "best"):
            if name == "latest" or os.path.lexists(folder / name):
                yield _found(name, folder / name, _check_pointer)
        for name, check in (
            ("config.yaml", _check_yaml),
            ("metadata.json", _check_json),
            ("metrics.jsonl", _check_rows),
        ):
            if name != "metrics.jsonl" or os.path.lexists(path / name):  # a run that was just begun has no metrics
                yield _found(name, path / name, check)
    elif (path / "meta.json").exists() or _CHECKPOINT.fullmatch(path.name):
        yield _found(path.name, path, _check_checkpoint)
    else:
        raise UserError(f"{str(path)!r}: there is no such run or checkpoint")


def _found(name: str, path: Path, check: Callable[[Path], str]) -> Finding:
    try:
        return Finding(name, check(path), whole=True)
    except UserError as error:
        return Finding(name, str(error), whole=False)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:160]
        return Finding(name, f"{str(path)!r}: cannot be read ({reason})", whole=False)


def _check_checkpoint(path: Path) -> str:
    files = scrub(path)
    size = (path / "meta.json").stat().st_size + sum(entry.size for entry in files.values())
    return f"{len(files) + 1} files, {readable(size)}: whole"


def _check_pointer(file: Path) -> str:
    name = read_plain(file).decode().strip()
    if name not in {f"step_{step}" for step, _ in listed(file.parent)}:
        raise ValueError(f"it names {name[:60]!r}, which is no checkpoint of this run")
    return name


def _check_yaml(file: Path) -> str:
    return _mapping(yaml.safe_load(read_plain(file)))


def _check_json(file: Path) -> str:
    return _mapping(json.loads(read_plain(file)))


def _mapping(content: object) -> str:
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not a mapping")
    return "whole"


def _check_rows(file: Path) -> str:
    *lines, rest = read_plain(file).split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            _mapping(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from None
    return f"{len(lines)} rows: whole" + (", and the beginning of one that a resumed run writes again" if rest else "")
