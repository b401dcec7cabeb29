"""What an algorithm learns from: draws, notes, records and the online queue, against plain lists of what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_model import KINDS, World, draw_transitions
from replay_feed import EVENTS, GAMMA, RECORDS, Feed, info_of
from rl_training.data.batches import Transitions
from rl_training.data.columns import Columns
from rl_training.data.memory import Mixture, ReplayMemory
from rl_training.data.replay import FrameReplay, Replay, make_replay, replay_kind, replay_like, replay_of
from rl_training.data.samplers import FreshFirst, PrioritizedSampler, UniformSampler
from rl_training.runtime.checkpoints.chunk_files import (
    arrays_of,
    describe_arrays,
    entries_of,
    load_arrays,
    read_arrays,
    write_arrays,
)
from rl_training.types import ArrayKind, Step, UserError

VECTOR = info_of((2,))
ALPHA = 0.6
# The arrays `[B]` of a batch of transitions.
COLUMNS = [name for name in Transitions.__slots__ if name not in ("records", "between")]


class Priorities:
    """The priorities of a world's rows, and the largest there has been."""

    def __init__(self) -> None:
        self.of: dict[tuple[int, int], float] = {}
        self.largest = 1.0

    def added(self, rows: list[tuple[int, int]]) -> None:
        self.of |= dict.fromkeys(rows, self.largest)

    def noted(self, world: World, names: np.ndarray, errors: np.ndarray) -> None:
        for name, error in zip(names.ravel().tolist(), errors.ravel().tolist(), strict=True):
            if name >= 0 and world.there(name) is not None:
                self.of[world.row_of[name]] = priority = (abs(error) + 1e-6) ** ALPHA
                self.largest = max(self.largest, priority)

    def check(self, world: World) -> None:
        slots = world.slots()
        found = world.memory.sampler.arrays["priorities"].data
        expected = [self.of[slots[slot]] if slot in slots else 0.0 for slot in range(found.size)]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


class Queue:
    """The windows that an online queue should hand out, by looking at every row that was added."""

    def __init__(self, length: int, every: int) -> None:
        self.length, self.every = length, every
        self.waiting: list[tuple[int, int]] = []

    def added(self, rows: list[tuple[int, int]]) -> None:
        for env, number in rows:
            start = number + 1 - self.length
            if start >= 0 and start % self.every == 0:
                self.waiting.append((env, start))

    def taken(self, world: World, count: int) -> list[tuple[int, int]]:
        """The next that are still there, at most `count`."""
        found: list[tuple[int, int]] = []
        while self.waiting and len(found) < count:
            row = self.waiting.pop(0)
            if row in world.slots().values():
                found.append(row)
        return found


row_of_events = st.lists(st.sampled_from(EVENTS), min_size=2, max_size=2)
operations = st.lists(
    st.one_of(row_of_events, row_of_events, row_of_events, st.sampled_from(["draw", "note", "write", "restart"])),
    min_size=10,
    max_size=50,
)


@settings(max_examples=100)
@given(operations, st.sampled_from(sorted(KINDS)), st.integers(1, 12), st.integers(1, 5), st.integers(0, 99))
def test_draws_and_notes_of_a_prioritised_memory(
    todo: list[Any], kind: str, positions: int, length: int, seed: int
) -> None:
    """Names are noted at any later time, when some of their rows have been overwritten."""
    world, priorities, rng = World(kind, 2, positions, PrioritizedSampler), Priorities(), np.random.default_rng(seed)
    priorities.added(world.play(["go", "go"]))
    names = np.full((1, 1), -1)
    for action in todo:
        if isinstance(action, list):
            priorities.added(world.play(action))
        elif action == "draw":
            windows = world.memory.windows(3, rng, length=length, across_episodes=False, beta=0.4)
            world.check_windows(windows, across=False)
            names = windows.index.copy()
            batch = draw_transitions(world, rng, 4, n_step=length)
            assert batch.weight is not None
            names = names if rng.random() < 0.5 else batch.index.copy()
        elif action == "note":
            errors = rng.standard_normal(names.shape)
            world.memory.note(names, errors=errors, alpha=ALPHA)
            priorities.noted(world, names, errors)
        elif action == "write":
            world.write_back(names, rng)
        else:
            world.restart()
        priorities.check(world)
    windows = world.memory.replay.gather_windows(np.array(sorted(world.slots())), 1, across_episodes=False)
    world.check_windows(windows, across=False)


@settings(max_examples=100)
@given(
    st.lists(st.one_of(row_of_events, row_of_events, st.integers(1, 4)), min_size=10, max_size=60),
    st.sampled_from(sorted(KINDS)),
    st.integers(4, 14),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.integers(0, 60),
    st.booleans(),
)
def test_an_online_queue_hands_out_every_new_window_once_and_early(
    todo: list[Any], kind: str, positions: int, sizes: tuple[int, int], restart: int, across: bool
) -> None:
    length, every = max(sizes), min(sizes)
    world = World(kind, 2, positions, lambda replay: FreshFirst(replay, length, every))
    queue, rng = Queue(length, every), np.random.default_rng(0)
    for number, action in enumerate(todo):
        if number == restart:
            world.restart()
        if isinstance(action, list):
            queue.added(world.play(action))
        elif world.starts(length) if across else world.slots():
            fresh = queue.taken(world, action)
            windows = world.memory.windows(action, rng, length=length, across_episodes=across)
            rows = world.check_windows(windows, across=across)
            assert rows[: len(fresh)] == fresh
            allowed = world.starts(length) if across else world.slots()
            assert set(rows) <= set(allowed.values())
            assert windows.weight is None


def test_a_queue_that_nobody_reads_does_not_grow_without_end() -> None:
    world = World("vector", 2, 8, lambda replay: FreshFirst(replay, 2))
    world.play(["go", "go"])
    world.play(["go", "go"])
    for _ in range(400):  # the second environment stands still: its window stays the oldest
        world.play(["go", "unreal"])
    sampler = world.memory.sampler
    assert isinstance(sampler, FreshFirst)
    assert len(sampler._queue) <= 2 * (16 // 2 + 2)
    windows = world.memory.windows(5, np.random.default_rng(0), length=2, across_episodes=True)
    assert world.check_windows(windows, across=True) == [(1, 0), (0, 394), (0, 396), (0, 398), (0, 400)]


def test_what_is_left_of_a_draw_after_the_queue_is_uniform() -> None:
    world = World("vector", 1, 30, lambda replay: FreshFirst(replay, 3))
    for _ in range(20):
        world.play(["go"])
    same = World("vector", 1, 30)
    for _ in range(20):
        same.play(["go"])
    fresh = world.memory.windows(6, np.random.default_rng(5), length=3, across_episodes=True).index[0].tolist()
    assert fresh == [0, 3, 6, 9, 12, 15]
    rest = world.memory.windows(50, np.random.default_rng(5), length=3, across_episodes=True)
    uniform = same.memory.windows(50, np.random.default_rng(5), length=3, across_episodes=True)
    np.testing.assert_array_equal(rest.index, uniform.index)
    batch = world.memory.transitions(40, np.random.default_rng(5), gamma=GAMMA)
    expected = same.memory.transitions(40, np.random.default_rng(5), gamma=GAMMA)
    np.testing.assert_array_equal(batch.index, expected.index)


def test_an_online_queue_refuses_other_lengths_and_states_of_other_environments() -> None:
    sampler = FreshFirst(Replay(VECTOR, 2, 20), 3)
    with pytest.raises(ValueError, match="length=4: the online queue hands out windows of 3 steps"):
        sampler.draw_windows(np.random.default_rng(0), 1, 4, across=True)
    for wrong in ({"seen": [1]}, {"seen": None}, {"seen": [0.5, 1.0]}, {"queue": ["a"]}, {}):
        with pytest.raises(UserError, match="online queue does not fit 2 environments, or is damaged"):
            sampler.load_state_dict({"seen": [1, 1], "queue": []} | wrong if wrong else {})
    with pytest.raises(ValueError, match="every=0: must be at least 1"):
        FreshFirst(Replay(VECTOR, 2, 20), 3, 0)


# Records.


def test_a_memory_without_records_or_priorities_gives_no_index_and_draws_together() -> None:
    world = World("vector", 2, 10, records=None)
    world.play(["go", "go"])
    batch = world.memory.transitions(5, np.random.default_rng(0), gamma=GAMMA)
    assert (batch.index, batch.weight, dict(batch.records)) == (None, None, {})
    assert (len(batch), len(world.memory)) == (5, 2)
    assert world.memory.at_once == 32
    assert World("vector", 2, 10).memory.at_once == 1, "records that are written back change what is drawn next"
    assert World("vector", 2, 10, PrioritizedSampler, records=None).memory.at_once == 1


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("n_step", [1, 3])
def test_draws_are_those_of_the_sampler(kind: str, n_step: int) -> None:
    world, twin = (World(kind, 2, 10, records=records) for records in (RECORDS, None))
    for number in range(15):
        for one in (world, twin):
            one.play(["go", "unreal" if number % 4 == 1 else "truncated"])
    batch = draw_transitions(world, np.random.default_rng(3), 40, n_step)
    slots, _ = UniformSampler(twin.memory.replay).draw(np.random.default_rng(3), 40)
    expected = twin.memory.replay.gather(slots, n_step=n_step, gamma=GAMMA)
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "discount"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))


def test_records_leave_the_rows_of_the_transitions_as_they_are() -> None:
    """A replay without records, and the columns of one with records, are those that older checkpoints hold."""
    world, twin = (World("frames", 2, 10, records=records) for records in (RECORDS, None))
    for one in (world, twin):
        for number in range(15):
            one.play(["go", "terminated" if number % 5 == 0 else "go"])
    ours, theirs = world.memory.replay, twin.memory.replay
    assert theirs.arrays.keys() == {"rows"}
    assert ours.arrays.keys() == {"rows", "records"}
    np.testing.assert_array_equal(ours.arrays["rows"].data, theirs.arrays["rows"].data)
    state = ours.state_dict()
    assert state.pop("records") == [["latent", [2], "float32"], ["visits", [], "int64"]]
    assert state == theirs.state_dict()


def test_the_size_of_the_records_counts() -> None:
    for info, stack in ((VECTOR, 1), (info_of((3, 4, 4), "uint8"), 3)):
        needed = replay_kind(info, stack).bytes_needed(info, 2, 40, RECORDS)
        assert needed == replay_kind(info, stack).bytes_needed(info, 2, 40) + 40 * Columns(RECORDS).row_bytes
        replay = make_replay(info, 2, 40, stack, RECORDS)
        assert needed == sum(array.data.nbytes for array in replay.arrays.values())


def test_a_step_that_lacks_a_record_is_refused() -> None:
    step, _ = Feed(2, lambda episode: np.zeros(2, np.float32)).step(["go", "go"])
    replay = Replay(VECTOR, 2, 10, RECORDS | {"search": ArrayKind((), "float32")})
    with pytest.raises(ValueError, match=r"the step lacks the records \['search'\]; it has \['latent', 'visits'\]"):
        replay.add(step)


def test_a_replay_with_records_is_saved_and_loaded_on_its_own(tmp_path: Path) -> None:
    for kind in KINDS:
        world = World(kind, 2, 10)
        for _ in range(15):
            world.play(["go", "truncated"])
        loaded = Replay.load(world.memory.replay.save(tmp_path / kind))
        assert type(loaded) is (FrameReplay if kind == "frames" else Replay)
        assert loaded.records == RECORDS
        world.memory = ReplayMemory(loaded)
        draw_transitions(world, np.random.default_rng(0), 30)


def test_a_state_with_other_records_is_refused() -> None:
    state = Replay(VECTOR, 2, 8, RECORDS).state_dict()
    with pytest.raises(UserError, match=r"records is \[\['latent'.* there and None here"):
        Replay(VECTOR, 2, 8).load_state_dict(state)
    with pytest.raises(UserError, match=r"records is None there and \[\['latent'"):
        Replay(VECTOR, 2, 8, RECORDS).load_state_dict(Replay(VECTOR, 2, 8).state_dict())
    like = replay_like(VECTOR, state, 1)
    like.load_state_dict(state)
    assert like.records == RECORDS


@pytest.mark.parametrize("kind", ["vector", "frames"])
@pytest.mark.parametrize("steps", [4, 20])
def test_a_state_of_an_older_version_goes_on(kind: str, steps: int) -> None:
    """It has no turns, beginnings and cuts; all that it does have is drawn as before."""
    world = World(kind, 2, 8)
    for number in range(steps):
        world.play(["go", "truncated" if number % 3 == 0 else "go"])
    old, restored = world.memory.replay, world.new_memory()
    for name, array in restored.replay.arrays.items():
        array.load([chunk.copy() for chunk in old.arrays[name].chunks()])
    new_keys = {"turns", "begins", "cuts"}
    restored.replay.load_state_dict({key: value for key, value in old.state_dict().items() if key not in new_keys})
    world.memory, rng = restored, np.random.default_rng(0)
    for number in range(20):
        draw_transitions(world, rng, 10, n_step=3)
        windows = world.memory.windows(10, rng, length=3, across_episodes=True)
        names = windows.index.copy()
        if steps < 8 or number > 0:  # before, it is not known whether an episode begins with the oldest transition
            world.check_windows(windows, across=True)
        else:
            assert all(world.named(name) for name in names.ravel().tolist())
        world.play(["go", "truncated" if number % 3 == 0 else "go"])
        world.write_back(names, rng)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("turns", [1]), ("turns", [-1, 0]), ("begins", [2, 0]), ("begins", None), ("cuts", [-1]), ("cuts", [[1], [1, 2]])],
)
def test_a_damaged_state_is_refused(name: str, wrong: Any) -> None:
    replay = Replay(VECTOR, 2, 8)
    with pytest.raises(UserError, match=f"the saved replay is damaged: {name} is "):
        replay.load_state_dict(replay.state_dict() | {name: wrong})


# Notes.


def test_notes_that_do_not_fit_are_refused() -> None:
    world = World("vector", 1, 10)
    world.play(["go"])
    index = world.memory.transitions(4, np.random.default_rng(0), gamma=GAMMA).index
    for given_arrays, words in (
        ({"columns": {"belief": np.zeros(4)}}, r"'belief' is not a record of this memory; .* \['latent', 'visits'\]"),
        ({"columns": {"latent": np.zeros(4)}}, r"latent: an array \(4,\) of float64 .*\(4, 2\) of float32"),
        ({"columns": {"visits": np.zeros(4)}}, r"visits: an array \(4,\) of float64 .*\(4,\) of int64"),
        ({"errors": np.zeros(3)}, r"errors of shape \(3,\) do not fit an index of shape \(4,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            world.memory.note(index, **given_arrays)
    draw_transitions(world, np.random.default_rng(0), 4)


def test_rows_that_were_overwritten_are_skipped_worked_by_hand() -> None:
    world = World("vector", 1, 3, PrioritizedSampler)
    for _ in range(3):
        world.play(["go"])
    names = np.array([0, 1, 2])
    world.play(["go"])  # in place of row 0
    latent = np.array([[10, 10], [11, 11], [12, 12]], np.float32)
    world.memory.note(names, errors=np.array([9.0, 0.25, 0.5]), columns={"latent": latent})
    batch = world.memory.replay.gather(np.arange(3), gamma=GAMMA)
    newest = world.feed.stored[0][3].records["latent"]
    np.testing.assert_array_equal(batch.records["latent"], [newest, latent[1], latent[2]])
    priorities = world.memory.sampler.arrays["priorities"].data
    np.testing.assert_allclose(priorities, [1.0, 0.25 + 1e-6, 0.5 + 1e-6], rtol=1e-12)
    world.play(["go"])
    assert priorities[1] == 1.0, "the error of a row that was gone is not the largest"
    world.memory.note(names[:2], errors=np.ones(2), columns={"latent": latent[:2]})  # nothing is left of these
    assert world.memory.replay.numbers_of(np.arange(3)).tolist() == [3, 4, 2]


def test_writing_records_marks_their_chunks_and_no_others() -> None:
    world = World("vector", 1, 20)
    for _ in range(20):
        world.play(["go"])
    rows, records = (world.memory.replay.arrays[name] for name in ("rows", "records"))
    for array in (rows, records):
        array.chunk_rows, array.versions = 4, np.zeros(5, np.int64)
    world.memory.note(np.array([5, 6, 17, -1]), columns={"visits": np.arange(4)})
    assert rows.versions.tolist() == [0, 0, 0, 0, 0]
    assert (records.versions > 0).tolist() == [False, True, False, False, True]


def test_a_memory_comes_back_from_the_files_of_a_checkpoint(tmp_path: Path) -> None:
    world = World("frames", 2, 12, lambda replay: FreshFirst(replay, 3))
    for _ in range(20):
        world.play(["go", "truncated"])

    def save(folder: str) -> dict[str, int]:
        arrays = arrays_of(world.memory.parts)
        assert sorted(arrays) == ["replay.records", "replay.rows"]
        for name, written in write_arrays(tmp_path / folder, arrays).items():
            arrays[name].written = written
        return {file.name: file.stat().st_ino for file in (tmp_path / folder).iterdir()}

    first = save("first")
    world.write_back(world.memory.replay.numbers_of(np.array(sorted(world.slots()))), np.random.default_rng(0))
    second = save("second")
    assert {name for name in first if first[name] != second[name]} == {"replay.records.0.bin"}
    states = {name: part.state_dict() for name, part in world.memory.parts.items()}
    arrays = arrays_of(world.memory.parts)
    written = {name: array.written for name, array in arrays.items() if array.written is not None}
    described, entries = describe_arrays(arrays), entries_of(written)
    world.memory = world.new_memory()
    load_arrays(arrays_of(world.memory.parts), read_arrays(tmp_path / "second", described, entries))
    for name, part in world.memory.parts.items():
        part.load_state_dict(states[name])
    windows = world.memory.windows(30, np.random.default_rng(0), length=3, across_episodes=True)
    world.check_windows(windows, across=True)


# Two memories as one.


def dataset_memory(records: Any = None) -> ReplayMemory:
    rows = np.arange(1000, 1010)
    obs, flags = np.stack([rows, rows], 1).astype(np.float32), np.zeros(10, bool)
    if records is None:
        return ReplayMemory(
            replay_of(VECTOR, obs=obs, action=rows, reward=rows, next_obs=obs + 1, terminated=flags, truncated=flags)
        )
    memory = ReplayMemory(Replay(VECTOR, 1, 10, records))
    for row in range(10):
        one = slice(row, row + 1)
        noted = {"latent": np.full((1, 2), -7, np.float32), "visits": np.full(1, -7)}
        memory.add(Step(obs[one], rows[one], rows[one], obs[one] + 1, flags[one], flags[one], ~flags[one], noted))
    return memory


def online_world(sampler: Any = None, records: Any = None) -> World:
    world = World("vector", 2, 10, sampler, records=records)
    for number in range(12):
        world.play(["go", "terminated" if number % 4 == 0 else "go"])
    return world


@pytest.mark.parametrize(
    ("count", "fraction", "old"), [(8, 0.25, 2), (10, 0.25, 2), (6, 0.25, 2), (5, 0.0, 0), (5, 1.0, 5)]
)
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_mixture_draws_from_the_first_memory_and_then_from_the_second(
    count: int, fraction: float, old: int, n_step: int
) -> None:
    world, first = online_world(), dataset_memory()
    mixture = Mixture(lambda: first, world.memory, fraction)
    batch = mixture.transitions(count, np.random.default_rng(0), n_step=n_step, gamma=GAMMA)
    rng = np.random.default_rng(0)
    parts = [
        memory.replay.gather(memory.replay.draw(rng, size), n_step=n_step, gamma=GAMMA)
        for memory, size in ((first, old), (world.memory, count - old))
        if size
    ]
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "discount"):
        expected = np.concatenate([getattr(part, name) for part in parts])
        assert getattr(batch, name).dtype == expected.dtype
        np.testing.assert_array_equal(getattr(batch, name), expected)
    assert (batch.weight, batch.index, len(batch)) == (None, None, count)
    assert (batch.action >= 1000).sum() == old


def test_a_mixture_stores_and_saves_in_its_second_memory() -> None:
    world, first = online_world(), dataset_memory()
    mixture, before = Mixture(lambda: first, world.memory, 0.5), len(world.memory)
    step, _ = world.feed.step(["go", "truncated"])
    mixture.add(step)
    assert (len(mixture), len(world.memory), len(first), mixture.at_once) == (20, before, 10, 1)
    mixture.cut(np.array([True, True]))
    assert mixture.parts == world.memory.parts
    newest = world.memory.replay.gather(world.memory.replay.window_starts(np.arange(2), 1), gamma=GAMMA)
    assert newest.truncated.all()


def test_a_mixture_notes_what_came_from_its_second_memory() -> None:
    world, first = online_world(PrioritizedSampler, RECORDS), dataset_memory(RECORDS)
    priorities = world.memory.sampler.arrays["priorities"].data
    world.memory.note(world.memory.replay.numbers_of(np.arange(20)), errors=np.linspace(0.1, 1.0, 20))
    mixture = Mixture(lambda: first, world.memory, 0.5)
    batch = mixture.transitions(8, np.random.default_rng(0), gamma=GAMMA, beta=0.5)
    assert batch.index is not None
    assert batch.weight is not None
    assert batch.index[:4].tolist() == [-1] * 4
    assert batch.weight[:4].tolist() == [1.0] * 4
    assert (batch.records["visits"][:4] == -7).all()
    fresh = Transitions(**{name: getattr(batch, name)[4:] for name in COLUMNS})
    fresh.records = {name: values[4:] for name, values in batch.records.items()}
    rows = world.check_transitions(fresh, 1)
    drawn = priorities[batch.index[4:] % 20]
    np.testing.assert_allclose(batch.weight[4:], (drawn / drawn.min()) ** -0.5, rtol=1e-6)
    mixture.note(batch.index, errors=np.full(8, 3.0), columns={"visits": np.full(8, 55)})
    assert (first.replay.gather(np.arange(10), gamma=GAMMA).records["visits"] == -7).all()
    index = np.array([slot for slot, row in world.slots().items() if row in rows])
    assert (world.memory.replay.gather(index, gamma=GAMMA).records["visits"] == 55).all()
    np.testing.assert_allclose(priorities[index], 3.0 + 1e-6)


def test_windows_of_a_mixture_stand_side_by_side() -> None:
    world, first = online_world(records=RECORDS), dataset_memory(RECORDS)
    mixture = Mixture(lambda: first, world.memory, 0.5)
    windows = mixture.windows(6, np.random.default_rng(0), length=4, across_episodes=True)
    assert windows.obs.shape == (4, 6, 2)
    assert windows.action[0].tolist()[:3] == (windows.action[3] - 3).tolist()[:3]
    assert (windows.index[:, :3] == -1).all()
    assert (windows.records["latent"][:, :3] == -7).all()
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "first", "real", "past", "index"):
        setattr(windows, name, getattr(windows, name)[:, 3:])
    windows.records = {name: values[:, 3:] for name, values in windows.records.items()}
    world.check_windows(windows, across=True)
    alone = Mixture(lambda: first, world.memory, 1.0).windows(
        2, np.random.default_rng(0), length=4, across_episodes=True
    )
    assert (alone.index == -1).all()


def test_a_mixture_of_memories_that_differ_is_refused() -> None:
    mixture = Mixture(dataset_memory, online_world(records=RECORDS).memory, 0.5)
    with pytest.raises(ValueError, match=r"different records, \[\] and \['latent', 'visits'\]"):
        mixture.transitions(4, np.random.default_rng(0), gamma=GAMMA)
    for fraction in (-0.1, 1.1):
        with pytest.raises(ValueError, match=f"fraction={fraction}: must be from 0 to 1"):
            Mixture(dataset_memory, online_world().memory, fraction)


def test_chains_of_a_dataset_end_with_it() -> None:
    memory = dataset_memory()
    batch = memory.transitions(50, np.random.default_rng(0), n_step=4, gamma=0.5)
    lengths = np.minimum(4, 1010 - batch.action)
    np.testing.assert_array_equal(batch.discount, (0.5**lengths).astype(np.float32))
    np.testing.assert_array_equal(batch.next_obs[:, 0], batch.action + lengths)
