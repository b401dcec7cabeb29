"""The DeepMind Control Suite, whose ids, such as `dm_control/walker-walk-v0`, shimmy registers with Gymnasium."""

from __future__ import annotations

import warnings

from rl_training.runtime.extras import clash, import_extra
from rl_training.types import UserError


def is_dmc(env_id: str) -> bool:
    """Whether an id names an environment of dm-control."""
    return env_id.startswith("dm_control/")


def register_dmc(env_id: str) -> None:
    """Register the environments with Gymnasium, or say which extra is missing or which versions do not fit."""
    asked_by = f"env_id={env_id!r}"
    problem = clash("dmc")
    if problem is not None:
        raise UserError(f"{asked_by}: {problem}")
    with warnings.catch_warnings():
        # Where there is no display, the first of its ways to render says so; none is needed until a frame is asked for.
        warnings.simplefilter("ignore")
        # shimmy registers nothing, and says nothing, where dm-control is missing.
        for module in ("dm_control", "shimmy"):
            import_extra(module, "dmc", asked_by=asked_by)
