"""What is drawn how often, and with which weight, against closed form."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_feed import EVENTS, Feed, assert_uniform, info_of
from rl_training.data.replay import Change, FrameReplay, Replay
from rl_training.data.samplers import PrioritizedSampler, UniformSampler

INFO = info_of((1,))
FRAMES = info_of((3, 2, 2), "uint8")


def feed_for(replay: Replay) -> Feed:
    if isinstance(replay, FrameReplay):
        return Feed(replay.num_envs, lambda episode: np.full((3, 2, 2), episode[-1] % 256, np.uint8))
    return Feed(replay.num_envs, lambda episode: np.array([episode[-1]], np.float32))


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def filled(count: int, capacity: int | None = None) -> tuple[Replay, PrioritizedSampler]:
    """A replay of some transitions of one environment, and the sampler that was told of them."""
    replay = Replay(INFO, 1, capacity or count)
    sampler, feed = PrioritizedSampler(replay), feed_for(replay)
    for _ in range(count):
        ready, _ = feed.play(["go"], replay)
        sampler.changed(Change(np.array(sorted(ready)), slots()))
    return replay, sampler


def priorities(sampler: PrioritizedSampler) -> np.ndarray:
    return sampler.arrays["priorities"].data


def test_uniform_draws_have_no_weight_and_remember_nothing() -> None:
    replay, _ = filled(20)
    sampler = UniformSampler(replay)
    index, weight = sampler.draw(np.random.default_rng(0), 5000, beta=0.7)
    assert weight is None
    assert_uniform(index, range(20))
    np.testing.assert_array_equal(index, replay.draw(np.random.default_rng(0), 5000))
    sampler.changed(Change(slots(1), slots()))
    sampler.update(index, np.ones(index.size, np.float32), 0.6)
    sampler.load_state_dict(sampler.state_dict())
    assert (sampler.arrays, sampler.state_dict()) == ({}, {})


def test_priorities_are_powers_of_the_errors() -> None:
    _, sampler = filled(4)
    np.testing.assert_array_equal(priorities(sampler), np.ones(4))
    sampler.update(slots(0, 1, 3), np.array([3.0, -8.0, 0.0], np.float32), 0.5)
    np.testing.assert_allclose(priorities(sampler), [(3 + 1e-6) ** 0.5, (8 + 1e-6) ** 0.5, 1.0, 1e-3], rtol=1e-12)


def test_a_new_transition_has_the_largest_priority_there_has_been() -> None:
    replay, sampler = filled(3, capacity=4)
    sampler.update(slots(0, 1), np.array([16.0, 0.5], np.float32), 0.5)
    sampler.update(slots(0), np.array([1.0], np.float32), 0.5)  # the largest one is gone, but has been
    feed = feed_for(replay)
    for _ in range(2):  # a free slot, then the oldest one
        ready, _ = feed.play(["go"], replay)
        sampler.changed(Change(np.array(sorted(ready)), slots()))
    largest = (16 + 1e-6) ** 0.5
    np.testing.assert_allclose(priorities(sampler), [largest, (0.5 + 1e-6) ** 0.5, 1.0, largest], rtol=1e-12)


def test_small_errors_leave_new_transitions_at_one() -> None:
    _, sampler = filled(2, capacity=4)
    sampler.update(slots(0, 1), np.array([0.1, 0.2], np.float32), 1.0)
    sampler.changed(Change(slots(2), slots()))
    assert priorities(sampler)[2] == 1.0


def test_frequencies_are_proportional_to_priorities() -> None:
    _, sampler = filled(5)
    errors = np.array([1.0, 2.0, 3.0, 4.0, 0.0], np.float32)
    sampler.update(np.arange(5), errors, 1.0)
    shares = (errors + 1e-6) / (errors + 1e-6).sum()
    rng = np.random.default_rng(0)
    batches = np.stack([sampler.draw(rng, 100, beta=0.4)[0] for _ in range(200)])
    counts = np.stack([np.bincount(batch, minlength=5) for batch in batches])
    # Stratified: even a single batch is within one draw, on either side, of what is expected.
    assert (np.abs(counts - 100 * shares) < 2).all()
    np.testing.assert_allclose(counts.mean(axis=0), 100 * shares, atol=0.2)


def test_strata_are_drawn_within_and_not_at_their_edges() -> None:
    _, sampler = filled(1000)
    rng = np.random.default_rng(0)
    draws = np.stack([sampler.draw(rng, 10, beta=0.0)[0] for _ in range(300)])
    assert (draws // 100 == np.arange(10)).all()
    assert_uniform(draws.ravel() % 100, range(100))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_those_of_the_paper(beta: float) -> None:
    replay, sampler = filled(6, capacity=16)
    errors = np.array([1.0, 5.0, 0.5, 2.0, 3.0, 0.1], np.float32)
    sampler.update(np.arange(6), errors, 0.6)
    index, weight = sampler.draw(np.random.default_rng(0), 64, beta=beta)
    p = (errors.astype(np.float64) + 1e-6) ** 0.6
    expected = (len(replay) * p / p.sum())[index] ** -beta
    assert weight is not None
    assert weight.dtype == np.float32
    np.testing.assert_allclose(weight, expected / expected.max(), rtol=1e-6)


def test_what_is_gone_is_never_drawn_and_never_comes_back_by_an_update() -> None:
    _, sampler = filled(4)
    sampler.changed(Change(slots(2), slots(0, 1)))
    sampler.update(slots(0, 3), np.array([9.0, 0.5], np.float32), 1.0)
    assert priorities(sampler)[[0, 1]].tolist() == [0.0, 0.0]
    assert set(sampler.draw(np.random.default_rng(0), 200, beta=0.4)[0].tolist()) == {2, 3}
    sampler.changed(Change(slots(1), slots()))
    assert priorities(sampler)[1] == 1.0  # an error that nothing was learned from is not the largest


def test_nothing_can_be_drawn_where_nothing_is() -> None:
    with pytest.raises(ValueError, match="no transition to draw"):
        PrioritizedSampler(Replay(INFO, 1, 4)).draw(np.random.default_rng(0), 2, beta=0.4)


@given(st.lists(st.lists(st.sampled_from(EVENTS), min_size=2, max_size=2), min_size=1, max_size=40), st.booleans())
def test_exactly_the_slots_that_can_be_drawn_have_a_priority(rows: list[list[str]], frames: bool) -> None:
    replay = FrameReplay(FRAMES, 2, 14, 3) if frames else Replay(INFO, 2, 14)
    sampler, feed = PrioritizedSampler(replay), feed_for(replay)
    for events in rows:
        ready, gone = feed.play(events, replay)
        sampler.changed(Change(slots(*sorted(ready)), slots(*sorted(gone))))
    some = np.flatnonzero(priorities(sampler))
    assert some.size == len(replay)
    if len(replay):
        assert set(replay.draw(np.random.default_rng(0), 300).tolist()) <= set(some.tolist())


def test_a_sampler_that_was_brought_back_goes_on_as_if_nothing_had_happened() -> None:
    replay, sampler = filled(300, capacity=333)
    rng = np.random.default_rng(0)
    for _ in range(20):
        index, _ = sampler.draw(rng, 64, beta=0.4)
        sampler.update(index, rng.standard_normal(64).astype(np.float32), 0.6)
    restored = PrioritizedSampler(replay)
    restored.arrays["priorities"].load([chunk.copy() for chunk in sampler.arrays["priorities"].chunks()])
    restored.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for one in (sampler, restored):
        one.changed(Change(slots(300), slots()))
    for seed in range(3):
        for ours, theirs in zip(
            *(one.draw(np.random.default_rng(seed), 64, beta=0.4) for one in (sampler, restored)), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    assert restored._tree.tobytes() == sampler._tree.tobytes()


def test_priorities_that_change_are_noted() -> None:
    _, sampler = filled(4, capacity=10)
    leaves = sampler.arrays["priorities"]
    assert leaves.used == 4
    before = leaves.versions.copy()
    sampler.update(slots(1), np.ones(1, np.float32), 0.6)
    assert (leaves.versions > before).all()
