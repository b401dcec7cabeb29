"""Describes the spaces of an environment as plain data, packs observations and scales actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.ops.observations import layout, pack, row_bytes
from rl_training.runtime.envs.observations import leaves_of, stored_dtype
from rl_training.runtime.envs.rules import BrokenRule, observation_complaints
from rl_training.types import Array, Coding, SpaceInfo, UserError


def _choices(action: gym.Space[Any]) -> tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Kind, numbers of choices, their first values and the shape of a discrete space; None for any other."""
    if isinstance(action, gym.spaces.Discrete):
        return "discrete", (int(action.n),), (int(action.start),), ()
    if isinstance(action, gym.spaces.MultiDiscrete):
        starts = tuple(int(start) for start in np.ravel(action.start))
        return "multi_discrete", tuple(int(n) for n in action.nvec.ravel()), starts, action.shape
    if isinstance(action, gym.spaces.MultiBinary):
        size = math.prod(action.shape)
        return "multi_binary", (2,) * size, (0,) * size, action.shape
    return None


def mask_size(action: gym.Space[Any]) -> int:
    """How many entries an action mask of this space has."""
    described = _choices(action)
    return sum(described[1]) if described is not None else 0


def flat_mask(given: Any) -> Array:
    """A mask as one row of booleans; a mask for several choices may be given as a list of masks."""
    parts = [np.ravel(part) for part in given] if isinstance(given, (tuple, list)) else [np.ravel(given)]
    return np.concatenate(parts).astype(np.bool_)


def allows_an_action(mask: Array, counts: Sequence[int]) -> bool:
    """Whether every choice of an action has at least one allowed option."""
    if len(counts) == 1:  # splitting takes longer than packing the rest of an observation
        return bool(mask.any())
    return all(factor.any() for factor in np.split(mask, np.cumsum(counts)[:-1]))


class PackedObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Packs an observation of several arrays, and the mask of `info["action_mask"]`, into one row of bytes.

    `coding` is how an observation of one array became the numbers that it is here.
    """

    def __init__(self, env: gym.Env[Any, Any], env_id: str, *, masked: bool, coding: Coding | None = None) -> None:
        super().__init__(env)
        self._leaves = leaves_of(env.observation_space, env_id)
        parts = [leaf.part for leaf in self._leaves]
        self.parts = layout(parts if coding is None else [replace(part, coding=coding) for part in parts])
        self.mask_size = mask_size(env.action_space) if masked else 0
        counts = _choices(env.action_space)
        self._counts = counts[1] if counts is not None else ()
        self._env_id = env_id
        self.observation_space = gym.spaces.Box(0, 255, (row_bytes(self.parts, self.mask_size),), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._row(obs, info, over=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._row(obs, info, over=bool(terminated or truncated)), reward, terminated, truncated, info

    def _row(self, obs: Any, info: Mapping[str, Any], *, over: bool) -> Array:
        mask = self._mask(info, over=over) if self.mask_size else None
        return pack(self._arrays(obs), mask, self.parts, self.mask_size)

    def _arrays(self, obs: Any) -> dict[str, Array]:
        try:
            return {leaf.part.name: leaf.array(obs) for leaf in self._leaves}
        except (KeyError, IndexError, TypeError):  # an entry is missing
            for words in observation_complaints(self.env.observation_space, obs):
                raise BrokenRule(words) from None
            raise

    def _mask(self, info: Mapping[str, Any], *, over: bool) -> Array | None:
        given = info.get("action_mask")
        if given is None:
            return None
        mask = flat_mask(given)
        if mask.size != self.mask_size:
            raise UserError(
                f"env_id={self._env_id!r}: info['action_mask'] has {mask.size} entries; the action space has "
                f"{self.mask_size} choices"
            )
        if not allows_an_action(mask, self._counts):
            if not over:
                raise UserError(f"env_id={self._env_id!r}: info['action_mask'] allows no action at all")
            return None  # no action is taken after the end
        return mask


def _bounded(action: gym.spaces.Box) -> str:
    """A space with the bounds that there are, and others two apart."""
    low, high = float(action.low.min()), float(action.high.max())
    low = low if np.isfinite(low) else high - 2.0 if np.isfinite(high) else -1.0
    high = high if np.isfinite(high) else low + 2.0
    return f"gymnasium.spaces.Box({low:g}, {high:g}, {action.shape})"


def describe_spaces(
    observation: gym.Space[Any],
    action: gym.Space[Any],
    env_id: str,
    packed: PackedObservation | None = None,
    coding: Coding | None = None,
) -> SpaceInfo:
    """The spaces as plain data; raises for a space that no algorithm supports.

    Observations are numbers already, packed or not; `coding` is how those of one array became numbers.
    """
    if not isinstance(observation, gym.spaces.Box):
        raise UserError(
            f"env_id={env_id!r}: a vector environment of your own must show Box observations, not "
            f"{type(observation).__name__}; give a function that makes single environments"
        )
    seen: dict[str, Any] = {
        "obs_shape": observation.shape,
        "obs_dtype": "uint8" if packed is not None else stored_dtype(observation),
        "coding": coding if packed is None else None,
        "parts": packed.parts if packed is not None else (),
        "mask_size": packed.mask_size if packed is not None else 0,
    }
    discrete = _choices(action)
    if discrete is not None:
        kind, counts, starts, shape = discrete
        return SpaceInfo(
            action_kind=kind,  # type: ignore[arg-type]
            action_shape=shape,
            action_size=sum(counts),
            action_counts=counts,
            action_starts=starts,
            **seen,
        )
    if not isinstance(action, gym.spaces.Box):
        raise UserError(
            f"env_id={env_id!r}: actions of {type(action).__name__} are not supported (Box, Discrete, MultiDiscrete, "
            "MultiBinary)"
        )
    if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        raise UserError(
            f"env_id={env_id!r}: actions are unbounded ({action}); policies act in [-1, 1], which is scaled to the "
            "environment's bounds. Give it the bounds between which good actions lie, in a function of yours, such as "
            f"gymnasium.wrappers.TransformAction(env, lambda action: action, {_bounded(action)})"
        )
    low, high = action.low.reshape(-1).tolist(), action.high.reshape(-1).tolist()
    return SpaceInfo(
        action_kind="continuous",
        action_shape=action.shape,
        action_size=len(low),
        action_low=tuple(low),
        action_high=tuple(high),
        **seen,
    )


def observations_in_words(info: SpaceInfo) -> str:
    """What a policy must see."""
    parts = [f"{part.name!r} {part.dtype} {part.shape}".removeprefix("'' ") for part in info.parts]
    mask = f" with a mask of {info.mask_size} actions" if info.mask_size else ""
    return (", ".join(parts) or f"{info.obs_dtype} {info.obs_shape}") + mask


def actions_in_words(info: SpaceInfo) -> str:
    """What a policy must return. The bounds do not matter, since actions are scaled to them."""
    return f"{info.action_kind} of {info.action_size if info.continuous else list(info.action_counts)}"


class ActionScaler:
    """Converts a policy's actions to the environment's; this is done nowhere else."""

    def __init__(self, info: SpaceInfo, dtype: Any) -> None:
        self.info = info
        self.dtype = dtype
        self._low = np.asarray(info.action_low, np.float64)
        self._span = np.asarray(info.action_high, np.float64) - self._low
        self._starts = np.asarray(info.action_starts, np.int64)
        self._whole = info.continuous and np.issubdtype(dtype, np.integer)

    def __call__(self, action: Array) -> Array:
        """Convert `[B]` or `[B, K]` choices, or `[B, size]` numbers, which are clipped to [-1, 1]."""
        info = self.info
        if info.continuous:
            action = self._low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * self._span
            if self._whole:  # round: a cast would truncate toward zero
                action = np.rint(action)
        elif info.action_kind == "discrete":
            return action + self._starts[0] if self._starts[0] else action
        else:
            action = action + self._starts
        return action.astype(self.dtype).reshape(len(action), *info.action_shape)

    def inverse(self, action: Array) -> Array:
        """Convert actions `[B, ...]` of the environment's space to the policy's.

        Numbers are in double precision: converted back, they are the same actions to the bit.
        """
        info = self.info
        if info.continuous:
            numbers: Array = action.reshape(len(action), -1).astype(np.float64) - self._low
            return numbers / np.where(self._span > 0.0, self._span, 1.0) * 2.0 - 1.0
        choices: Array = action.reshape(len(action), *info.stored_action.shape) - self._starts
        return choices.reshape(len(action), *info.stored_action.shape)
