"""The commit that the current folder is at, read from git's files.

git itself is not asked: its settings in that folder may name programs, which it would run.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")  # SHA-1, or SHA-256
_BRANCH = re.compile(r"ref: (refs/(?!.*\.\.)[\x21-\x7e]+)")
_MOST_BYTES = 1 << 24
_SHOWN = 12


def current_commit() -> str | None:
    """The first twelve digits of the commit, or None outside of a repository; changes since then are not looked for."""
    with suppress(OSError, ValueError):
        here = Path.cwd()
        marker = next((place / ".git" for place in (here, *here.parents) if (place / ".git").exists()), None)
        commit = None if marker is None else _commit_at(_git_folder(marker))
        return None if commit is None else commit[:_SHOWN]
    return None


def _git_folder(marker: Path) -> Path:
    """A repository's folder; in a worktree or a submodule, `.git` is a file that names it."""
    return marker if marker.is_dir() else marker.parent / _text(marker).removeprefix("gitdir:").strip()


def _commit_at(folder: Path) -> str | None:
    head = _text(folder / "HEAD").strip()
    branch = _BRANCH.fullmatch(head)
    if branch is None:
        return head if _COMMIT.fullmatch(head) else None
    named = folder / "commondir"  # the branches of a worktree are in the repository that it belongs to
    folders = [folder, folder / _text(named).strip()] if named.is_file() else [folder]
    for place in folders:
        if (place / branch[1]).is_file():
            commit = _text(place / branch[1]).strip()
            return commit if _COMMIT.fullmatch(commit) else None
    for place in folders:
        if (place / "packed-refs").is_file():
            for line in _text(place / "packed-refs").splitlines():
                commit, _, name = line.partition(" ")
                if name == branch[1] and _COMMIT.fullmatch(commit):
                    return commit
    return None


def _text(file: Path) -> str:
    if not file.is_file() or file.stat().st_size > _MOST_BYTES:  # a pipe would never end
        raise ValueError(f"{file} is not a file of git's")
    return file.read_text(encoding="utf-8")
