"""EfficientZero: each switch over MuZero, alone and all off; value prefixes, consistency, ages, frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance import CONTINUOUS, DISCRETE, ENGINES
from memory_model import KINDS, STACK, World
from off_policy_reference import weights_of
from planning import (
    PLAIN,
    PixelMuZero,
    Remembering,
    acted,
    assert_forms_agree,
    batch_of,
    disturb,
    history,
    learner_of,
    memory_of,
    observations,
    windows_from,
)
from replay_feed import event_rows
from rl_training.algorithms import efficientzero
from rl_training.algorithms.base import Context
from rl_training.algorithms.efficientzero import build_efficientzero
from rl_training.algorithms.muzero import MuZero
from rl_training.experiment.config import load_config
from rl_training.models.efficientzero import ValuePrefixNetwork, prefix_targets
from rl_training.ops.two_hot import expected, two_hot
from rl_training.runtime.rng import make_streams
from rl_training.runtime.train import build
from rl_training.testing.contract import tiny_config
from rl_training.types import UserError

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


def assert_equal_states(ours: MuZero, theirs: MuZero) -> None:
    for name, weights in weights_of(theirs).items():
        assert torch.equal(weights_of(ours)[name], weights), name


def learned(algo: str, info: Any = DISCRETE, updates: int = 3, **settings: Any) -> tuple[MuZero, dict[str, float]]:
    """A learner after some updates, and the metrics of the last one."""
    learner = learner_of(algo, info, **settings)
    memory = memory_of(learner)
    return learner, [learner.update(memory) for _ in range(updates)][-1]


@EACH_ENGINE
@pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize(("search", "plain"), [("puct", "muzero"), ("gumbel", "gumbel_muzero")])
def test_with_all_switches_off_it_is_the_algorithm_of_its_search(
    engine: str, info: Any, search: str, plain: str
) -> None:
    shared = {"engine": engine, "reanalyze_ratio": 0.25, "temperature": 0.7}
    (ours, metrics), (theirs, wanted) = (
        learned("efficientzero", info, **shared, **PLAIN, search=search),
        learned(plain, info, **shared),
    )
    assert metrics == wanted | {"consistency_loss": 0.0}
    assert_equal_states(ours, theirs)
    obs = observations(info, 4, np.random.default_rng(0))
    np.testing.assert_array_equal(acted(ours, obs).action, acted(theirs, obs).action)


@pytest.mark.parametrize(
    "switch",
    [
        {"value_prefix": True},
        {"consistency_coef": 1.0},
        {"horizon_age": 10},
        {"search_value_age": 20},
        {"search": "gumbel"},
    ],
    ids=lambda switch: next(iter(switch)),
)
def test_each_switch_changes_what_is_learned(switch: dict[str, Any]) -> None:
    shared = PLAIN | {"engine": "autograd", "reanalyze_ratio": 0.5}
    plain, _ = learned("efficientzero", updates=1, **shared)
    other, _ = learned("efficientzero", updates=1, **shared | switch)
    before, after = (weights_of(learner)["network"] for learner in (plain, other))
    assert before.shape != after.shape or not torch.equal(before, after)


# Value prefixes


def test_prefixes_are_sums_since_the_last_reset() -> None:
    reward = np.arange(1.0, 8.0, dtype=np.float32)[:, None] * np.array([1.0, -2.0], np.float32)
    sums = prefix_targets(reward, 3)
    np.testing.assert_array_equal(sums[:, 0], [1.0, 3.0, 6.0, 4.0, 9.0, 15.0, 7.0])
    np.testing.assert_array_equal(sums[:, 1], -2.0 * sums[:, 0])
    np.testing.assert_array_equal(prefix_targets(reward, 1), reward)
    np.testing.assert_array_equal(prefix_targets(reward, 7), np.cumsum(reward, axis=0))
    before = np.concatenate([np.zeros((1, 2)), sums[:-1]])
    before[::3] = 0.0
    np.testing.assert_array_equal(sums - before, reward)


def test_an_update_learns_prefixes_and_searches_read_rewards_from_them() -> None:
    learner = learner_of("efficientzero", unroll_steps=5, prefix_horizon=2)
    network: Any = learner.policy.network
    assert isinstance(network, ValuePrefixNetwork)
    batch = batch_of(history(learner, "ggggggt"), learner, [0, 5])
    rewards = batch.reward
    wanted = [rewards[0], rewards[0] + rewards[1], rewards[2], rewards[2] + rewards[3], rewards[4]]
    np.testing.assert_allclose(learner.model.goals(batch).reward, two_hot(np.stack(wanted), network.reward_support))
    assert not rewards[2:, 1].any(), "after the end nothing is added to the sum"
    assert (batch.reward_weight > 0.0).all()
    # A walk of the model: the sums that it predicts, as differences.
    with torch.no_grad():
        state, sums, steps = network.start(network.represent(torch.from_numpy(batch.obs))), [], []
        for action in torch.from_numpy(batch.action):
            before = state
            state, logits = network.step(state, action)
            steps.append(network.reward_of(before, logits))
            sums.append(expected(logits, network.reward_support))
    for k in range(5):
        since = sums[k] if k % 2 == 0 else sums[k] - sums[k - 1]
        torch.testing.assert_close(steps[k], since, atol=1e-5, rtol=1e-5)
    assert state.memory[:, -1].tolist() == [1.0, 1.0], "one step since the last reset"


@pytest.mark.parametrize("horizon", [1, 2, 5])
@pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_both_forms_learn_the_same_prefixes(info: Any, horizon: int) -> None:
    assert_forms_agree("efficientzero", info, prefix_horizon=horizon, consistency_coef=0.0, unroll_steps=5)


# Consistency


@pytest.mark.parametrize("value_prefix", [False, True], ids=["rewards", "prefixes"])
@pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_both_forms_learn_the_same_with_consistency(info: Any, value_prefix: bool) -> None:
    assert_forms_agree("efficientzero", info, value_prefix=value_prefix, consistency_coef=1.5, ent_coef=0.05)


def test_the_consistency_loss_is_the_cosine_with_what_was_seen() -> None:
    learner = learner_of("efficientzero", value_prefix=False, unroll_steps=3)
    disturb(learner.learners["consistency"].weights.data, 3, 0.2)
    batch = batch_of(history(learner, "ggtggg"), learner, [0, 3])
    outcome = learner.model.differentiate(batch, learner.cfg)
    network, consistency = learner.policy.network, learner.model.extras.consistency
    assert consistency is not None
    assert batch.later_obs is not None
    total, seen = 0.0, 0
    with torch.no_grad():
        for b in range(2):
            latent = network.represent(torch.from_numpy(batch.obs[b : b + 1]))
            for k in range(3):
                latent, _ = network.dynamics(latent, torch.from_numpy(batch.action[k, b : b + 1]))
                there = network.represent(torch.from_numpy(batch.later_obs[k, b : b + 1]))
                module = consistency.module
                guess, truth = module.predictor(module.projector(latent)), module.projector(there)
                if batch.later_weight()[k, b] > 0.0:
                    seen += 1
                    total -= torch.cosine_similarity(guess, truth).item() / (3 * 2)
    assert seen == 4
    assert outcome.consistency == pytest.approx(total, rel=1e-4)


@EACH_ENGINE
def test_a_schedule_may_raise_the_consistency_from_0(engine: str) -> None:
    learner = learner_of("efficientzero", engine=engine, **PLAIN)
    memory = memory_of(learner)
    before = weights_of(learner)["consistency"]
    assert learner.update(memory)["consistency_loss"] == 0.0
    assert torch.equal(weights_of(learner)["consistency"], before)
    learner.set_hyperparameters(consistency_coef=1.0)
    assert learner.update(memory)["consistency_loss"] != 0.0
    assert not torch.equal(weights_of(learner)["consistency"], before)


# Ages


@given(event_rows(), st.sampled_from(sorted(KINDS)), st.integers(3, 14))
def test_ages_count_the_steps_since_a_row_was_stored(rows: list[list[str]], kind: str, positions: int) -> None:
    world = World(kind, len(rows[0]), positions)
    for events in rows:
        world.play(events)
    starts = world.slots()
    slots = np.array(sorted(starts))
    ages = world.memory.ages(world.memory.replay.numbers_of(slots))
    for slot, age in zip(slots, ages, strict=True):
        env, number = starts[slot]
        later = world.feed.stored[env][number + 1 :]
        # A replay of frames keeps one more after every episode.
        ends = sum(row.last for row in world.feed.stored[env][number:]) if world.frames else 0
        assert age == (len(later) + ends) * world.num_envs


def test_old_windows_have_shorter_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of("efficientzero", n_step=4, horizon_age=15, **PLAIN)
    memory = memory_of(learner, 40)
    asked: list[np.ndarray] = []
    returns = learner.returns
    monkeypatch.setattr(learner, "returns", lambda windows, n_step: returns(windows, asked.append(n_step) or n_step))
    # Slots go from old to new; two environments, so the newest pair has age 0 and each pair before it two more.
    batch = batch_of(memory, learner, [79, 78, 66, 65, 64, 50, 48, 20, 0])
    ages = [0, 0, 12, 14, 14, 28, 30, 58, 78]
    assert asked[0].tolist() == [max(1, 4 - age // 15) for age in ages] == [4, 4, 4, 4, 4, 3, 2, 1, 1]
    windows = windows_from(memory, learner, [0, 1])
    np.testing.assert_allclose(batch.value[:, -1], returns(windows, np.array([1, 1]))[:, 0], rtol=1e-5)
    assert not np.allclose(batch.value[:, -1], returns(windows, np.array([4, 4]))[:, 0], rtol=1e-2)


def test_old_windows_learn_the_values_of_their_searches() -> None:
    learner = learner_of("efficientzero", search_value_age=30, **PLAIN)
    memory = memory_of(learner, 40)
    starts = [0, 20, 48, 49, 50, 79]  # of ages 78, 58, 30, 30, 28 and 0
    windows = windows_from(memory, learner, starts)
    searched = windows.records["search_value"][:4].copy()
    real, plain = windows.real[:4].copy(), learner.returns(windows, np.full(6, 2))
    batch = batch_of(memory, learner, starts)
    np.testing.assert_array_equal(batch.value[:, :2], np.where(real, searched, plain)[:, :2])
    np.testing.assert_array_equal(batch.value[:, 2:], plain[:, 2:])
    assert not real[:, :2].all(), "past the end a value is not that of a search"


def test_values_of_a_reanalysed_search_are_used_at_once() -> None:
    learner = learner_of("efficientzero", search_value_age=0, reanalyze_ratio=1.0, **PLAIN)
    memory, batches = memory_of(learner, kind=Remembering), []
    differentiate = learner.model.differentiate
    learner.model.differentiate = lambda batch, cfg: differentiate(batches.append(batch) or batch, cfg)  # type: ignore
    learner.update(memory)
    (windows,), ((_, noted),) = memory.drawn, memory.notes
    old = windows.real[:4] & (memory.ages(windows.index[0]) > 0)
    found = np.zeros(windows.real[:4].shape, np.float32)
    found[windows.real[:4]] = noted["columns"]["search_value"]
    np.testing.assert_array_equal(batches[0].value[old], found[old])
    assert not np.isclose(found[old], windows.records["search_value"][:4][old]).any()


# Images


def with_frames() -> MuZero:
    """A learner on stacks of frames of two pixels, with a network for them."""
    settings = {"unroll_steps": 3, "n_step": 2, "value_prefix": False, "augment": False}
    config = load_config({"algo": "efficientzero", "env_id": "none", "model": "planning:PixelMuZero"} | settings)
    context = Context(
        info=KINDS["frames"][0],
        config=config.algorithm,
        model=config.model,
        num_envs=2,
        device=torch.device("cpu"),
        streams=make_streams(0),
        model_factory=PixelMuZero,
    )
    return build_efficientzero(context)


def test_frames_are_those_of_the_right_steps() -> None:
    """Stacks of the first state, of the later ones, and of the states that targets bootstrap from."""
    learner, world, rng = with_frames(), World("frames", 2, 30), np.random.default_rng(0)
    for _ in range(60):
        world.play(rng.choice(["go", "go", "go", "go", "terminated", "truncated", "cut"], 2).tolist())
    starts = world.slots()
    slots = np.array(sorted(starts))
    windows = world.memory.replay.gather_windows(slots, 5, across_episodes=False)
    records = {"policy": np.full((5, len(slots), 4), 0.25, np.float32)}
    windows = replace(windows, records=records)
    seen: list[np.ndarray] = []
    learner.teacher.values = lambda rows: seen.append(rows) or np.zeros(len(rows), np.float32)  # type: ignore
    batch = learner.unroll_batch(windows, learner.returns(windows, np.full(len(slots), 2)))
    assert batch.later_obs is not None
    assert batch.obs.shape[1:] == (STACK, 1, 2)
    bootstrapped = seen[0].reshape(4, len(slots), STACK, 1, 2)
    checked = 0
    for b, slot in enumerate(slots):
        env, number = starts[slot]
        rest = world.feed.stored[env][number:]
        length = next((n + 1 for n, row in enumerate(rest) if row.last), len(rest))
        np.testing.assert_array_equal(batch.obs[b], rest[0].obs)
        for k in range(4):
            np.testing.assert_array_equal(bootstrapped[k, b], rest[min(k + 1, length - 1)].next_obs)
            assert (batch.policy_weight[k, b] > 0.0) == (k < length)
            if 1 <= k < length:
                np.testing.assert_array_equal(batch.later_obs[k - 1, b], rest[k].obs)
                checked += 1
    assert checked > 20


def test_images_are_moved_for_learning_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first observations and the later ones, with the batch's stream; neither searches nor bootstraps."""
    run = build(tiny_config("efficientzero", {"observations": "image"}, channels=4, n_step=1, batch_size=4))
    run.start()
    moved: list[int] = []
    call = efficientzero.Augmentation.__call__

    def noted(self: Any, obs: Any, movement: Any) -> Any:
        moved.append(len(obs))
        return call(self, obs, movement)

    monkeypatch.setattr(efficientzero.Augmentation, "__call__", noted)
    run.advance()
    run.evaluate(1)
    run.close()
    learner: Any = run.algorithm
    assert moved == [4, 8] * learner.n_updates
    assert learner.n_updates > 0


# Networks that do not fit


def test_value_prefixes_need_a_layer_that_they_can_replace() -> None:
    with pytest.raises(UserError, match=r"model='planning:UnusualReward': value_prefix replaces the layer `reward`"):
        build(tiny_config("efficientzero", model="planning:UnusualReward"))
    build(tiny_config("efficientzero", model="planning:UnusualReward", value_prefix=False)).close()
