"""The warning when rewards or returns do not fit into the heads of a model."""

import logging

import numpy as np
import pytest

from rl_training.algorithms.parts.value_range import RangeWatch, steps_in_sum
from rl_training.ops.two_hot import support_up_to


def watch(reward: float, value: float, *, two_player: bool = False, task: str = "") -> RangeWatch:
    supports = (support_up_to(limit, 11) for limit in (reward, value))
    return RangeWatch(*supports, two_player=two_player, task=task)


def test_discounted_steps() -> None:
    assert steps_in_sum(0.5, None) == 2.0
    assert steps_in_sum(0.5, 2) == 1.5
    assert steps_in_sum(1.0, 7) == 7.0
    assert steps_in_sum(1.0, None) == 1.0, "nothing is known about an episode without an end"


def test_rewards_and_their_sums_are_compared_with_the_limits(caplog: pytest.LogCaptureFixture) -> None:
    """Ones at gamma 0.5 over two steps add up to 1.5: a limit of 1.5 holds that, one of 1.4 does not."""
    for limit, said in ((1.5, 0), (1.4, 1)):
        caplog.clear()
        seen = watch(1.0, limit)
        seen.time_limit = 2
        for _ in range(3):
            seen.see(np.ones(4, np.float32), 0.5)
        assert len(caplog.records) == said, "once at most"
    assert caplog.records[0].getMessage() == (
        "value_limit=1.4: at gamma=0.5 over 2 steps, rewards as those so far add up to 1.5, which the model cannot "
        "represent; set it higher"
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "rl_training"):
        watch(1.0, 100.0).see(np.array([0.5, -3.0], np.float32), 0.5)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["reward_limit=1"]


def test_the_rewards_of_two_players_do_not_add_up(caplog: pytest.LogCaptureFixture) -> None:
    watch(1.0, 1.0, two_player=True).see(np.ones(4, np.float32), 0.99)
    assert not caplog.records
    watch(1.0, 1.0).see(np.ones(4, np.float32), 0.99)
    assert len(caplog.records) == 1


def test_the_warning_names_the_task(caplog: pytest.LogCaptureFixture) -> None:
    watch(1.0, 1.0, task="lander").see(np.full(4, 3.0, np.float32), 0.0)
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == ["task 'lander'"] * 2
