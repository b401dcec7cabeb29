"""The datasets that come with the package; `examples/make_*.py` regenerate them."""

from __future__ import annotations

from pathlib import Path

from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.files import read_dataset
from rl_training.types import SpaceInfo

DATASET_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "datasets"


def pendulum_medium(info: SpaceInfo | None = None) -> OfflineDataset:
    """10,000 steps of a half-trained SAC agent, with its exploration, in Pendulum-v1."""
    return _packaged("pendulum_medium")


def pendulum_expert(info: SpaceInfo | None = None) -> OfflineDataset:
    """10 episodes of a trained SAC agent, with its exploration, in Pendulum-v1."""
    return _packaged("pendulum_expert")


def cartpole_expert(info: SpaceInfo | None = None) -> OfflineDataset:
    """5 episodes of a trained PPO agent, with its exploration, in CartPole-v1."""
    return _packaged("cartpole_expert")


def _packaged(name: str) -> OfflineDataset:
    return read_dataset(str(DATASET_FOLDER / f"{name}.npz"))
