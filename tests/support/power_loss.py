"""A disk that remembers what was synced, and everything that could be on it after a loss of power.

The model is pessimistic. What was written to a file and not synced may be lost or torn. Names that were made or removed
since their folder was synced may be there or not, each for itself. A rename is one change, until one of its two folders
is synced without the other.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_CHANGING = ("mkdir", "rename", "replace", "link", "unlink", "rmdir")
Names = dict[str, int]


@dataclass
class Node:
    """A file with what is in it, or a folder with its names: as programs see it, and as it was synced."""

    folder: bool
    data: bytes = b""
    synced: bytes = b""
    names: Names = field(default_factory=dict)
    synced_names: Names = field(default_factory=dict)


# Names that change together: (folder, name, what the name means now, None if it is gone).
Change = tuple[tuple[int, str, int | None], ...]
# The whole tree that a loss of power leaves: what each path holds; None for a folder.
Tree = dict[str, bytes | None]


class Disk:
    """Watches a folder, of which all that exists at first is synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes: dict[int, Node] = {}
        self.pending: list[Change] = []
        self.moments: list[tuple[str, list[Tree]]] = []
        self.reported: list[int] = []
        self._of_inode: dict[int, int] = {}
        self._top = self._scan(root)
        for node in self.nodes.values():
            node.synced, node.synced_names = node.data, dict(node.names)
        self.pending.clear()

    def report(self) -> None:
        """Somebody was told that all is well: from here on it must survive."""
        self.reported.append(len(self.moments))

    # What programs see.

    def _scan(self, path: Path) -> int:
        """Bring the nodes up to date, and note the names that have changed; returns the node of the path."""
        status = os.lstat(path)
        number = self._of_inode.get(status.st_ino)
        if number is None or self.nodes[number].folder != stat.S_ISDIR(status.st_mode):
            number = len(self.nodes)
            self._of_inode[status.st_ino] = number
            self.nodes[number] = Node(stat.S_ISDIR(status.st_mode))
        node = self.nodes[number]
        if not node.folder:
            node.data = path.read_bytes()
            return number
        found = {entry.name: self._scan(Path(entry.path)) for entry in os.scandir(path)}
        for name in node.names.keys() | found.keys():
            if node.names.get(name) != found.get(name):
                self.pending.append(((number, name, found.get(name)),))
        node.names = found
        return number

    def _look(self) -> None:
        self._scan(self.root)
        alive = {os.lstat(path).st_ino for path in (self.root, *self.root.rglob("*"))}
        for inode in self._of_inode.keys() - alive:  # another file may get its number
            del self._of_inode[inode]

    # What is synced.

    def _fsync(self, descriptor: int) -> None:
        node_number = self._of_inode.get(os.fstat(descriptor).st_ino)
        if node_number is None:
            return
        node = self.nodes[node_number]
        if not node.folder:
            node.synced = node.data
            return
        node.synced_names = dict(node.names)
        rest = [tuple(part for part in change if part[0] != node_number) for change in self.pending]
        self.pending = [change for change in rest if change]

    # What is left.

    def _outcomes(self) -> Iterator[Tree]:
        count = len(self.pending)
        everything = set(range(count))
        chosen = [set(), everything, *(set(range(n)) for n in range(1, count)), *({n} for n in range(count))]
        chosen += [everything - {n} for n in range(count)]
        for subset in {tuple(sorted(kept)): kept for kept in chosen}.values():
            names = {number: dict(node.synced_names) for number, node in self.nodes.items()}
            for index in sorted(subset):
                for folder, name, node in self.pending[index]:
                    if node is None:
                        names[folder].pop(name, None)
                    else:
                        names[folder][name] = node
            for torn in (False, True):
                tree: Tree = {}
                self._grow(tree, "", self._top, names, torn)
                yield tree

    def _grow(self, tree: Tree, path: str, number: int, names: dict[int, Names], torn: bool) -> None:
        node = self.nodes[number]
        if node.folder:
            tree[path] = None
            for name, inner in names[number].items():
                self._grow(tree, f"{path}/{name}", inner, names, torn)
        else:
            half = node.data[: len(node.data) // 2]
            tree[path] = half if torn and node.data != node.synced else node.synced

    def _remember(self, what: str) -> None:
        self.moments.append((what, list(self._outcomes())))

    # The calls that are watched.

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in _CHANGING:
                patch.setattr(os, name, self._wrap(name, getattr(os, name)))
            real = os.fsync

            def fsync(descriptor: int) -> None:
                self._look()
                self._remember("before fsync")
                real(descriptor)
                self._fsync(descriptor)
                self._remember("after fsync")

            patch.setattr(os, "fsync", fsync)
            yield
        self._look()
        self._remember("end")

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self._look()
            known = len(self.pending)
            result = real(*arguments, **keywords)
            self._look()
            made = self.pending[known:]
            if name in ("rename", "replace") and made:  # the folders inside of what was moved have not changed
                self.pending[known:] = [tuple(part for change in made for part in change)]
            self._remember(f"after {name}")
            return result

        return call


def every_loss(disk: Disk, place: Path, check: Callable[[Path, str, bool], None]) -> int:
    """Put every outcome on a real disk, once, and check it; returns how many there are.

    `check` is told the moment, and whether somebody had been told by then that all is well.
    """
    seen: set[tuple[tuple[tuple[str, bytes | None], ...], int]] = set()
    for index, (moment, trees) in enumerate(disk.moments):
        told = sum(index >= report for report in disk.reported)
        for tree in trees:
            key = tuple(sorted(tree.items())), told
            if key in seen:
                continue
            seen.add(key)
            shutil.rmtree(place, ignore_errors=True)
            for path, data in tree.items():
                target = Path(f"{place}{path}")
                target.mkdir() if data is None else target.write_bytes(data)
            check(place, f"moment {index}, {moment}", told)
    return len(seen)
