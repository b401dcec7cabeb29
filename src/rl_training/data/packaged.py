"""The datasets that come with the package; `examples/make_pendulum_medium.py` makes them again."""

from __future__ import annotations

from pathlib import Path

from rl_training.data.dataset import OfflineDataset
from rl_training.data.dataset_files import read_dataset
from rl_training.types import SpaceInfo

DATASET_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "datasets"


def pendulum_medium(info: SpaceInfo | None = None) -> OfflineDataset:
    """10,000 steps of a half-trained SAC agent, with its exploration, in Pendulum-v1."""
    return read_dataset(str(DATASET_FOLDER / "pendulum_medium.npz"))
