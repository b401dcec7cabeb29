"""The commit in the metadata of a run is read without running git, or anything that a folder's git settings name."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rl_training.experiment.manager import describe_process

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git to make a repository")


def git(folder: Path, *words: str) -> str:
    own = [
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@b.c",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "protocol.file.allow=always",
    ]
    return subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-b", "some/branch")
    (folder / "file.txt").write_text("text\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    monkeypatch.chdir(folder)
    return folder


def test_no_program_of_the_folder_runs(repository: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {proof}\ncat\n")
    program.chmod(0o755)
    (repository / "hooks").mkdir()
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        shutil.copy(program, repository / "hooks" / hook)
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    for key in ("core.fsmonitor", "filter.evil.clean", "filter.evil.process", "diff.evil.textconv", "core.pager"):
        git(repository, "config", key, str(program))
    git(repository, "config", "core.hooksPath", str(repository / "hooks"))
    (repository / "file.txt").write_text("more\n")
    expected = (repository / ".git" / "refs" / "heads" / "some" / "branch").read_text()[:12]
    proof.unlink(missing_ok=True)  # the set-up may have run it
    found = describe_process()["git"]
    assert not proof.exists()
    assert found == expected


def test_in_every_kind_of_repository(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert describe_process()["git"] == commit[:12]
    (repository / "file.txt").write_text("changed\n")
    assert describe_process()["git"] == commit[:12], "what changed since is not looked for"
    (repository / "inner").mkdir()
    monkeypatch.chdir(repository / "inner")
    assert describe_process()["git"] == commit[:12]
    git(repository, "pack-refs", "--all")
    assert not (repository / ".git" / "refs" / "heads" / "some" / "branch").exists()
    assert describe_process()["git"] == commit[:12]
    git(repository, "worktree", "add", "-b", "other", str(tmp_path / "tree"))
    monkeypatch.chdir(tmp_path / "tree")
    assert describe_process()["git"] == commit[:12]
    git(tmp_path / "tree", "commit", "--allow-empty", "-m", "second")
    second = git(tmp_path / "tree", "rev-parse", "HEAD")
    assert second != commit
    assert describe_process()["git"] == second[:12]
    git(tmp_path / "tree", "checkout", "--detach", commit)
    assert describe_process()["git"] == commit[:12]
    (tmp_path / "above").mkdir()
    git(tmp_path / "above", "init")
    monkeypatch.chdir(tmp_path / "above")
    assert describe_process()["git"] is None, "there is no commit yet"
    git(tmp_path / "above", "submodule", "add", str(repository), "module")
    monkeypatch.chdir(tmp_path / "above" / "module")
    assert describe_process()["git"] == commit[:12]


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xff\xfe",
        b"ref: refs/heads/../../../secret",
        b"ref: /etc/passwd",
        b"not a commit",
        b"ref: refs/heads/gone",
    ],
)
def test_a_damaged_or_hostile_repository_has_no_commit(head: bytes, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0" * 40)
    (repository / ".git" / "HEAD").write_bytes(head)
    assert describe_process()["git"] is None


def test_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert describe_process()["git"] is None
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert describe_process()["git"] is None
