"""Parts of episodes: learned from, but never taken for whole ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data.datasets.arrays import from_arrays, from_replay
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.files import read_dataset, save_npz
from rl_training.data.replay import Replay
from rl_training.experiment.config import load_config
from rl_training.ops.policy import effective_share
from rl_training.runtime.baselines import behaviour_cloning_return
from rl_training.runtime.datasets import Behaviour, collect
from rl_training.runtime.loops.offline import _build_offline_dataset
from rl_training.runtime.signals import Cut
from rl_training.runtime.train import build
from rl_training.types import SpaceInfo, Step, UserError

INFO = SpaceInfo((1,), "float32", "continuous", (1,), 1, action_low=(-1.0,), action_high=(1.0,))


@pytest.fixture(scope="module")
def cut_off() -> OfflineDataset:
    """Three whole episodes of Pendulum, and ten steps of a fourth."""
    return collect("Pendulum-v1", [Behaviour()], steps=610, seed=3)


def test_a_part_of_an_episode_has_no_return_to_compare(cut_off: OfflineDataset) -> None:
    assert cut_off.partial == (3,)
    assert cut_off.returns.argmax() == 3, "ten steps cost less than two hundred"
    assert cut_off.best(0.3).lengths.tolist() == [200]
    assert cut_off.return_mean == cut_off.returns[:3].mean()
    assert cut_off.episodes(np.array([3, 1])).partial == (0,)


def test_a_file_keeps_what_is_partial(cut_off: OfflineDataset, tmp_path: Path) -> None:
    again = read_dataset(str(save_npz(cut_off, tmp_path / "cut.npz")))
    assert again.partial == (3,)
    assert np.array_equal(again.truncated, cut_off.truncated)


@pytest.mark.parametrize(
    ("flags", "partial"),
    [
        ({"terminals": [0, 1, 0, 0], "timeouts": [0, 0, 0, 1]}, ()),
        ({"terminals": [0, 1, 0, 0], "timeouts": [0, 0, 0, 0]}, (1,)),
        ({"terminals": [0, 1, 0, 1]}, ()),
    ],
)
def test_flat_files_say_it_by_their_last_row(flags: dict[str, list[int]], partial: tuple[int, ...]) -> None:
    obs = np.arange(5.0)[:, None]
    arrays: dict[str, Any] = {"observations": obs[:4], "next_observations": obs[1:], "actions": obs[:4] * 0.0}
    found = from_arrays(arrays | {"rewards": np.ones(4)} | {k: np.array(v) for k, v in flags.items()}, source={})
    assert found.partial == partial


def filled(steps: int, ends: set[int]) -> OfflineDataset:
    replay = Replay(INFO, 1, 8)
    one = np.ones(1, np.bool_)
    for t in range(steps):
        obs, over = np.full((1, 1), t, np.float32), np.array([t in ends])
        replay.add(Step(obs, np.zeros((1, 1), np.float32), np.ones(1, np.float32), obs + 1, over, ~one, one))
    return from_replay(replay, {})


def test_a_replay_has_lost_the_beginning_of_what_it_wrote_over_and_not_yet_the_end_of_the_last() -> None:
    assert filled(7, {2, 6}).partial == ()
    assert filled(7, {2}).partial == (1,)
    assert filled(12, {2, 6, 9}).partial == (0, 2)


def test_all_parts_are_compared_where_nothing_is_whole() -> None:
    assert filled(3, set()).partial == (0,)
    assert filled(3, set()).return_mean == 3.0


def broken_rewards(info: SpaceInfo) -> OfflineDataset:
    data = collect("Pendulum-v1", [Behaviour()], steps=200)
    data.reward[7] = np.nan
    return data


def test_a_dataset_that_a_function_made_is_checked_as_a_file_is() -> None:
    config = {"algo": "awac", "env_id": "Pendulum-v1", "dataset": "test_dataset_partial:broken_rewards"}
    with pytest.raises(UserError, match=r"dataset: .*broken_rewards'.*rewards.*row 7"):
        _build_offline_dataset(config)


def test_a_signal_ends_the_training_of_a_baseline() -> None:
    packaged = "rl_training.data.packaged:pendulum_medium"
    run = build(load_config({"algo": "iql", "env_id": "Pendulum-v1", "dataset": packaged, "hidden_sizes": [8]}))
    assert run.loop.dataset is not None
    run.signals.received = True
    with pytest.raises(Cut):
        behaviour_cloning_return(run, run.loop.dataset, 3)
    run.signals.received = False
    assert behaviour_cloning_return(run, run.loop.dataset, 3) < 0.0
    run.close()


def test_weights_that_are_hardly_numbers_have_a_share_all_the_same() -> None:
    assert float(effective_share(torch.full((4,), 1e-30))) == pytest.approx(1.0)
    assert float(effective_share(torch.tensor([1.0, 0.0, 0.0, 0.0]))) == pytest.approx(0.25)
    assert float(effective_share(torch.zeros(4))) == 0.0
