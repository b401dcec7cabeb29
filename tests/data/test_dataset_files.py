"""Datasets found by path or id and read in every form, written as npz, and files that are none."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data import (
    LADDER_LIMIT,
    assert_holds,
    flat_layout,
    ladder_episodes,
    ladder_spaces,
    public_file,
    starts_layout,
    write_file,
)
from replay_feed import Feed, info_of
from rl_training.data.datasets.arrays import fit_dataset, from_arrays, from_replay
from rl_training.data.datasets.files import read_dataset, save_npz
from rl_training.data.replay import Replay
from rl_training.types import UserError

COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "starts")


@pytest.fixture(autouse=True)
def _no_datasets_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def assert_equal(one: Any, other: Any) -> None:
    for name in COLUMNS:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes()), name


@pytest.mark.parametrize("ending", [".npz", ".hdf5", ".h5", ".HDF5"])
@pytest.mark.parametrize(
    ("arrays", "answers", "successors"),
    [
        (flat_layout(ladder_episodes()), {}, True),
        (flat_layout(ladder_episodes(), "next_observations"), {}, False),
        (starts_layout(ladder_episodes()), {"done_means": "auto", "time_limit": LADDER_LIMIT}, False),
    ],
    ids=["d4rl", "no successors", "episode starts"],
)
def test_files_of_every_layout(
    tmp_path: Path, ending: str, arrays: dict[str, Any], answers: dict[str, Any], successors: bool
) -> None:
    path = write_file(tmp_path / f"ladder{ending}", {**arrays, "env_id": "Ladder-v0"})
    dataset = read_dataset(str(path), **answers)
    assert_holds(dataset, ladder_episodes(), successors=successors)
    assert dataset.source["path"] == str(path)
    assert dataset.source["format"] == ending.lower().removeprefix(".")
    assert dataset.source["env_id"] == "Ladder-v0"


def test_groups_of_an_hdf5_file_are_left_alone(tmp_path: Path) -> None:
    path = write_file(tmp_path / "ladder.hdf5", {**flat_layout(ladder_episodes()), "infos/speed": np.zeros(2)})
    assert_holds(read_dataset(str(path)), ladder_episodes())


@pytest.mark.parametrize("obs", [np.float32, np.uint8])
def test_what_was_saved_comes_back_to_the_bit(tmp_path: Path, obs: Any) -> None:
    rng = np.random.default_rng(3)
    arrays = flat_layout(ladder_episodes(), "next_observations")
    # Rows of bytes, as packed observations are, must not become numbers.
    pixels = rng.integers(0, 255, (13, 6)).astype(obs)
    given = {**arrays, "observations": pixels[:-1], "next_observations": pixels[1:], "rewards": rng.normal(size=12)}
    said = {"env_id": "Ladder-v0", "action_units": "normalized", "ref_min_score": -1.25, "ref_max_score": 1e9 / 3}
    dataset = from_arrays(given, source={"format": "d4rl", "notes": ("one, that is long", "zwei: äöü"), **said})
    assert dataset.n_episodes == 3
    path = save_npz(dataset, tmp_path / "saved.npz")
    again = read_dataset(str(path))
    assert_equal(again, dataset)
    assert again.source == {**dataset.source, "format": "npz", "path": str(path)}
    first = path.read_bytes()
    save_npz(again, path)
    assert path.read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == ["saved.npz"]


@pytest.mark.parametrize("broken", ["numpy.savez_compressed", "os.replace"])
def test_saving_leaves_what_was_there_if_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    dataset = from_arrays(flat_layout(ladder_episodes()), source={})
    path = save_npz(dataset, tmp_path / "saved.npz")
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(broken, full)
        with pytest.raises(UserError, match=r"cannot write .*saved.npz.*No space left"):
            save_npz(dataset, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["saved.npz"]


def test_only_names_that_can_be_read_again_are_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end with \.npz"):
        save_npz(from_arrays(flat_layout(ladder_episodes()), source={}), tmp_path / "saved")


def test_the_folder_of_a_saved_replay(tmp_path: Path) -> None:
    replay, feed = Replay(info_of((1,)), 2, 12), Feed(2, lambda episode: np.array([episode[-1]], np.float32))
    for events in (["go", "go"], ["terminated", "go"], ["go", "truncated"], ["go", "go"]):
        feed.play(events, replay)
    folder = replay.save(tmp_path / "replay")
    dataset = read_dataset(str(folder))
    assert_equal(dataset, from_replay(replay, {}))
    assert dataset.starts.tolist() == [0, 2, 4, 7]
    assert dataset.source == {"format": "replay", "path": str(folder), "action_units": "normalized"}


def test_minari_datasets_by_id_folder_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "minari" / "ladder" / "medium-v0"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "main_data.hdf5").touch()
    asked: list[Path] = []
    monkeypatch.setattr("rl_training.data.datasets.minari_layout.read_minari", asked.append)
    for name in ("ladder/medium-v0", str(folder), str(folder / "data")):
        read_dataset(name)
    write_file(folder / "data" / "main_data.hdf5", {"episode_0/rewards": np.zeros(2)})
    read_dataset(str(folder / "data" / "main_data.hdf5"))
    assert asked == [folder] * 4


def flat_file(path: Path, *without: str, **others: Any) -> Path:
    return write_file(path, {**flat_layout(ladder_episodes(), *without), **others})


def misaligned(tmp_path: Path) -> Path:
    arrays = flat_layout(ladder_episodes())
    return flat_file(tmp_path / "x.npz", next_observations=np.roll(arrays["next_observations"], 1, axis=0))


def not_a_number(tmp_path: Path) -> Path:
    return flat_file(tmp_path / "x.hdf5", rewards=np.full(12, np.nan))


def other_environment(tmp_path: Path) -> Path:
    return flat_file(tmp_path / "x.npz", observations=np.zeros((12, 7)), next_observations=np.zeros((12, 7)))


def beyond_the_bounds(tmp_path: Path) -> Path:
    return flat_file(tmp_path / "x.npz", actions=np.full((12, 1), 5.0))


def missing_key(tmp_path: Path) -> Path:
    return flat_file(tmp_path / "x.hdf5", "rewards", reward=np.zeros(12))


def truncated(ending: str) -> Callable[[Path], Path]:
    def make(tmp_path: Path) -> Path:
        path = flat_file(tmp_path / f"x{ending}")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return path

    return make


def damaged(tmp_path: Path) -> Path:
    path = flat_file(tmp_path / "x.npz")
    content = bytearray(path.read_bytes())
    place = content.index(b"NUMPY") + 140  # inside the numbers of the first array
    content[place] ^= 255
    path.write_bytes(content)
    return path


def written(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(tmp_path: Path) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return make


class Trap:
    """Would be run by whoever unpickles it."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


def trap_inside(tmp_path: Path) -> Path:
    return flat_file(tmp_path / "x.npz", rewards=np.array([Trap()] * 12, dtype=object))


def single_array(tmp_path: Path) -> Path:
    with (tmp_path / "x.npz").open("wb") as opened:
        np.save(opened, np.zeros(3))
    return tmp_path / "x.npz"


def plain_folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def unknown_id(tmp_path: Path) -> Path:
    data = tmp_path / "minari" / "ladder" / "medium-v0" / "data"
    data.mkdir(parents=True)
    (data / "main_data.hdf5").touch()
    return Path("ladder/medum-v0")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (misaligned, r"x\.npz': the next observation of row 0 is not .* 100\.0%"),
        (not_a_number, r"x\.hdf5': rewards is nan in row 0"),
        (other_environment, r"x\.npz': observations have shape \(7,\), those of the environment \(2,\)"),
        (beyond_the_bounds, r"x\.npz': 12 of 12 actions, from 5 to 5, are outside the bounds \[-1, 1\]"),
        (missing_key, r"x\.hdf5': rewards is missing; did you mean 'reward'"),
        (truncated(".npz"), r"x\.npz': is damaged"),
        (truncated(".hdf5"), r"x\.hdf5': is damaged"),
        (damaged, r"x\.npz': is damaged, .*CRC"),
        (written("x.npz", b""), r"x\.npz': is damaged"),
        (written("x.npz", pickle.dumps(Trap())), r"x\.npz': is damaged, or not what its name says .*not a zip file"),
        (written("x.h5", pickle.dumps(Trap())), r"x\.h5': is damaged, or not what its name says"),
        (trap_inside, r"x\.npz': is not an archive of plain arrays: .*unpickled"),
        (single_array, r"x\.npz': is a single array"),
        (written("x.npy", b"?"), r"x\.npy': cannot be read .* an \.npz or \.hdf5 file"),
        (written("x.pkl", pickle.dumps(Trap())), r"x\.pkl': cannot be read .* an \.npz or \.hdf5 file"),
        (plain_folder, r"folder': is a folder, but no dataset; it must be .*Minari"),
        (unknown_id, r"'ladder/medum-v0': .*no Minari dataset .*minari'; did you mean 'ladder/medium-v0'"),
        (lambda _: Path("nothing here.npz"), r"'nothing here\.npz': there is no such file or folder"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        fit_dataset(read_dataset(str(make(tmp_path))), ladder_spaces())
    assert "\n" not in str(caught.value)


def test_a_damaged_replay_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_text("{}")
    with pytest.raises(UserError, match=r"replay\.json': is missing, damaged or foreign \(it has no 'format'\)"):
        read_dataset(str(tmp_path))


def test_hdf5_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = flat_file(tmp_path / "x.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"x\.hdf5': needs an extra .* pip install 'rl-training\[minari\]'"):
        read_dataset(str(path))


@pytest.mark.parametrize(
    ("name", "answers", "rows", "terminal", "mean_return"),
    [
        ("pendulum/pendulum_medium.npz", {}, 10_000, 0, -524.3),
        ("pendulum/pendulum_expert.npz", {}, 10_000, 0, -174.7),
        ("pendulum/expert_demos.npz", {"done_means": "timeout"}, 100 * 199, 0, -149.9),
        ("cartpole/expert_cartpole.npz", {"done_means": "auto", "time_limit": 500}, 99 * 499 + 27, 1, 494.28),
    ],
)
def test_public_data(name: str, answers: dict[str, Any], rows: int, terminal: int, mean_return: float) -> None:
    dataset = read_dataset(public_file(name), **answers)
    assert (len(dataset), dataset.terminated.sum()) == (rows, terminal)
    assert dataset.truncated.sum() + terminal == dataset.n_episodes
    assert dataset.returns.mean() == pytest.approx(mean_return, abs=0.1)
