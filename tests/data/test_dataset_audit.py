"""What an audit finds in datasets that something is the matter with, and that it finds nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offline_data import LADDER_LIMIT, flat_layout, ladder_episode, ladder_episodes, ladder_spaces
from rl_training.data.datasets.arrays import from_arrays
from rl_training.data.datasets.audit import Finding, audit
from rl_training.data.datasets.dataset import OfflineDataset


def ladder(*endings: tuple[int, str], **columns: Any) -> OfflineDataset:
    """Ladder episodes of these lengths and endings, or the usual ones."""
    episodes = [ladder_episode(number, *given) for number, given in enumerate(endings)] or ladder_episodes()
    return from_arrays({**flat_layout(episodes), **columns}, source={})


def of_level(findings: list[Finding], level: str) -> list[str]:
    return [finding.text for finding in findings if finding.level == level]


def test_a_good_dataset_is_described() -> None:
    findings = audit(ladder(), ladder_spaces(), LADDER_LIMIT)
    assert [finding.level for finding in findings] == ["ok"] * len(findings)
    assert of_level(findings, "ok") == [
        "12 transitions in 3 episodes",
        "length of episodes: min 3, 25% 3.5, median 4, 75% 4.5, max 5, mean 4",
        "return of episodes: min 6, 25% 35.5, median 65, 75% 77.5, max 90, mean 53.6667",
        "observations (2,) float32, actions (1,) float32",
        "the successor of every row inside an episode is the observation of the next row",
        "2 episodes ended at a terminal state, 1 were cut off",
        "actions from -0.5 to 0.09375, units: unknown",
        "observations and actions fit the environment",
        "0.0% of the actions' numbers are at their bounds",
    ]


def with_leak(dataset: OfflineDataset, row: int = 7) -> OfflineDataset:
    """The successor of an episode's last row, by default the one that was cut off, is where the next one begins."""
    next_obs = dataset.next_obs.copy()
    next_obs[row] = dataset.obs[row + 1]
    return replace(dataset, next_obs=next_obs)


def with_shift(dataset: OfflineDataset) -> OfflineDataset:
    return replace(dataset, next_obs=np.roll(dataset.next_obs, 1, axis=0))


def in_any_order(dataset: OfflineDataset) -> OfflineDataset:
    arrays = flat_layout(ladder_episodes(), "timeouts")
    order = np.arange(12)[::-1]
    return from_arrays({name: array[order] for name, array in arrays.items()}, source={})


@pytest.mark.parametrize(
    ("change", "time_limit", "text"),
    [
        (with_shift, None, "9 of 9 rows inside episodes have a successor that is not the next row's"),
        (with_leak, None, "1 of 1 episodes that were cut off have the first observation of the next one"),
        (in_any_order, None, "most episodes are one step long"),
        (lambda _: ladder((5, "terminal"), (2, "terminal")), 5, "1 episodes are terminal after exactly 5 steps"),
        (lambda _: ladder(), 4, "1 episodes are longer than the time limit of 4 steps"),
        (lambda _: ladder(actions=np.full((12, 1), 1.5)), None, "12 of 12 actions, from 1.5 to 1.5, are outside"),
        (lambda _: ladder(actions=np.zeros((12, 3))), None, "actions have shape (3,), those of the environment (1,)"),
    ],
)
def test_what_spoils_learning_is_a_problem(
    change: Callable[[OfflineDataset], OfflineDataset], time_limit: int | None, text: str
) -> None:
    problems = of_level(audit(change(ladder()), ladder_spaces(), time_limit), "problem")
    assert any(text in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("dataset", "bounds", "text"),
    [
        (ladder((5, "terminal"), (5, "terminal"), (3, "timeout")), 1, "all 2 terminal episodes are 5 steps long"),
        (ladder((5, "timeout"), (3, "timeout")), 1, "the last episode is unfinished: the data ends after 3 steps"),
        (ladder((5, "terminal"), (3, "timeout")), 1, "the last episode is unfinished: the data ends after 3 steps"),
        (ladder((5, "terminal")), 1, "observations never change in columns 0"),
        (ladder(actions=np.ones((12, 1))), 1, "100.0% of the actions' numbers are at their bounds"),
        (ladder(actions=np.ones((12, 1))), 2, "taken as normalized"),
        (ladder(notes=np.array(["somebody made it"])), 1, "somebody made it"),
    ],
)
def test_what_is_worth_a_look_is_a_note(dataset: OfflineDataset, bounds: float, text: str) -> None:
    findings = audit(dataset, ladder_spaces(-bounds, bounds))
    assert any(text in note for note in of_level(findings, "note")), findings
    assert not of_level(findings, "problem")


@pytest.mark.parametrize(
    ("endings", "time_limit"),
    [
        ([(5, "timeout"), (5, "timeout")], None),
        ([(5, "terminal"), (3, "terminal")], None),
        ([(3, "terminal"), (5, "timeout"), (2, "terminal")], 5),
        ([(1, "terminal")], None),
    ],
)
def test_ordinary_ends_of_episodes_are_not_suspicious(endings: list[tuple[int, str]], time_limit: int | None) -> None:
    texts = " ".join(finding.text for finding in audit(ladder(*endings), None, time_limit) if finding.level != "ok")
    assert "limit" not in texts
    assert "unfinished" not in texts


def test_the_successor_of_a_terminal_row_does_not_matter() -> None:
    assert not of_level(audit(with_leak(ladder(), row=2)), "problem")


def test_a_note_is_given_once() -> None:
    findings = audit(ladder(notes=np.array(["once"]), actions=np.ones((12, 1))), ladder_spaces(-2, 2))
    notes = of_level(findings, "note")
    assert len(notes) == len(set(notes)) == 3
