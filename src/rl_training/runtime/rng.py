"""Every source of randomness of a run, by name, so that all of it can be saved and restored."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

# The first actor's environments and policy, and the minibatches. A further actor has `env/1` and `policy/1`, and so on.
# Actors of a task have their streams under its name, such as `lander/env` and `lander/env/1`.
STREAMS = ("env", "policy", "batch")


def seeded(seed: int, name: str) -> np.random.SeedSequence:
    """A separate seed for every name, so that adding a stream changes no other."""
    return np.random.SeedSequence([seed, zlib.crc32(name.encode())])


def seed_global_generators(seed: int) -> None:
    """Seed the generators that user code may draw from."""
    random.seed(int(seeded(seed, "python").generate_state(1)[0]))
    np.random.seed(int(seeded(seed, "numpy").generate_state(1)[0]))
    torch.manual_seed(int(seeded(seed, "torch").generate_state(1)[0]))


def stream_of(task: str, name: str) -> str:
    """The name of a stream of a task; a run in one environment has a task without a name."""
    return f"{task}/{name}" if task else name


def make_streams(seed: int, tasks: Sequence[str] = ("",)) -> dict[str, np.random.Generator]:
    """The run's own generators; the global ones are seeded too. Minibatches of all tasks have one."""
    seed_global_generators(seed)
    *acting, batch = STREAMS
    names = [*(stream_of(task, name) for task in tasks for name in acting), batch]
    return {name: np.random.Generator(np.random.PCG64(seeded(seed, name))) for name in names}


def actor_streams(
    seed: int, number: int, life: int = 0, task: str = ""
) -> tuple[np.random.Generator, np.random.Generator]:
    """The generators of an actor's environments and of its policy. Adding an actor or a task changes no other stream.

    An actor that was replaced has streams of its own in every `life`, so that no episode comes twice.
    """
    first = number == 0 and life == 0
    names = [name if first else f"{name}/{number}" + f"/{life}" * (life > 0) for name in ("env", "policy")]
    env, policy = (np.random.Generator(np.random.PCG64(seeded(seed, stream_of(task, name)))) for name in names)
    return env, policy


def streams_state(streams: Mapping[str, np.random.Generator]) -> dict[str, Any]:
    """The state of the run's generators and of the global ones, as plain data."""
    state = {"streams": {name: stream.bit_generator.state for name, stream in streams.items()}} | global_state()
    version, words, gauss = state["python"]
    # As a tensor: to write, read and check 625 numbers one by one would be most of a small checkpoint's time.
    return state | {"python": [version, torch.tensor(words), gauss]}


def restore_streams(streams: Mapping[str, np.random.Generator], state: Mapping[str, Any]) -> None:
    """Restore what `streams_state` returned."""
    for name, stream in streams.items():
        stream.bit_generator.state = state["streams"][name]
    version, words, gauss = state["python"]
    restore_global_state({**state, "python": (version, words.tolist(), gauss)})


def global_state() -> dict[str, Any]:
    """The state of the global generators, as plain data."""
    kind, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_global_state(state: Mapping[str, Any]) -> None:
    """Restore what `global_state` returned."""
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def global_position() -> bytes:
    """Where the global generators are: another place after anything was drawn from one of them."""
    _, keys, *rest = np.random.get_state()
    return repr((random.getstate(), rest)).encode() + np.asarray(keys).tobytes() + bytes(torch.get_rng_state().numpy())


@contextmanager
def untouched() -> Iterator[None]:
    """Restore the global generators at the end, whatever is drawn from them inside."""
    state = global_state()
    try:
        yield
    finally:
        restore_global_state(state)
