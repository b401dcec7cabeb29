"""Regenerate the packaged demonstrations `rl_training.data.packaged:cartpole_expert` and `pendulum_expert`.

    python examples/make_expert_demonstrations.py [FOLDER]

Agents are trained with their presets, then act with exploration, as in training. The policy that imitates them is
stochastic too, so a discriminator cannot tell the two apart by the exploration noise.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training import load_config, train
from rl_training.data.datasets.files import save_npz
from rl_training.data.packaged import DATASET_FOLDER
from rl_training.runtime.datasets import Behaviour, collect

# The preset that makes an expert, and how many of its episodes are kept.
EXPERTS = {"cartpole_expert": ("ppo/cartpole", 5), "pendulum_expert": ("sac/pendulum", 10)}


def make(name: str, folder: Path, **changes: Any) -> Path:
    """Train the expert with its preset and `changes`, and write its demonstrations to a folder."""
    preset, episodes = EXPERTS[name]
    config = load_config(preset, seed=0, eval_interval=None, **changes)
    with tempfile.TemporaryDirectory() as runs:
        expert = train(config, run_dir=Path(runs) / "expert").checkpoint
        dataset = collect(None, [Behaviour(expert)], episodes=episodes, seed=0)
    note = f"an agent of {preset} after {config.run.total_timesteps:,} steps, with its exploration"
    return save_npz(replace(dataset, source={**dataset.source, "notes": (note,)}), folder / f"{name}.npz")


if __name__ == "__main__":
    for expert in EXPERTS:
        print(make(expert, Path(sys.argv[1]) if len(sys.argv) > 1 else DATASET_FOLDER))
