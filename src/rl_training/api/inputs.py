"""Checks and converts the arguments of `predict`: observations, action masks and a policy's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.ops.observations import coded, found, pack
from rl_training.runtime.envs.spaces import allows_an_action, flat_mask
from rl_training.types import Array, Choices, ObsPart, SpaceInfo, UserError


def policy_rows(obs: Any, masks: Any, info: SpaceInfo) -> tuple[Array, bool]:
    """Return observations as a policy's batch `[B, ...]`, and whether there was only one."""
    parts = info.arrays
    if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], Mapping) and not _is_within("1", parts):
        raise UserError("obs: is what reset returns, an observation and its info; pass the first of the two")
    arrays = {part.name: _array(value, part) for part, value in zip(parts, _entries(obs, parts), strict=True)}
    extra = {arrays[part.name].ndim - len(part.shape) for part in parts}
    for part in parts:
        if arrays[part.name].dtype.kind == "f" and not np.isfinite(arrays[part.name]).all():
            raise UserError(f"{_key(part)}: has numbers that are not finite")
    ends = [arrays[part.name].shape[-len(part.shape) :] if part.shape else () for part in parts]
    unfit = [part for part, end in zip(parts, ends, strict=True) if end != part.shape]
    if unfit or extra not in ({0}, {1}):
        part = unfit[0] if unfit else parts[0]
        shape = arrays[part.name].shape
        raise UserError(f"{_key(part)}: has shape {shape}; must be {part.shape}, or a batch")
    single = extra == {0}
    batch = {name: array[None] if single else array for name, array in arrays.items()}
    count = len(next(iter(batch.values())))
    if len({len(array) for array in batch.values()}) > 1:
        lengths = ", ".join(f"{name!r} {len(array)}" for name, array in batch.items())
        raise UserError(f"obs: its entries are batches of different lengths ({lengths})")
    allowed = _allowed(masks, count, info)
    if not info.packed:
        return batch[""], single
    packed = [
        pack({name: array[i] for name, array in batch.items()}, allowed[i], parts, info.mask_size) for i in range(count)
    ]
    return np.stack(packed), single


def check_state(state: Any, count: int) -> None:
    """Check that a state fits the batch: its arrays have one row per observation, and finite numbers.

    A list is not checked here; a policy that has a state converts it to an array.
    """
    if isinstance(state, Mapping):
        state = tuple(state.values())
    if isinstance(state, tuple):
        for item in state:
            check_state(item, count)
        return
    shape: Sequence[int] = getattr(state, "shape", ())
    if len(shape) and shape[0] != count:
        raise UserError(
            f"state: belongs to {shape[0]} observations, but {count} are given; pass None, or call reset(), to start "
            "new episodes"
        )
    if isinstance(state, np.ndarray) and state.dtype.kind == "f" and not np.isfinite(state).all():
        raise UserError("state: has numbers that are not finite")


def start_mask(episode_start: Any, count: int) -> Array:
    """Which observations are the first of their episodes `[B]`."""
    mask = np.asarray(episode_start)
    if mask.size != count or not np.isin(mask, (0, 1)).all():
        raise UserError(f"episode_start={episode_start!r}: must be true or false for each of {count} observations")
    return mask.reshape(count).astype(np.bool_)


def _key(part: ObsPart) -> str:
    return f"obs.{part.name}" if part.name else "obs"


def _is_within(key: str, parts: Sequence[ObsPart]) -> bool:
    """Whether a key is the name of a part, or leads to one."""
    return any(part.name == key or part.name.startswith(f"{key}.") for part in parts)


def _entries(obs: Any, parts: Sequence[ObsPart]) -> Iterator[Any]:
    """What the parts are made of."""
    keys = [str(key) for key in obs] if isinstance(obs, Mapping) else []
    try:
        if not all(_is_within(key, parts) for key in keys):
            raise KeyError
        for part in parts:
            yield found(obs, part.name)
    except KeyError:
        given = f"has {', '.join(map(repr, keys))}" if keys else f"is a {type(obs).__name__}"
        raise UserError(f"obs: {given}; must have {', '.join(repr(part.name) for part in parts)}") from None


def _array(value: Any, part: ObsPart) -> Array:
    try:
        array = value if _is_coded(value, part) else coded(value, part.coding)
    except ValueError as error:
        raise UserError(f"{_key(part)}={value!r:.60}: {error}") from None
    try:
        return np.asarray(array, dtype=part.dtype)
    except (TypeError, ValueError):
        raise UserError(f"{_key(part)}: is a {type(value).__name__}, not numbers of shape {part.shape}") from None


def _is_coded(value: Any, part: ObsPart) -> bool:
    """Whether choices are given as they are coded."""
    if not isinstance(part.coding, Choices):
        return False
    numbers = np.asarray(value)
    if numbers.dtype.kind == "f" or numbers.shape[max(numbers.ndim - len(part.shape), 0) :] != part.shape:
        return numbers.dtype.kind == "f"
    return bool(np.isin(numbers, (0, 1)).all() and (numbers.sum(axis=-1) == len(part.coding.counts)).all())


def _allowed(masks: Any, count: int, info: SpaceInfo) -> list[Array] | list[None]:
    """The mask of every observation."""
    if masks is None:
        return [None] * count
    if not info.mask_size:
        raise UserError(
            "action_masks: the agent was trained without masks: its environment returns no info['action_mask']"
        )
    rows = [flat_mask(masks)] if count == 1 else [flat_mask(mask) for mask in masks]
    sizes = [row.size for row in rows]
    if sizes != [info.mask_size] * count:
        wanted = f"{info.mask_size} entries" if count == 1 else f"{info.mask_size} for each of {count} observations"
        raise UserError(f"action_masks: has {', '.join(map(str, sizes))} entries; must have {wanted}")
    if not all(allows_an_action(row, info.action_counts) for row in rows):
        raise UserError("action_masks: allows no action at all")
    return rows
