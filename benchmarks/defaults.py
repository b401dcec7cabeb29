"""Write docs/defaults.md: every default of every algorithm beside those of other libraries and of the papers.

`python benchmarks/defaults.py` writes it from the config fields and from peer_defaults.yaml; `--check` only says
whether the file is up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from written import write_or_check

from rl_training.experiment.fields import Setting, settings_of, text_of
from rl_training.experiment.registry import REGISTRY, load_spec

FILE = Path(__file__).resolve().parents[1] / "docs" / "defaults.md"
PEERS = Path(__file__).resolve().with_name("peer_defaults.yaml")
_INTRODUCTION = """# Defaults

<!-- Written by benchmarks/defaults.py from the config fields and from benchmarks/peer_defaults.yaml. -->

Every default of every algorithm, beside those of Stable-Baselines3 and sb3-contrib 2.9.2, imitation 1.0.1, d3rlpy
2.8.1, mctx 0.0.71, RLlib 2.60.0, LightZero of August 2026 and the papers, and the reason where they differ. All names
are ours; `rl-training describe ALGO` says what each means. `-`: there is no such setting. A is the number of actions.
CORL is the collection of offline algorithms of Tarasov et al. (2022)."""

Values = Mapping[str, Any]


def read_peers() -> dict[str, dict[str, Any]]:
    """The other defaults, by algorithm: `sources`, `columns` by name, and `reasons`."""
    peers: dict[str, dict[str, Any]] = yaml.safe_load(PEERS.read_text())
    del peers["shared"]
    return peers


def write_document() -> str:
    """The whole document."""
    peers = read_peers()
    return "\n\n".join([_INTRODUCTION, *(_section(algo, peers.get(algo)) for algo in REGISTRY)]) + "\n"


def _section(algo: str, peers: Mapping[str, Any] | None) -> str:
    columns: dict[str, Values] = {} if peers is None else peers["columns"]
    settings = settings_of(load_spec(algo)).values()
    compared = [setting for setting in settings if any(setting.name in column for column in columns.values())]
    alone = [setting for setting in settings if setting not in compared and setting.part != "run"]
    parts = [f"## {algo}"]
    if peers is not None:
        header = ["setting", "default", *columns, "why it differs"]
        rows = [_row(algo, setting, columns, peers["reasons"]) for setting in compared]
        lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (header, ["---"] * len(header), *rows)]
        parts += [f"{peers['sources']}.", "\n".join(lines)]
    words = ", ".join(f"`{setting.name}` {_ours(setting)}" for setting in alone)
    return "\n\n".join([*parts, f"Without a counterpart: {words}."])


def _row(algo: str, setting: Setting, columns: Mapping[str, Values], reasons: Values) -> list[str]:
    ours = _ours(setting)
    theirs = {name: _text(column[setting.name]) for name, column in columns.items() if setting.name in column}
    differs = [name for name, value in theirs.items() if value != ours]
    if differs and setting.name not in reasons:
        sys.exit(
            f"defaults.py: {algo}.{setting.name} is {ours}, but {theirs[differs[0]]} in {differs[0]}; say why in "
            f"{PEERS.name}, or correct the value there"
        )
    reason = str(reasons[setting.name]) if differs else ""
    return [f"`{setting.name}`", ours, *(theirs.get(name, "-") for name in columns), reason]


def _ours(setting: Setting) -> str:
    return _text(setting.default) if setting.default_curve is None else setting.default_text


def _text(value: Any) -> str:
    """A value as in a config; of a fraction three digits."""
    return f"{value:.3g}" if isinstance(value, float) and not value.is_integer() else text_of(value)


def main(arguments: Sequence[str] | None = None) -> int:
    return write_or_check(FILE, write_document(), "defaults.py", arguments)


if __name__ == "__main__":
    sys.exit(main())
