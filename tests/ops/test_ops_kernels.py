"""The shim of compiled loops: code of other sources, or of other types, is not used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.caching import IndexDataCacheFile

from rl_training.ops import kernels

INNER = """
from rl_training.ops.kernels import jit

@jit
def inner(x):
    return x + {amount}
"""
OUTER = """
from rl_training.ops.kernels import jit
from rl_training.ops.kernels.added_inner import inner

@jit
def outer(x):
    return inner(x)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, with the folder of its kernels."""
    copy = tmp_path / "rl_training"
    shutil.copytree(Path(kernels.__file__).parents[2], copy, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    (copy / "ops/kernels/added_outer.py").write_text(OUTER)
    return copy


def result(package: Path) -> str:
    program = "from rl_training.ops.kernels.added_outer import outer; print(outer(1), dict(outer.stats.cache_hits))"
    environment = {"PYTHONPATH": str(package.parent), "PATH": "", "HOME": str(package.parent)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_change_in_another_file_is_compiled(package: Path) -> None:
    inner = package / "ops/kernels/added_inner.py"
    inner.write_text(INNER.format(amount=1))
    assert result(package) == "2 {}\n"
    assert result(package).startswith("2 {("), "the second process finds what the first compiled"
    inner.write_text(INNER.format(amount=5))
    assert result(package) == "6 {}\n"


def test_code_of_other_sources_is_deleted_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("old.nbi", "old.nbc", "module.pyc"):
        (tmp_path / name).write_bytes(b"x")
    kernels.forget_other_versions.__wrapped__(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".pyc", ".sha256"}
    (tmp_path / "new.nbi").write_bytes(b"x")
    kernels.forget_other_versions.__wrapped__(tmp_path)
    assert (tmp_path / "new.nbi").exists(), "of these sources"


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    kernels.forget_other_versions.__wrapped__(tmp_path / "file" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name_apart", [True, pytest.param(False, marks=pytest.mark.xfail(strict=True))])
def test_two_processes_that_compile_at_once_do_not_mix_their_code(tmp_path: Path, name_apart: bool) -> None:
    """The one that is not named apart shows what numba does by itself: `second` loads the code of `first`."""
    first, second = (IndexDataCacheFile(str(tmp_path), "kernel", "stamp") for _ in range(2))
    if name_apart:
        kernels._name_apart(first)
        kernels._name_apart(second)
    write = first._save_data

    def write_late(name: str, data: object) -> None:
        second._load_index = dict  # it looked before the first one had written anything
        second.save("types of second", "code of second")
        write(name, data)

    first._save_data = write_late
    first.save("types of first", "code of first")
    reader = IndexDataCacheFile(str(tmp_path), "kernel", "stamp")
    assert reader.load("types of second") == "code of second"
    assert reader.load("types of first") in (None, "code of first"), "at worst it is compiled once more"
