"""Minari's layout: what we write loads in Minari, what Minari writes is read, and what is broken is said."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_data import Episode, flat_layout, ladder_episode
from rl_training.data.datasets.arrays import from_arrays
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.minari_layout import is_minari_id, read_minari, write_minari
from rl_training.types import UserError

h5py = pytest.importorskip("h5py")

COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "starts")
# More than ten, so that the order of their names is not that of their numbers.
LADDER = [ladder_episode(n, 2 + n % 3, "terminal" if n % 2 else "timeout") for n in range(12)]
SPACES = {"observation_space": gym.spaces.Box(0, 99, (2,)), "action_space": gym.spaces.Box(-1, 1, (1,))}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of all datasets, for us and for Minari."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    return tmp_path / "sets"


@pytest.fixture
def minari(folder: Path) -> Any:
    pytest.importorskip("PIL")
    return pytest.importorskip("minari")


def dataset_of(episodes: list[Episode], **source: Any) -> OfflineDataset:
    return from_arrays(flat_layout(episodes), source={"action_units": "environment", **source})


def write(folder: Path, dataset: OfflineDataset | None = None, **how: Any) -> Path:
    dataset = dataset_of(LADDER) if dataset is None else dataset
    return write_minari(folder, dataset, **{"dataset_id": "steps/ladder-v0", **SPACES, **how})


def assert_same(left: OfflineDataset, right: OfflineDataset) -> None:
    """Equal to the bit, dtypes included."""
    for name in COLUMNS:
        mine, other = getattr(left, name), getattr(right, name)
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), name
        assert mine.tobytes() == other.tobytes(), name


# With Minari itself


def test_what_we_write_is_equal_in_minari_episode_by_episode(minari: Any, folder: Path) -> None:
    write(folder, seeds=range(100, 112))
    loaded = minari.load_dataset("steps/ladder-v0")
    assert (loaded.total_episodes, loaded.total_steps) == (12, sum(map(len, LADDER)))
    assert (loaded.observation_space, loaded.action_space) == tuple(SPACES.values())
    for number, (mine, there) in enumerate(zip(LADDER, loaded, strict=True)):
        np.testing.assert_array_equal(there.observations, mine.obs, strict=True)
        np.testing.assert_array_equal(there.actions, mine.action, strict=True)
        np.testing.assert_array_equal(there.rewards, mine.reward.astype(np.float64), strict=True)
        last = np.arange(len(mine)) == len(mine) - 1
        np.testing.assert_array_equal(there.terminations, last & (mine.ending == "terminal"), strict=True)
        np.testing.assert_array_equal(there.truncations, last & (mine.ending == "timeout"), strict=True)
        (described,) = loaded.storage.get_episode_metadata([number])
        assert described == {"id": number, "seed": 100 + number, "total_steps": len(mine)}


def test_minari_lists_shows_and_scores_what_we_write(minari: Any, folder: Path) -> None:
    from minari.cli import app
    from minari.namespace import list_local_namespaces
    from typer.testing import CliRunner

    scores = {"ref_min_score": -10.0, "ref_max_score": 30.0}
    spec = gym.spec("Pendulum-v1").to_json()
    write(folder, dataset_of(LADDER, **scores), dataset_id="a1/b/ladder-v3", env_spec=spec, description="Up and up.")
    assert list_local_namespaces() == ["a1", "a1/b"]
    for arguments in (["list", "local"], ["show", "a1/b/ladder-v3"]):
        shown = CliRunner().invoke(app, arguments)
        assert shown.exit_code == 0, shown.output
        assert "a1/b/ladder-v3" in shown.output
    assert "Up and up." in shown.output
    loaded = minari.load_dataset("a1/b/ladder-v3")
    assert minari.get_normalized_score(loaded, np.array([0.0])) == 0.25
    assert loaded.env_spec.id == "Pendulum-v1"


def test_what_minari_writes_is_read_equal(minari: Any, folder: Path) -> None:
    buffers = [
        minari.data_collector.EpisodeBuffer(
            seed=number,
            observations=list(episode.obs),
            actions=list(episode.action),
            rewards=episode.reward.tolist(),
            terminations=[False] * (len(episode) - 1) + [episode.ending == "terminal"],
            truncations=[False] * (len(episode) - 1) + [episode.ending == "timeout"],
        )
        for number, episode in enumerate(LADDER)
    ]
    words = dict.fromkeys(("author", "author_email", "code_permalink", "algorithm_name", "description"), "x")
    env = gym.make("Pendulum-v1", max_episode_steps=7, g=9.0)
    scores = {"ref_min_score": -1.5, "ref_max_score": 4.0}
    minari.create_dataset_from_buffers("ladder-v0", buffers, env=env, eval_env=env, **SPACES, **scores, **words)
    found = read_minari(folder / "ladder-v0")
    assert_same(found, dataset_of(LADDER))
    assert found.source == {
        "format": "minari",
        "path": str(folder / "ladder-v0"),
        "dataset_id": "ladder-v0",
        "minari_version": minari.__version__,
        "env_id": "Pendulum-v1",
        "env_kwargs": {"g": 9.0},
        "time_limit": 7,
        "action_units": "environment",
        "episode_seeds": list(range(12)),
        **scores,
    }


def test_images_stay_as_they_are_and_jpeg_is_refused(minari: Any, folder: Path) -> None:
    space, actions = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8), gym.spaces.Discrete(3, start=2)
    frames = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    choices = np.array([2, 4, 3])
    dataset = dataset_of([Episode(frames, choices, np.zeros(3, np.float32), "timeout")])
    path = write(folder, dataset, observation_space=space, action_space=actions)
    assert_same(read_minari(path), dataset)
    loaded = minari.load_dataset("steps/ladder-v0")[0]
    np.testing.assert_array_equal(loaded.observations, frames, strict=True)
    np.testing.assert_array_equal(loaded.actions, choices, strict=True)

    from minari.dataset.minari_storage import MinariStorage

    flags = {"terminations": [False] * 3, "truncations": [False] * 3}
    lossy = minari.data_collector.EpisodeBuffer(observations=frames, actions=choices, rewards=[0.0] * 3, **flags)
    (folder / "jpeg-v0" / "data").mkdir(parents=True)
    MinariStorage.new(folder / "jpeg-v0" / "data", space, actions).update_episodes([lossy])
    with pytest.raises(UserError, match=r"episode_0: observations are JPEG-encoded; .*jpeg_encoding=False$"):
        read_minari(folder / "jpeg-v0")


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
        gym.spaces.Box(np.float32([-0.1, -2]), np.float32([0.4, 3])),
        gym.spaces.Discrete(4, start=-1),
        gym.spaces.MultiDiscrete([2, 3], start=[1, 0]),
        gym.spaces.MultiBinary(5),
        gym.spaces.MultiBinary([2, 3]),
    ],
    ids=str,
)
def test_spaces_are_what_they_were_in_minari(minari: Any, folder: Path, space: Any) -> None:
    space.seed(0)
    actions = np.stack([space.sample() for _ in range(3)])
    dataset = dataset_of([replace(LADDER[1], action=actions)])
    path = write(folder, dataset, action_space=space)
    assert minari.load_dataset("steps/ladder-v0").action_space == space
    assert_same(read_minari(path), dataset)


# By ourselves


def test_numbers_come_back_to_the_bit(folder: Path) -> None:
    rng = np.random.default_rng(1)
    odd = np.float32([-0.0, 1e-45, np.finfo(np.float32).max, 1 / 3, -1e-38, 7])
    obs = np.concatenate([odd[:, None], rng.normal(size=(6, 1)).astype(np.float32)], axis=1)
    dataset = dataset_of([Episode(obs, rng.normal(size=(5, 1)).astype(np.float32), odd[:5], "terminal")])
    assert_same(read_minari(write(folder, dataset)), dataset)


def test_the_same_dataset_is_the_same_bytes(folder: Path) -> None:
    first, second = write(folder), write(folder / "elsewhere")
    for file in ("main_data.hdf5", "metadata.json"):
        assert (first / "data" / file).read_bytes() == (second / "data" / file).read_bytes()


def test_an_episode_without_an_end_is_cut_off_where_the_data_ends(folder: Path) -> None:
    path = write(folder)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for name in ("terminations", "truncations"):
            file["episode_3"][name][-1] = False
        file["episode_5"]["truncations"][-1] = True  # over, and at the time limit too
    found = read_minari(path)
    ends = found.starts + found.lengths - 1
    assert (found.terminated[ends[3]], found.truncated[ends[3]]) == (False, True)
    assert (found.terminated[ends[5]], found.truncated[ends[5]]) == (True, True)
    assert (found.terminated[ends[7]], found.truncated[ends[7]]) == (True, False)


def test_rewards_of_any_precision_become_ours(folder: Path) -> None:
    path = write(folder)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_0"]["rewards"][0] = 0.1
    found = read_minari(path)
    assert found.reward.dtype == np.float32
    assert found.reward[0] == np.float32(0.1)


# What is refused


def in_episode(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def broken(data: Path) -> None:
        with h5py.File(data / "main_data.hdf5", "a") as file:
            change(file["episode_10"])

    return broken


def in_metadata(**changes: Any) -> Callable[[Path], None]:
    def broken(data: Path) -> None:
        known = json.loads((data / "metadata.json").read_text())
        (data / "metadata.json").write_text(json.dumps(known | changes))

    return broken


def swap(name: str, values: Any) -> Callable[[Path], None]:
    def change(group: Any) -> None:
        del group[name]
        if values is not None:
            group[name] = values

    return in_episode(change)


def parts(group: Any) -> None:
    del group["observations"]
    group["observations/position"] = np.zeros(4)


def cut(data: Path) -> None:
    content = (data / "main_data.hdf5").read_bytes()
    (data / "main_data.hdf5").write_bytes(content[: len(content) // 2])


def space_json(**space: Any) -> str:
    return json.dumps(space)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing column": (swap("truncations", None), "episode_10: has no 'truncations'"),
    "as many observations as actions": (
        swap("observations", np.zeros((3, 2))),
        "episode_10: has 3 observations for 3 rewards; it must be 4",
    ),
    "too few flags": (swap("terminations", [True]), "episode_10: has 1 terminations for 3 rewards; it must be 3"),
    "no steps": (swap("rewards", np.zeros(0)), "episode_10: has no steps"),
    "shape of observations": (
        swap("observations", np.zeros((4, 5))),
        r"episode_10: observations have the shape \(5,\); it must be \(2,\)",
    ),
    "shape of rewards": (swap("rewards", np.zeros((3, 2))), r"rewards have the shape \(2,\); it must be \(\)"),
    "texts": (swap("rewards", ["a", "b", "c"]), "episode_10: rewards are object, not numbers"),
    "one number": (swap("rewards", 1.0), "main_data.hdf5': is damaged, or not what its name says"),
    "not a number": (swap("rewards", [0.0, np.nan, 0.0]), "rewards is nan in row 30"),
    "parts": (in_episode(parts), "episode_10: 'observations' has several parts"),
    "Dict": (
        in_metadata(observation_space=space_json(type="Dict", subspaces={})),
        "observations of Dict are not supported, only of Box",
    ),
    "Text": (in_metadata(action_space=space_json(type="Text")), "actions of Text are not supported, only of Box, Dis"),
    "damaged space": (in_metadata(action_space="{"), "metadata.json': action_space is damaged"),
    "arrow": (in_metadata(data_format="arrow"), "data_format is 'arrow'; only hdf5 can be read"),
    "another number of episodes": (in_metadata(total_episodes=13), "has 12 episodes; metadata.json says 13"),
    "no metadata": (lambda data: (data / "metadata.json").unlink(), "metadata.json': is missing or damaged"),
    "metadata that is none": (lambda data: (data / "metadata.json").write_text("[]"), "it is not a mapping"),
    "no episodes": (
        lambda data: (data / "main_data.hdf5").unlink(),
        "main_data.hdf5': is missing$",
    ),
    "truncated file": (cut, "main_data.hdf5': is damaged, or not what its name says .*truncated file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_datasets_are_refused_in_one_line(folder: Path, name: str) -> None:
    path = write(folder)
    damage, words = BROKEN[name]
    damage(path / "data")
    with pytest.raises(UserError, match=words) as refusal:
        read_minari(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_id_that_is_taken_is_refused_and_left_alone(folder: Path) -> None:
    path = write(folder)
    before = (path / "data" / "main_data.hdf5").read_bytes()
    with pytest.raises(UserError, match="'steps/ladder-v0': already exists"):
        write(folder, dataset_of(LADDER[:1]))
    assert (path / "data" / "main_data.hdf5").read_bytes() == before


def test_what_cannot_be_written_leaves_nothing_behind(folder: Path) -> None:
    dataset = dataset_of(LADDER)
    shifted = replace(dataset, next_obs=dataset.obs.copy())
    with pytest.raises(UserError, match="episode 0: a next observation is not the next row's observation"):
        write(folder, shifted)
    with pytest.raises(UserError, match="actions must be in the environment's units"):
        write(folder, replace(dataset, source={"action_units": "normalized"}))
    with pytest.raises(UserError, match=r"Dict\(\): cannot be written in Minari's layout, only Box, Discrete, "):
        write(folder, observation_space=gym.spaces.Dict())
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    folder.joinpath("steps").rmdir()
    folder.joinpath("steps").touch()
    with pytest.raises(UserError, match=r"cannot write '.*ladder-v0': "):
        write(folder)


@pytest.mark.parametrize("name", ["ladder", "ladder-v", "../ladder-v0", "/ladder-v0", "a b-v0", "steps//ladder-v0", ""])
def test_ids_that_minari_would_not_take_are_refused(folder: Path, name: str) -> None:
    assert not is_minari_id(name)
    with pytest.raises(UserError, match=r"is not a Minari id; they look like medium-v0 or pendulum/medium-v0$"):
        write(folder, dataset_id=name)


def test_h5py_that_is_not_there_is_named_by_its_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder)
    monkeypatch.setitem(sys.modules, "h5py", None)
    for work in (lambda: read_minari(path), lambda: write(folder, dataset_id="other-v0")):
        with pytest.raises(
            UserError, match=r"needs an extra that is not installed: pip install 'rl-training\[minari\]'"
        ):
            work()
