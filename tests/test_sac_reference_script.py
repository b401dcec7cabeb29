"""The reference script of SAC on Pendulum runs as a program, with `--smoke`, and does what it prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint, read_meta

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NUMBER = r"-?\d+\.\d+"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("script")


@pytest.fixture(scope="module")
def printed(folder: Path) -> list[str]:
    """Its lines; it is run once, from an empty folder, with a seed whose first policies are better than its last."""
    before = sorted(EXAMPLES.iterdir())
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "sac_pendulum_reference.py", "--smoke", "--seed", "2"],
        cwd=folder,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(EXAMPLES.iterdir()) == before
    return done.stdout.splitlines()


def test_it_trains_evaluates_resumes_and_plays(printed: list[str]) -> None:
    for line, pattern in zip(
        printed,
        [
            rf"trained    300 steps: return {NUMBER} \(completed\)",
            rf"learned    ent_coef {NUMBER}, last learning rate 0\.0005",
            rf"evaluated  the best checkpoint, of step [123]00: return {NUMBER}",
            rf"resumed    to step 400: return {NUMBER}",
            rf"played     one episode by predict: return {NUMBER}",
            r"run        runs/sac__Pendulum-v1__seed2__[\d-]+",
        ],
        strict=True,
    ):
        assert re.fullmatch(pattern, line), line


def test_what_it_prints_is_what_the_run_holds(printed: list[str], folder: Path) -> None:
    (run_dir,) = (folder / "runs").iterdir()
    assert printed[-1].split()[1] == run_dir.relative_to(folder).as_posix()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    returns = {int(row["step"]): row["eval_return_mean"] for row in rows if "eval_return_mean" in row}
    assert list(returns) == [100, 200, 300, 400]
    assert f"return {returns[300]:.1f} " in printed[0]
    best = max((100, 200, 300), key=returns.__getitem__)
    assert f"of step {best}: return {returns[best]:.1f}" in printed[2]
    assert printed[3].endswith(f"return {returns[400]:.1f}")
    (end,) = [row for row in rows if row["step"] == 300]
    assert f"ent_coef {end['ent_coef']:.4f}" in printed[1]
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert (config["algo"], config["seed"], config["learning_rate_schedule"]) == ("sac", 2, 5e-4)
    assert (config["total_timesteps"], config["early_stopping"]) == (400, [])


def test_the_resumed_run_kept_its_replay(printed: list[str], folder: Path) -> None:
    (run_dir,) = (folder / "runs").iterdir()
    last = read_checkpoint(find_checkpoint(run_dir, "latest"))
    assert last.meta["step"] == 400
    assert last.state["algorithm"]["n_updates"] == 300, "one for every step after the first 100"
    (rows,) = [array for name, array in last.arrays.items() if name == "replay.rows"]
    assert sum(len(chunk) for chunk in rows.chunks()) == 400
    assert read_meta(find_checkpoint(run_dir, "best"))["step"] in (100, 200, 300, 400)
