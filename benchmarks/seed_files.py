"""The results of the learning benchmark on disk: one small file for each seed of each side of a pair."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from pair_parts import Pair

DATA_VARIABLE = "RL_TRAINING_DATA"  # names the folder of the public data, for the tests too


@dataclass(frozen=True)
class Curve:
    """One seed of one side: the mean return of every evaluation, and the CPU seconds of training without them."""

    pair: str
    side: str
    seed: int
    settings: str  # the fingerprint of what was trained
    steps: Sequence[int]
    returns: Sequence[float]
    cpu_seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    code: str = ""  # the fingerprint of this package's source, which changes between two releases

    def save(self, path: Path) -> None:
        """Write the file as a whole, or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n")
        unfinished.replace(path)


def fingerprint(pair: Pair, side: str) -> str:
    text = json.dumps(pair.described(side), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def own_code() -> str:
    """The fingerprint of this package's source, without importing it."""
    found, package = hashlib.sha256(), find_spec("rl_training")
    assert package is not None, "rl-training is not installed"
    assert package.origin is not None
    folder = Path(package.origin).parent
    for path in sorted(folder.rglob("*.py")):
        found.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


def seed_file(out: Path, pair: str, side: str, seed: int) -> Path:
    return out / pair / f"{side}_{seed}.json"


def read_curve(path: Path) -> Curve | None:
    """The curve of a file, or nothing if there is no such file or it is not one of ours."""
    try:
        return Curve(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def curves_of(out: Path, name: str, side: str) -> list[Curve]:
    """All curves of one side that are there, by seed."""
    found = [read_curve(path) for path in (out / name).glob(f"{side}_*.json")]
    own = (curve for curve in found if curve is not None and curve.side == side)
    return sorted(own, key=lambda curve: curve.seed)


def data_file(name: str) -> Path:
    """A file of the public data, in the folder that the environment variable names."""
    return Path(os.environ.get(DATA_VARIABLE, "")) / name
