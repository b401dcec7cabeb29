"""Flat layouts and replays as one form, and fitted to an environment, against episodes that are known."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_data import (
    LADDER_LIMIT,
    assert_holds,
    dones_layout,
    flat_layout,
    ladder_episode,
    ladder_episodes,
    ladder_spaces,
    starts_layout,
)
from replay_feed import Feed, event_rows, info_of
from rl_training.data.datasets.arrays import fit_dataset, from_arrays, from_replay
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.replay import FrameReplay, Replay
from rl_training.types import ObsPart, SpaceInfo, UserError

AUTO = {"done_means": "auto", "time_limit": LADDER_LIMIT}
COLUMNS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


def renamed(arrays: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(name, name): array for name, array in arrays.items()}


def changed(key: str, change: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    """The ladder in D4RL's layout with another column."""
    arrays = flat_layout(ladder_episodes())
    return {**arrays, key: change(arrays[key].copy())}


def with_value(row: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(np.float64)
        array[row] = value
        return array

    return change


def read(arrays: dict[str, Any], **answers: Any) -> OfflineDataset:
    return from_arrays(arrays, source={"path": "some.npz"}, **answers)


SHORT_NAMES = {
    "observations": "obs",
    "next_observations": "next_obs",
    "terminals": "terminations",
    "timeouts": "truncations",
}


@pytest.mark.parametrize(
    ("arrays", "answers", "successors"),
    [
        (flat_layout(ladder_episodes()), {}, True),
        (renamed(flat_layout(ladder_episodes()), **SHORT_NAMES), {}, True),
        (flat_layout(ladder_episodes(), "timeouts"), {}, True),
        (flat_layout(ladder_episodes(), "next_observations"), {}, False),
        ({**dones_layout(ladder_episodes()), **flat_layout(ladder_episodes(), "timeouts")}, {}, True),
        ({**dones_layout(ladder_episodes()), **flat_layout(ladder_episodes(), "terminals")}, {}, True),
        (dones_layout(ladder_episodes()), AUTO, True),
        (dones_layout(ladder_episodes(), "next_observations"), AUTO, False),
        (starts_layout(ladder_episodes()), AUTO, False),
    ],
    ids=[
        "d4rl",
        "short names",
        "no timeouts",
        "no successors",
        "terminals and dones",
        "timeouts and dones",
        "dones",
        "dones, no successors",
        "episode starts",
    ],
)
def test_every_layout_gives_the_same_transitions(
    arrays: dict[str, Any], answers: dict[str, Any], successors: bool
) -> None:
    assert_holds(read(arrays, **answers), ladder_episodes(), successors=successors)


@pytest.mark.parametrize("ending", ["terminal", "timeout"])
@pytest.mark.parametrize(
    ("layout", "successors"), [(dones_layout, True), (starts_layout, False)], ids=["dones", "episode starts"]
)
def test_an_answer_holds_for_all_ends_of_episodes(layout: Any, successors: bool, ending: str) -> None:
    episodes = [replace(episode, ending=ending) for episode in ladder_episodes()]
    dataset = read(layout(ladder_episodes()), done_means=ending)
    assert_holds(dataset, episodes, successors=successors)
    count = 3 if ending == "terminal" else 0
    assert f"done_means={ending}: {count} of 3 episodes ended at a terminal state" in dataset.source["notes"]


def test_auto_knows_files_that_leave_out_the_step_of_the_time_limit() -> None:
    assert_holds(
        read(dones_layout(ladder_episodes()), done_means="auto", time_limit=LADDER_LIMIT + 1), ladder_episodes()
    )
    # Where episodes of full length are there, a shorter one was over.
    ends = read(dones_layout(ladder_episodes()), **AUTO).terminated
    assert ends.sum() == 2


def test_an_answer_corrects_terminals_at_the_time_limit_but_no_file_that_has_timeouts() -> None:
    all_terminal = [replace(episode, ending="terminal") for episode in ladder_episodes()]
    assert_holds(read(flat_layout(all_terminal, "timeouts")), all_terminal)
    assert_holds(read(flat_layout(all_terminal, "timeouts"), **AUTO), ladder_episodes())
    assert_holds(read(flat_layout(all_terminal), done_means="timeout"), all_terminal)


def test_an_episode_that_the_data_cuts_off_is_truncated() -> None:
    episodes = [ladder_episode(0, 3, "terminal"), ladder_episode(1, 4, "terminal"), ladder_episode(2, 2, "timeout")]
    unmarked = dones_layout(episodes)
    unmarked["dones"][-1] = False
    assert_holds(read(flat_layout(episodes, "timeouts")), episodes)
    assert_holds(read(flat_layout(episodes, "timeouts", "next_observations")), episodes, successors=False)
    assert_holds(read(unmarked, done_means="terminal"), episodes)
    del unmarked["next_observations"]
    assert_holds(read(unmarked, done_means="terminal"), episodes, successors=False)


def test_an_episode_of_one_step_that_was_cut_off_has_nothing_to_tell_without_successors() -> None:
    episodes = [ladder_episode(0, 1, "timeout"), ladder_episode(1, 1, "terminal"), ladder_episode(2, 1, "timeout")]
    whole = [ladder_episode(3, 2, "terminal"), *episodes]
    dataset = read(flat_layout(whole, "next_observations"))
    assert_holds(dataset, [whole[0], whole[2]], successors=False)
    notes = " ".join(dataset.source["notes"])
    assert "2 rows left out" in notes
    assert "2 terminal rows have their own observation" in notes
    with pytest.raises(UserError, match="no row has a successor"):
        read(flat_layout(episodes[:1], "next_observations"))


def test_successors_that_were_rounded_are_still_the_same() -> None:
    episodes = ladder_episodes()
    assert_holds(read(flat_layout(episodes, "timeouts")), episodes)
    near = changed("next_observations", lambda array: array * np.float32(1 + 3e-7))
    del near["timeouts"]
    assert read(near).n_episodes == 3
    far = changed("next_observations", lambda array: array * np.float32(1 + 1e-5))
    del far["timeouts"]
    assert read(far).n_episodes > 3


def test_kinds_of_numbers() -> None:
    arrays = flat_layout(ladder_episodes())
    pixels = np.arange(12 * 8).reshape(12, 2, 4)
    shaped = {
        "observations": pixels.astype(np.uint8)[:, ::-1],
        "next_observations": np.roll(pixels, -1, axis=0).astype(np.uint8)[:, ::-1],
        "actions": np.arange(12, dtype=np.int32).reshape(12, 1),
        "rewards": arrays["rewards"].astype(np.float64).reshape(12, 1),
        "terminals": arrays["terminals"].astype(np.float32),
        "timeouts": arrays["timeouts"].astype(np.int8).reshape(12, 1),
    }
    dataset = read(shaped)
    assert [getattr(dataset, name).dtype for name in COLUMNS] == ["u1", "i8", "f4", "u1", "?", "?"]
    assert (dataset.reward.shape, dataset.action.shape, dataset.truncated.shape) == ((12,), (12, 1), (12,))
    assert all(getattr(dataset, name).flags.c_contiguous for name in COLUMNS)
    np.testing.assert_array_equal(dataset.obs, pixels[:, ::-1])
    assert read({**shaped, "actions": np.arange(12) % 2 == 0}).action.dtype == np.int64
    assert read({**shaped, "observations": pixels, "next_observations": np.roll(pixels, -1, axis=0)}).obs.dtype == "f4"


def test_a_file_says_where_it_is_from() -> None:
    said = {"env_id": np.array("Ladder-v0"), "ref_min_score": np.array(-3), "ref_max_score": np.array(7.5)}
    arrays = {**flat_layout(ladder_episodes()), **said, "notes": np.array(["first"]), "infos": 5, "speed": np.zeros(3)}
    source = from_arrays(arrays, source={"format": "npz", "notes": ["before"]}).source
    assert source == {
        "format": "npz",
        "env_id": "Ladder-v0",
        "ref_min_score": -3,
        "ref_max_score": 7.5,
        "notes": ("before", "first", "keys that have no use here: infos, speed"),
    }


WITHOUT_FLAGS = flat_layout(ladder_episodes(), "terminals", "timeouts")


@pytest.mark.parametrize(
    ("arrays", "answers", "message"),
    [
        (changed("rewards", with_value(7, np.nan)), {}, "'some.npz': rewards is nan in row 7; .*1 rows"),
        (changed("actions", with_value(2, -np.inf)), {}, "actions is -inf in row 2"),
        (changed("observations", with_value(4, 1e300)), {}, r"observations is 1e\+300 in row 4"),
        (changed("terminals", with_value(3, 0.5)), {}, "terminals is 0.5 in row 3; it must be 0 or 1"),
        (changed("actions", lambda a: a[:-1]), {}, "actions has 11 rows and observations has 12"),
        (changed("rewards", lambda a: np.stack([a, a], 1)), {}, r"rewards has shape \(12, 2\)"),
        (changed("observations", lambda a: a[:, 0]), {}, r"observations has shape \(12,\)"),
        (changed("actions", lambda a: a[0, 0]), {}, r"actions has shape \(\)"),
        (
            changed("next_observations", lambda a: a[:, :1]),
            {},
            r"next_observations are \(1,\) float32, .* \(2,\) float32",
        ),
        (changed("actions", lambda a: a.astype(str)), {}, "actions holds <U.*; numbers are needed"),
        (changed("rewards", lambda a: [[1, 2], [3]]), {}, "rewards is not one array"),
        (renamed(flat_layout(ladder_episodes()), rewards="reward"), {}, "rewards is missing; did you mean 'reward'"),
        (flat_layout(ladder_episodes(), "observations"), {}, r"observations \(or obs\) is missing"),
        (WITHOUT_FLAGS, {}, r"terminals \(or terminations, dones, episode_starts\) is missing"),
        ({**flat_layout(ladder_episodes()), "obs": 0}, {}, "both observations and obs"),
        ({name: array[:0] for name, array in flat_layout(ladder_episodes()).items()}, {}, "observations is empty"),
        ({**flat_layout(ladder_episodes()), "env_id": np.array(3)}, {}, "env_id is 3; a text is needed"),
        ({**flat_layout(ladder_episodes()), "ref_max_score": np.array(np.nan)}, {}, "ref_max_score is nan"),
        ({**flat_layout(ladder_episodes()), "action_units": np.array("deg")}, {}, "action_units is 'deg'"),
        (
            dones_layout(ladder_episodes()),
            {},
            "terminal: the episode ended in a terminal.*timeout: a time limit.*auto: episodes as long",
        ),
        (starts_layout(ladder_episodes()), {}, "not why: give done_means"),
        (dones_layout(ladder_episodes()), {"done_means": "auto"}, "done_means=auto: needs the time limit"),
        (flat_layout(ladder_episodes()), {"done_means": "maybe"}, "done_means='maybe': must be one of terminal"),
    ],
)
def test_what_is_wrong_is_said_with_key_and_row(arrays: dict[str, Any], answers: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(arrays, **answers)
    assert "\n" not in str(caught.value)


def test_rewards_that_nobody_needs_may_be_missing() -> None:
    whole, without = (flat_layout(ladder_episodes(), *left_out) for left_out in ((), ("rewards",)))
    dataset = read(without, rewards_needed=False)
    for name in COLUMNS:
        wanted = getattr(read(whole), name)
        np.testing.assert_array_equal(getattr(dataset, name), 0.0 * wanted if name == "reward" else wanted)
    assert dataset.reward.dtype == np.float32
    assert dataset.source["notes"] == ("it has no rewards: they are taken as 0",)
    np.testing.assert_array_equal(read(whole, rewards_needed=False).reward, read(whole).reward)
    with pytest.raises(UserError, match="rewards is missing"):
        read(without)


def test_successors_of_other_steps_are_refused() -> None:
    # As if T + 1 observations of every episode had been joined with T actions.
    shifted = changed("next_observations", lambda array: np.roll(array, -1, axis=0))
    with pytest.raises(UserError, match=r"row 0 is not .* 100.0% of the rows inside episodes"):
        read(shifted)
    one = changed("next_observations", with_value(4, 77.0))
    with pytest.raises(UserError, match=r"row 4 is not .* 11.1% of the rows"):
        read(one)


@given(event_rows(), st.integers(1, 6), st.sampled_from([1, 3]))
def test_a_replay_becomes_the_episodes_that_it_still_holds(rows: list[list[str]], positions: int, stack: int) -> None:
    envs = len(rows[0])
    if stack == 1:
        feed = Feed(envs, lambda episode: np.array([episode[-1]], np.float32))
        replay = Replay(info_of((1,)), envs, positions * envs)
    else:
        frames = range(stack - 1, -1, -1)
        feed = Feed(
            envs, lambda episode: np.array([[[episode[max(0, len(episode) - 1 - k)]]] for k in frames], np.uint8)
        )
        replay = FrameReplay(info_of((stack, 1, 1), "uint8"), envs, (stack + positions) * envs, stack)
    for events in rows:
        feed.play(events, replay)
    dataset = from_replay(replay, {"format": "replay"})
    # The newest ones of every environment, as many as can be drawn.
    counts = replay.state_dict()["counts"]
    held = [stored[len(stored) - count :] for stored, count in zip(feed.stored, counts, strict=True)]
    kept = [transition for history in held for transition in history]
    newest = [index == len(history) - 1 for history in held for index in range(len(history))]
    for name in ("obs", "action", "reward", "next_obs", "terminated"):
        np.testing.assert_array_equal(getattr(dataset, name), [getattr(transition, name) for transition in kept])
    cut = [one.truncated or ((one.last or last) and not one.terminated) for one, last in zip(kept, newest, strict=True)]
    np.testing.assert_array_equal(dataset.truncated, cut)
    ends = [one.last or last for one, last in zip(kept, newest, strict=True)]
    np.testing.assert_array_equal(dataset.starts, np.flatnonzero([True, *ends[:-1]]))
    assert dataset.source == {"format": "replay", "action_units": "normalized"}
    assert dataset.obs.dtype == replay.info.obs_dtype


def test_an_empty_replay_is_no_dataset() -> None:
    with pytest.raises(UserError, match="'here': the replay is empty"):
        from_replay(Replay(info_of((1,)), 2, 8), {"path": "here"})


def acting(action: Any, **source: Any) -> OfflineDataset:
    """A dataset with these actions and observations (0, 0), (0, 1), ..."""
    arrays = flat_layout([ladder_episode(0, len(action), "terminal")])
    return from_arrays({**arrays, "actions": np.asarray(action)}, source=source)


def choosing(counts: tuple[int, ...], starts: tuple[int, ...]) -> SpaceInfo:
    kind, shape = ("discrete", ()) if len(counts) == 1 else ("multi_discrete", (len(counts),))
    return SpaceInfo((2,), "float32", kind, shape, sum(counts), counts, starts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "mask_size", "words"),
    [("", 3, "come with an action mask"), ("numbers", 0, "are a Dict"), ("numbers", 3, "are a Dict")],
)
def test_of_observations_that_travel_as_bytes_it_is_said_how_to_give_them(
    name: str, mask_size: int, words: str
) -> None:
    """And not how many bytes there are, which means nothing to anybody outside."""
    packed = {"parts": (ObsPart(name, (2,), "float32"),), "mask_size": mask_size}
    info = replace(choosing((3,), (0,)), obs_shape=(96,), obs_dtype="uint8", **packed)
    with pytest.raises(
        UserError, match=rf"have shape \(2,\), and those of the environment {words}: .*module:fu"
    ) as said:
        fit_dataset(acting([0, 1, 2]), info)
    assert "96" not in str(said.value)
    assert "\n" not in str(said.value)


def test_actions_of_the_environment_are_mapped_to_the_policys_own() -> None:
    info = SpaceInfo((2,), "float32", "continuous", (2,), 2, (), (), (-2.0, 0.0), (2.0, 10.0))
    given = np.array([[-2.0, 10.0], [0.0, 2.5], [1.0, 0.0]])
    fitted = fit_dataset(acting(given), info)
    np.testing.assert_array_equal(fitted.action, np.array([[-1, 1], [0, -0.5], [0.5, -1]], np.float32))
    assert fitted.action.dtype == np.float32
    assert fitted.source["action_units"] == "normalized"
    assert fitted.source["notes"] == ()
    np.testing.assert_array_equal(fit_dataset(fitted, info).action, fitted.action)  # it is known what they are now


def test_shapes_of_continuous_actions() -> None:
    one, matrix = ladder_spaces(-2, 2), replace(ladder_spaces(), action_shape=(1, 2), action_size=2)
    matrix = replace(matrix, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
    assert fit_dataset(acting([0.0, 2.0, 1.0]), one).action.tolist() == [[0.0], [1.0], [0.5]]
    assert fit_dataset(acting(np.zeros((3, 1, 2))), matrix).action.shape == (3, 2)
    assert fit_dataset(acting(np.zeros((3, 2))), matrix).action.shape == (3, 2)


def test_a_bound_that_leaves_no_choice_is_no_division_by_zero() -> None:
    assert fit_dataset(acting([[3.0], [3.0]]), ladder_spaces(3, 3)).action.tolist() == [[-1.0], [-1.0]]


@pytest.mark.parametrize(
    ("action", "bounds", "units", "first"),
    [
        ([0.5, -0.995, 0.2], (-2, 2), "normalized", 0.5),
        ([0.5, -0.995, 0.2], (-0.4, 0.4), "normalized", 0.5),
        ([0.5, -0.95, 0.2], (-2, 2), "environment", 0.25),  # does not come near to 1
        ([0.5, -1.005, 0.2], (-2, 2), "environment", 0.25),  # goes beyond 1
        ([0.5, -1.0, 0.2], (-1, 1), "environment", 0.5),
        ([0.5, -1.0, 0.2], (-1.005, 1.005), "environment", 0.5 / 1.005),
    ],
)
def test_actions_that_are_normalized_already_are_known_by_their_range(
    action: list[float], bounds: tuple[float, float], units: str, first: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rl_training"):
        fitted = fit_dataset(acting(action), ladder_spaces(*bounds))
    assert fitted.action[0, 0] == pytest.approx(first, abs=1e-6)
    assert ("taken as normalized" in " ".join(fitted.source["notes"])) == (units == "normalized")
    assert ("taken as normalized" in caplog.text) == (units == "normalized")


def test_a_number_with_bounds_of_one_says_nothing_about_the_others() -> None:
    info = SpaceInfo((2,), "float32", "continuous", (2,), 2, (), (), (-1.0, -2.0), (1.0, 2.0))
    fitted = fit_dataset(acting([[1.0, 0.5], [-1.0, -0.5]]), info)
    np.testing.assert_array_equal(fitted.action, np.array([[1.0, 0.25], [-1.0, -0.25]], np.float32))


@pytest.mark.parametrize(
    ("asked", "said", "first"),
    [
        ("auto", "environment", 0.25),
        ("auto", "normalized", 0.5),
        ("clipped", "normalized", 0.5),
        ("environment", "normalized", 0.25),
        ("normalized", "environment", 0.5),
    ],
)
def test_who_says_what_actions_are(asked: str, said: str, first: float) -> None:
    dataset = acting([0.5, -1.0, 1.0], action_units=said)
    assert fit_dataset(dataset, ladder_spaces(-2, 2), asked).action[0, 0] == first


def test_actions_beyond_the_bounds_are_clipped_only_if_asked(caplog: pytest.LogCaptureFixture) -> None:
    dataset, info = acting([0.5, -5.2, 3.0, 1.0, 2.003, -2.003]), ladder_spaces(-2, 2)
    found = "2 of 6 actions, from -5.2 to 3, are outside the bounds [-2, 2]"
    with pytest.raises(UserError, match=re.escape(found) + ".*action_units=clipped"):
        fit_dataset(dataset, info)
    with caplog.at_level(logging.INFO, "rl_training"):
        fitted = fit_dataset(dataset, info, "clipped")
    assert fitted.action[:, 0].tolist() == [0.25, -1.0, 1.0, 0.5, 1.0, -1.0]
    assert fitted.source["notes"] == (f"{found}: clipped",)
    assert found in caplog.text
    with pytest.raises(UserError, match=r"outside the bounds \[-1, 1\]"):
        fit_dataset(dataset, info, "normalized")


@pytest.mark.parametrize("action", [[3, 5, 4], [[3], [5], [4]], [3.0, 5.0, 4.0]])
def test_choices_are_counted_from_zero(action: Any) -> None:
    fitted = fit_dataset(acting(action), choosing((3,), (3,)))
    assert fitted.action.tolist() == [0, 2, 1]
    assert fitted.action.dtype == np.int64
    assert fit_dataset(fitted, choosing((3,), (3,))).action.tolist() == [0, 2, 1]


def test_several_choices_at_once() -> None:
    fitted = fit_dataset(acting([[1, 5], [2, 6]]), choosing((2, 3), (1, 4)))
    assert fitted.action.tolist() == [[0, 1], [1, 2]]


def test_observations_take_the_kind_of_the_environment() -> None:
    dataset = acting([0, 1, 0])
    bytes_of = fit_dataset(dataset, replace(choosing((2,), (0,)), obs_dtype="uint8"))
    assert (bytes_of.obs.dtype, bytes_of.next_obs.dtype) == (np.uint8, np.uint8)
    np.testing.assert_array_equal(bytes_of.next_obs, dataset.next_obs)
    back = fit_dataset(bytes_of, choosing((2,), (0,)))
    assert back.obs.dtype == np.float32


@pytest.mark.parametrize(
    ("dataset", "info", "units", "message"),
    [
        (acting([0, 1]), replace(choosing((2,), (0,)), obs_shape=(3,)), "auto", r"shape \(2,\), .* environment \(3,\)"),
        (acting([0, 1]), ladder_spaces(), "deg", "action_units='deg': must be one of auto, environment, clipped"),
        (acting([[0.0, 1.0], [0.0, 1.0]]), ladder_spaces(), "auto", r"actions have shape \(2,\), .* \(1,\)"),
        (acting([0, 3, 1]), choosing((3,), (0,)), "auto", r"row 1 is 3; .*allows 0 to 2 \(1 of 3 actions are outside"),
        (acting([1, 0]), choosing((3,), (1,)), "auto", r"row 1 is 0; .*allows 1 to 3 \("),
        (acting([0.0, 0.5]), choosing((3,), (0,)), "auto", "row 1 is 0.5; a whole number"),
        (acting([[1, 5], [2, 7]]), choosing((2, 3), (1, 4)), "auto", r"row 1 is \[2 7\]; .*allows 1 to 2, 4 to 6 \("),
        (acting([[0, 1], [1, 0]]), choosing((2,), (0,)), "auto", r"actions have shape \(2,\), .* \(\)"),
    ],
)
def test_what_does_not_fit_the_environment_is_refused(
    dataset: OfflineDataset, info: SpaceInfo, units: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        fit_dataset(dataset, info, units)


def test_observations_that_are_no_bytes_do_not_become_some() -> None:
    dataset = replace(acting([0, 1]), obs=np.array([[0.0, 0.5], [0.0, 1.0]], np.float32))
    with pytest.raises(UserError, match="are float32; those of the environment are bytes"):
        fit_dataset(dataset, replace(choosing((2,), (0,)), obs_dtype="uint8"))
