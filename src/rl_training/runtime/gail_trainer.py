"""Train GAIL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.train import AnyConfig, TrainResult, train


def train_gail(
    config: AnyConfig,
    *,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Train GAIL as a config says: a preset's name, a file, a mapping or a checked config."""
    return train(config, algo="gail", run_dir=run_dir, resume=resume, callbacks=callbacks)
