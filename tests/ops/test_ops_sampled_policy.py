"""The prior of actions that are sampled from a policy and from wider ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl_training.ops.sampled_policy import density_gradient, sample_logits, sampled_actions

SPREAD = np.array([1.0, 1.0, 3.0, 0.5, 3.0], np.float32)


def test_samples_of_the_policy_itself_have_a_flat_prior() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 5, 2)).astype(np.float32)
    logits = sample_logits(np.ones(5, np.float32), noise)
    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits, np.zeros((3, 5)))


def test_the_prior_is_the_policy_over_the_mixture_that_was_drawn_from() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 5, 2)).astype(np.float32)
    logits = sample_logits(SPREAD, noise)

    def density(x: np.ndarray, deviation: float) -> float:
        return float(np.prod(np.exp(-0.5 * (x / deviation) ** 2) / (deviation * math.sqrt(2.0 * math.pi))))

    for row in range(3):
        for action in range(5):
            x = SPREAD[action] * noise[row, action].astype(np.float64)
            mixture = np.mean([density(x, float(deviation)) for deviation in SPREAD])
            assert logits[row, action] == pytest.approx(math.log(density(x, 1.0) / mixture), abs=1e-5)


def test_a_sample_far_away_has_a_finite_prior() -> None:
    noise = np.full((1, 2, 3), 200.0, np.float32)
    logits = sample_logits(np.array([1.0, 3.0], np.float32), noise)
    assert np.isfinite(logits).all()
    assert logits[0, 1] < logits[0, 0] < -1e4


def test_wide_samples_do_not_widen_the_policy_that_is_learned_from_them() -> None:
    count, rng = 20_000, np.random.default_rng(1)
    spread = np.repeat(np.array([1.0, 3.0], np.float32), count // 2)
    noise = rng.normal(size=(1, count, 1)).astype(np.float32)
    params = np.array([[0.1, -1.0]])
    actions = sampled_actions(params, spread, noise).astype(np.float64)
    prior = np.exp(sample_logits(spread, noise).astype(np.float64))
    for target, low, high in ((prior, -0.05, 0.05), (np.ones_like(prior), -4.5, -3.5)):
        shares = target / target.sum()
        gradient, _, _ = density_gradient(params, actions, shares, np.ones(1), 1.0, 0.0)
        d_mean, d_log_std = gradient[0]
        assert abs(d_mean) < 0.15
        assert low < d_log_std < high, "the gradient is 0 where the samples are as wide as the policy"
