"""Large memories in a checkpoint: only what changed is written, all of it comes back, whatever happens to the files."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_kill_anywhere import every_crash

import run_helpers
from forgery import changed_state, reseal
from rl_training import PPO, UserError, evaluate_checkpoint, resume_training, train
from rl_training.data.chunks import ChunkedArray
from rl_training.data.disk import remove_tree
from rl_training.experiment.manager import RunFolder
from rl_training.runtime.checkpoints.catalogue import find_checkpoint, point, prune
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, _is_whole, read_checkpoint, write_checkpoint
from rl_training.runtime.loops import LOOPS
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.train import Run
from rl_training.runtime.workflows import restore
from rl_training.testing import check_resumes, checkpoint_differences
from rl_training.types import Metrics, SpaceInfo
from run_helpers import Pulled, PullPlug, Recording, checkpoint_names, latest, memory_contents, run_differences, tiny

# Six environment steps between two updates, three rows of memory each: the memory is full after ten updates.
CONFIG = tiny(
    env_id="run_helpers:limited_walk",
    n_steps=2,
    batch_size=6,
    total_timesteps=120,
    checkpoint_interval=6,
    log_interval=6,
    keep_checkpoints=100,
)


class Diary:
    """Stands for a replay: a ring of rows, a number per row that changes anywhere, and what follows from them."""

    def __init__(self, rows: int = 30) -> None:
        self.arrays = {
            "rows": ChunkedArray(rows, (2,), "float32", chunk_bytes=64),
            "priority": ChunkedArray(rows, (), "float64", chunk_bytes=64),
        }
        self.head, self.sum = 0, 0.0

    def add(self, rows: Any) -> None:
        for row in rows:
            slot = self.head % len(self.arrays["rows"].data)
            self.arrays["rows"].data[slot] = row[:2]
            self.arrays["rows"].touch(slot, slot + 1)
            places = np.array([slot, slot // 2])
            self.arrays["priority"].data[places] += 1.0 + self.head
            self.arrays["priority"].touch_rows(places)
            self.head += 1
        self.sum = float(self.arrays["priority"].data.sum())

    def state_dict(self) -> dict[str, Any]:
        return {"head": self.head}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.head, self.sum = state["head"], float(self.arrays["priority"].data.sum())


class RememberingLoop(OnPolicyLoop):
    """The on-policy loop, with a memory that it only writes to; what it remembers is a metric."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.diary = Diary()
        self.parts["replay"] = self.diary

    def step(self, refresh: Callable[[int], None]) -> Metrics:
        metrics = super().step(refresh) | {"remembered": self.diary.sum}
        self.diary.add(self.source.collector.obs)  # type: ignore[attr-defined]
        return metrics


def remembering(algorithm: Any, source: Any, config: Any, maker: Any) -> RememberingLoop:
    return RememberingLoop(algorithm, source, config.loop)


@pytest.fixture(autouse=True)
def _remember(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOOPS, "on_policy", "test_replay_checkpoint:remembering")


def array_of(rows: int, chunk_rows: int = 4) -> ChunkedArray:
    array = ChunkedArray(rows, (3,), "float32", chunk_bytes=12 * chunk_rows)
    array.data[:] = np.arange(rows * 3).reshape(rows, 3)
    array.touch(0, rows)
    return array


def change(array: ChunkedArray, *rows: int) -> None:
    array.data[list(rows)] += 0.5
    array.touch_rows(np.array(rows))


SPACES = SpaceInfo((2,), "float32", "discrete", (), 2).to_dict()


def save(path: Path, **memory: Any) -> Path:
    """The smallest checkpoint that has these arrays."""
    config = {"algo": "ppo", "env_id": "Walk-v0", "output_dir": "runs"}
    meta = {"step": 0, "config": config, "spaces": SPACES, "versions": {"rl_training": "0"}, "threads": 1}
    meta |= {"engine": "autograd", "resume": "exact", "eval": {}}
    state = {name: {} for name in ("algorithm", "parts", "rng", "callbacks", "trainer")}
    envs: dict[str, Any] = {"steps": 0, "raw": torch.zeros(1), "keeper": {}}
    return write_checkpoint(path, Checkpoint(meta, {"w": torch.zeros(2)}, state, envs, memory))


def files(checkpoint: Path) -> dict[str, int]:
    """The files of a memory and what they are, whatever their name."""
    return {file.name: file.stat().st_ino for file in (checkpoint / "replay").iterdir()}


def new_files(before: Path, after: Path) -> set[str]:
    return {name for name, inode in files(after).items() if files(before).get(name) != inode}


def holds(checkpoint: Path, array: ChunkedArray, name: str = "rows") -> bool:
    """Whether a checkpoint has exactly what an array has."""
    found = read_checkpoint(checkpoint).arrays[name].chunks()
    wanted = array.chunks()
    return len(found) == len(wanted) and all(map(np.array_equal, found, wanted))


# Only what changed is written.


def test_unchanged_chunks_are_the_same_files(tmp_path: Path) -> None:
    array, other = array_of(18), array_of(7)
    first = save(tmp_path / "step_1", rows=array, other=other)
    assert set(files(first)) == {f"rows.{n}.bin" for n in range(5)} | {"other.0.bin", "other.1.bin"}
    assert (first / "replay" / "rows.4.bin").read_bytes() == array.data[16:].tobytes()
    change(array, 5, 17)
    second = save(tmp_path / "step_2", rows=array, other=other)
    assert new_files(first, second) == {"rows.1.bin", "rows.4.bin"}
    assert holds(second, array)
    assert holds(second, other, "other")
    change(other, 0)
    third = save(tmp_path / "step_3", rows=array, other=other)
    assert new_files(second, third) == {"other.0.bin"}
    # What is older has not been touched by any of this.
    assert np.array_equal(np.concatenate(read_checkpoint(first).arrays["rows"].chunks()), array_of(18).data)
    assert holds(second, array_of(7), "other")


def test_a_tenth_that_changed_costs_a_tenth_and_what_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = ChunkedArray(100_000, (112,), "uint8", chunk_bytes=112 * 1000)
    array.touch(0, 100_000)
    save(tmp_path / "step_1", rows=array)
    array.data[40_000:50_000] = 1
    array.touch(40_000, 50_000)
    synced = 0
    real = os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal synced
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced += path.stat().st_size if path.suffix == ".bin" else 0
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    save(tmp_path / "step_2", rows=array)
    changed = {f"rows.{number}.bin" for number in range(40, 50)}
    renewed = {f"rows.{number}.bin" for number in (31, 63, 95)}
    assert new_files(tmp_path / "step_1", tmp_path / "step_2") == changed | renewed
    assert synced == 13 * 1000 * 112
    assert holds(tmp_path / "step_2", array)


# A file that many checkpoints link is one copy on the disk.


def test_every_chunk_is_renewed_within_32_saves_a_few_at_each(tmp_path: Path) -> None:
    array = array_of(160)  # 40 chunks, which never change
    saved = [save(tmp_path / f"step_{number}", rows=array) for number in range(48)]
    assert all(len(new_files(before, after)) in (1, 2) for before, after in itertools.pairwise(saved))
    for before, after in zip(saved, saved[32:], strict=False):
        assert not set(files(before).values()) & set(files(after).values())
        assert holds(after, array)


def grown(folder: Path, saves: int, keep: int = 3) -> Iterator[list[str]]:
    """Save an array that grows and hardly changes, with pruning; the names of what is kept after every save."""
    array = array_of(1600)
    array.used = 0
    for number in range(1, saves + 1):
        array.touch(array.used, array.used + 16)
        change(array, 0)
        path = save(folder / f"step_{number}", rows=array)
        point(folder, "latest", path)
        prune(folder, keep)
        yield sorted((path.name for path in folder.glob("step_*")), key=lambda name: int(name[5:]))


def test_no_file_is_part_of_all_checkpoints_that_are_kept(tmp_path: Path) -> None:
    save(tmp_path / "step_0", rows=ChunkedArray(1600, (3,), "float32"))  # before the first step there is nothing in it
    for number, names in enumerate(grown(tmp_path, 80), start=1):
        kept = [set(files(tmp_path / name).values()) for name in names]
        assert names[-3:] == [f"step_{step}" for step in range(max(0, number - 2), number + 1)]
        assert len(names) <= 5
        assert not set.intersection(*kept), names


def test_a_bad_sector_leaves_a_checkpoint_of_the_last_saves(tmp_path: Path) -> None:
    *_, names = grown(tmp_path, 96)
    newest, *older = reversed(names)
    for file in (tmp_path / newest / "replay").iterdir():
        with file.open("r+b") as stream:  # all that link it are damaged
            stream.write(b"bad sector")
        whole = [name for name in older if _is_whole(tmp_path / name)]
        assert whole
        assert int(whole[0].removeprefix("step_")) >= 96 - 2 * 32 - 3


def test_what_shares_no_file_needs_no_spare(tmp_path: Path) -> None:
    array = array_of(8)
    for number in range(6):
        change(array, 0, 7)
        save(tmp_path / f"step_{number}", rows=array)
        prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_4", "step_5"]
    for number in range(6):
        save(tmp_path / "policy" / f"step_{number}")
        prune(tmp_path / "policy", 2)
    assert sorted(path.name for path in (tmp_path / "policy").iterdir()) == ["step_4", "step_5"]


def test_a_chunk_that_grew_without_a_change_is_written(tmp_path: Path) -> None:
    """A row far beyond has been written, so that rows before it which never were count as used."""
    array = ChunkedArray(12, (3,), "float32", chunk_bytes=48)
    change(array, 0, 1)
    save(tmp_path / "step_1", rows=array)
    change(array, 10)
    save(tmp_path / "step_2", rows=array)
    assert [len(chunk) for chunk in array.chunks()] == [4, 4, 3]
    assert holds(tmp_path / "step_2", array)
    assert len(new_files(tmp_path / "step_1", tmp_path / "step_2")) == 3


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EXDEV, "another file system"),
        OSError(errno.EMLINK, "too many links"),
        PermissionError(errno.EPERM, "no links here"),
        NotImplementedError("no links at all"),
    ],
)
def test_where_nothing_can_be_linked_everything_is_written(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*arguments: Any, **keywords: Any) -> None:
        raise error

    monkeypatch.setattr(os, "link", link)
    array = array_of(9)
    first = save(tmp_path / "step_1", rows=array)
    change(array, 0)
    second = save(tmp_path / "step_2", rows=array)
    assert len(new_files(first, second)) == 3
    assert holds(second, array)


def test_a_place_that_is_gone_or_somebody_elses_is_not_linked(tmp_path: Path) -> None:
    """Two agents that are saved under one name in turn do not take each other's memory."""
    mine, other = array_of(9), array_of(9)
    change(other, *range(9))
    place = tmp_path / "agent"
    save(place, rows=mine)
    save(place, rows=other)
    assert mine.written is not None
    assert mine.written.folder == place / "replay"
    assert holds(save(tmp_path / "copy", rows=mine), mine)
    save(place, rows=mine)
    assert holds(place, mine)
    shutil.rmtree(place)
    assert holds(save(tmp_path / "step_1", rows=mine), mine)


def test_one_step_can_be_saved_again_and_again(tmp_path: Path) -> None:
    array, path = array_of(9), tmp_path / "step_1"
    first = files(save(path, rows=array))
    assert files(save(path, rows=array)) == first
    change(array, 8)
    again = files(save(path, rows=array))
    assert {name for name in first if first[name] != again[name]} == {"rows.2.bin"}
    assert holds(path, array)
    assert [found.name for found in tmp_path.iterdir()] == ["step_1"]


# What is read.


def test_what_is_read_stays_when_the_files_go_and_keeps_none_open(tmp_path: Path) -> None:
    array = array_of(400)
    path = save(tmp_path / "step_1", rows=array, none=ChunkedArray(5, (), "int64"))
    open_before = len(os.listdir("/proc/self/fd"))
    found = read_checkpoint(path)
    assert len(os.listdir("/proc/self/fd")) == open_before, "a thousand chunks are more than a process may open"
    shutil.rmtree(path)
    chunks = found.arrays["rows"].chunks()
    assert np.array_equal(np.concatenate(chunks), array.data)
    with pytest.raises(ValueError, match="read-only"):
        chunks[0][:] = 0
    assert found.arrays["none"].chunks() == []


def test_what_is_read_can_be_written_again(tmp_path: Path) -> None:
    array = array_of(9)
    path = save(tmp_path / "step_1", rows=array)
    found = read_checkpoint(path)
    again = write_checkpoint(tmp_path / "again", found)
    assert new_files(path, again) == set()
    assert checkpoint_differences(found, read_checkpoint(again)) == []
    described = [json.loads((folder / "meta.json").read_text()) for folder in (path, again)]
    for meta, saves in zip(described, (1, 2), strict=True):
        assert meta["arrays"]["rows"].pop("saves") == saves
        del meta["crc32"]
    assert described[0] == described[1]
    without = write_checkpoint(tmp_path / "without", replace(found, arrays={}))
    assert read_checkpoint(without).arrays == {}


def test_a_difference_of_one_bit_is_seen(tmp_path: Path) -> None:
    array = array_of(9)
    first, same = (read_checkpoint(save(tmp_path / name, rows=array)) for name in "ab")
    array.data.view(np.uint32)[6, 1] ^= 1
    array.touch(6, 7)
    other = read_checkpoint(save(tmp_path / "c", rows=array))
    longer = read_checkpoint(save(tmp_path / "d", rows=array_of(10)))
    assert checkpoint_differences(first, same) == []
    assert checkpoint_differences(first, other) == ["arrays.rows[1]"]
    assert checkpoint_differences(first, longer) == ["arrays.rows[2]"]
    assert checkpoint_differences(first, read_checkpoint(save(tmp_path / "e"))) == ["arrays.rows"]


def test_without_a_memory_there_is_no_trace_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    train(CONFIG | {"total_timesteps": 12}, run_dir=tmp_path / "run")
    path = find_checkpoint(tmp_path / "run")
    assert "replay" not in {file.name for file in path.iterdir()}
    assert "arrays" not in json.loads((path / "meta.json").read_text())
    assert latest(tmp_path / "run").arrays == {}


# Runs.


class KeepsCopies(Recording):
    """What the memory held at every checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[str, Any] = {}

    def on_checkpoint(self, run: Any, path: Path) -> None:
        super().on_checkpoint(run, path)
        self.copies[path.name] = memory_contents(run.snapshot())


@pytest.mark.parametrize("keep", [2, 100])
def test_every_checkpoint_that_is_kept_has_what_was_then(keep: int, tmp_path: Path) -> None:
    copies = KeepsCopies()
    config = CONFIG | {"keep_checkpoints": keep, "eval_interval": 30}
    train(config, run_dir=tmp_path / "run", callbacks=[copies])
    names = checkpoint_names(tmp_path / "run")
    assert len(names) >= min(keep, 20)
    for name in set(names) - {"step_0"}:
        found = memory_contents(latest(tmp_path / "run", name))
        assert run_helpers.differences(found, copies.copies[name]) == [], name
    run, _ = restore(tmp_path / "run")
    run.close()


def test_a_run_that_is_cut_and_resumed_remembers_the_same(tmp_path: Path) -> None:
    train(CONFIG, run_dir=tmp_path / "whole")
    with pytest.raises(Pulled):
        train(CONFIG | {"checkpoint_interval": 24}, run_dir=tmp_path / "cut", callbacks=[PullPlug(66)])
    assert latest(tmp_path / "cut").meta["step"] == 48
    resume_training(tmp_path / "cut")
    # Their cadences, which are in the config, differ; the memories and all that was made of them do not.
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert set(latest(tmp_path / "cut").arrays) == {"replay.rows", "replay.priority"}


def test_the_contract_sees_a_memory_that_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    check_resumes("ppo", vectorization="sync")
    monkeypatch.setattr("rl_training.runtime.checkpoints.snapshots.load_arrays", lambda arrays, stored: None)
    with pytest.raises(AssertionError, match=r"arrays\.replay\.rows"):
        check_resumes("ppo", vectorization="sync")


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A run that ended in the middle, with some checkpoints."""
    with pytest.raises(Pulled):
        train(CONFIG | {"checkpoint_interval": 24}, run_dir=tmp_path / "run", callbacks=[PullPlug(48)])
    return tmp_path / "run"


def resumed(path: Path) -> Run:
    """A run that goes on in its folder, one update later."""
    run, _ = restore(path)
    run.archive.folder = RunFolder(path)
    run.advance()
    return run


def test_the_first_save_after_a_resume_links_too(cut: Path) -> None:
    before = find_checkpoint(cut)
    run = resumed(cut)
    run.save()
    run.close()
    assert run.checkpoint is not None
    new = new_files(before, run.checkpoint)
    assert {name for name in new if ".rows." in name} == {"replay.rows.3.bin"}
    assert len(new) < len(files(run.checkpoint))


def test_pruning_leaves_what_is_linked(cut: Path) -> None:
    run = resumed(cut)
    kept = files(find_checkpoint(cut))
    run.save()
    for name in checkpoint_names(cut)[:-1]:
        remove_tree(cut / "checkpoints" / name)
    assert checkpoint_names(cut) == ["step_54"]
    assert set(kept.values()) & set(files(cut / "checkpoints" / "step_54").values())
    expected = memory_contents(run.snapshot())
    assert run_helpers.differences(memory_contents(latest(cut)), expected) == []
    # What is noted as written is where it can be linked from.
    run.advance()
    run.save()
    run.close()
    assert set(files(cut / "checkpoints" / "step_60").values()) & set(kept.values())


def test_going_back_to_an_older_checkpoint_links_from_that_one(cut: Path) -> None:
    copies = KeepsCopies()
    resume_training(cut, which="step_24", keep_checkpoints=2, callbacks=[copies])
    for name in checkpoint_names(cut):
        found = memory_contents(latest(cut, name))
        assert run_helpers.differences(found, copies.copies[name]) == [], name


def test_judging_never_looks_at_the_memory(cut: Path) -> None:
    before = evaluate_checkpoint(cut)
    shutil.rmtree(find_checkpoint(cut) / "replay")
    assert evaluate_checkpoint(cut) == before
    with pytest.raises(UserError, match=r"replay/replay.priority.0.bin': is missing"):
        resume_training(cut)


def test_an_agents_own_saves_do_not_disturb_those_of_its_run(tmp_path: Path) -> None:
    settings = {key: value for key, value in CONFIG.items() if key not in ("algo", "env_id", "total_timesteps")}
    agent = PPO(run_helpers.limited_walk, **settings, output_dir=str(tmp_path / "runs"))
    try:
        agent.learn(24)
        assert agent.result is not None
        run_dir, first = agent.result.run_dir, agent.save(tmp_path / "agent")
        assert new_files(find_checkpoint(run_dir), first) == set()
        agent.learn(6)
        later = find_checkpoint(run_dir)
        assert 0 < len(new_files(first, later)) < len(files(later))
        agent.save(tmp_path / "agent")
        assert new_files(later, tmp_path / "agent") == set()
        shutil.rmtree(tmp_path / "agent")
        agent.learn(6)
        expected = memory_contents(agent._run.snapshot())
    finally:
        agent.close()
    assert run_helpers.differences(memory_contents(latest(run_dir)), expected) == []


def test_a_loaded_agent_that_opens_a_folder_links_from_the_start(tmp_path: Path) -> None:
    settings = {key: value for key, value in CONFIG.items() if key not in ("algo", "env_id", "total_timesteps")}
    agent = PPO(run_helpers.limited_walk, **settings)
    agent.learn(36)
    agent.save(tmp_path / "agent")
    agent.close()
    loaded = PPO.load(
        tmp_path / "agent", env=run_helpers.limited_walk, output_dir=str(tmp_path / "runs"), checkpoint_interval=6
    )
    try:
        loaded.learn(6)
        assert loaded.result is not None
        run_dir = loaded.result.run_dir
    finally:
        loaded.close()
    first, second = (run_dir / "checkpoints" / name for name in ("step_36", "step_42"))
    assert new_files(tmp_path / "agent", first) == set()
    assert 0 < len(new_files(first, second)) < len(files(second))


# Damage.


@pytest.mark.parametrize(
    ("damage", "name", "words"),
    [
        (lambda file: file.unlink(), "replay.rows.2.bin", "it is missing"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "replay.rows.0.bin", "it has 63 bytes instead of 64"),
        (lambda file: file.write_bytes(file.read_bytes() * 2), "replay.priority.1.bin", "128 bytes instead of 64"),
        (lambda file: file.write_bytes(b""), "replay.rows.0.bin", "it has 0 bytes instead of 64"),
        (lambda file: file.write_bytes(b"more"), "replay.rows.3.bin", "it does not belong here"),
        (lambda file: file.write_bytes(b"else"), "else.txt", "it does not belong here"),
    ],
)
def test_a_damaged_file_is_said_by_name(damage: Callable[[Path], Any], name: str, words: str, cut: Path) -> None:
    path = find_checkpoint(cut)
    file = path / "replay" / name
    for hidden in (".DS_Store", ".nfs0001"):  # of the system's own
        (path / "replay" / hidden).touch()
    read_checkpoint(path)
    content = file.read_bytes() if file.exists() else b""
    if file.exists():  # the other checkpoints keep their links
        file.unlink()
        file.write_bytes(content)
    damage(file)
    with pytest.raises(UserError) as complaint:
        resume_training(path)
    message = str(complaint.value)
    assert message.startswith(f"{str(file)!r}: is missing, damaged or foreign (")
    assert words in message
    assert "\n" not in message
    assert resume_training(cut, which="step_24").stop_reason == "completed", "the one before is as it was"


ROWS = {"rows": 24, "chunk_rows": 8, "shape": [2], "dtype": "<f4", "saves": 3}


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (
            {"rows": 24},
            "meta.json': is missing, damaged or foreign (its entry for the array 'replay.rows' is {'rows': 24}",
        ),
        (ROWS | {"chunk_rows": 0}, "its entry for the array 'replay.rows' is"),
        (ROWS | {"rows": "a"}, "its entry for the array 'replay.rows' is"),
        (ROWS | {"rows": True}, "its entry for the array 'replay.rows' is"),
        (ROWS | {"shape": [-2]}, "its entry for the array 'replay.rows' is"),
        (ROWS | {"shape": 2}, "its entry for the array 'replay.rows' is"),
        (ROWS | {"saves": None}, "its entry for the array 'replay.rows' is"),
        (ROWS | {"dtype": "no"}, "its entry for the array 'replay.rows' is"),
        (ROWS | {"dtype": "O", "shape": [1]}, "its dtype is not one of plain numbers"),
        (ROWS | {"shape": [4], "dtype": "<i2"}, "the array 'replay.rows' of the checkpoint"),
        (ROWS | {"shape": [3]}, "replay.rows.0.bin': is missing, damaged or foreign (it has 64 bytes instead of 96"),
        (ROWS | {"rows": 10**18}, "meta.json': is missing, damaged or foreign (its list of files has no 'replay/rep"),
        ([1, 2], "meta.json': is missing, damaged or foreign"),
        (None, "meta.json': is missing, damaged or foreign (it names the file 'replay/replay.rows.0.bin', which is of"),
    ],
)
def test_a_description_that_is_not_of_the_files_is_refused(described: Any, words: str, cut: Path) -> None:
    path = find_checkpoint(cut)
    arrays = json.loads((path / "meta.json").read_text())["arrays"]
    assert arrays["replay.rows"] == ROWS
    if described is None:
        del arrays["replay.rows"]
    elif isinstance(described, list):
        arrays = described
    else:
        arrays["replay.rows"] = described
    reseal(path, arrays=arrays)
    with pytest.raises(UserError) as complaint:
        resume_training(path)
    assert words in str(complaint.value)
    assert "\n" not in str(complaint.value)


def test_a_memory_of_another_size_or_name_is_refused(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Diary.__init__
    monkeypatch.setattr(Diary, "__init__", lambda self: made(self, rows=20))
    with pytest.raises(UserError, match=r"the array 'replay.rows' of the checkpoint does not fit this run \(24 rows"):
        resume_training(cut)

    def renamed(self: Diary) -> None:
        made(self)
        self.arrays["numbers"] = self.arrays.pop("priority")

    monkeypatch.setattr(Diary, "__init__", renamed)
    with pytest.raises(UserError, match=r"the array 'replay.numbers' is missing in the checkpoint"):
        resume_training(cut)


# Crashes and full disks, wherever they come.


@pytest.fixture
def ready_to_save(cut: Path, tmp_path: Path) -> Iterator[tuple[Run, Callable[[], None], dict[int, Any]]]:
    """A run one update after its latest checkpoint, what puts its folder back to before, and what each step holds."""
    before = memory_contents(latest(cut))
    run = resumed(cut)
    run.config = run.config.replace(keep_checkpoints=2)
    run.archive.best_step = run.steps
    noted = {name: array.written for name, array in run.snapshot().arrays.items()}
    contents = {48: before, run.steps: memory_contents(run.snapshot())}

    def prepare() -> None:
        shutil.rmtree(tmp_path / "work", ignore_errors=True)
        shutil.copytree(cut, tmp_path / "work", copy_function=os.link)
        checkpoints = tmp_path / "work" / "checkpoints"
        # One that is neither the spare nor the next.
        shutil.copytree(checkpoints / "step_24", checkpoints / "step_30", copy_function=os.link)
        run.archive.folder = RunFolder(tmp_path / "work")
        for name, array in run.snapshot().arrays.items():
            folder = tmp_path / "work" / "checkpoints" / "step_48" / "replay"
            array.written = noted[name]._replace(folder=folder)

    try:
        yield run, prepare, contents
    finally:
        run.close()


def test_a_crash_at_any_moment_leaves_a_memory_that_is_whole(ready_to_save: Any, tmp_path: Path) -> None:
    run, prepare, contents = ready_to_save
    seen = set()

    def check(moment: str) -> None:
        found = latest(tmp_path / "work")
        seen.add(found.meta["step"])
        assert run_helpers.differences(memory_contents(found), contents[found.meta["step"]]) == [], moment

    calls = every_crash(run.save, prepare, check)
    assert seen == {48, 54}
    assert calls.count("link") == 5
    assert calls.count("fsync") == 17, "the metrics, six files, three chunks, three folders and two pointers, twice"
    assert "unlink" in calls, "an old checkpoint was pruned"


def test_a_crash_while_a_memory_is_replaced_by_itself(ready_to_save: Any, tmp_path: Path) -> None:
    run, prepare, contents = ready_to_save

    def prepare_twice() -> None:
        prepare()
        run.save()

    def check(moment: str) -> None:
        found = latest(tmp_path / "work")
        assert found.meta["step"] == run.steps, moment
        assert run_helpers.differences(memory_contents(found), contents[run.steps]) == [], moment

    calls = every_crash(run.save, prepare_twice, check)
    assert calls.count("rename") == 2
    assert calls.count("link") == len(files(tmp_path / "work" / "checkpoints" / "step_54"))


class FailsOnce:
    """A disk that fails at the n-th call, and is well again afterwards."""

    NAMES = ("mkdir", "rename", "replace", "fsync", "link")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.left, self.failed = number, False
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                self.failed = True
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **keywords)

        return call


def test_after_a_disk_that_failed_the_next_save_is_right(ready_to_save: Any, tmp_path: Path) -> None:
    """The process lives on, with what it noted of the files that it wrote."""
    run, prepare, contents = ready_to_save
    number, saved = 0, set()
    while True:
        prepare()
        with pytest.MonkeyPatch.context() as patch:
            disk = FailsOnce(patch, number)
            with suppress(UserError):
                run.save()
                saved.add(number)
        if not disk.failed:
            break
        run.save()
        found = memory_contents(latest(tmp_path / "work"))
        assert run_helpers.differences(found, contents[run.steps]) == [], f"after call {number}"
        number += 1
    assert len(saved - {number}) == 5, "a link that fails ends nothing"
    assert number > 20


# Episodes that a resume lost.


def test_environments_that_lost_their_episode_are_marked_until_the_loop_has_seen_it(cut: Path, tmp_path: Path) -> None:
    path = find_checkpoint(cut)
    run, _ = restore(cut)
    run.close()
    assert run.source.collector.lost is None
    assert "lost" not in run.snapshot().envs["actor"]
    with changed_state(path, "envs") as envs:
        envs["actor"]["raw"][1] += 1.0
    run, _ = restore(cut)
    run.close()
    assert run.source.collector.lost.tolist() == [False, True, False]
    # Saved before the loop has asked, resumed exactly this time: it is still to be said.
    run.archive.export(tmp_path / "agent", run)
    again, _ = restore(tmp_path / "agent")
    assert again.source.collector.restarts == run.source.collector.restarts == 1
    assert again.source.collector.lost.tolist() == [False, True, False]
    assert again.source.take_lost().tolist() == [False, True, False]
    assert again.source.take_lost() is None
    again.archive.export(tmp_path / "agent", again)
    again.close()
    last, _ = restore(tmp_path / "agent")
    last.close()
    assert last.source.collector.lost is None


def test_environments_that_cannot_be_asked_have_all_lost_their_episodes(tmp_path: Path) -> None:
    with pytest.raises(Pulled):
        train(CONFIG | {"env_id": "run_helpers:walks"}, run_dir=tmp_path / "run", callbacks=[PullPlug(24)])
    run, _ = restore(tmp_path / "run")
    run.close()
    assert run.source.collector.lost.tolist() == [True, True, True]
