"""Exploration: uniform random actions, and continuous actions with Gaussian noise."""

from __future__ import annotations

import numpy as np

from rl_training.ops.observations import Unpacker
from rl_training.types import Array, SpaceInfo


def uniform_actions(info: SpaceInfo, obs: Array, rng: np.random.Generator) -> Array:
    """One action for each observation `[B, ...]`; all allowed actions are equally likely."""
    if info.continuous:
        return rng.uniform(-1.0, 1.0, (len(obs), info.action_size)).astype(np.float32)
    mask = Unpacker(info).mask(obs) if info.mask_size else None
    if info.action_kind == "discrete":
        return uniform_choices(rng, len(obs), info.action_size, mask)
    ends = np.cumsum(info.action_counts)
    factors = [
        uniform_choices(rng, len(obs), count, None if mask is None else mask[:, end - count : end])
        for count, end in zip(info.action_counts, ends, strict=True)
    ]
    return np.stack(factors, axis=-1)


def uniform_choices(rng: np.random.Generator, rows: int, count: int, mask: Array | None) -> Array:
    """One of `count` choices for each row; all allowed ones are equally likely."""
    if mask is None:
        return rng.integers(0, count, rows)
    chosen: Array = np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=-1)
    return chosen


def with_noise(action: Array, noise_std: float, rng: np.random.Generator) -> Array:
    """Actions with Gaussian noise added, clipped to [-1, 1]."""
    noise = rng.standard_normal(action.shape, dtype=np.float32)
    moved: Array = np.clip(action + np.float32(noise_std) * noise, -1.0, 1.0)
    return moved
