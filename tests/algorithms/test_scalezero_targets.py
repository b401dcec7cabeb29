"""What ScaleZero learns from, rebuilt from the memory: a whole update, what a search reads, what is searched again."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.parts.task_windows import moments_in, seen_whole
from rl_training.algorithms.parts.world_policy import Moments
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.data.batches import TERMINATED, TRUNCATED, WITHIN, Windows
from rl_training.experiment.config import load_config
from rl_training.runtime.train import Run
from rl_training.types import Array
from scalezero_by_hand import BATCH, CONTEXT, N_STEP, SETTINGS, STEPS, Reader, Told, stored, told
from scalezero_runs import Runs, learner_of, memories_of
from scalezero_worlds import stir

TASKS = {
    "near": {"env_id": "scalezero_runs:Walk", "num_envs": 2},
    "far": {
        "env_id": "scalezero_runs:Walk",
        "num_envs": 3,
        "env_kwargs": {"choices": 4, "scale": 20.0, "shift": 50.0, "worth": 5.0},
    },
}
CLOSE = 1e-5


@pytest.fixture
def runs() -> Iterator[Runs]:
    made = Runs()
    yield made
    made.close()


def run_of(runs: Runs, steps: int, **settings: Any) -> Run:
    """A run whose target network has weights of its own."""
    run = runs.of(load_config("scalezero", tasks=TASKS, **SETTINGS | settings), steps)
    learner = learner_of(run)
    torch.manual_seed(1)
    for network in (learner.network, learner.target.requires_grad_()):
        stir(network)
    learner.target.requires_grad_(False)
    return run


def watched(learner: ScaleZero, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[bytes, Any]]:
    """What every search of acting reads from now on, by task and present state: states, actions, absent steps."""
    seen: dict[str, dict[bytes, Any]] = {task: {} for task in learner.tasks}
    for task, planner in learner.policy.planners.items():

        def noted(moments: Moments, *how: Any, its: dict[bytes, Any] = seen[task], search: Any = planner.search) -> Any:
            for obs, action, absent in zip(*moments, strict=True):
                its[obs[-1].tobytes()] = obs.copy(), action.copy(), int(absent)
            return search(moments, *how)

        monkeypatch.setattr(planner, "search", noted)
    return seen


def drawn_by(rng: np.random.Generator, memory: Any) -> Windows:
    """The next windows of a task."""
    given = {"length": STEPS + N_STEP, "across_episodes": False, "beta": 0.4}
    return copy.deepcopy(memory.windows(BATCH, rng, **given))


def actions_of(rng: np.random.Generator, windows: Windows, choices: int) -> Array:
    """The actions that are read, random ones past the end of an episode."""
    action, beyond = windows.action.copy(), np.argwhere(~windows.real)
    for (row, window), drawn in zip(beyond, rng.integers(0, choices, len(beyond)), strict=True):
        action[row, window] = drawn
    return action


def records_in(memory: Any) -> dict[str, Array]:
    """What searches found, as it is remembered."""
    found = memory.replay.gather(stored(memory), gamma=1.0).records
    return {name: column.copy() for name, column in found.items()}


def priorities_in(memory: Any) -> Array:
    return memory.sampler.arrays["priorities"].data


def told_of(learner: ScaleZero, memory: Any, task: str, windows: Windows, actions: Array, old: Array) -> Told:
    """What the next update is to say of these windows."""
    online, target = (Reader(network, task, memory) for network in (learner.network, learner.target))
    return told(online, target, windows, actions, old)


def said_of(task: str, found: dict[str, float], expected: Told) -> dict[str, float]:
    """What the update said of that."""
    return {name: found[f"{task}/{name}"] for name in expected.metrics}


@pytest.mark.parametrize("age", [None, 20])
def test_an_update_is_what_its_windows_say(age: int | None, runs: Runs) -> None:
    weights = {"near": 1.0, "far": 3.0}
    run = run_of(runs, 9, prioritized=True, search_value_age=age, task_weights=weights)
    learner, memories = learner_of(run), memories_of(run)
    rng, expected, priorities, slots, ends = copy.deepcopy(learner.batch_rng), {}, {}, {}, set()
    for task, memory in memories.items():
        windows = drawn_by(rng, memory)
        actions = actions_of(rng, windows, learner.tasks[task].action_size)
        assert windows.weight is not None
        assert len(set(windows.weight)) > 1
        old = np.zeros(BATCH, np.bool_) if age is None else memory.ages(windows.index[0]) > age
        assert len(set(old)) == (1 if age is None else 2)
        ends |= set(windows.past.flat)
        expected[task] = told_of(learner, memory, task, windows, actions, old)
        slots[task] = memory.replay.slots_of(windows.index[0])
        priorities[task] = np.delete(priorities_in(memory), slots[task])
    found = learner.learn_from(memories, 1)
    for task, memory in memories.items():
        assert said_of(task, found, expected[task]) == pytest.approx(expected[task].metrics, rel=CLOSE)
        np.testing.assert_array_equal(np.delete(priorities_in(memory), slots[task]), priorities[task])
        # Differences of values, which are known to so many digits.
        errors = priorities_in(memory)[slots[task]] ** (1 / 0.6) - 1e-6
        np.testing.assert_allclose(errors, expected[task].errors, atol=CLOSE, rtol=CLOSE)
    loss = sum(weight * expected[task].loss for task, weight in weights.items()) / 4.0
    assert found["loss"] == pytest.approx(loss, rel=CLOSE)
    assert learner.batch_rng.bit_generator.state == rng.bit_generator.state
    assert ends >= {WITHIN, TERMINATED, TRUNCATED}


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_search_begins_in_scaled_states(engine: str, runs: Runs) -> None:
    run = run_of(runs, 9, engine=engine)
    learner = learner_of(run)
    for task, memory in memories_of(run).items():
        windows, absent = drawn_by(np.random.default_rng(0), memory), np.arange(BATCH) % CONTEXT
        obs, action = windows.obs[:CONTEXT].swapaxes(0, 1), windows.action[: CONTEXT - 1].T
        for planner, network in (
            (learner.policy.planners[task], learner.network),
            (learner.teachers[task], learner.target),
        ):
            found = planner.search(Moments(obs, action, absent), None).result.logits
            reader = Reader(network, task, memory)
            for b, first in enumerate(absent):
                _, says, _ = reader(obs[b, first:].astype(np.float64), action[b, first:])
                logits = says.policy[-1]
                np.testing.assert_allclose(found[b], logits, rtol=0.0, atol=CLOSE * np.abs(logits).max())


def test_windows_give_the_context_that_acting_had(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(runs, 0, buffer_size=40)
    acted, rng = watched(learner_of(run), monkeypatch), np.random.default_rng(0)
    for _ in range(16):
        run.advance()
    for task, memory in memories_of(run).items():
        assert memory.replay.full_rings().all()  # some windows begin with the oldest step that is there
        windows = memory.windows(80, rng, length=STEPS + N_STEP, across_episodes=False)
        mask, kinds = windows.real[: STEPS + 1] & (rng.random((STEPS + 1, 80)) < 0.7), set()
        moments, whole = moments_in(windows, mask, CONTEXT), seen_whole(windows, STEPS, CONTEXT)
        for place, (row, window) in enumerate(np.argwhere(mask)):
            obs, action, absent = acted[task][windows.obs[row, window].tobytes()]
            first = max(absent, CONTEXT - 1 - row)
            assert moments.absent[place] == first
            np.testing.assert_array_equal(moments.obs[place, first:], obs[first:])
            np.testing.assert_array_equal(moments.action[place, first:], action[first:])
            assert whole[row, window] == (first == absent)
            kinds.add((absent, int(first)))
        assert len(moments.obs) == np.count_nonzero(mask)
        # Of acting and of the window: what begins with an episode, or later, where some steps before are not drawn.
        assert kinds == {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)}


def test_reanalysis_searches_with_noise_and_keeps_what_saw_all(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(runs, 0, search_value_age=20)
    learner, memories = learner_of(run), memories_of(run)
    acted = watched(learner, monkeypatch)
    for _ in range(9):
        run.advance()
    learner.reanalyze_ratio = 0.5
    rng, expected, kept = copy.deepcopy(learner.batch_rng), {}, {}
    for task, memory in memories.items():
        windows = drawn_by(rng, memory)
        chosen = np.sort(rng.permutation(BATCH)[: BATCH // 2])
        places = [(row, window) for row in range(STEPS + 1) for window in chosen if windows.real[row, window]]
        seen = [acted[task][windows.obs[place].tobytes()] for place in places]
        first = [max(absent, CONTEXT - 1 - row) for (row, _), (_, _, absent) in zip(places, seen, strict=True)]
        obs, action, absent = (np.stack(part) for part in zip(*seen, strict=True))
        moments = Moments(obs, action, np.array(first))
        searched = learner.policy.recorded(learner.teachers[task].search(moments, rng))
        quiet = learner.policy.recorded(learner.teachers[task].search(moments, None))
        kept[task], partial = records_in(memory), set()
        for name, column in searched.items():
            assert not np.allclose(column, quiet[name])
            for place, value, whole in zip(places, column, first == absent, strict=True):
                windows.records[name][place] = value
                slot = int(memory.replay.slots_of(windows.index[place][None])[0])
                if whole:
                    kept[task][name][stored(memory) == slot] = value
                else:
                    partial.add(slot)
        assert partial
        actions = actions_of(rng, windows, learner.tasks[task].action_size)
        old = memory.ages(windows.index[0]) > 20
        assert old[chosen].any()
        expected[task] = told_of(learner, memory, task, windows, actions, old)
    found = learner.learn_from(memories, 1)
    for task, memory in memories.items():
        assert found[f"{task}/reanalyzed"] == 0.5
        assert said_of(task, found, expected[task]) == pytest.approx(expected[task].metrics, rel=CLOSE)
        for name, column in records_in(memory).items():
            np.testing.assert_array_equal(column, kept[task][name])
    assert learner.batch_rng.bit_generator.state == rng.bit_generator.state


def test_random_actions_are_remembered_as_they_were_executed(runs: Runs) -> None:
    policy = learner_of(run_of(runs, 0)).policy.for_task("far")
    rng, carry, others = np.random.default_rng(0), policy.initial_carry(6), 0
    for _ in range(CONTEXT + 1):
        obs = rng.standard_normal((6, *policy.info.obs_shape)).astype(np.float32)
        own = policy.act(obs, carry, explore=True, rng=copy.deepcopy(rng)).action
        act = policy.act_randomly(obs, carry, rng=rng)
        np.testing.assert_array_equal(act.carry["action"][:, -1], act.action)
        np.testing.assert_array_equal(act.carry["action"][:, :-1], carry["action"][:, 1:])
        np.testing.assert_array_equal(act.carry["obs"][:, -1], obs)
        np.testing.assert_array_equal(act.carry["count"], carry["count"] + 1)
        carry, others = act.carry, others + np.count_nonzero(own != act.action)
    assert others > 0  # the policy would have done something else
