"""What is played after a search: visits and temperatures, Gumbel's choices, noise at the root."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from rl_training.ops.search import (
    GumbelRule,
    Puct,
    Roots,
    Searcher,
    SearchResult,
    dirichlet_logits,
    gumbel_action,
    visit_action,
    visit_probabilities,
)
from rl_training.types import Array
from search_reference import World, bandit

HEATS = (0.0, 0.25, 0.5, 1.0, 2.0)


def entropy(actions: Array, count: int) -> float:
    shares = np.bincount(actions, minlength=count) / len(actions)
    return float(-(shares * np.log(np.maximum(shares, 1e-30))).sum())


# Visits


def test_probabilities_of_visits_worked_by_hand() -> None:
    visits = np.array([[1, 2, 5, 0]], np.int32)
    for heat, wanted in [
        (1.0, [1 / 8, 2 / 8, 5 / 8, 0]),
        (0.5, [1 / 30, 4 / 30, 25 / 30, 0]),
        (0.0, [0, 0, 1, 0]),
        (2.0, (np.sqrt([1, 2, 5, 0]) / np.sqrt([1, 2, 5]).sum()).tolist()),
    ]:
        np.testing.assert_allclose(visit_probabilities(visits, heat), [wanted], rtol=1e-12)


def test_every_row_may_have_its_temperature() -> None:
    visits = np.array([[1, 2, 5], [1, 2, 5], [3, 3, 0], [0, 0, 0]], np.int32)
    wanted = [[1 / 8, 2 / 8, 5 / 8], [1 / 30, 4 / 30, 25 / 30], [1, 0, 0], [0, 0, 0]]
    probabilities = visit_probabilities(visits, np.array([1.0, 0.5, 0.0, 1.0]))
    np.testing.assert_allclose(probabilities, wanted, rtol=1e-12)


def test_tiny_and_huge_temperatures_of_many_visits_are_finite() -> None:
    visits = np.array([[100_000, 1, 99_999, 0]], np.int32)
    np.testing.assert_allclose(visit_probabilities(visits, 1e-8), [[1, 0, 0, 0]], atol=1e-12)
    np.testing.assert_allclose(visit_probabilities(visits, 1e8), [[1 / 3, 1 / 3, 1 / 3, 0]], atol=1e-6)


def test_actions_of_visits_worked_by_hand() -> None:
    # The cumulative shares are 0, 1/8, 1/8, 3/8, 1, 1.
    draws = np.array([0.0, 0.124, 0.125, 0.374, 0.375, 0.5, 1.0 - 1e-16])
    visits = np.repeat(np.array([[0, 1, 0, 2, 5, 0]], np.int32), len(draws), axis=0)
    actions = visit_action(visits, 1.0, draws)
    assert actions.tolist() == [1, 1, 3, 3, 4, 4, 4]
    assert actions.dtype == np.int64
    assert visit_action(visits, 0.0, draws).tolist() == [4] * len(draws)
    assert visit_action(np.zeros((1, 3), np.int32), 1.0, np.array([0.9])).tolist() == [0]


@pytest.mark.parametrize("heat", HEATS)
def test_frequencies_of_actions_are_the_probabilities(heat: float) -> None:
    visits = np.repeat(np.array([[3, 0, 9, 4]], np.int32), 20_000, axis=0)
    actions = visit_action(visits, heat, np.random.default_rng(0).random(20_000))
    frequencies = np.bincount(actions, minlength=4) / 20_000
    np.testing.assert_allclose(frequencies, visit_probabilities(visits[:1], heat)[0], atol=0.015)


# Gumbel MuZero's choice


def bandits(actions: int, states: int, draws: int, rule: GumbelRule) -> list[tuple[SearchResult, Array, Array]]:
    """Searches of one-step worlds, whose q are exact: what was found, the noise, and every q `[A]`."""
    rng = np.random.default_rng(actions)
    searches = []
    for _ in range(states):
        world = bandit(rng.normal(size=actions), 1.5 * rng.normal(size=actions))
        noise = rng.gumbel(size=(draws, actions)).astype(np.float32)
        result = Searcher(rule, 16, actions)(world, world.roots(np.zeros(draws, np.int64)), gumbel=noise)
        searches.append((result, noise, world.reward[0]))
    return searches


WEAK = GumbelRule(c_visit=5.0, c_scale=0.1, rescale=False)


@pytest.mark.parametrize("rule", [GumbelRule(), WEAK, GumbelRule(considered=4)], ids=str)
@pytest.mark.parametrize("actions", [2, 4, 18])
def test_no_temperature_plays_worse_than_the_sample_of_the_prior(rule: GumbelRule, actions: int) -> None:
    for result, noise, q in bandits(actions, 10, 200, rule):
        rows = np.arange(len(noise))
        sample = (noise + result.logits).argmax(axis=1)
        assert (result.visits[rows, sample] > 0).all(), "a sample of the prior is always considered"
        for heat in HEATS:
            chosen = gumbel_action(result, noise, heat)
            assert (result.visits[rows, chosen] > 0).all()
            assert (q[chosen] >= q[sample]).all(), heat


@pytest.mark.parametrize("actions", [4, 18])
def test_entropy_increases_with_temperature(actions: int) -> None:
    results = bandits(actions, 10, 1000, GumbelRule())
    entropies = []
    for heat in HEATS:
        of_states = [entropy(gumbel_action(result, noise, heat), actions) for result, noise, _ in results]
        entropies.append(np.mean(of_states))
    assert (np.diff(entropies) > 0.01).all(), entropies


def max_visit_action(result: SearchResult, noise: Array) -> list[int]:
    """mctx's rule, row by row: of the most visited actions, the highest gumbel + logits + sigma(q)."""
    chosen = []
    for visits, scores in zip(result.visits, noise + result.improved, strict=True):
        best = [a for a in range(len(visits)) if visits[a] == visits.max()]
        chosen.append(max(best, key=lambda a: scores[a]))
    return chosen


@pytest.mark.parametrize("rule", [GumbelRule(), WEAK, GumbelRule(considered=3, c_scale=1.0)], ids=str)
def test_at_temperature_1_both_modes_play_the_most_visited(rule: GumbelRule) -> None:
    world, noise = World(200, 6, 3), np.random.default_rng(1).gumbel(size=(200, 6)).astype(np.float32)
    result = Searcher(rule, 20, 6)(world, world.roots(np.arange(200)), gumbel=noise)
    wanted = max_visit_action(result, noise)
    assert gumbel_action(result, noise).tolist() == wanted
    assert gumbel_action(result, noise, 1.0, "filter").tolist() == wanted
    assert gumbel_action(result, noise, 1.0, "scale").tolist() == wanted


def test_scaled_noise_is_the_other_way_to_a_temperature() -> None:
    world, noise = World(200, 6, 3), np.random.default_rng(1).gumbel(size=(200, 6)).astype(np.float32)
    roots, searcher = world.roots(np.arange(200)), Searcher(GumbelRule(), 20, 6)
    for heat in HEATS:
        result = searcher(world, roots, gumbel=heat * noise)
        assert gumbel_action(result, heat * noise, heat, "scale").tolist() == max_visit_action(result, heat * noise)
    greedy = searcher(world, roots)
    nothing = np.zeros_like(noise)
    cold = searcher(world, roots, gumbel=nothing)
    assert gumbel_action(cold, nothing, 1.0, "scale").tolist() == max_visit_action(greedy, nothing)


def found(visits: list[int], q: list[float], logits: list[float], sigma: float = 0.0) -> SearchResult:
    """A made-up result of one root."""
    row = {"q": q, "policy": q, "improved": np.add(logits, np.multiply(sigma, q)), "logits": logits}
    arrays = {name: np.array([numbers], np.float32) for name, numbers in row.items()}
    return SearchResult(np.array([visits], np.int32), value=np.zeros(1), depth=np.zeros(1), actions=None, **arrays)


def test_the_filter_worked_by_hand() -> None:
    # The sample of the prior is action 1. Action 0 is worse, 3 has a single visit, 4 has none.
    result = found([4, 4, 2, 1, 0], [0.1, 0.5, 0.6, 0.9, 0.0], [2.0, 1.0, 0.0, 0.0, 9.0], sigma=1.0)
    noise = np.array([[-2.0, 1.0, 0.0, 0.0, -20.0]])
    # tau * g + logits + q of actions 1 and 2: 1.5 + tau and 0.6.
    assert gumbel_action(result, noise, 0.0).tolist() == [1]
    noise[0, 2] = 1.9
    # Now 1.5 + tau and 0.6 + 1.9 tau: equal at tau = 1.
    assert gumbel_action(result, noise, 0.5).tolist() == [1]
    assert gumbel_action(result, noise, 2.0).tolist() == [2]
    # A sample of the prior with a single visit may be played, too.
    lone = found([1, 3, 3], [0.9, 0.5, 0.2], [0.0, 0.0, 0.0])
    assert gumbel_action(lone, np.array([[5.0, 1.0, 0.0]]), 0.5).tolist() == [0]
    # With single visits only, all visited actions count.
    single = found([1, 1, 0], [0.1, 0.5, 0.9], [0.0, 0.0, 0.0], sigma=10.0)
    assert gumbel_action(single, np.array([[1.0, 0.0, 0.0]]), 0.5).tolist() == [1]


def plain_gumbel_action(result: SearchResult, gumbel: Array, heat: float, mode: str) -> Array:
    """`gumbel_action` in NumPy."""
    visits, noise, rows = result.visits, gumbel.astype(np.float64), np.arange(len(gumbel))
    most = visits.max(axis=1, keepdims=True)
    candidates = (visits == most) & (visits > 0)
    if mode == "filter" and heat != 1.0:
        sample = np.where(visits > 0, noise + result.logits, -np.inf).argmax(axis=1)
        candidates = (visits > np.where(most > 1, 1, 0)) & (result.q >= result.q[rows, sample][:, None])
        candidates[rows, sample] = visits[rows, sample] > 0
        noise = heat * noise
    actions: Array = np.where(candidates, noise + result.improved, -np.inf).argmax(axis=1)
    return actions


@pytest.mark.parametrize("mode", ["filter", "scale"])
@pytest.mark.parametrize("heat", HEATS)
def test_actions_equal_those_of_plain_numpy(mode: Literal["filter", "scale"], heat: float) -> None:
    rng, shape = np.random.default_rng(0), (2000, 5)
    q, improved, logits = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    visits = rng.integers(0, 4, shape).astype(np.int32)
    visits[:10] = 0
    result = SearchResult(visits, q, np.zeros(2000), q, improved, logits, np.zeros(2000), None)
    gumbel = rng.gumbel(size=shape).astype(np.float32)
    wanted = plain_gumbel_action(result, gumbel, heat, mode)
    np.testing.assert_array_equal(gumbel_action(result, gumbel, heat, mode), wanted)


def test_rows_have_their_own_temperatures() -> None:
    world, noise = World(100, 6, 3), np.random.default_rng(1).gumbel(size=(100, 6)).astype(np.float32)
    result = Searcher(GumbelRule(), 16, 6)(world, world.roots(np.arange(100)), gumbel=noise)
    heats = np.resize(HEATS, 100)
    wanted = [gumbel_action(result, noise, heat)[b] for b, heat in enumerate(heats)]
    assert gumbel_action(result, noise, heats).tolist() == wanted


def test_no_temperature_changes_the_target() -> None:
    world, noise = World(50, 6, 3), np.random.default_rng(1).gumbel(size=(50, 6)).astype(np.float32)
    roots, searcher = world.roots(np.arange(50)), Searcher(GumbelRule(), 16, 6)
    target = searcher(world, roots, gumbel=noise).policy
    for heat in HEATS:
        result = searcher(world, roots, gumbel=noise)
        gumbel_action(result, noise, heat)
        np.testing.assert_array_equal(result.policy, target)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'filter' or 'scale'"):
        gumbel_action(found([1], [0.0], [0.0]), np.zeros((1, 1)), 1.0, "other")  # type: ignore[arg-type]


# Noise at the root


def test_noise_makes_searches_differ_and_its_absence_makes_them_equal() -> None:
    world, rng = World(20, 6, 3), np.random.default_rng(0)
    roots = world.roots(np.zeros(200, np.int64))
    searcher = Searcher(GumbelRule(considered=4), 8, 6)
    noise = rng.gumbel(size=(200, 6))
    noisy = searcher(world, roots, gumbel=noise)
    assert len(np.unique(noisy.visits, axis=0)) > 5
    assert entropy(gumbel_action(noisy, noise), 6) > 0.1
    plain = [searcher(world, roots), searcher(world, roots, gumbel=np.zeros((200, 6)))]
    assert len(np.unique(plain[0].visits, axis=0)) == 1
    np.testing.assert_array_equal(plain[0].visits, plain[1].visits)
    np.testing.assert_array_equal(plain[0].policy, plain[1].policy)
    mixed = roots._replace(logits=dirichlet_logits(roots.logits, None, 0.3, 0.25, rng))
    assert len(np.unique(Searcher(Puct(), 8, 6)(world, mixed).visits, axis=0)) > 5


@pytest.mark.parametrize("alpha", [1e-4, 0.03, 0.3, 5.0])
def test_dirichlet_noise_is_a_distribution_over_the_allowed(alpha: float) -> None:
    rng = np.random.default_rng(0)
    logits = 5.0 * rng.normal(size=(300, 7)).astype(np.float32)
    mask = rng.random((300, 7)) < 0.5
    mask[:, 3] = True
    mask[7] = False
    mixed = dirichlet_logits(logits, mask, alpha, 0.25, rng)
    assert mixed.dtype == np.float32
    assert np.isfinite(mixed).all()
    shares = np.exp(mixed.astype(np.float64))
    assert (shares[~mask] == 0.0).all()
    assert (mixed[~mask] == np.finfo(np.float32).min).all()
    total = np.delete(shares.sum(axis=1), 7)
    if alpha > 0.01:
        np.testing.assert_allclose(total, 1.0, rtol=1e-5)
    # A tiny alpha may draw numbers that are too small for a float64; the prior's share is there in any case.
    assert (total > 0.75 - 1e-5).all()
    assert (total < 1.0 + 1e-5).all()


def test_dirichlet_noise_has_its_mean_and_its_fraction() -> None:
    logits = np.repeat(np.log(np.array([[0.7, 0.2, 0.1]], np.float32)), 20_000, axis=0)
    mixed = np.exp(dirichlet_logits(logits, None, 0.5, 0.4, np.random.default_rng(0)).astype(np.float64))
    np.testing.assert_allclose(mixed.mean(axis=0), 0.6 * np.array([0.7, 0.2, 0.1]) + 0.4 / 3, atol=0.01)
    # The variance of a share of Dirichlet(alpha) over n is (n - 1) / n^2 / (n alpha + 1).
    np.testing.assert_allclose(mixed.var(axis=0), 0.16 * (2 / 9) / 2.5, rtol=0.05)
    np.testing.assert_allclose(
        dirichlet_logits(logits[:3] + 9.0, None, 0.5, 0.0, np.random.default_rng(0)), logits[:3], atol=1e-5
    )


def test_noise_gives_an_action_without_prior_a_chance() -> None:
    world = bandit(np.array([0.0, 1.0]), np.array([0.0, -80.0]))
    roots = Roots(np.zeros((1, 1)), world.logits[:1], np.zeros(1))
    assert Searcher(Puct(), 30, 2)(world, roots).visits.tolist() == [[30, 0]]
    mixed = roots._replace(logits=dirichlet_logits(roots.logits, None, 5.0, 0.25, np.random.default_rng(0)))
    assert Searcher(Puct(), 30, 2)(world, mixed).visits[0, 1] > 15
