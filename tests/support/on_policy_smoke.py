"""What the smoke tests of the on-policy trainers have in common: a tiny run, and how its schedules end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rl_training.runtime.checkpoints.checkpoint import Checkpoint, read_checkpoint
from rl_training.runtime.workflows import resume_training
from rl_training.testing import checkpoint_differences

TINY: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "vectorization": "sync",
    "total_timesteps": 128,
    "num_envs": 2,
    "n_steps": 16,
    "batch_size": 16,
    "hidden_sizes": [8],
    "eval_episodes": 2,
    "log_interval": 1,
    "ent_coef": 0.05,
    "ent_coef_schedule": 0.01,
}
CLIPPED: dict[str, Any] = {"clip_coef": 0.3, "clip_coef_schedule": {"type": "cosine", "end": 0.1}}


def resumed_in_the_middle(run: Path, middle: str, end: str) -> Checkpoint:
    """Go on from the middle of a copy of a run, and come out the same at the end; gives the middle."""
    again = run.parent / "again"
    shutil.copytree(run, again)
    resume_training(again / "checkpoints" / middle)
    ends = [read_checkpoint(folder / "checkpoints" / end) for folder in (run, again)]
    assert checkpoint_differences(*ends) == []
    assert ends[1].meta["resume"] == "exact"
    return read_checkpoint(run / "checkpoints" / middle)
