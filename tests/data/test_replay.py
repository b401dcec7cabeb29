"""The replay against plain lists of what happened: rings, ends of episodes, chains of steps, draws, files, sizes."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_feed import (
    GAMMA,
    Feed,
    assert_same,
    assert_uniform,
    check_chains,
    copy_state,
    event_rows,
    info_of,
    played,
    stored_slots,
)
from rl_training.data import plain_replay, ram, replay_files
from rl_training.data import replay as replay_module
from rl_training.data.checked_files import seal
from rl_training.data.chunks import ChunkedArray
from rl_training.data.columns import Columns
from rl_training.data.replay import FrameReplay, Replay, make_replay, replay_kind
from rl_training.types import ObsPart, SpaceInfo, Step, UserError

VECTOR = info_of((2,))


def show(episode: list[int]) -> np.ndarray:
    return np.array([episode[-1], -len(episode)], np.float32)


@given(event_rows(), st.integers(1, 9), st.integers(1, 5))
def test_every_slot_holds_what_happened_and_chains_go_as_far_as_they_may(
    rows: list[list[str]], positions: int, n_step: int
) -> None:
    envs = len(rows[0])
    feed, replay = Feed(envs, show), Replay(VECTOR, envs, positions * envs)
    for events in rows:
        written = {len(feed.stored[env]) % positions * envs + env for env in range(envs) if events[env] != "unreal"}
        assert feed.play(events, replay) == (written, set())
    expected = stored_slots(feed, positions)
    assert len(replay) == len(expected)
    slots = np.random.default_rng(0).permutation(sorted(expected))
    check_chains(
        replay.gather(slots, n_step=n_step, gamma=GAMMA), [feed.chain(*expected[slot], n_step) for slot in slots]
    )
    assert set(replay.draw(np.random.default_rng(1), 50).tolist()) <= expected.keys()


def test_a_chain_over_the_end_of_the_ring_stops_at_the_write_head_worked_by_hand() -> None:
    feed, replay = Feed(1, show), Replay(VECTOR, 1, 4)
    for _ in range(6):
        feed.play(["go"], replay)
    # The ring holds the transitions 4, 5, 2, 3 of one episode: from 2 on the chain is 2, 3, 4; from 4 on it is 4, 5.
    rewards = [transition.reward for transition in feed.stored[0]]
    batch = replay.gather(np.array([2, 0, 1]), n_step=3, gamma=0.5)
    assert batch.reward[0] == rewards[2] + rewards[3] / 2 + rewards[4] / 4
    assert batch.reward[1] == rewards[4] + rewards[5] / 2
    assert batch.reward[2] == rewards[5]
    np.testing.assert_array_equal(batch.discount, np.array([0.125, 0.25, 0.5], np.float32))
    np.testing.assert_array_equal(batch.next_obs[1], feed.stored[0][5].next_obs)


def test_a_truncation_bootstraps_and_a_termination_does_not_worked_by_hand() -> None:
    feed, replay = Feed(1, show), Replay(VECTOR, 1, 10)
    for event in ("go", "truncated", "go", "terminated", "go"):
        feed.play([event], replay)
    batch = replay.gather(np.array([0, 2]), n_step=5, gamma=0.5)
    assert batch.truncated.tolist() == [True, False]
    assert batch.terminated.tolist() == [False, True]
    np.testing.assert_array_equal(batch.discount, np.array([0.25, 0.25], np.float32))
    np.testing.assert_array_equal(batch.next_obs, [feed.stored[0][1].next_obs, feed.stored[0][3].next_obs])
    # Nothing of the next episode, whose first observation is another one.
    assert not np.array_equal(batch.next_obs[0], feed.stored[0][2].obs)


def test_a_cut_of_an_ended_episode_does_not_make_a_termination_a_truncation() -> None:
    feed, replay = Feed(2, show), Replay(VECTOR, 2, 10)
    replay.cut(np.ones(2, bool))
    assert replay.arrays["rows"].used == 0
    feed.play(["terminated", "go"], replay)
    replay.cut(np.ones(2, bool))
    batch = replay.gather(np.array([0, 1]), gamma=GAMMA)
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([True, False], [False, True])


def test_a_step_without_any_real_row_changes_nothing() -> None:
    feed, replay = Feed(2, show), Replay(VECTOR, 2, 8)
    feed.play(["go", "go"], replay)
    before = replay.state_dict()
    assert feed.play(["unreal", "unreal"], replay) == (set(), set())
    assert replay.state_dict() == before


KINDS = {
    "continuous": info_of((3,), action=2),
    "odd number of bytes": info_of((3, 5), "uint8"),
    "several choices": SpaceInfo((4,), "float32", "multi_discrete", (2,), 5, (3, 2), (0, 0)),
    "packed": SpaceInfo(
        (12,), "uint8", "discrete", (), 4, (4,), (0,), parts=(ObsPart("a", (2,), "float32"),), mask_size=4
    ),
}


def random_step(info: SpaceInfo, envs: int, rng: np.random.Generator) -> Step:
    action_shape, action_dtype = info.stored_action
    obs, next_obs = rng.integers(0, 256, (2, envs, *info.obs_shape)).astype(info.obs_dtype)
    action = rng.integers(-9, 9, (envs, *action_shape)).astype(action_dtype)
    reward = rng.standard_normal(envs).astype(np.float32)
    terminated, truncated = rng.random((2, envs)) < 0.5
    return Step(obs, action, reward, next_obs, terminated, truncated, np.ones(envs, bool))


@pytest.mark.parametrize("info", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("n_step", [1, 2])
def test_all_kinds_of_spaces_come_back_as_they_were(info: SpaceInfo, n_step: int) -> None:
    rng = np.random.default_rng(0)
    replay = Replay(info, 2, 6)
    steps = [random_step(info, 2, rng) for _ in range(3)]
    for step in steps:
        replay.add(step)
    batch = replay.gather(np.arange(6), n_step=n_step, gamma=GAMMA)
    for name in ("obs", "action"):
        array = getattr(batch, name)
        assert array.dtype == getattr(steps[0], name).dtype
        assert array.flags.aligned
        np.testing.assert_array_equal(array, np.concatenate([getattr(step, name) for step in steps]))
    assert batch.next_obs.shape == batch.obs.shape
    assert batch.next_obs.flags.aligned


def test_columns_are_views_and_rows_are_aligned() -> None:
    columns = Columns({"a": ((), "int64"), "b": ((3,), "uint8"), "c": ((2, 2), "float32"), "d": ((), "bool")})
    assert columns.row_bytes == 32  # 8 + 3, one to align, 16, 1, three to align
    rows = np.zeros((5, columns.row_bytes), np.uint8)
    for number, (name, view) in enumerate(columns.views(rows).items()):
        assert np.shares_memory(view, rows)
        assert view.flags.aligned
        view[2] = number + 1
        np.testing.assert_array_equal(columns.view(rows, name)[2], np.full_like(view[2], number + 1))
    assert not rows[[0, 1, 3, 4]].any()


def test_what_is_added_and_gathered_is_copied() -> None:
    replay = Replay(VECTOR, 1, 4)
    step = random_step(VECTOR, 1, np.random.default_rng(0))
    kept = step.obs.copy()
    replay.add(step)
    step.obs[:] = 99
    batch = replay.gather(np.array([0]), gamma=GAMMA)
    np.testing.assert_array_equal(batch.obs, kept)
    batch.obs[:] = 98
    np.testing.assert_array_equal(replay.gather(np.array([0]), gamma=GAMMA).obs, kept)


def test_batches_of_changing_size_and_length_do_not_mix() -> None:
    feed, replay = Feed(1, show), Replay(VECTOR, 1, 8)
    for _ in range(8):
        feed.play(["go"], replay)
    for slots, n_step in (([1, 2], 1), ([3], 3), ([4, 5], 1), ([4, 5], 2), ([0], 1), ([6, 7], 3)):
        batch = replay.gather(np.array(slots), n_step=n_step, gamma=GAMMA)
        check_chains(batch, [feed.chain(0, slot, n_step) for slot in slots])


@pytest.mark.parametrize(("envs", "size", "capacity"), [(1, 10, 10), (4, 10, 8), (4, 2, 4), (3, 9, 9)])
def test_the_size_counts_the_transitions_of_all_environments(envs: int, size: int, capacity: int) -> None:
    replay = Replay(VECTOR, envs, size)
    assert replay.capacity == capacity
    assert len(replay) == 0


@pytest.mark.parametrize("uneven", [False, True])
def test_every_transition_is_equally_likely(uneven: bool) -> None:
    feed, replay = Feed(3, show), Replay(VECTOR, 3, 30)
    for number in range(9):
        feed.play(["go", "unreal" if uneven and number > 2 else "go", "go"], replay)
    slots = sorted(stored_slots(feed, 10))
    assert len(slots) == (21 if uneven else 27)
    draws = np.concatenate([replay.draw(np.random.default_rng(seed), 300) for seed in range(50)])
    assert_uniform(draws, slots)
    again = replay.draw(np.random.default_rng(0), 300)
    np.testing.assert_array_equal(again, draws[:300])


def test_nothing_can_be_drawn_from_an_empty_replay() -> None:
    with pytest.raises(ValueError, match="no transition to draw"):
        Replay(VECTOR, 2, 4).draw(np.random.default_rng(0), 1)


@pytest.mark.parametrize("steps", [0, 3, 40])
def test_a_replay_that_was_brought_back_goes_on_as_if_nothing_had_happened(steps: int) -> None:
    feed, twin = Feed(3, show), Feed(3, show)
    replay, restored, unbroken = (Replay(VECTOR, 3, 24) for _ in range(3))
    played(replay, feed, 0, steps)
    played(unbroken, twin, 0, steps)
    copy_state(replay, restored)
    played(restored, feed, 1, 10)
    played(unbroken, twin, 1, 10)
    assert_same(restored, unbroken)
    for name, array in restored.arrays.items():
        for mine, theirs in zip(array.chunks(), unbroken.arrays[name].chunks(), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_state_of_another_shape_is_refused() -> None:
    state = Replay(VECTOR, 2, 8).state_dict()
    with pytest.raises(UserError, match="buffer_size is 8 there and 6 here"):
        Replay(VECTOR, 2, 6).load_state_dict(state)
    with pytest.raises(UserError, match="num_envs is 2 there and 1 here"):
        Replay(VECTOR, 1, 8).load_state_dict(state)
    with pytest.raises(UserError, match=r"columns is .* there and .* here"):
        Replay(KINDS["continuous"], 2, 8).load_state_dict(state)
    for wrong in ([0], [0, 99], [0, -1], [0, 0.5], None, ["a", "b"]):
        with pytest.raises(UserError, match="damaged: heads is"):
            Replay(VECTOR, 2, 8).load_state_dict(state | {"heads": wrong})


def test_what_changed_is_known_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_replay, "ChunkedArray", lambda *args: ChunkedArray(*args, chunk_bytes=64))
    replay = Replay(VECTOR, 1, 8)  # rows of 32 bytes: two in a chunk
    rows = replay.arrays["rows"]
    assert rows.chunk_rows == 2
    feed = Feed(1, show)
    for _ in range(3):
        feed.play(["go"], replay)
    assert (rows.versions.tolist(), rows.used, len(rows.chunks())) == ([2, 1, 0, 0], 3, 2)
    replay.cut(np.ones(1, bool))
    assert rows.versions.tolist() == [2, 2, 0, 0]
    feed.play(["unreal"], replay)
    assert rows.versions.tolist() == [2, 2, 0, 0]


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.integers(1, 9)), max_size=8), st.booleans())
def test_chunks_know_what_was_touched(rows: int, writes: list[tuple[int, int]], by_rows: bool) -> None:
    array = ChunkedArray(rows, (3,), "uint8", chunk_bytes=12)
    for number, (start, length) in enumerate(writes):
        start = start % rows
        stop = min(rows, start + length)
        before = array.versions.copy()
        array.data[start:stop] = number + 1
        if by_rows:
            array.touch_rows(np.random.default_rng(number).permutation(np.arange(start, stop)))
        else:
            array.touch(start, stop)
        changed = {row // array.chunk_rows for row in range(start, stop)}
        assert set(np.flatnonzero(array.versions != before).tolist()) == changed
    assert array.used == max((min(rows, start % rows + length) for start, length in writes), default=0)
    other = ChunkedArray(rows, (3,), "uint8", chunk_bytes=12)
    other.data[:], other.used = 77, rows
    other.load([chunk.copy() for chunk in array.chunks()])
    np.testing.assert_array_equal(other.data, array.data)
    assert other.used == array.used


def test_chunks_that_do_not_fit_are_refused() -> None:
    array = ChunkedArray(5, (3,), "uint8", chunk_bytes=6)
    good = np.zeros((2, 3), np.uint8)
    for chunks, reason in (
        ([good[:1], good], "chunks of"),
        ([good, good[:0]], "chunks of"),
        ([good, good, good], "6 rows do not fit into 5"),
        ([good[:, :2]], "rows of"),
        ([good.astype(np.int8)], "rows of"),
    ):
        with pytest.raises(ValueError, match=reason):
            array.load(chunks)


# A replay in a folder of its own.


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    replay = Replay(KINDS["continuous"], 2, 20)
    rng = np.random.default_rng(0)
    for _ in range(7):
        replay.add(random_step(KINDS["continuous"], 2, rng))
    return replay.save(tmp_path / "memory")


@pytest.mark.parametrize("info", KINDS.values(), ids=KINDS.keys())
def test_a_replay_is_saved_and_loaded_on_its_own(info: SpaceInfo, tmp_path: Path) -> None:
    replay = Replay(info, 2, 20)
    rng = np.random.default_rng(0)
    for _ in range(13):
        replay.add(random_step(info, 2, rng))
    folder = replay.save(tmp_path / "deep" / "memory")
    loaded = Replay.load(folder)
    assert type(loaded) is Replay
    assert loaded.info == info
    assert_same(replay, loaded)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["memory"]
    empty = Replay.load(Replay(info, 2, 20).save(tmp_path / "empty"))
    assert len(empty) == 0


def test_a_folder_that_is_there_is_not_written_over(saved: Path) -> None:
    with pytest.raises(UserError, match=r"memory.*already exists"):
        Replay(VECTOR, 1, 4).save(saved)
    assert len(Replay.load(saved)) == 14


def test_a_crash_while_saving_leaves_nothing_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(VECTOR, 1, 4)
    replay.add(random_step(VECTOR, 1, np.random.default_rng(0)))
    seen = []

    def crash(*_: Any) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        replay.save(tmp_path / "memory")
    assert [name.startswith(".draft-memory") for name in seen] == [True]  # everything had been written, elsewhere
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*Not a directory"):
        Replay(VECTOR, 1, 4).save(tmp_path / "file" / "memory")


def damaged_description(folder: Path, **changes: Any) -> None:
    file = folder / "replay.json"
    content, files = replay_files.read_description(folder)
    file.write_bytes(seal(content | changes, files))


DAMAGES = {
    "no folder": lambda folder: folder.rename(folder.with_name("elsewhere")),
    "no description": lambda folder: (folder / "replay.json").unlink(),
    "no JSON": lambda folder: (folder / "replay.json").write_text('{"format": 1, '),
    "other JSON": lambda folder: (folder / "replay.json").write_text("[1]"),
    "bytes": lambda folder: (folder / "replay.json").write_bytes(b"\xff\xfe\x00"),
    "other format": lambda folder: damaged_description(folder, format=1),
    "no spaces": lambda folder: damaged_description(folder, info={}),
    "wrong spaces": lambda folder: damaged_description(folder, info={"parts": [], "obs_shape": "x"}),
    "no state": lambda folder: damaged_description(folder, state=None),
    "no checksums": lambda folder: (folder / "replay.json").write_text('{"format": 2, "files": {}}'),
    "no files": lambda folder: (folder / "replay.json").write_bytes(seal(replay_files.read_description(folder)[0], {})),
    "one file more": lambda folder: (folder / "rows_00001.bin").write_bytes(b"1"),
    "a link": lambda folder: (folder / "rows_00000.bin").symlink_to(
        (folder / "rows_00000.bin").rename(folder.with_name("elsewhere.bin"))
    ),
    "no chunk": lambda folder: (folder / "rows_00000.bin").unlink(),
    "half a chunk": lambda folder: (folder / "rows_00000.bin").write_bytes(
        (folder / "rows_00000.bin").read_bytes()[:100]
    ),
    "another byte": lambda folder: (folder / "rows_00000.bin").write_bytes(
        (folder / "rows_00000.bin").read_bytes()[:-1] + b"!"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_or_foreign_folder_is_said_by_name(saved: Path, damage: Any) -> None:
    assert len(Replay.load(saved)) == 14
    damage(saved)
    with pytest.raises(
        UserError, match=r"memory.*(damaged|has format 1; this version of rl_training reads 2|is a symbolic link)"
    ):
        Replay.load(saved)


def test_a_saved_state_that_does_not_fit_its_spaces_is_refused(saved: Path) -> None:
    state = json.loads((saved / "replay.json").read_text())["state"]
    damaged_description(saved, state=state | {"columns": []})
    with pytest.raises(UserError, match="does not fit"):
        Replay.load(saved)


def test_a_saved_replay_is_bytes_and_json_only(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["replay.json", "rows_00000.bin"]
    description, _ = replay_files.read_description(saved)
    assert replay_files.read_info(description["info"]) == KINDS["continuous"]
    assert (saved / "rows_00000.bin").stat().st_size == 14 * Replay.slot_bytes(KINDS["continuous"])


# Sizes.


def test_the_size_that_is_said_is_the_size_that_is_taken() -> None:
    for info, frame_stack in ((VECTOR, 1), (KINDS["continuous"], 1), (info_of((4, 6, 6), "uint8"), 4)):
        replay = make_replay(info, 3, 100, frame_stack)
        needed = replay_kind(info, frame_stack).bytes_needed(info, 3, 100)
        assert needed == sum(array.data.nbytes for array in replay.arrays.values())


def test_frames_are_kept_once_only_where_stacks_are_made_of_them() -> None:
    frames, vectors = info_of((4, 6, 6), "uint8"), info_of((4, 6))
    assert type(make_replay(frames, 1, 100, 4)) is FrameReplay
    assert type(make_replay(frames, 1, 100, 1)) is Replay
    assert type(make_replay(vectors, 1, 100, 4)) is Replay
    assert type(make_replay(KINDS["packed"], 1, 100, 4)) is Replay
    assert FrameReplay.bytes_needed(info_of((4, 84, 84), "uint8"), 1, 1000) < 1000 * 84 * 84 * 1.01


def test_a_size_that_does_not_fit_is_refused_and_the_largest_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Replay.slot_bytes(VECTOR)
    monkeypatch.setattr(replay_module, "available_memory", lambda: 1000 * row + 5)
    with pytest.raises(UserError) as caught:
        make_replay(VECTOR, 3, 5000, 1)
    message = f"buffer_size=5000: needs {ram.readable(4998 * row)} of RAM, and {ram.readable(1000 * row + 5)} are"
    assert str(caught.value) == f"{message} available; at most 999 fit"
    assert make_replay(VECTOR, 3, 999, 1).capacity == 999
    with pytest.raises(UserError, match="at most 999 fit"):
        make_replay(VECTOR, 3, 1002, 1)
    monkeypatch.setattr(replay_module, "available_memory", lambda: None)
    assert make_replay(VECTOR, 3, 5000, 1).capacity == 4998


def test_the_size_is_said_before_anything_is_allocated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def allocate(*_: Any) -> None:
        assert "100000 transitions takes up to 3.1 MiB" in caplog.text
        raise MemoryError

    monkeypatch.setattr(plain_replay, "ChunkedArray", allocate)
    with caplog.at_level(logging.INFO, "rl_training"), pytest.raises(MemoryError):
        make_replay(VECTOR, 1, 100_000, 1)


def test_sizes_in_words() -> None:
    sizes = {0: "0 bytes", 1023: "1023 bytes", 1536: "1.5 KiB", 3 << 20: "3.0 MiB", 5 << 30: "5.0 GiB"}
    sizes |= {(1 << 40) - (1 << 30): "1023.0 GiB", 1 << 40: "1.0 TiB", 7 << 60: "7.0 EiB", 5 << 70: "5120.0 EiB"}
    assert {size: ram.readable(size) for size in sizes} == sizes


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = ram.available_memory()
    assert unlimited is None or unlimited > 1 << 20
    monkeypatch.setattr(ram, "_CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("900000\n")
    (tmp_path / "memory.current").write_text("500000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 50000\n")
    linux = Path("/proc/self/cgroup").exists()
    assert ram.available_memory() == (450_000 if linux else unlimited)
    (tmp_path / "memory.max").write_text("max\n")
    assert ram.available_memory() != 450_000
