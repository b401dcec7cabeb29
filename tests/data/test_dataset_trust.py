"""Datasets of somebody else: nothing outside of the file is read, no code is loaded, and claims are checked first."""

from __future__ import annotations

import io
import json
import os
import signal
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data import assert_holds, flat_layout, ladder_episodes, write_file
from replay_feed import Feed, info_of
from rl_training.data import ram
from rl_training.data.datasets.files import read_dataset
from rl_training.data.replay import Replay
from rl_training.types import UserError

FLAT = flat_layout(ladder_episodes())


@pytest.fixture(autouse=True)
def _no_datasets_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def refusal(path: Path) -> str:
    """The one line that a file is refused with."""
    with pytest.raises(UserError) as caught, no_waiting():
        read_dataset(str(path))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@contextmanager
def no_waiting(seconds: int = 5) -> Iterator[None]:
    """Fail when the body takes longer than this."""

    def late(*_: Any) -> None:
        pytest.fail(f"it was still waiting after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# HDF5: what would be read or loaded from elsewhere.


def elsewhere(path: Path, name: str, make: Callable[[Any, Any, Path], None]) -> Path:
    """A flat file in which one array is made by `make`, which is given a file outside."""
    h5py = pytest.importorskip("h5py")
    outside = path.with_name("secret.bin")
    outside.write_bytes(np.arange(1000, dtype=np.float32).tobytes())
    write_file(path, {key: array for key, array in FLAT.items() if key != name})
    with h5py.File(path, "a") as file:
        make(h5py, file, outside)
    return path


def external_storage(h5py: Any, file: Any, outside: Path) -> None:
    file.create_dataset("rewards", (12,), np.float32, external=[(str(outside), 0, 48)])


def virtual_storage(h5py: Any, file: Any, outside: Path) -> None:
    other = outside.with_name("other.hdf5")
    write_file(other, {"rewards": np.ones(12, np.float32)})
    layout = h5py.VirtualLayout((12,), np.float32)
    layout[:] = h5py.VirtualSource(str(other), "rewards", (12,))
    file.create_virtual_dataset("rewards", layout)


def external_link(h5py: Any, file: Any, outside: Path) -> None:
    write_file(outside.with_name("other.hdf5"), {"rewards": np.ones(12, np.float32)})
    file["rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")


def soft_link(h5py: Any, file: Any, outside: Path) -> None:
    write_file(outside.with_name("other.hdf5"), {"rewards": np.ones(12, np.float32)})
    file["way"] = h5py.ExternalLink("other.hdf5", "/")
    file["rewards"] = h5py.SoftLink("/way/rewards")


def unknown_filter(h5py: Any, file: Any, outside: Path) -> None:
    stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    stored.set_chunk((12,))
    stored.set_filter(32013, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((12,))
    made = h5py.h5d.create(file.id, b"rewards", h5py.h5t.IEEE_F32LE, space, dcpl=stored)
    h5py.Dataset(made)[:] = np.ones(12, np.float32)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (external_storage, "'rewards' has external storage: its numbers are in other files"),
        (virtual_storage, "'rewards' has virtual storage: its numbers are in other files"),
        (external_link, "'rewards' is a link; only arrays in the file itself"),
        (soft_link, "'rewards' is a link; only arrays in the file itself"),
        (unknown_filter, "'rewards' is stored with filter 32013 ("),
    ],
)
@pytest.mark.parametrize("unused", [False, True])
def test_what_is_elsewhere_is_refused_by_its_name(tmp_path: Path, make: Any, words: str, unused: bool) -> None:
    path = elsewhere(tmp_path / "x.hdf5", "rewards", make)
    if unused:
        import h5py

        with h5py.File(path, "a") as file:
            file.move("rewards", "extra")
            file["rewards"] = FLAT["rewards"]
        words = words.replace("'rewards' ", "'extra' ")
    assert f"x.hdf5': {words}" in refusal(path)


def minari_dataset(root: Path) -> Path:
    """A dataset of one episode in Minari's layout."""
    data = root / "minari" / "ladder" / "medium-v0" / "data"
    data.mkdir(parents=True)
    episode = {
        "observations": np.zeros((5, 2), np.float32),
        "actions": np.zeros((4, 1), np.float32),
        "rewards": np.zeros(4),
        "terminations": np.zeros(4, np.bool_),
        "truncations": np.array([False, False, False, True]),
    }
    write_file(data / "main_data.hdf5", {f"episode_0/{name}": array for name, array in episode.items()})
    (data / "metadata.json").write_text(json.dumps({"total_episodes": 1}))
    return data.parent


@pytest.mark.parametrize("whole", [True, False])
def test_an_episode_of_minari_that_is_elsewhere_is_refused(tmp_path: Path, whole: bool) -> None:
    h5py = pytest.importorskip("h5py")
    folder = minari_dataset(tmp_path)
    place = "episode_0" if whole else "episode_0/rewards"
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        write_file(folder / "data" / "additional_data_0.hdf5", {place: np.ones(4)})
        del file[place]
        file[place] = h5py.ExternalLink("additional_data_0.hdf5", place)
    assert f"{place.rpartition('/')[2]!r} is a link; only arrays in the file itself are read" in refusal(folder)


def test_references_and_attributes_of_any_kind_are_not_decoded(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    folder = minari_dataset(tmp_path)
    file = folder / "data" / "main_data.hdf5"
    kinds: list[Any] = [b"pickled", np.void(b"\x80\x04."), [1, 2], "None", 1.5, h5py.Empty("i8")]
    for value in kinds:
        with h5py.File(file, "a") as opened:
            opened["episode_0"].attrs["seed"] = value
        assert "episode_seeds" not in read_dataset(str(folder)).source, value
    with h5py.File(file, "a") as opened:
        opened["episode_0"].attrs.create("seed", opened["episode_0"].ref, dtype=h5py.ref_dtype)
    assert "episode_seeds" not in read_dataset(str(folder)).source
    path = write_file(tmp_path / "x.hdf5", {key: array for key, array in FLAT.items() if key != "rewards"})
    with h5py.File(path, "a") as opened:
        opened.create_dataset("rewards", data=[opened.ref] * 12, dtype=h5py.ref_dtype)
    assert "'rewards' holds object; numbers are needed" in refusal(path)


def test_text_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.hdf5", {**FLAT, "env_id": np.bytes_(b"\xff\xfe")})
    assert "x.hdf5': is damaged, or not what its name says ('utf-8' codec" in refusal(path)


# What files say of their sizes.


def test_an_hdf5_file_that_claims_more_than_there_is(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = write_file(tmp_path / "x.hdf5", {key: array for key, array in FLAT.items() if key != "rewards"})
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (1 << 40,), np.float32, chunks=(1 << 20,))
    assert path.stat().st_size < 20_000
    message = refusal(path)
    assert "x.hdf5': says that its arrays take 4.0 TiB, rewards alone 4.0 TiB, and " in message
    assert message.endswith("of RAM are available")


@pytest.mark.parametrize("ending", [".npz", ".hdf5"])
def test_what_does_not_fit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A small file that unpacks to 520 kB, where 500 kB are free."""
    many = {name: np.zeros((20_000, *array.shape[1:]), array.dtype) for name, array in FLAT.items()}
    path = tmp_path / f"x{ending}"
    if ending == ".npz":
        np.savez_compressed(path, **many)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, array in many.items():
                file.create_dataset(name, data=array, compression="gzip", chunks=(100, *array.shape[1:]))
    monkeypatch.setattr(ram, "available_memory", lambda: 500_000)
    # 26 bytes a row; a chunk of 100 rows is unpacked before it is copied.
    sizes = ("507.8 KiB, observations alone 156.2 KiB", "510.4 KiB, next_observations alone 157.0 KiB")
    said = sizes[ending == ".hdf5"]
    assert refusal(path) == f"{str(path)!r}: says that its arrays take {said}, and 488.3 KiB of RAM are available"
    monkeypatch.setattr(ram, "available_memory", lambda: 600_000)
    assert len(read_dataset(str(path))) == 20_000


def npy(header: bytes, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header


def with_rewards(path: Path, content: bytes, name: str = "rewards.npy", method: int = zipfile.ZIP_STORED) -> Path:
    """A flat archive whose rewards have this content."""
    write_file(path, {key: array for key, array in FLAT.items() if key != "rewards"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, content, method)
    return path


def saved(array: np.ndarray, *, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickled)
    return stream.getvalue()


LIES = {
    "4 TB in no bytes": b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }",
    "more than can be addressed": b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999), }",
    "a negative size": b"{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }",
    "a size that is none": b"{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }",
    "no shape": b"{'descr': '<f4', 'fortran_order': False, }",
    "other keys": b"{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}",
    "no mapping": b"[1, 2]",
    "nested": b"[" * 5000 + b"]" * 5000,
    "no header": b"",
    "no Python": b"{'descr': ",
    "an unhashable key": b"{[]: 1}",
    "an order that is none": b"{'descr': '<f4', 'fortran_order': 3, 'shape': (12,), }",
    "an unknown type": b"{'descr': '<f9', 'fortran_order': False, 'shape': (12,), }",
    "Python 2": b"{'descr': '<f4', 'fortran_order': False, 'shape': (12L,), }",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_header_of_an_array_is_one_line(tmp_path: Path, lie: str) -> None:
    path = with_rewards(tmp_path / "x.npz", npy(LIES[lie]))
    assert refusal(path).startswith(f"{str(path)!r}: is damaged, or not what its name says (")


@pytest.mark.parametrize(
    ("content", "name", "method", "words"),
    [
        (saved(FLAT["rewards"]), "observations.npy", 0, "has two arrays of the name 'observations'"),
        (saved(FLAT["rewards"]), "rewards", 0, "is not an archive of arrays alone: 'rewards' is none"),
        (b"#!/bin/sh", "run.sh", 0, "is not an archive of arrays alone: 'run.sh' is none"),
        (saved(FLAT["rewards"]), "rewards.npy", zipfile.ZIP_LZMA, "'rewards' is compressed by a method that is not"),
        (saved(np.array([None] * 12), pickled=True), "rewards.npy", 0, "'rewards' would have to be unpickled"),
        (saved(np.zeros(12, [("a", "O")]), pickled=True), "rewards.npy", 0, "'rewards' holds [('a', '|O')]; numbers"),
        (saved(np.zeros(12)) + b"?", "rewards.npy", 0, "rewards has 225 bytes, and its header says otherwise"),
    ],
    ids=["twice", "no array", "a script", "lzma", "objects", "records of objects", "more bytes"],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_with_something_else_in_them(
    tmp_path: Path, content: bytes, name: str, method: int, words: str
) -> None:
    assert words in refusal(with_rewards(tmp_path / "x.npz", content, name, method))


def test_columns_in_fortran_order_are_read(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.npz", {**FLAT, "observations": np.asfortranarray(FLAT["observations"])})
    assert_holds(read_dataset(str(path)), ladder_episodes())


def test_a_ratio_that_no_compression_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused where there would be RAM enough, too."""
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(ram, "available_memory", lambda: 1 << 60)
    path = write_file(tmp_path / "x.hdf5", {})
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (1 << 40,), np.float32, chunks=(1 << 20,))
    assert refusal(path).endswith("KiB: no compression gets that far")


# What is no file.


@pytest.mark.parametrize("ending", [".npz", ".hdf5"])
def test_a_path_that_is_no_file_is_one_line(tmp_path: Path, ending: str) -> None:
    pipe, device = tmp_path / f"pipe{ending}", tmp_path / f"device{ending}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    assert refusal(pipe) == f"{str(pipe)!r}: is a pipe, not a file"
    assert refusal(device) == f"{str(device)!r}: is a device, not a file"


@pytest.mark.parametrize("name", ["metadata.json", "main_data.hdf5"])
def test_a_pipe_in_the_layout_of_minari_is_one_line(tmp_path: Path, name: str) -> None:
    folder = minari_dataset(tmp_path)
    (folder / "data" / name).unlink()
    os.mkfifo(folder / "data" / name)
    assert "is a" in refusal(folder)


def saved_replay(folder: Path) -> Path:
    replay, feed = Replay(info_of((1,)), 2, 12), Feed(2, lambda episode: np.array([episode[-1]], np.float32))
    for events in (["go", "go"], ["terminated", "go"], ["go", "truncated"]):
        feed.play(events, replay)
    return replay.save(folder / "replay")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("replay.json", "is a folder, but no dataset"),
        ("rows_00000.bin", "rows_00000.bin': is a special file; only a plain"),
    ],
)
def test_a_pipe_in_a_saved_replay_is_one_line(tmp_path: Path, name: str, words: str) -> None:
    folder = saved_replay(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert words in refusal(folder)


# What metadata say.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ref_min_score": "low"}, "ref_min_score is 'low', which it cannot be"),
        ({"ref_max_score": float("nan")}, "ref_max_score is nan, which it cannot be"),
        ({"dataset_id": ["x"]}, "dataset_id is ['x'], which it cannot be"),
        ({"total_episodes": [1] * 10_000}, "has 1 episodes; metadata.json says [1, 1, 1"),
        ({"action_space": json.dumps({"type": "Box", "shape": [float("inf")]})}, "action_space is damaged"),
        ({"action_space": "[" * 100_000}, "action_space is damaged"),
        ({"action_space": 3}, "action_space is damaged"),
    ],
)
def test_wrong_metadata_of_minari_are_one_line(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = minari_dataset(tmp_path)
    (folder / "data" / "metadata.json").write_text(json.dumps({"total_episodes": 1, **changes}))
    assert words in refusal(folder)


@pytest.mark.parametrize(
    "env_spec", ["3", "[]", "{}", '{"id": 3}', '{"id": "X-v0", "kwargs": 3, "max_episode_steps": "no"}', "[" * 100_000]
)
def test_an_environment_that_cannot_be_understood_is_left_out(tmp_path: Path, env_spec: str) -> None:
    folder = minari_dataset(tmp_path)
    (folder / "data" / "metadata.json").write_text(json.dumps({"env_spec": env_spec}))
    assert {"env_kwargs", "time_limit"}.isdisjoint(read_dataset(str(folder)).source)


def test_metadata_of_minari_have_a_longest_length_and_depth(tmp_path: Path) -> None:
    folder = minari_dataset(tmp_path)
    file = folder / "data" / "metadata.json"
    file.write_text("[" * 200_000)
    assert "metadata.json': is missing or damaged (it is nested too deeply)" in refusal(folder)
    os.truncate(file, 1 << 40)
    assert "metadata.json': is missing or damaged (it has 1.0 TiB; at most 64.0 MiB are read)" in refusal(folder)


def test_notes_of_a_file_cannot_command_a_terminal(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.npz", {**FLAT, "notes": np.array(["red \x1b[31m\nline", "x" * 100_000])})
    first, second = read_dataset(str(path)).source["notes"]
    assert first == "red  [31m line"
    assert len(second) < 20_000


def test_one_changed_number_in_the_description_of_a_replay_is_noticed(tmp_path: Path) -> None:
    folder = saved_replay(tmp_path)
    file = folder / "replay.json"
    content = json.loads(file.read_text())
    assert content["state"]["counts"] == [3, 3]
    content["state"]["counts"] = [3, 2]
    file.write_text(json.dumps(content))
    assert "replay.json': is missing, damaged or foreign (its checksum is not" in refusal(folder)
