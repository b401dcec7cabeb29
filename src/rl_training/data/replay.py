"""Replay buffers: the right kind for the observations, and the RAM that it takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rl_training.data.frame_replay import FrameReplay
from rl_training.data.goal_replay import GoalReplay
from rl_training.data.plain_replay import Change, Replay
from rl_training.data.ram import available_memory, readable
from rl_training.data.replay_files import read_kind
from rl_training.data.row_replay import RowReplay
from rl_training.types import Array, Records, SpaceInfo, UserError

__all__ = ["Change", "FrameReplay", "GoalReplay", "Replay", "make_replay", "replay_kind", "replay_like", "replay_of"]

_LOG = logging.getLogger("rl_training")


def replay_of(info: SpaceInfo, **columns: Array) -> Replay:
    """A replay that is full of given transitions, in time order: a column `[N, ...]` for each field of a `Step`."""
    replay = Replay(info, 1, len(columns["reward"]))
    replay.fill(columns)
    return replay


def replay_like(info: SpaceInfo, state: Mapping[str, Any], frame_stack: int) -> Replay:
    """An empty replay that `state`, a saved state of another one, fits; a ValueError if it is damaged."""
    sizes = {"num_envs": state["num_envs"], "buffer_size": state["buffer_size"], "frame_stack": frame_stack}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"{name} is {size!r:.80}")
    records = {str(name): read_kind(shape, dtype) for name, shape, dtype in state.get("records", [])}
    rows = bool(state.get("rows", False))
    return make_replay(info, sizes["num_envs"], sizes["buffer_size"], frame_stack, records, rows=rows)


def replay_kind(info: SpaceInfo, frame_stack: int = 1, *, rows: bool = False, goals: bool = False) -> type[Replay]:
    """The kind of buffer that suits the observations: frames are kept once where stacks are made of them."""
    if rows:
        return RowReplay
    if goals:
        return GoalReplay
    frames = frame_stack > 1 and info.obs_dtype == "uint8" and not info.packed
    return FrameReplay if frames else Replay


def make_replay(
    info: SpaceInfo,
    num_envs: int,
    buffer_size: int,
    frame_stack: int,
    records: Records | None = None,
    *,
    rows: bool = False,
    goals: bool = False,
    task: str = "",
) -> Replay:
    """Make the replay buffer that suits the observations, or one of `rows` for sequences, or one that knows `goals`.

    Logs its size, with the name of its `task`, and raises a UserError if it does not fit.
    """
    kind = replay_kind(info, frame_stack, rows=rows, goals=goals)
    needed = kind.bytes_needed(info, num_envs, buffer_size, records)
    available = available_memory()
    if available is not None and needed > available:
        most = available // kind.slot_bytes(info, records) // num_envs * num_envs
        raise UserError(
            f"buffer_size={buffer_size}: needs {readable(needed)} of RAM, and {readable(available)} are available; "
            f"at most {most} fit"
        )
    whose = f"task {task!r}: " if task else ""
    _LOG.info("%sthe replay of %d transitions takes up to %s of RAM", whose, buffer_size, readable(needed))
    if kind is FrameReplay:
        return FrameReplay(info, num_envs, buffer_size, frame_stack, records)
    return kind(info, num_envs, buffer_size, records)
