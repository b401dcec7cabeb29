"""The modules of the benchmarks, found as they are when they are run: in their own folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


speed, sides, summary, trainers, works = map(load, ("speed", "sides", "summary", "trainers", "works"))
libraries, dreamers = map(load, ("libraries", "dreamers"))
bits, bit_cases, bit_records = map(load, ("bits", "bit_cases", "bit_records"))
kills, kill_cases, kill_chains, kill_findings, kill_runs = map(
    load, ("kills", "kill_cases", "kill_chains", "kill_findings", "kill_runs")
)
pools = load("pools")
