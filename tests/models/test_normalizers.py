"""Running statistics: exact whatever the batching, fed by real transitions only, frozen while a policy is judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from conformance import MODES, ON_POLICY, OneState, Walk, built, chosen, in_mode, limited, trained
from rl_training.models.normalizers import ObservationNormalizer, ReturnScale, RewardNormalizer, RunningMoments
from rl_training.runtime.train import run as run_training
from rl_training.types import Step


@given(st.lists(st.integers(0, 7), min_size=1, max_size=8), st.integers(0, 2**32 - 1), st.floats(-1e3, 1e3))
def test_moments_equal_those_of_all_data_however_it_is_batched(sizes: list[int], seed: int, offset: float) -> None:
    data = offset + np.random.default_rng(seed).standard_normal((sum(sizes), 2))
    moments = RunningMoments((2,))
    for batch in np.split(data, np.cumsum(sizes)[:-1]):
        moments.update(batch)
    assert moments.count == len(data)
    if len(data):
        np.testing.assert_allclose(moments.mean, data.mean(axis=0), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(moments.var, data.var(axis=0), rtol=1e-8, atol=1e-10)


def test_moments_of_scalars_and_of_float32_are_kept_in_double_precision() -> None:
    data = (1e4 + np.random.default_rng(0).standard_normal(5000)).astype(np.float32)
    moments = RunningMoments(())
    for batch in np.split(data, 100):
        moments.update(batch)
    assert float(moments.var) == pytest.approx(float(data.astype(np.float64).var()), rel=1e-8)


def test_moments_survive_their_state_dict() -> None:
    data = np.random.default_rng(0).standard_normal((30, 2))
    whole, first, second = RunningMoments((2,)), RunningMoments((2,)), RunningMoments((2,))
    first.update(data[:11])
    second.load_state_dict(first.state_dict())
    for moments in (first, second):
        moments.update(data[11:])
    whole.update(data[:11])
    whole.update(data[11:])
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
        assert torch.equal(tensor, first.state_dict()[name]), name


def test_observations_are_scaled_and_kept_within_the_clip() -> None:
    normalizer = ObservationNormalizer((2,), clip=1.5)
    rows = np.array([[0.0, 10.0], [2.0, 30.0]], np.float32)
    np.testing.assert_array_equal(normalizer(np.array([[1.0, -9.0]], np.float32)), [[1.0, -1.5]])
    normalizer.update(rows)
    np.testing.assert_allclose(normalizer(rows), [[-1.0, -1.0], [1.0, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(normalizer(np.array([[99.0, -99.0]], np.float32)), [[1.5, -1.5]])
    assert normalizer(rows).dtype == np.float32


def test_an_observation_that_never_varies_does_not_divide_by_zero() -> None:
    normalizer = ObservationNormalizer((1,), clip=10.0)
    normalizer.update(np.full((5, 1), 3.0, np.float32))
    np.testing.assert_array_equal(normalizer(np.full((1, 1), 3.0, np.float32)), [[0.0]])


def test_a_loaded_observation_normaliser_scales_like_the_saved_one() -> None:
    saved, loaded = ObservationNormalizer((2,), 10.0), ObservationNormalizer((2,), 10.0)
    rows = np.random.default_rng(0).standard_normal((20, 2)).astype(np.float32) * 5 + 3
    saved.update(rows)
    loaded.load_state_dict(saved.state_dict())
    np.testing.assert_array_equal(saved(rows), loaded(rows))


def rewards(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def ends(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.bool_)


def test_the_running_return_starts_again_after_an_episode_worked_by_hand() -> None:
    normalizer = RewardNormalizer(1, clip=100.0)
    reward, done = rewards([1], [2], [4], [8]), ends([0], [1], [0], [0])
    normalizer.update(reward, done, np.ones_like(done), 0.5)
    # The discounted return so far: 1, 2.5, then from nothing 4, 10.
    seen = np.array([1.0, 2.5, 4.0, 10.0])
    assert normalizer.moments.count == 4
    assert float(normalizer.moments.mean) == pytest.approx(seen.mean())
    assert float(normalizer.moments.var) == pytest.approx(seen.var())
    np.testing.assert_allclose(normalizer(reward)[:, 0], reward[:, 0] / np.sqrt(seen.var() + 1e-8), rtol=1e-6)


def test_the_running_return_goes_on_from_one_rollout_to_the_next() -> None:
    reward = np.random.default_rng(0).standard_normal((12, 2)).astype(np.float32)
    done = np.random.default_rng(1).random((12, 2)) < 0.2
    real = np.ones_like(done)
    whole, halves = RewardNormalizer(2, 10.0), RewardNormalizer(2, 10.0)
    whole.update(reward, done, real, 0.9)
    halves.update(reward[:5].copy(), done[:5].copy(), real[:5].copy(), 0.9)
    halves.update(reward[5:].copy(), done[5:].copy(), real[5:].copy(), 0.9)
    np.testing.assert_array_equal(whole.running, halves.running)
    assert float(whole.moments.var) == pytest.approx(float(halves.moments.var), rel=1e-10)


@pytest.mark.parametrize("envs", [slice(1, 3), np.array([3, 0])], ids=["slice", "array"])
def test_a_rollout_of_some_environments_goes_on_with_their_returns(envs: Any) -> None:
    some, reward = RewardNormalizer(4, 10.0), rewards([1, 2])
    some.running[:] = [10.0, 20.0, 30.0, 40.0]
    expected = some.running.copy()
    expected[envs] = 0.5 * expected[envs] + reward[0]
    some.update(reward, ends([0, 0]), ends([1, 1]), 0.5, envs)
    np.testing.assert_array_equal(some.running, expected)
    assert some.moments.count == 2


def test_rows_that_are_not_real_do_not_move_the_reward_statistics() -> None:
    clean, dirty = RewardNormalizer(1, 10.0), RewardNormalizer(1, 10.0)
    clean.update(rewards([1], [2], [4]), ends([0], [1], [0]), ends([1], [1], [1]), 0.5)
    # The same with the row that a reset produces after the end, carrying a reward that must not count.
    dirty.update(rewards([1], [2], [99], [4]), ends([0], [1], [0], [0]), ends([1], [1], [0], [1]), 0.5)
    assert dirty.moments.count == clean.moments.count == 3
    np.testing.assert_array_equal(dirty.running, clean.running)
    assert float(dirty.moments.mean) == float(clean.moments.mean)
    assert float(dirty.moments.var) == float(clean.moments.var)


def test_the_reward_normaliser_keeps_signs_clips_and_does_not_shift() -> None:
    normalizer = RewardNormalizer(1, clip=2.0)
    normalizer.update(rewards([5], [7], [1]), ends([1], [1], [1]), ends([1], [1], [1]), 0.9)
    np.testing.assert_array_equal(normalizer(np.array([0.0, 1000.0, -1000.0], np.float32)), [0.0, 2.0, -2.0])


def test_a_loaded_reward_normaliser_goes_on_with_the_open_episodes() -> None:
    saved, loaded = RewardNormalizer(2, 10.0), RewardNormalizer(2, 10.0)
    open_episode = np.zeros((3, 2), np.bool_)
    saved.update(np.ones((3, 2), np.float32), open_episode, ~open_episode, 0.9)
    loaded.load_state_dict(saved.state_dict())
    for normalizer in (saved, loaded):
        normalizer.update(np.ones((3, 2), np.float32), open_episode, ~open_episode, 0.9)
    np.testing.assert_array_equal(saved.running, loaded.running)
    assert float(saved.moments.var) == float(loaded.moments.var)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("algo", ON_POLICY)
def test_statistics_count_real_transitions_and_never_the_rows_of_a_reset(algo: str, mode: AutoresetMode) -> None:
    factory = in_mode(Walk, mode, numbered=True)
    for what, moments_of in (
        ("normalize_obs", lambda algorithm: algorithm.observer.normalizer.moments),
        ("normalize_reward", lambda algorithm: algorithm.reward_normalizer.moments),
    ):
        run = trained(algo, factory, **{what: True}, total_timesteps=60)
        really_taken = sum(env.steps_taken for env in run.source.collector.envs.envs)
        assert run.steps == really_taken
        assert moments_of(run.algorithm).count == really_taken


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_observation_statistics_are_those_of_the_observations_that_were_acted_upon(mode: AutoresetMode) -> None:
    run = built("ppo", in_mode(Walk, mode, numbered=True), normalize_obs=True, total_timesteps=1000)
    seen: list[np.ndarray] = []
    collect = run.source.collector.step

    def watched(action: np.ndarray, records: Any) -> Step:
        step = collect(action, records)
        seen.append(step.obs[step.real])
        return step

    run.source.collector.step = watched
    for _ in range(5):
        run.advance()
    everything = np.concatenate(seen).astype(np.float64)
    moments = run.algorithm.observer.normalizer.moments
    np.testing.assert_allclose(moments.mean, everything.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(moments.var, everything.var(axis=0), rtol=1e-8, atol=1e-12)
    run.close()


def test_statistics_are_frozen_while_a_rollout_is_collected() -> None:
    run = built("ppo", in_mode(Walk, AutoresetMode.DISABLED, numbered=True), normalize_obs=True, total_timesteps=1000)
    counts: list[float] = []
    collect = run.source.collector.step

    def watched(action: np.ndarray, records: Any) -> Step:
        counts.append(run.algorithm.observer.normalizer.moments.count)
        return collect(action, records)

    run.source.collector.step = watched
    run.advance()
    run.advance()
    assert counts == [0.0] * 8 + [16.0] * 8 + [32.0] * 8, "random steps, then two rollouts"
    run.close()


@pytest.mark.parametrize("algo", ON_POLICY)
def test_evaluating_twice_gives_the_same_score_and_moves_no_statistics(algo: str) -> None:
    settings = {"normalize_obs": True, "normalize_reward": True, "total_timesteps": 64}
    run = trained(algo, None, env_id="Pendulum-v1", time_limit=10, **settings)
    before = {name: tensor.clone() for name, tensor in run.algorithm.policy.policy_state().items()}
    reward_before = run.algorithm.reward_normalizer.state_dict()
    first, second = run.evaluate(5), run.evaluate(5)
    assert first == second
    assert len(set(first.returns)) == 5
    for name, tensor in run.algorithm.policy.policy_state().items():
        assert torch.equal(tensor, before[name]), name
    for name, tensor in run.algorithm.reward_normalizer.state_dict().items():
        assert torch.equal(tensor, reward_before[name]), name
    run.close()


def test_the_statistics_decide_what_an_evaluated_policy_does() -> None:
    run = trained("ppo", None, env_id="Pendulum-v1", time_limit=10, normalize_obs=True, total_timesteps=64)
    obs = np.array([[0.5, -0.5, 3.0]], np.float32)
    before = chosen(run.algorithm, obs, explore=False).action
    run.algorithm.observer.normalizer.update(np.full((1000, 3), 5.0, np.float32))
    assert (chosen(run.algorithm, obs, explore=False).action != before).all()


def test_returns_are_reported_raw_while_learning_sees_scaled_rewards() -> None:
    learned_from: list[np.ndarray] = []
    run = built("ppo", limited(OneState, 5), normalize_reward=True, total_timesteps=64)

    class Watched(RewardNormalizer):
        def __call__(self, reward: np.ndarray) -> np.ndarray:
            learned_from.append(super().__call__(reward))
            return learned_from[-1]

    run.algorithm.reward_normalizer = Watched(2, clip=10.0)
    run_training(run)
    assert run.metrics["episode_return_mean"] == 5.0
    assert run.eval_metrics["eval_return_mean"] == 5.0
    assert len(learned_from) == 4
    assert all((reward < 0.95).all() for reward in learned_from)
    run.close()


def test_the_scale_of_returns_worked_by_hand() -> None:
    # The percentiles of 0, 1, ..., 100 are 5 and 95; running means at a hundredth of 500 and of 9500.
    scale = ReturnScale()
    assert scale.scale == 1.0
    scale.update(np.arange(101.0).reshape(1, 101) * 100.0)
    np.testing.assert_allclose(scale.bounds, [5.0, 95.0])
    assert scale.scale == pytest.approx(90.0)
    scale.update(np.zeros(7))
    assert scale.scale == pytest.approx(0.99 * 90.0)


def test_the_scale_of_returns_is_at_least_1_and_does_not_know_their_level() -> None:
    small, moved = ReturnScale(), ReturnScale()
    returns = np.random.default_rng(0).normal(size=(15, 64)).astype(np.float32)
    for _ in range(2000):
        small.update(0.01 * returns)
        moved.update(1000.0 + 10.0 * returns)
    assert small.scale == 1.0
    low, high = np.percentile(10.0 * returns, [5.0, 95.0])
    assert moved.scale == pytest.approx(high - low, rel=1e-3)


def test_outliers_hardly_move_the_scale_of_returns() -> None:
    scale = ReturnScale(decay=0.0)
    returns = np.random.default_rng(0).uniform(0.0, 10.0, 1000)
    scale.update(returns)
    before = scale.scale
    returns[:10] = 1e9
    scale.update(returns)
    assert scale.scale == pytest.approx(before, rel=0.05)


def test_the_scale_of_returns_survives_its_state_dict() -> None:
    scale, again = ReturnScale(), ReturnScale()
    for seed in range(5):
        scale.update(np.random.default_rng(seed).normal(size=50) * 1e3)
    state = scale.state_dict()
    again.load_state_dict(state)
    assert again.scale == scale.scale
    scale.update(np.zeros(3))
    again.update(np.zeros(3))
    np.testing.assert_array_equal(again.bounds, scale.bounds)
    # The state is a copy: what comes later does not change it.
    assert float(state["bounds"][1]) != scale.bounds[1]
