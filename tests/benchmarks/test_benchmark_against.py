"""Two checkouts of the package measured against each other: the interval of their ratio, and who loads what."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmark_helpers import BENCHMARKS, libraries, sides, speed, summary, works

Slice = summary.Slice
# Ratios of 2, 5 and 3 by the clock, and of 1, 2.5 and 1.5 by CPU time.
OURS = [Slice(100, 1.0, 1.0, 0), Slice(100, 0.5, 0.5, 0), Slice(600, 2.0, 2.0, 0)]
OTHER = [Slice(100, 2.0, 1.0, 0), Slice(120, 3.0, 1.5, 0), Slice(100, 1.0, 0.5, 0)]


def test_interval_of_a_median() -> None:
    ratios = [0.9, 1.0, 1.1, 1.2, 5.0]
    found = summary.median_interval(ratios)
    assert found.median == 1.1
    assert found.confidence == 0.9
    # Of five draws the median is the lowest value with a chance of 5.8% (at least three draws of it), so 5% of the
    # medians reach down to it; by symmetry 5% reach up to the highest.
    assert (found.low, found.high) == (0.9, 5.0)
    assert summary.median_interval(ratios) == found
    assert summary.median_interval([2.0]) == summary.Interval(2.0, 2.0, 2.0)


def test_more_rounds_narrow_the_interval() -> None:
    few, many = (summary.median_interval([0.9, 1.0, 1.1, 1.2, 1.3] * times) for times in (1, 20))
    assert (few.low, few.median, few.high) == (0.9, 1.1, 1.3)
    assert few.low < many.low <= many.median <= many.high < few.high


def test_line_of_the_interval_goes_by_cpu_time() -> None:
    # Each of three ratios is drawn at least twice with a chance of 7 / 27, so the interval reaches both ends.
    line = "ours / other per CPU second: median 1.500, 90% interval 1.000 to 2.500 (3 rounds)"
    assert summary.interval_line(OURS, OTHER, "other") == line
    work = libraries.Work("Some training", 5, {})
    slices = {"ours": OURS, "other": OTHER}
    assert line in speed.report("some_work", work, 1000, 1, slices)
    found = json.loads(json.dumps(speed.record("some_work", work, 1000, 1, slices)))
    assert found["intervals"]["cpu"] == {"median": 1.5, "low": 1.0, "high": 2.5, "confidence": 0.9}
    assert found["intervals"]["wall"]["median"] == 3.0
    assert found["ratios"]["other"]["cpu"]["median"] == 1.5


def test_without_another_checkout_there_is_no_interval() -> None:
    work = libraries.Work("Some training", 5, {})
    slices = {"ours": OURS, "sb3": OTHER}
    assert "interval" not in speed.report("some_work", work, 1000, 1, slices)
    assert speed.record("some_work", work, 1000, 1, slices)["intervals"] == {}


def test_sides_of_two_checkouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = works.WORKS["ppo_cartpole"]
    sides_of_both = speed.choose_sides(work, [], tmp_path)
    assert sides_of_both == {"ours": BENCHMARKS.parent / "src", "other": tmp_path}
    assert capsys.readouterr().err == ""
    assert speed.choose_sides(work, [], None) == {"ours": None}
    assert capsys.readouterr().err == "ours is measured alone\n"


def test_another_checkout_builds_what_ours_builds() -> None:
    work = libraries.Work("Some training", 5, {"ours": lambda unit, threads: (unit, threads)}, unit="updates")
    assert work.build("other", 2) == work.build("ours", 2) == ("updates", 2)
    assert work.peers == []


def test_two_checkouts_get_more_and_shorter_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def measure(name: str, sides: Any, count: int, rounds: int, threads: int) -> Any:
        asked.append((count, rounds))
        return dict.fromkeys(sides, OURS)

    monkeypatch.setattr(speed, "measure", measure)
    (tmp_path / "rl_training").mkdir()
    speed.main(["ppo_cartpole", "--peers", "none"])
    speed.main(["ppo_cartpole", "--peers", "none", "--against", str(tmp_path)])
    speed.main(["ppo_cartpole", "--peers", "none", "--against", str(tmp_path), "--rounds", "2", "--steps", "100"])
    assert asked == [(32_768, 5), (16_384, 21), (100, 2)]


def test_child_loads_the_package_from_its_source_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(sides.subprocess, "Popen", lambda command, env, **rest: started.append((command, env)))
    sides.Side("ppo_cartpole", "other", 1, tmp_path, tmp_path / "src")
    command, env = started[0]
    assert command[2:] == ["ppo_cartpole", "other", "1", str(tmp_path / "src")]
    assert env["PYTHONPATH"] == str(tmp_path / "src")


def test_package_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sides.SideFailed) as failure, sides.Side("ppo_cartpole", "other", 1, tmp_path, tmp_path) as side:
        side.advance(1)
    assert "rl_training was loaded from" in str(failure.value)
    assert f"not from {tmp_path.resolve()}" in str(failure.value)


def test_tiny_run_of_two_checkouts(tmp_path: Path) -> None:
    src = BENCHMARKS.parent / "src"
    command = f"a2c_cartpole --peers none --against {shlex.quote(str(src))} --rounds 3 --steps 100 --json result.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "speed.py"), *shlex.split(command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    counts = {side: [piece["count"] for piece in pieces] for side, pieces in result["sides"].items()}
    assert counts["ours"] == counts["other"]  # the same code does the same work
    pieces = {side: [Slice(**piece) for piece in found] for side, found in result["sides"].items()}
    assert summary.interval_line(pieces["ours"], pieces["other"], "other") in done.stdout
    interval = result["intervals"]["cpu"]
    assert interval["low"] <= interval["median"] <= interval["high"]
