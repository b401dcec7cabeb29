"""Who can take part in a work: the libraries behind the sides, and what a work is.

This file loads no library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from trainers import STEPS, Advance

OURS = "ours"
OTHER = "other"  # ours too, from another checkout of the package


class Peer(NamedTuple):
    """The library that a side needs, and the package that installs it."""

    module: str
    package: str
    install: str = "pip install -r benchmarks/requirements.txt"


PEERS = {
    "sb3": Peer("stable_baselines3", "stable-baselines3"),
    "sb3_contrib": Peer("sb3_contrib", "sb3-contrib"),
    "sb3_like": Peer("stable_baselines3", "stable-baselines3"),  # parts of the library in a loop of this folder
    "sbx": Peer("sbx", "sbx-rl"),
    "d3rlpy": Peer("d3rlpy", "d3rlpy", "pip install --no-deps -r benchmarks/requirements-no-deps.txt"),
    "imitation": Peer("imitation", "imitation", "pip install --no-deps -r benchmarks/requirements-no-deps.txt"),
    "plain": Peer("torch", "torch"),  # a file of this folder
    "mctx": Peer("mctx", "mctx"),
    "sheeprl": Peer("sheeprl", "sheeprl", "pip install -r benchmarks/requirements-sheeprl.txt"),
    "sheeprl_2023": Peer("sheeprl", "sheeprl", "pip install -r benchmarks/requirements-sheeprl.txt"),
    "sample_factory": Peer(
        "sample_factory", "sample-factory", "pip install --no-deps -r benchmarks/requirements-sample-factory.txt"
    ),
    "autograd": Peer("torch", "torch"),  # ours too, with gradients by autograd in place of an engine
}

Sides = Mapping[str, Callable[..., Advance]]


@dataclass(frozen=True)
class Work:
    """The same training, done by us and by some peers."""

    summary: str
    slice_size: int  # units in a timed slice; some seconds of the slowest side
    sides: Sides  # "ours" and names of PEERS
    unit: str = STEPS
    needs: Mapping[str, str] = field(default_factory=dict)  # modules that every side needs, and what installs them
    note: str | None = None  # differences between the sides

    @property
    def peers(self) -> list[str]:
        return [name for name in self.sides if name != OURS]

    def build(self, side: str, threads: int) -> Advance:
        return self.sides[OURS if side == OTHER else side](unit=self.unit, threads=threads)
