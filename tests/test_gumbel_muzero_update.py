"""Gumbel MuZero: what is played at which temperature, and what is learned from its searches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import CONTINUOUS, DISCRETE
from planning import acted, assert_forms_agree, entropy_of, learner_of, observations, same_root
from rl_training.algorithms.muzero import MuZero
from rl_training.ops.search import SearchResult, gumbel_action

MODES = ("filter", "gumbel_scale")
EIGHT = replace(DISCRETE, action_size=8, action_counts=(8,))
HEATS = (0.0, 0.25, 0.5, 1.0, 2.0)


def noise_of(seed: int, rows: int, actions: int) -> np.ndarray:
    """The Gumbel noise that a search draws first."""
    return np.random.default_rng(seed).gumbel(size=(rows, actions)).astype(np.float32)


def searched(learner: MuZero, obs: np.ndarray, noise: np.ndarray | None) -> SearchResult:
    """A search with given noise."""
    planner: Any = learner.policy.planner
    roots = planner._inference.roots(obs, None)
    model = planner._inference.model(planner.discount, None, len(obs))
    return planner.searcher(model, roots, gumbel=noise)


def best_of_most_visited(result: SearchResult, noise: np.ndarray | float) -> np.ndarray:
    """The action of the paper."""
    most = result.visits == result.visits.max(axis=1, keepdims=True)
    return np.where(most, noise + result.improved, -np.inf).argmax(axis=1)


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_plays_the_best_of_the_most_visited_actions(mode: str) -> None:
    """As the paper does without noise; another rule would differ in some of these states."""
    learner = learner_of("gumbel_muzero", EIGHT, num_simulations=16, temperature_mode=mode)
    obs = observations(EIGHT, 800, np.random.default_rng(0))
    result = searched(learner, obs, None)
    act = acted(learner, obs, explore=False)
    np.testing.assert_array_equal(act.action, best_of_most_visited(result, 0.0))
    np.testing.assert_array_equal(act.records["policy"], result.policy)
    assert (act.action != gumbel_action(result, np.zeros_like(result.logits), 0.0, "filter")).any()


def test_at_temperature_1_both_modes_play_the_action_of_the_paper() -> None:
    obs, noise = observations(EIGHT, 300, np.random.default_rng(0)), noise_of(4, 300, 8)
    for mode in MODES:
        learner = learner_of("gumbel_muzero", EIGHT, num_simulations=16, temperature_mode=mode)
        result = searched(learner, obs, noise)
        act = acted(learner, obs, seed=4, temperature=1.0)
        np.testing.assert_array_equal(act.action, best_of_most_visited(result, noise))
        np.testing.assert_array_equal(act.records["policy"], result.policy)


def test_the_value_of_a_search_is_that_of_its_improved_policy() -> None:
    """Over the visited actions; the mean over the simulations has the tried and rejected ones in it."""
    learner = learner_of("gumbel_muzero", EIGHT, num_simulations=6)
    obs = observations(EIGHT, 200, np.random.default_rng(0))
    result, found = searched(learner, obs, noise_of(4, 200, 8)), acted(learner, obs, seed=4).records["search_value"]
    for row in range(200):
        visited = [action for action in range(8) if result.visits[row, action]]
        shares = result.policy[row, visited] / result.policy[row, visited].sum()
        assert found[row] == pytest.approx(float(shares @ result.q[row, visited]), abs=1e-5)
    assert (result.visits == 0).any()
    assert not np.allclose(found, result.value, atol=1e-3)


def test_the_search_of_muzero_has_the_value_of_its_simulations() -> None:
    learner = learner_of("muzero", EIGHT, num_simulations=6)
    obs = observations(EIGHT, 50, np.random.default_rng(0))
    plan = learner.policy.planner.search(learner.observer.scaled(obs), None)
    np.testing.assert_array_equal(learner.policy.recorded(plan)["search_value"], plan.result.value)


@pytest.mark.parametrize("heat", HEATS)
def test_no_temperature_plays_what_is_worse_than_a_draw_from_the_policy(heat: float) -> None:
    learner = learner_of("gumbel_muzero", EIGHT, num_simulations=16)
    obs, noise = observations(EIGHT, 500, np.random.default_rng(0)), noise_of(4, 500, 8)
    result, rows = searched(learner, obs, noise), np.arange(500)
    drawn = (noise + result.logits).argmax(axis=1)
    action = acted(learner, obs, seed=4, temperature=heat).action
    if heat != 1.0:  # the action of the paper is another one of the most visited, whose values are estimates
        assert (result.q[rows, action] >= result.q[rows, drawn]).all()
        good = (result.visits > 1) & (result.q >= result.q[rows, drawn][:, None])
        good[rows, drawn] = True
        scores = np.where(good, heat * noise.astype(np.float64) + result.improved, -np.inf)
        np.testing.assert_array_equal(action, scores.argmax(axis=1))
    assert (result.visits[rows, action] > 0).all()


def test_the_other_mode_scales_the_noise_of_the_whole_search() -> None:
    learner = learner_of("gumbel_muzero", EIGHT, num_simulations=16, temperature_mode="gumbel_scale", noise=0.1)
    obs, noise = observations(EIGHT, 200, np.random.default_rng(0)), noise_of(4, 200, 8)
    policies = []
    for heat in HEATS:
        result = searched(learner, obs, np.float32(heat) * noise)
        act = acted(learner, obs, seed=4, temperature=heat)
        np.testing.assert_array_equal(act.action, best_of_most_visited(result, np.float32(heat) * noise))
        np.testing.assert_array_equal(act.records["policy"], result.policy)
        policies.append(result.policy)
    assert (policies[0] != policies[-1]).any(), "so the target is not independent of the temperature"
    greedy = acted(learner, obs, explore=False)
    np.testing.assert_array_equal(acted(learner, obs, temperature=0.0).action, greedy.action)


@pytest.mark.parametrize("mode", MODES)
def test_executed_actions_vary_more_at_higher_temperatures(mode: str) -> None:
    learner = learner_of("gumbel_muzero", EIGHT, num_simulations=16, temperature_mode=mode, noise=0.1, c_scale=0.02)
    obs = same_root(learner, 1500)
    found = [entropy_of(acted(learner, obs, temperature=heat).action, 8) for heat in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert found == sorted(found)
    assert np.diff(found).min() > 0.02, found
    reported = [acted(learner, obs[:50], temperature=heat).metrics["root_entropy"] for heat in (0.0, 0.5, 1.0, 4.0)]
    assert reported == sorted(reported)
    assert reported[0] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_late_moves_are_played_at_temperature_0(mode: str) -> None:
    settings = {"temperature_mode": mode, "noise": 0.1, "temperature": 3.0, "num_simulations": 16}
    limited, free = (
        learner_of("gumbel_muzero", EIGHT, temperature_moves=5, **settings),
        learner_of("gumbel_muzero", EIGHT, **settings),
    )
    obs = same_root(free, 200)
    early, late = (acted(limited, obs, moves=moves) for moves in (4, 5))
    np.testing.assert_array_equal(early.action, acted(free, obs).action)
    np.testing.assert_array_equal(late.action, acted(free, obs, temperature=0.0).action)
    assert (early.action != late.action).any()


@pytest.mark.parametrize("rescale", [True, False])
def test_the_target_is_the_improved_policy(rescale: bool) -> None:
    """softmax(logits + sigma(completed q)), with neither noise nor temperature, by plain loops."""
    settings = {"c_visit": 20.0, "c_scale": 0.05, "rescale_values": rescale}
    learner = learner_of("gumbel_muzero", EIGHT, num_simulations=6, **settings)
    obs, noise = observations(EIGHT, 20, np.random.default_rng(0)), noise_of(0, 20, 8)
    result = searched(learner, obs, noise)
    value = learner.policy.planner.values(obs).astype(np.float64)
    target = acted(learner, obs, temperature=2.0).records["policy"]
    for b in range(20):
        logits, visits, q = (part[b].astype(np.float64) for part in (result.logits, result.visits, result.q))
        prior = np.exp(logits - logits.max())
        prior /= prior.sum()
        seen = visits > 0
        assert 0 < seen.sum() < 8
        mixed = (value[b] + visits.sum() * (prior * q)[seen].sum() / prior[seen].sum()) / (1.0 + visits.sum())
        completed = np.where(seen, q, mixed)
        if rescale:
            completed = (completed - completed.min()) / (completed.max() - completed.min())
        scores = logits + (20.0 + visits.max()) * 0.05 * completed
        wanted = np.exp(scores - scores.max())
        np.testing.assert_allclose(target[b], wanted / wanted.sum(), rtol=1e-3, atol=1e-5)


def test_settings_of_the_search_take_effect_at_once() -> None:
    learner = learner_of("gumbel_muzero", num_simulations=16)
    obs = observations(DISCRETE, 5, np.random.default_rng(0))
    before = acted(learner, obs).records
    for setting, value in {"c_scale": 1.0, "c_visit": 500.0, "gamma": 0.1}.items():
        after = acted(learner, obs, **{setting: value}).records
        assert not np.array_equal(before["policy"], after["policy"]), setting
        before = after


def test_few_actions_are_considered() -> None:
    """With two of them, the others stay without a visit, but not without a probability."""
    learner = learner_of("gumbel_muzero", EIGHT, num_simulations=16, max_num_considered_actions=2)
    obs, noise = observations(EIGHT, 50, np.random.default_rng(0)), noise_of(0, 50, 8)
    result = searched(learner, obs, noise)
    top = np.sort(np.argsort(-(noise + result.logits), axis=1)[:, :2], axis=1)
    np.testing.assert_array_equal(np.stack([np.flatnonzero(row) for row in result.visits]), top)
    action = acted(learner, obs).action
    assert ((action == top[:, 0]) | (action == top[:, 1])).all()
    assert (result.policy > 0.0).all()


@pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_both_forms_learn_the_same(info: Any) -> None:
    assert_forms_agree("gumbel_muzero", info, updates=2, reanalyze_ratio=0.0, ent_coef=0.05)
