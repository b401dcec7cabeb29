"""Training works where folders cannot be synced, nothing can be linked, and half of the signals are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import as_on_windows
from rl_training import train
from rl_training.data import disk
from run_helpers import run_differences, tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="imitates one system on another")
PROGRAM = Path(as_on_windows.__file__)


def program(folder: Path, run_dir: Path, settings: dict[str, Any], **job: Any) -> subprocess.CompletedProcess[str]:
    file = folder / "job.json"
    usual = {"run_dir": str(run_dir), "settings": settings, "stop": 0, "resume": False, "refused": False}
    file.write_text(json.dumps(usual | job))
    command = [sys.executable, "-W", "error::ResourceWarning", str(PROGRAM), str(file)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONUTF8": "0"}, check=False)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_run_is_trained_saved_and_resumed_to_the_same_end(algo: str, tmp_path: Path) -> None:
    settings = tiny(algo=algo, total_timesteps=192, eval_interval=96)
    train(settings, run_dir=tmp_path / "here")
    cut = program(tmp_path, tmp_path / "there", settings, stop=96)
    assert cut.returncode == 7, cut.stderr
    rest = program(tmp_path, tmp_path / "there", settings, resume=True)
    assert rest.returncode == 0, rest.stderr
    assert len(rest.stderr.splitlines()) == 1, rest.stderr  # the process before had not released the run
    assert run_differences(tmp_path / "here", tmp_path / "there") == []
    assert (tmp_path / "here" / "checkpoints" / "latest").read_bytes() == b"step_192\n"
    assert (tmp_path / "there" / "checkpoints" / "latest").read_bytes() == b"step_192\n"


def test_workers_in_processes_are_refused(tmp_path: Path) -> None:
    said = program(tmp_path, tmp_path / "run", tiny(actors="process", num_workers=3), refused=True)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("actors='process': shares memory in a way that Windows does not have")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_in_use_is_left_for_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_use(*paths: Any) -> None:
        raise PermissionError

    (tmp_path / "old").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", in_use)
        with pytest.raises(PermissionError):
            disk.remove_tree(tmp_path / "old")
        patched.setattr(disk, "WINDOWS", True)
        disk.remove_tree(tmp_path / "old")
    assert (tmp_path / "old").is_dir()
    disk.remove_tree(tmp_path / "old")
    assert list(tmp_path.iterdir()) == []
