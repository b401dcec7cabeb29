"""The memory of the on-policy loop: rows as they came, and the true successor of every one of them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conformance import CONTINUOUS, DISCRETE, boxed
from rl_training.data.rollout import Rollout
from rl_training.runtime.envs.make import describe_spaces
from rl_training.types import ArrayKind, Step

VALUE = {"value": ArrayKind((), "float32")}
NUMBERED = describe_spaces(boxed(1), gym.spaces.Discrete(2), "numbered")


def step(obs: np.ndarray, next_obs: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> Step:
    """A step whose policy recorded the observation itself as its value."""
    action, reward = np.zeros(len(obs), np.int64), np.arange(len(obs), dtype=np.float32)
    real, records = np.ones(len(obs), bool), {"value": obs[:, 0].copy()}
    return Step(obs, action, reward, next_obs, terminated, truncated, real, records)


def test_rows_are_kept_as_they_came() -> None:
    rollout = Rollout(2, 2, DISCRETE, {"log_prob": ArrayKind((), "float32"), "hidden": ArrayKind((5,), "float64")})
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(2):
        obs, next_obs = rng.standard_normal((2, 2, 3)).astype(np.float32)
        action, reward = rng.integers(0, 4, 2), rng.standard_normal(2).astype(np.float32)
        terminated, truncated, real = rng.random((3, 2)) < 0.5
        records = {"log_prob": rng.standard_normal(2).astype(np.float32), "hidden": rng.standard_normal((2, 5))}
        rows.append(Step(obs, action, reward, next_obs, terminated, truncated, real, records))
        rollout.add(rows[-1])
    for t, row in enumerate(rows):
        for name in ("obs", "action", "reward", "terminated", "truncated", "real"):
            np.testing.assert_array_equal(getattr(rollout, name)[t], getattr(row, name))
        np.testing.assert_array_equal(rollout.records["log_prob"][t], row.records["log_prob"])
        np.testing.assert_array_equal(rollout.records["hidden"][t], row.records["hidden"])
    assert {name: column.dtype for name, column in rollout.records.items()} == {
        "log_prob": np.float32,
        "hidden": np.float64,
    }
    np.testing.assert_array_equal(rollout.done, rollout.terminated | rollout.truncated)


def test_continuous_actions_are_kept_as_the_policy_sampled_them() -> None:
    rollout = Rollout(1, 1, CONTINUOUS, {})
    action = np.array([[3.5, -0.25]], np.float32)
    flag = np.zeros(1, bool)
    obs = np.zeros((1, 3), np.float32)
    rollout.add(Step(obs, action, np.zeros(1, np.float32), obs, flag, flag, ~flag))
    np.testing.assert_array_equal(rollout.action[0], action)
    assert rollout.action.dtype == np.float32


def test_what_is_added_is_copied() -> None:
    rollout = Rollout(1, 1, NUMBERED, VALUE)
    obs, next_obs, cut = np.array([[1.0]], np.float32), np.array([[2.0]], np.float32), np.ones(1, bool)
    rollout.add(step(obs, next_obs, ~cut, cut))
    obs[:], next_obs[:] = 99.0, 99.0
    assert rollout.obs[0, 0, 0] == 1.0
    np.testing.assert_array_equal(rollout.bootstrap_obs(), [[2.0], [2.0]])


def test_a_truncated_step_bootstraps_from_its_final_observation_and_not_from_the_reset_one() -> None:
    rollout = Rollout(3, 1, NUMBERED, VALUE)
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    # 0 -> 1, 1 -> 2 (truncated), then a reset shows 50 -> 51.
    for before, after, truncated in ((0, 1, no), (1, 2, yes), (50, 51, no)):
        rollout.add(step(np.array([[before]], np.float32), np.array([[after]], np.float32), no, truncated))
    bootstrap = rollout.bootstrap_obs()
    np.testing.assert_array_equal(bootstrap, [[51.0], [2.0]])
    # With a value that is the observation itself, the successors' values are the successors.
    found = rollout.next_values(rollout.records["value"], bootstrap[:, 0])
    np.testing.assert_array_equal(found, [[1.0], [2.0], [51.0]])


def test_a_truncation_in_the_last_row_keeps_its_own_final_observation() -> None:
    rollout = Rollout(1, 2, NUMBERED, VALUE)
    rollout.add(
        step(
            np.array([[0.0], [10.0]], np.float32),
            np.array([[1.0], [11.0]], np.float32),
            np.zeros(2, bool),
            np.array([False, True]),
        )
    )
    bootstrap = rollout.bootstrap_obs()
    np.testing.assert_array_equal(rollout.next_values(rollout.records["value"], bootstrap[:, 0]), [[1.0, 11.0]])


@given(st.integers(1, 10), st.integers(1, 3), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_value_of_every_successor_is_that_of_the_true_one(steps: int, envs: int, seed: int, often: float) -> None:
    rng = np.random.default_rng(seed)
    rollout = Rollout(steps, envs, NUMBERED, VALUE)
    successors = np.zeros((steps, envs))
    for _ in range(2):  # the second time over what the first left behind
        rollout.clear()
        fresh = iter(range(10_000))
        obs = np.array([[next(fresh)] for _ in range(envs)], np.float32)
        for t in range(steps):
            next_obs = np.array([[next(fresh)] for _ in range(envs)], np.float32)
            terminated, truncated = rng.random((2, envs)) < often
            rollout.add(step(obs, next_obs, terminated, truncated))
            successors[t] = next_obs[:, 0]
            after_reset = np.array([[next(fresh)] for _ in range(envs)], np.float32)
            obs = np.where((terminated | truncated)[:, None], after_reset, next_obs)
        found = rollout.next_values(rollout.records["value"], rollout.bootstrap_obs()[:, 0])
        matters = rollout.truncated | ~rollout.terminated  # nothing bootstraps from behind a termination alone
        np.testing.assert_array_equal(found[matters], successors[matters])


def test_clearing_forgets_the_truncations() -> None:
    rollout = Rollout(1, 1, NUMBERED, VALUE)
    one, cut = np.ones((1, 1), np.float32), np.ones(1, bool)
    rollout.add(step(one, one, ~cut, cut))
    assert len(rollout.bootstrap_obs()) == 2
    rollout.clear()
    rollout.add(step(one, one, ~cut, ~cut))
    assert len(rollout.bootstrap_obs()) == 1
