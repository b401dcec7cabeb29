"""What the Python objects of an environment hold, as checksums: shows what a restored environment does not have.

An attribute that replaying an episode does not bring back was left by earlier episodes, such as running statistics of
rewards or a count of episodes.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import wrappers
from gymnasium.vector import VectorWrapper

from rl_training.runtime.envs.lent import Lent, LentVector
from rl_training.runtime.envs.observations import CodedObservation
from rl_training.runtime.envs.spaces import PackedObservation

Memory = dict[str, int]

# Attributes with larger arrays or more parts are not looked at.
_MOST_BYTES = 1 << 24
_MOST_PARTS = 2_000
_DEEPEST = 20
_MOST_NAMES = 3
# They only watch, or translate one observation at a time, so that nothing which they keep can change an episode.
_WATCHERS = (
    Lent,
    LentVector,
    CodedObservation,
    PackedObservation,
    wrappers.HumanRendering,
    wrappers.PassiveEnvChecker,
    wrappers.RecordEpisodeStatistics,
    wrappers.RecordVideo,
    wrappers.RenderCollection,
)
# What checkpoints have of translators from before these were left out.
_FORMER = ("FlattenObservation.", "PackedObservation.")
# The names of temporary files are made up anew in every process, and say nothing of an episode.
_TEMPORARY = os.path.join(tempfile.gettempdir(), "")
_DESCRIPTIONS = ("env", "metadata", "_metadata", "spec", "_cached_spec", "render_mode")


def memory_of(env: Any) -> Memory:
    """A checksum of every attribute of an environment and its wrappers, such as `NormalizeReward.return_rms`."""
    found: Memory = {}
    while True:
        if not isinstance(env, _WATCHERS):
            found |= {f"{type(env).__name__}.{name}": total for name, total in _sums(env)}
        if not isinstance(env, (gym.Wrapper, VectorWrapper)):
            return found
        env = env.env


def not_restored(then: Sequence[Memory], now: Sequence[Memory]) -> dict[int, str]:
    """Which attributes are not what they were when they were saved, in words, by environment."""
    faults = {}
    for index, (before, after) in enumerate(zip(then, now, strict=True)):
        differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        names = sorted(name for name in differing if name in after or not name.startswith(_FORMER))
        if names:
            others = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            faults[index] = (
                f"not restored: {', '.join(names[:_MOST_NAMES])}{others}; the rest of the run differs if rewards or "
                "observations depend on it"
            )
    return faults


def packed(memories: Sequence[Memory]) -> dict[str, Any]:
    """Memories in the form of a checkpoint: names, which environments share, and a row of checksums for each."""
    names = sorted({name for memory in memories for name in memory})
    rows = [[memory.get(name, -1) for name in names] for memory in memories]
    return {"names": names, "sums": torch.tensor(rows, dtype=torch.int64).reshape(len(memories), len(names))}


def unpacked(state: Mapping[str, Any]) -> list[Memory]:
    """The memories of which `packed` made a checkpoint's form."""
    rows = state["sums"].tolist()
    return [{name: total for name, total in zip(state["names"], row, strict=True) if total >= 0} for row in rows]


def _sums(env: Any) -> Iterator[tuple[str, int]]:
    for name, value in _attributes(env):
        if name not in _DESCRIPTIONS:
            with suppress(_TooLarge):
                yield name, _Adder(env).add(value, 0)


class _TooLarge(Exception):
    """There is more to look at than a checkpoint is worth."""


class _Adder:
    """Adds up a value and all that it refers to. What is neither plain data nor an object of Python is left out."""

    def __init__(self, owner: Any) -> None:
        self._within = {id(owner)}  # of what the present value is a part, since references may go in circles
        self._parts_left = _MOST_PARTS

    def add(self, value: Any, total: int) -> int:
        self._parts_left -= 1
        if not self._parts_left:
            raise _TooLarge
        if isinstance(value, str) and value.startswith(_TEMPORARY):
            value = _TEMPORARY
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return zlib.crc32(f"{type(value).__name__} {value!r}".encode(errors="surrogatepass"), total)
        if isinstance(value, (bytes, bytearray)):
            return zlib.crc32(value, total)
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().numpy() if value.layout == torch.strided else None
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            return self._add_array(value, total)
        return self._add_parts(value, total)

    @staticmethod
    def _add_array(value: Any, total: int) -> int:
        if value.nbytes > _MOST_BYTES:
            raise _TooLarge
        return zlib.crc32(value.tobytes(), zlib.crc32(f"{value.dtype} {value.shape}".encode(), total))

    def _add_parts(self, value: Any, total: int) -> int:
        if id(value) in self._within or len(self._within) > _DEEPEST:
            return zlib.crc32(b"...", total)
        self._within.add(id(value))
        if isinstance(value, (set, frozenset)):  # their order differs from process to process
            total = self.add(sorted(self.add(item, 0) for item in value), total)
        else:
            for part in _parts(value):
                total = self.add(part, total)
        self._within.remove(id(value))
        return total


def _parts(value: Any) -> Iterator[Any]:
    """What a value consists of, beginning with its kind."""
    yield type(value).__name__
    if isinstance(value, np.random.Generator):
        yield value.bit_generator.state
    elif isinstance(value, np.random.RandomState):
        yield value.get_state()
    elif isinstance(value, random.Random):
        yield value.getstate()
    elif isinstance(value, (dict, SimpleNamespace)):
        items = value.items() if isinstance(value, dict) else sorted(vars(value).items())
        yield from (part for pair in items for part in pair)
    elif isinstance(value, (list, tuple, deque, np.ndarray)):
        yield len(value)
        yield from value
    elif not (isinstance(value, gym.Space) or _package(value) in sys.stdlib_module_names):
        # The generators of spaces are seeded by nobody.
        yield from (part for pair in _attributes(value) for part in pair)


def _package(value: Any) -> str:
    return str(getattr(type(value), "__module__", "")).partition(".")[0]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an object by name, without a call of anything that it defines."""
    found = dict(_own(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        found |= {name: _own(value, name) for name in ([slots] if isinstance(slots, str) else slots)}
    return sorted(found.items())


def _own(value: Any, name: str, default: Any = None) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return default
