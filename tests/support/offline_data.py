"""Episodes whose every number is known, and the files of every flat layout that they are kept in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.types import SpaceInfo

LADDER_LIMIT = 5


@dataclass(frozen=True)
class Episode:
    """T steps with T + 1 observations; `ending` is `terminal` or `timeout`."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    ending: str

    def __len__(self) -> int:
        return len(self.reward)


def ladder_episodes() -> list[Episode]:
    """Three episodes with observations (episode, t), of 3 and 4 steps to the end, and one that the limit of 5 cuts."""
    return [
        ladder_episode(0, 3, "terminal"),
        ladder_episode(1, LADDER_LIMIT, "timeout"),
        ladder_episode(2, 4, "terminal"),
    ]


def ladder_episode(number: int, steps: int, ending: str) -> Episode:
    """Observations are (number, t), actions and rewards their own for each step; all are exact in float32."""
    obs = np.stack([np.full(steps + 1, number), np.arange(steps + 1)], axis=1).astype(np.float32)
    action = (obs[:-1, :1] * 8 + obs[:-1, 1:]) / 32 - 0.5
    return Episode(obs, action, obs[:-1, 1] + 10 * number + 1, ending)


def ladder_spaces(low: float = -1.0, high: float = 1.0) -> SpaceInfo:
    """The spaces of an environment that ladder episodes could be from."""
    return SpaceInfo((2,), "float32", "continuous", (1,), 1, (), (), (low,), (high,))


def flat_layout(episodes: Sequence[Episode], *without: str) -> dict[str, Any]:
    """D4RL's layout, which is ours too, without some of its keys."""
    arrays = {
        "observations": np.concatenate([episode.obs[:-1] for episode in episodes]),
        "actions": np.concatenate([episode.action for episode in episodes]),
        "rewards": np.concatenate([episode.reward for episode in episodes]),
        "next_observations": np.concatenate([episode.obs[1:] for episode in episodes]),
        "terminals": _at_ends(episodes, "terminal"),
        "timeouts": _at_ends(episodes, "timeout"),
    }
    return {name: array for name, array in arrays.items() if name not in without}


def dones_layout(episodes: Sequence[Episode], *without: str) -> dict[str, Any]:
    """A layout that says only that episodes are over."""
    arrays = flat_layout(episodes, *without)
    arrays["dones"] = arrays.pop("terminals") | arrays.pop("timeouts")
    return arrays


def starts_layout(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Stable-Baselines 2's layout: where episodes start, and no next observations."""
    arrays = flat_layout(episodes, "next_observations", "terminals", "timeouts")
    arrays["obs"] = arrays.pop("observations")
    arrays["episode_starts"] = np.concatenate([np.arange(len(episode)) == 0 for episode in episodes])
    arrays["episode_returns"] = np.array([episode.reward.sum() for episode in episodes])
    return arrays


def _at_ends(episodes: Sequence[Episode], ending: str) -> np.ndarray:
    flags = [(np.arange(len(episode)) == len(episode) - 1) & (episode.ending == ending) for episode in episodes]
    return np.concatenate(flags)


def assert_holds(dataset: OfflineDataset, episodes: Sequence[Episode], *, successors: bool = True) -> None:
    """The dataset is these episodes, row for row; in a file without `successors`, cut-off ones lose their last step."""
    rows: list[tuple[Any, ...]] = []
    starts = []
    for episode in episodes:
        starts.append(len(rows))
        over = episode.ending == "terminal"
        kept = len(episode) if successors or over else len(episode) - 1
        for t in range(kept):
            last = t == kept - 1
            next_obs = episode.obs[t if last and over and not successors else t + 1]
            flags = last and over, last and not over
            rows.append((episode.obs[t], episode.action[t], episode.reward[t], next_obs, *flags))
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        found = getattr(dataset, name)
        np.testing.assert_array_equal(found, np.stack(column), err_msg=name)
        assert found.flags.c_contiguous
        assert found.dtype == (np.bool_ if name in ("terminated", "truncated") else np.float32)
    np.testing.assert_array_equal(dataset.starts, starts)


def write_file(path: Path, arrays: dict[str, Any]) -> Path:
    """Arrays as npz or hdf5, whichever the path says."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return path
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as opened:
        for name, array in arrays.items():
            opened[name] = array
    return path


def public_file(name: str) -> str:
    """A file of the public data, which is no part of the repository; the test is skipped where it is absent."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("RL_TRAINING_DATA", beside)) / name
    if not path.is_file():
        pytest.skip(f"the public data {name} is not here; RL_TRAINING_DATA says where it is")
    return str(path)
