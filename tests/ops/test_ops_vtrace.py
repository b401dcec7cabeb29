"""V-trace against numbers worked by hand, the definition summed term by term, and GAE where nothing is off-policy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.ops.returns import gae, vtrace

HALF = {"gamma": 0.5, "vtrace_lambda": 1.0, "rho_bar": 1.0, "c_bar": 1.0}


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


def flags(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.bool_)[:, None]


NEVER = flags(0, 0, 0)
ON_POLICY = column(0, 0, 0)
# V(s_t), and V of the true successor: 8 is what the second step really leads to, unlike the third row's 1.5.
REWARD, VALUE, NEXT_VALUE = column(1, 2, 3), column(0.5, 1, 1.5), column(1, 1.5, 2)
TRUE_SUCCESSOR = column(1, 8, 2)


def test_no_episode_end_worked_by_hand() -> None:
    # TD errors 1, 1.75, 2.5. From the end: v = 1.5 + 2.5 = 4; v = 1 + 1.75 + 2.5 / 2 = 4; v = 0.5 + 1 + 3 / 2 = 3.
    target, advantage = vtrace(ON_POLICY, REWARD, VALUE, NEXT_VALUE, NEVER, NEVER, **HALF)
    np.testing.assert_array_equal(target, column(3.0, 4.0, 4.0))
    # r + v_{t+1} / 2 - V: 1 + 2 - 0.5, 2 + 2 - 1, and after the last row its successor's value, 3 + 1 - 1.5.
    np.testing.assert_array_equal(advantage, column(2.5, 3.0, 2.5))


def test_ratios_are_cut_where_they_belong_worked_by_hand() -> None:
    # Ratios 2, 1/2, 4: rho = min(3, .) is 2, 1/2, 3 and c = min(1, .) is 1, 1/2, 1. TD errors as above.
    ratio = np.log(column(2.0, 0.5, 4.0))
    target, advantage = vtrace(
        ratio, REWARD, VALUE, NEXT_VALUE, NEVER, NEVER, gamma=0.5, vtrace_lambda=1.0, rho_bar=3.0, c_bar=1.0
    )
    # Corrections from the end: 3 * 2.5 = 7.5; 0.5 * 1.75 + 0.5 * 0.5 * 7.5 = 2.75; 2 * 1 + 0.5 * 2.75 = 3.375.
    np.testing.assert_allclose(target, column(0.5 + 3.375, 1.0 + 2.75, 1.5 + 7.5), rtol=1e-6)
    # 1 + 3.75 / 2 - 0.5, 2 + 9 / 2 - 1, 3 + 2 / 2 - 1.5: not weighted.
    np.testing.assert_allclose(advantage, column(2.375, 5.5, 2.5), rtol=1e-6)


def test_lambda_shortens_the_trace_worked_by_hand() -> None:
    # Corrections from the end: 2.5; 1.75 + 2.5 / 4 = 2.375; 1 + 2.375 / 4 = 1.59375.
    target, advantage = vtrace(
        ON_POLICY, REWARD, VALUE, NEXT_VALUE, NEVER, NEVER, gamma=0.5, vtrace_lambda=0.5, rho_bar=1.0, c_bar=1.0
    )
    np.testing.assert_array_equal(target, column(2.09375, 3.375, 4.0))
    np.testing.assert_array_equal(advantage, column(1 + 3.375 / 2 - 0.5, 2 + 4.0 / 2 - 1, 2.5))


def test_a_truncation_bootstraps_from_its_successor_in_target_and_advantage() -> None:
    """The next row is another episode: neither its value nor its target says anything of this one."""
    target, advantage = vtrace(ON_POLICY, REWARD, VALUE, TRUE_SUCCESSOR, NEVER, flags(0, 1, 0), **HALF)
    # The second step: 2 + 8 / 2 = 6, of which its value is 1. The third row's target is 4, its value 1.5.
    np.testing.assert_array_equal(target, column(1 + 6 / 2, 6.0, 4.0))
    np.testing.assert_array_equal(advantage, column(1 + 6 / 2 - 0.5, 5.0, 2.5))


def test_a_termination_is_worth_its_reward() -> None:
    target, advantage = vtrace(ON_POLICY, REWARD, VALUE, TRUE_SUCCESSOR, flags(0, 1, 0), NEVER, **HALF)
    np.testing.assert_array_equal(target, column(1 + 2 / 2, 2.0, 4.0))
    np.testing.assert_array_equal(advantage, column(1 + 2 / 2 - 0.5, 1.0, 2.5))
    both = vtrace(ON_POLICY, REWARD, VALUE, TRUE_SUCCESSOR, flags(0, 1, 0), flags(0, 1, 0), **HALF)
    np.testing.assert_array_equal(both, (target, advantage))


@pytest.mark.parametrize("by_termination", [False, True])
def test_a_row_that_a_reset_produced_leaks_into_no_other(by_termination: bool) -> None:
    """Under NEXT_STEP autoreset such a row follows every end; whatever is in it, the steps around it do not see it."""
    ends, never = flags(0, 1, 0, 0), flags(0, 0, 0, 0)
    terminated, truncated = (ends, never) if by_termination else (never, ends)
    reward, value, next_value = column(1, 2, 0, 3), column(0.5, 1, 7, 1.5), column(1, 8, 1.5, 2)
    log_ratio = column(0.1, -0.2, 0.3, -0.4)
    clean = vtrace(log_ratio, reward, value, next_value, terminated, truncated, **HALF)
    for array in (log_ratio, reward, value, next_value):
        array[2] = np.nan
    if by_termination:  # the row after an end is then taken for its successor, which nothing looks at
        next_value[1] = np.nan
    dirty = vtrace(log_ratio, reward, value, next_value, terminated, truncated, **HALF)
    real = [0, 1, 3]
    for found, expected in zip(dirty, clean, strict=True):
        np.testing.assert_array_equal(found[real], expected[real])


def test_a_ratio_of_0_learns_nothing_and_a_huge_one_is_cut() -> None:
    target, _ = vtrace(column(-np.inf, -1e4, -200), REWARD, VALUE, NEXT_VALUE, NEVER, NEVER, **HALF)
    np.testing.assert_array_equal(target, VALUE)
    huge, _ = vtrace(column(1e4, 800, 90), REWARD, VALUE, NEXT_VALUE, NEVER, NEVER, **HALF)
    np.testing.assert_array_equal(huge, vtrace(ON_POLICY, REWARD, VALUE, NEXT_VALUE, NEVER, NEVER, **HALF)[0])


def test_inputs_are_left_as_they_are() -> None:
    arrays = [array.copy() for array in (ON_POLICY, REWARD, VALUE, NEXT_VALUE)]
    vtrace(*arrays, flags(0, 1, 0), NEVER, **HALF)
    for array, original in zip(arrays, (ON_POLICY, REWARD, VALUE, NEXT_VALUE), strict=True):
        np.testing.assert_array_equal(array, original)


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Random rollouts `[T, B]` with any pattern of ends; a step's successor is the next row unless its episode ends."""
    steps, envs = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    often = draw(st.sampled_from([0.0, 0.2, 0.6]))
    data = {name: rng.uniform(-5, 5, (steps, envs)).astype(np.float32) for name in ("reward", "value", "next_value")}
    data |= {name: rng.random((steps, envs)) < often for name in ("terminated", "truncated")}
    inside = ~(data["terminated"] | data["truncated"])[:-1]
    data["next_value"][:-1][inside] = data["value"][1:][inside]
    return data | {"log_ratio": rng.normal(0, 1, (steps, envs)).astype(np.float32)}


def by_definition(data: dict[str, Any], gamma: float, lam: float, rho_bar: float, c_bar: float) -> tuple[Any, Any]:
    """Equation 1 as it is printed: v_s is V plus a sum of TD errors, each with the product of the traces before it."""
    steps, envs = data["reward"].shape
    target, advantage = np.zeros((steps, envs)), np.zeros((steps, envs))
    ratio = np.exp(data["log_ratio"].astype(np.float64))
    over = data["terminated"] | data["truncated"]
    for b in range(envs):
        for s in range(steps):
            target[s, b], weight = data["value"][s, b], 1.0
            for t in range(s, steps):
                successor = 0.0 if data["terminated"][t, b] else float(data["next_value"][t, b])
                error = float(data["reward"][t, b]) + gamma * successor - float(data["value"][t, b])
                target[s, b] += weight * min(rho_bar, ratio[t, b]) * error
                if over[t, b]:
                    break
                weight *= gamma * lam * min(c_bar, ratio[t, b])
        for s in range(steps):
            following = float(data["next_value"][s, b]) if over[s, b] or s == steps - 1 else target[s + 1, b]
            following = 0.0 if data["terminated"][s, b] else following
            advantage[s, b] = float(data["reward"][s, b]) + gamma * following - float(data["value"][s, b])
    return target, advantage


share = st.floats(0, 1)


@given(rollouts(), share, share, st.floats(0.1, 3), st.floats(0.1, 3))
def test_random_rollouts_equal_the_sum_by_definition(
    data: dict[str, Any], gamma: float, lam: float, rho_bar: float, c_bar: float
) -> None:
    found = vtrace(**data, gamma=gamma, vtrace_lambda=lam, rho_bar=rho_bar, c_bar=c_bar)
    for array, expected in zip(found, by_definition(data, gamma, lam, rho_bar, c_bar), strict=True):
        # A product of twelve traces of 3 magnifies what float32 loses.
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-3 * max(1.0, np.abs(expected).max()))


@given(rollouts(), share, share)
def test_on_policy_the_target_is_that_of_gae_and_with_lambda_1_the_advantage_too(
    data: dict[str, Any], gamma: float, lam: float
) -> None:
    data["log_ratio"][:] = 0.0
    given = {name: data[name] for name in ("reward", "value", "next_value", "terminated", "truncated")}
    target, _ = vtrace(**data, gamma=gamma, vtrace_lambda=lam, rho_bar=1.0, c_bar=1.0)
    np.testing.assert_allclose(target, given["value"] + gae(**given, gamma=gamma, gae_lambda=lam), rtol=1e-6, atol=3e-6)
    _, advantage = vtrace(**data, gamma=gamma, vtrace_lambda=1.0, rho_bar=1.0, c_bar=1.0)
    np.testing.assert_allclose(advantage, gae(**given, gamma=gamma, gae_lambda=1.0), rtol=1e-6, atol=1e-6)


@given(rollouts(), share, share, st.floats(0.1, 3), st.floats(0.1, 3))
def test_a_rollout_equals_the_concatenation_of_its_episodes(
    data: dict[str, Any], gamma: float, lam: float, rho_bar: float, c_bar: float
) -> None:
    settings = {"gamma": gamma, "vtrace_lambda": lam, "rho_bar": rho_bar, "c_bar": c_bar}
    whole = vtrace(**data, **settings)
    steps, envs = data["reward"].shape
    for b in range(envs):
        ends = np.flatnonzero(data["terminated"][:, b] | data["truncated"][:, b]) + 1
        for start, end in pairwise([0, *ends.tolist(), steps]):
            if end > start:
                episode = {name: np.ascontiguousarray(array[start:end, b : b + 1]) for name, array in data.items()}
                for found, expected in zip(whole, vtrace(**episode, **settings), strict=True):
                    np.testing.assert_array_equal(found[start:end, b], expected[:, 0])


@given(st.integers(0, 2**32 - 1), st.floats(0.3, 2.0), st.floats(0.1, 1.0))
def test_the_fixed_point_is_the_value_of_the_policy_that_rho_bar_stands_for(
    seed: int, rho_bar: float, lam: float
) -> None:
    """A bandit of three arms that goes on with probability 1/2: v = E_mu[rho (r + v / 2)] / E_mu[rho] for pi_rho.

    pi_rho is proportional to min(rho_bar mu, pi) (Espeholt et al. 2018, theorem 1). All actions are rows of their own,
    each with its probability under mu, so that the expected update of V is exact.
    """
    rng = np.random.default_rng(seed)
    pi, mu = rng.dirichlet([2.0, 2.0, 2.0], 2)
    pays = rng.uniform(-1, 1, 3)
    stands_for = np.minimum(rho_bar * mu, pi)
    stands_for /= stands_for.sum()
    expected = float(stands_for @ pays) / (1 - 0.5)
    value = np.full((1, 3), expected)
    target, _ = vtrace(
        np.log(pi / mu)[None],
        pays[None],
        value,
        value,
        np.zeros((1, 3), np.bool_),
        np.zeros((1, 3), np.bool_),
        gamma=0.5,
        vtrace_lambda=lam,
        rho_bar=rho_bar,
        c_bar=1.0,
    )
    assert float(mu @ (target - value)[0]) == pytest.approx(0.0, abs=1e-9)
