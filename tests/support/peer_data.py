"""What both sides are given: numbers that set them up, batches and noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from conformance import CONTINUOUS
from off_policy_reference import transitions
from peers import doubled
from rl_training.data.batches import Transitions
from rl_training.types import SpaceInfo

RATE, GAMMA, TAU = 1e-2, 0.9, 0.3
ROWS, ACTIONS = 16, CONTINUOUS.action_size


# Noise


class Draws:
    """A random stream that returns given arrays in order, whatever is asked for; their shapes must fit."""

    def __init__(self, *arrays: Any) -> None:
        self.left = list(arrays)

    def _next(self, shape: Any) -> np.ndarray:
        assert self.left, f"a draw of shape {tuple(shape)}, where none was prepared"
        array = np.asarray(self.left.pop(0))
        assert array.shape == tuple(shape), f"a draw of shape {tuple(shape)}, where {array.shape} was prepared"
        return array

    def standard_normal(self, shape: Any, dtype: Any = None) -> np.ndarray:
        return self._next(shape)

    def uniform(self, low: float, high: float, shape: Any) -> np.ndarray:
        return self._next(shape)

    def permutation(self, count: int) -> np.ndarray:
        return self._next((count,))

    def tensor(self, shape: Any) -> Tensor:
        return torch.from_numpy(self._next(shape).copy())


@contextmanager
def peer_draws(*arrays: Any) -> Iterator[None]:
    """The random numbers of torch are these, in the order in which the peer asks for them. All must be used."""
    draws = Draws(*arrays)
    with torch_draws(draws):
        yield
    assert not draws.left, f"{len(draws.left)} prepared draws were not used"


@contextmanager
def torch_draws(draws: Draws) -> Iterator[None]:
    """The normal and uniform numbers of torch are those of a given stream."""

    def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
        return tensor.copy_(mean + std * draws.tensor(tensor.shape))

    with (
        mock.patch("torch.distributions.normal._standard_normal", lambda shape, **_: draws.tensor(shape)),
        mock.patch.object(torch.Tensor, "normal_", normal_),
        mock.patch.object(torch.Tensor, "uniform_", lambda tensor, *_: tensor.copy_(draws.tensor(tensor.shape))),
        mock.patch("torch.randn", lambda *shape, **_: draws.tensor(shape[0] if len(shape) == 1 else shape)),
    ):
        yield


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, 1]).standard_normal(shape)


# Batches


def batch_of(info: SpaceInfo, seed: int) -> Transitions:
    """Made-up transitions in double precision, of chains of one to three steps."""
    batch = transitions(info, ROWS, seed, gamma=GAMMA)
    columns: dict[str, Any] = {name: doubled(getattr(batch, name)) for name in ("obs", "action", "reward", "next_obs")}
    return replace(batch, **columns, discount=GAMMA ** steps_of(batch))


def steps_of(batch: Transitions) -> np.ndarray:
    """How many steps each chain of a batch has."""
    steps: np.ndarray = np.round(np.log(batch.discount) / np.log(GAMMA))
    return steps


def column(array: Any) -> Tensor:
    """A column `[B, 1]`."""
    return torch.from_numpy(np.asarray(array, np.float64)).reshape(-1, 1)
