"""Advantages and returns against numbers worked by hand, and against the definition summed term by term."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.ops.returns import gae, lambda_return


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


def flags(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.bool_)[:, None]


NEVER = flags(0, 0, 0, 0)
REWARD, VALUE, NEXT_VALUE = column(1, 2, 3, 4), column(0.5, 1, 1.5, 2), column(1, 8, 2, 3)


def test_an_episode_that_terminates_in_the_middle_worked_by_hand() -> None:
    # TD errors 1, 1, 2.5, 3.5 (the second without its successor's 8); the trace decays by 0.5 * 0.5 and stops at it.
    advantage = gae(REWARD, VALUE, NEXT_VALUE, flags(0, 1, 0, 0), NEVER, gamma=0.5, gae_lambda=0.5)
    np.testing.assert_array_equal(advantage, column(1.25, 1.0, 3.375, 3.5))


def test_a_truncation_keeps_the_bootstrap_and_stops_the_trace_worked_by_hand() -> None:
    # As above, but the second TD error has its successor: 2 + 0.5 * 8 - 1 = 5.
    advantage = gae(REWARD, VALUE, NEXT_VALUE, NEVER, flags(0, 1, 0, 0), gamma=0.5, gae_lambda=0.5)
    np.testing.assert_array_equal(advantage, column(2.25, 5.0, 3.375, 3.5))


def test_no_episode_end_worked_by_hand() -> None:
    advantage = gae(REWARD, VALUE, NEXT_VALUE, NEVER, NEVER, gamma=0.5, gae_lambda=0.5)
    np.testing.assert_array_equal(advantage, column(1 + (5 + 3.375 / 4) / 4, 5 + 3.375 / 4, 3.375, 3.5))


def test_termination_wins_where_both_flags_are_set() -> None:
    both = gae(REWARD, VALUE, NEXT_VALUE, flags(0, 1, 0, 0), flags(0, 1, 0, 0), gamma=0.5, gae_lambda=0.5)
    only = gae(REWARD, VALUE, NEXT_VALUE, flags(0, 1, 0, 0), NEVER, gamma=0.5, gae_lambda=0.5)
    np.testing.assert_array_equal(both, only)


def test_the_value_after_a_termination_is_not_looked_at() -> None:
    broken = NEXT_VALUE.copy()
    broken[1] = np.nan
    advantage = gae(REWARD, VALUE, broken, flags(0, 1, 0, 0), NEVER, gamma=0.5, gae_lambda=0.5)
    np.testing.assert_array_equal(advantage, column(1.25, 1.0, 3.375, 3.5))


def test_the_step_before_a_termination_bootstraps_from_its_successor_when_lambda_is_zero() -> None:
    # A -> B -> end: the target of A, which is its advantage plus its value, is gamma V(B), not 0.
    value = column(0.25, 2.0)
    next_value = column(2.0, 7.0)
    advantage = gae(column(0, 1), value, next_value, flags(0, 1), flags(0, 0), gamma=0.5, gae_lambda=0.0)
    np.testing.assert_array_equal(advantage + value, column(0.5 * 2.0, 1.0))


def test_lambda_one_is_the_discounted_return_less_the_value() -> None:
    advantage = gae(REWARD, VALUE, column(1, 1.5, 2, 3), NEVER, NEVER, gamma=0.5, gae_lambda=1.0)
    # From the first step: 1 + 2/2 + 3/4 + 4/8 + 3/16.
    assert advantage[0, 0] + VALUE[0, 0] == pytest.approx(1 + 1 + 0.75 + 0.5 + 3 / 16, abs=1e-6)


def test_environments_do_not_mix() -> None:
    two = [np.concatenate([array, 2 * array], axis=1) for array in (REWARD, VALUE, NEXT_VALUE)]
    ends = np.concatenate([flags(0, 1, 0, 0), NEVER], axis=1)
    together = gae(*two, ends, np.zeros_like(ends), gamma=0.5, gae_lambda=0.5)
    first = gae(REWARD, VALUE, NEXT_VALUE, flags(0, 1, 0, 0), NEVER, gamma=0.5, gae_lambda=0.5)
    second = gae(2 * REWARD, 2 * VALUE, 2 * NEXT_VALUE, NEVER, NEVER, gamma=0.5, gae_lambda=0.5)
    np.testing.assert_array_equal(together, np.concatenate([first, second], axis=1))


def test_inputs_are_left_as_they_are() -> None:
    given_arrays = [array.copy() for array in (REWARD, VALUE, NEXT_VALUE)]
    gae(*given_arrays, flags(0, 1, 0, 0), NEVER, gamma=0.9, gae_lambda=0.9)
    for array, original in zip(given_arrays, (REWARD, VALUE, NEXT_VALUE), strict=True):
        np.testing.assert_array_equal(array, original)


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Random rollouts `[T, B]` with any pattern of ends, even at every step or with both flags."""
    steps, envs = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    often = draw(st.sampled_from([0.0, 0.2, 0.6]))
    numbers = {name: rng.uniform(-5, 5, (steps, envs)).astype(np.float32) for name in ("reward", "value", "next_value")}
    return numbers | {name: rng.random((steps, envs)) < often for name in ("terminated", "truncated")}


def summed_by_definition(data: dict[str, np.ndarray], gamma: float, gae_lambda: float) -> np.ndarray:
    """Equation 16 as it is printed: every advantage is a sum of TD errors up to the end of its episode."""
    steps, envs = data["reward"].shape
    result = np.zeros((steps, envs))
    for b in range(envs):
        for t in range(steps):
            for k in range(t, steps):
                bootstrap = 0.0 if data["terminated"][k, b] else float(data["next_value"][k, b])
                error = float(data["reward"][k, b]) + gamma * bootstrap - float(data["value"][k, b])
                result[t, b] += (gamma * gae_lambda) ** (k - t) * error
                if data["terminated"][k, b] or data["truncated"][k, b]:
                    break
    return result


@given(rollouts(), st.floats(0, 1), st.floats(0, 1))
def test_random_rollouts_equal_the_sum_by_definition(
    data: dict[str, np.ndarray], gamma: float, gae_lambda: float
) -> None:
    advantage = gae(**data, gamma=gamma, gae_lambda=gae_lambda)
    np.testing.assert_allclose(advantage, summed_by_definition(data, gamma, gae_lambda), rtol=1e-4, atol=1e-4)


@given(rollouts(), st.floats(0, 1), st.floats(0, 1))
def test_a_rollout_equals_the_concatenation_of_its_episodes(
    data: dict[str, np.ndarray], gamma: float, gae_lambda: float
) -> None:
    whole = gae(**data, gamma=gamma, gae_lambda=gae_lambda)
    steps, envs = whole.shape
    for b in range(envs):
        ends = np.flatnonzero(data["terminated"][:, b] | data["truncated"][:, b]) + 1
        bounds = [0, *ends.tolist(), steps]
        pieces = []
        for start, end in pairwise(bounds):
            if end > start:
                episode = {name: np.ascontiguousarray(array[start:end, b : b + 1]) for name, array in data.items()}
                pieces.append(gae(**episode, gamma=gamma, gae_lambda=gae_lambda)[:, 0])
        np.testing.assert_array_equal(whole[:, b], np.concatenate(pieces))


# What arrives with the states of a short dream; the first reward and the first discount belong to the time before it.
DREAM = [
    torch.tensor(numbers)[:, None] for numbers in ([9.0, 1.0, 2.0, 4.0], [7.0, 10.0, 20.0, 40.0], [9.0, 0.5, 0.5, 0.25])
]


def test_lambda_returns_worked_by_hand() -> None:
    # From the end: 4 + 40 / 4 = 14; 2 + (20 + 14) / 4 = 10.5; 1 + (10 + 10.5) / 4 = 6.125.
    returns = lambda_return(*DREAM, 0.5)
    assert returns[:, 0].tolist() == [6.125, 10.5, 14.0]


def test_lambda_0_looks_one_state_ahead_and_lambda_1_adds_up_rewards() -> None:
    # The value of the next state, not of the one after it.
    assert lambda_return(*DREAM, 0.0)[:, 0].tolist() == [1 + 5, 2 + 10, 4 + 10]
    assert lambda_return(*DREAM, 1.0)[:, 0].tolist() == [1 + 0.5 * 9, 2 + 0.5 * 14, 14]


def test_nothing_counts_after_a_terminal_state() -> None:
    reward, value, discount = (array.clone() for array in DREAM)
    discount[2] = 0.0
    value[2:], reward[3:], discount[3:] = 1e6, 1e6, 1e6
    assert lambda_return(reward, value, discount, 0.5)[:2, 0].tolist() == [1 + 0.5 * (5 + 1), 2.0]


def test_a_trace_of_0_stops_at_the_value_of_its_state() -> None:
    trace = torch.tensor([1.0, 1.0, 0.0, 1.0])[:, None]
    assert lambda_return(*DREAM, trace)[:, 0].tolist() == [1 + 0.5 * 12, 2 + 0.5 * 20, 14]


def by_weights(reward: np.ndarray, value: np.ndarray, discount: np.ndarray, lam: float) -> np.ndarray:
    """The definition: a mean of n-step returns, with weights (1 - lambda) lambda^(n-1), and the rest on the last."""
    last, envs = len(value) - 1, value.shape[1]
    result = np.zeros((last, envs))
    for b in range(envs):
        for t in range(last):
            for n in range(1, last - t + 1):
                weight = lam ** (n - 1) * (1.0 if n == last - t else 1.0 - lam)
                alive, total = 1.0, 0.0
                for k in range(t + 1, t + n + 1):
                    total += alive * reward[k, b]
                    alive *= discount[k, b]
                result[t, b] += weight * (total + alive * value[t + n, b])
    return result


@given(st.integers(1, 10), st.integers(1, 3), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_lambda_returns_equal_the_weighted_sum_of_n_step_returns(steps: int, envs: int, seed: int, lam: float) -> None:
    rng = np.random.default_rng(seed)
    reward, value = rng.uniform(-5, 5, (2, steps + 1, envs))
    discount = rng.uniform(0.5, 1.0, (steps + 1, envs)) * (rng.random((steps + 1, envs)) < 0.8)
    returns = lambda_return(*(torch.from_numpy(array) for array in (reward, value, discount)), lam)
    np.testing.assert_allclose(returns.numpy(), by_weights(reward, value, discount, lam), rtol=1e-9, atol=1e-9)


def test_the_gradient_of_lambda_returns_equals_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(4, 2, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *arrays: lambda_return(*arrays, 0.7), leaves)
