"""The tool that measures what a pool of workers gains."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from benchmark_helpers import BENCHMARKS, pools


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # workers look for the environments there


def test_all_sides_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    work = pools.WORKS["uneven"]
    shared = work.shared | {"num_envs": 2, "n_steps": 4, "batch_size": 8, "env_kwargs": {"mean": 0.0001}}
    sides: dict[str, dict[str, Any]] = {"alone": {}, "processes": {"actors": "process", "num_workers": 2}}
    monkeypatch.setitem(pools.WORKS, "uneven", work._replace(shared=shared, sides=sides))
    monkeypatch.setattr(sys, "argv", ["pools.py", "uneven", "--seconds", "0.05", "--rounds", "2"])
    pools.main()
    what, alone, processes, ratio = capsys.readouterr().out.splitlines()
    assert what == work.what
    assert alone.startswith("  alone: ")
    assert processes.endswith(" steps/s")
    assert ratio.startswith("  processes / alone: ")


def test_steps_wait_for_as_long_as_they_should() -> None:
    env = pools.Waiting()
    waits = [env.next_wait() for _ in range(20_000)]
    assert 0.004 < sum(waits) / len(waits) < 0.006
    assert max(waits) > 10 * 0.005
