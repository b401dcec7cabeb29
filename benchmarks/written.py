"""What scripts that write a file from the config fields share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def write_or_check(file: Path, text: str, script: str, arguments: Sequence[str] | None) -> int:
    """Write a text to its file or, with `--check`, say whether the file is up to date; returns the exit code."""
    parser = argparse.ArgumentParser(prog=script, description=f"Write {file.name} from the config fields.")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    if parser.parse_args(arguments).check:
        same = file.exists() and file.read_text() == text
        print(f"{file.name} is {'up to date' if same else f'out of date: run benchmarks/{script}'}")
        return 0 if same else 1
    file.write_text(text)
    return 0
