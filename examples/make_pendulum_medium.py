"""Regenerate the packaged dataset `rl_training.data.packaged:pendulum_medium` with a half-trained SAC agent.

    python examples/make_pendulum_medium.py [OUTPUT.npz]

The reference scores are the mean returns of random actions and of the fully trained agent.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rl_training import train_sac
from rl_training.data.datasets.files import save_npz
from rl_training.data.packaged import DATASET_FOLDER
from rl_training.experiment.config import load_config
from rl_training.runtime.datasets import Behaviour, collect

HALF_TRAINED, TRAINED = 4_000, 20_000


def make(output: Path, *, half_trained: int = HALF_TRAINED, trained: int = TRAINED, steps: int = 10_000) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("sac/pendulum", seed=0, output_dir=folder, eval_interval=None)
        medium, expert = (
            train_sac(config.replace(total_timesteps=total), run_dir=Path(folder) / str(total)).checkpoint
            for total in (half_trained, trained)
        )
        lowest = collect("Pendulum-v1", [Behaviour()], episodes=50, seed=1).returns.mean()
        highest = collect(None, [Behaviour(expert)], episodes=50, seed=1, deterministic=True).returns.mean()
        dataset = collect(
            None,
            [Behaviour(medium)],
            steps=steps,
            seed=0,
            ref_min_score=round(float(lowest), 1),
            ref_max_score=round(float(highest), 1),
        )
    origin = {"notes": (f"a SAC agent after {half_trained:,} steps, with its exploration",)}
    return save_npz(replace(dataset, source={**dataset.source, **origin}), output)


if __name__ == "__main__":
    print(make(Path(sys.argv[1]) if len(sys.argv) > 1 else DATASET_FOLDER / "pendulum_medium.npz"))
