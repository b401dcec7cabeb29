"""Actors step environments with a policy, and sources hand what they gather to a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms.base import Policy
from rl_training.data.rollout import Rollout
from rl_training.ops.exploration import uniform_actions
from rl_training.runtime.actors.actor import Actor, Steps
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.actors.sources import Local, Nothing
from rl_training.runtime.checkpoints.codec import decode, decode_tensors, encode
from rl_training.runtime.rng import actor_streams, make_streams
from rl_training.runtime.train import Run, build
from rl_training.testing import TinyEnv, differences, tiny_config
from rl_training.types import Act, Array, ArrayKind, Carry, Records, SpaceInfo, Step, UserError


class Counting(Policy):
    """Carries how many steps of the episode it has seen, as a tree, and records it."""

    def __init__(self, info: SpaceInfo) -> None:
        self.info, self.values = info, {}

    def initial_carry(self, count: int) -> Carry:
        return {"seen": np.zeros(count, np.int64), "more": (np.zeros((count, 2), np.float32), [np.zeros(count)])}

    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        pair, (number,) = carry["more"]
        more = (np.where(mask[:, None], np.float32(0.0), pair), [np.where(mask, 0.0, number)])
        return {"seen": np.where(mask, 0, carry["seen"]), "more": more}

    def records(self, info: SpaceInfo) -> Records:
        return {"seen": ArrayKind((), "int64")}

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        pair, (number,) = carry["more"]
        after = {"seen": carry["seen"] + 1, "more": (pair + np.float32(0.5), [number + 0.25])}
        return Act(rng.integers(0, 3, len(obs)), after, {"seen": carry["seen"]})

    def policy_state(self) -> dict[str, Tensor]:
        return {}

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        """It has no tensors."""


class CountingWithin(Counting):
    """The same count, of the steps of a trajectory: no memory of episodes."""

    carry_per_rollout = True

    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        return carry


class Unrecorded(CountingWithin):
    """Records and carries nothing, and must not be asked where actions are random."""

    def initial_carry(self, count: int) -> Carry:
        return None

    def records(self, info: SpaceInfo) -> Records:
        return {}

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        raise AssertionError("the policy was asked")


class Drawing(CountingWithin):
    """Draws its greedy actions, too, from the generator of the caller."""

    def __init__(self, info: SpaceInfo) -> None:
        super().__init__(info)
        self.explored: list[bool] = []

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        self.explored.append(explore)
        return Act(rng.integers(0, 3, len(obs)), carry)


@pytest.fixture
def run() -> Iterator[Run]:
    made = build(tiny_config("ppo", num_envs=3))
    made.start()
    yield made
    made.close()


def collector_of(run: Run) -> Collector:
    assert isinstance(run.source, Local)
    return run.source.collector


def plain(step: Step) -> dict[str, Any]:
    return {field.name: getattr(step, field.name) for field in fields(step)}


def times(step: Step) -> list[int]:
    """How many steps of its episode each environment of `TinyEnv` had made before a step."""
    return [int(time) for time in np.rint(7.0 * step.obs[:, 2])]


def copied(streams: Any) -> dict[str, Any]:
    return {name: stream.bit_generator.state for name, stream in streams.items()}


# Gathering


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo", "dqn", "sac"])
def test_gathered_steps_are_those_of_a_collector_that_is_stepped_by_hand(algo: str) -> None:
    gathering, stepping = (build(tiny_config(algo)) for _ in range(2))
    for run in (gathering, stepping):
        run.start()
    steps = [step for count in (5, 1, 12) for step in gathering.source.gather(count, Steps())]
    policy, collector, rng = stepping.algorithm.policy, collector_of(stepping), stepping.streams["policy"]
    carry = policy.initial_carry(2)
    for t, step in enumerate(steps):
        if policy.carry_per_rollout and t in (0, 5, 6):
            carry = policy.initial_carry(2)
        act = policy.act(collector.obs, carry, explore=True, rng=rng)
        by_hand = collector.step(act.action, act.records)
        carry = policy.begin_episodes(act.carry, by_hand.terminated | by_hand.truncated)
        assert differences(plain(step), plain(by_hand)) == []
        assert step.records.keys() == policy.records(policy.info).keys()
    assert any((step.terminated | step.truncated).any() for step in steps)
    assert gathering.source.steps == stepping.source.steps == 36
    assert copied(gathering.streams) == copied(stepping.streams)
    gathering.close()
    stepping.close()


def test_the_carry_is_handed_on_and_begins_anew_with_every_episode(run: Run) -> None:
    actor = Actor(Counting(run.info), collector_of(run), np.random.default_rng(0))
    steps = [step for _ in range(4) for step in actor.gather(6, Steps())]
    assert [step.records["seen"].tolist() for step in steps] == [times(step) for step in steps]
    assert sum((step.records["seen"] == 0).sum() for step in steps[1:]) > 3, "episodes have begun"
    assert any(step.records["seen"].max() > 0 for step in steps[6::6]), "also across trajectories"
    # Every leaf of the tree goes along.
    pair, (number,) = actor.carry["more"]
    np.testing.assert_array_equal(pair, 0.5 * np.stack([actor.carry["seen"]] * 2, axis=1))
    np.testing.assert_array_equal(number, 0.25 * actor.carry["seen"])


def test_a_carry_that_is_no_memory_of_episodes_begins_anew_with_every_trajectory(run: Run) -> None:
    actor = Actor(CountingWithin(run.info), collector_of(run), np.random.default_rng(0))
    for _ in range(3):
        steps = actor.gather(8, Steps())
        assert [step.records["seen"].tolist() for step in steps] == [[t] * 3 for t in range(8)]


def test_a_rollout_is_laid_out_by_what_the_policy_declares(run: Run) -> None:
    policy = Counting(run.info)
    rollout = Rollout(20, 3, run.info, policy.records(run.info))
    actor = Actor(policy, collector_of(run), np.random.default_rng(0))
    for _ in range(2):  # the second time over what the first left behind
        rollout.clear()
        assert actor.gather(20, rollout) is rollout
        assert rollout.records["seen"].dtype == np.int64
        np.testing.assert_array_equal(rollout.records["seen"], np.rint(7.0 * rollout.obs[:, :, 2]))


@pytest.mark.parametrize("actions", TinyEnv.ACTIONS)
def test_random_actions_are_uniform_and_are_recorded_as_the_policys_own(actions: str) -> None:
    run = build(tiny_config("recurrent_ppo", {"actions": actions}, num_envs=4))
    run.start()
    policy = run.algorithm.policy
    first = run.source.gather(1, Steps(), randomly=True)[0]
    steps = [first, *run.source.gather(300, Steps(), randomly=True)]
    run.close()
    assert [step.records.keys() for step in steps] == [policy.records(run.info).keys()] * 301
    # The state is that of the policy, whoever chose the action: zeros where an episode begins, and only there.
    for step in steps:
        assert step.records["state"].any(axis=1).tolist() == [time > 0 for time in times(step)]
    taken = np.concatenate([step.action for step in steps]).reshape(1204, -1)
    if run.info.continuous:
        assert np.abs(taken).max() <= 1.0
        np.testing.assert_allclose(
            np.quantile(taken, [0.25, 0.5, 0.75], axis=0), [[-0.5] * 2, [0.0] * 2, [0.5] * 2], atol=0.1
        )
    else:
        for column, count in zip(taken.T, run.info.action_counts, strict=True):
            np.testing.assert_allclose(
                np.bincount(column, minlength=count) / 1204, np.full(count, 1 / count), atol=0.06
            )


def test_without_records_random_actions_ask_no_policy(run: Run) -> None:
    collector, rng = collector_of(run), np.random.default_rng(4)
    actor = Actor(Unrecorded(run.info), collector, np.random.default_rng(4))
    obs = collector.obs.copy()
    (step,) = actor.gather(1, Steps(), randomly=True)
    np.testing.assert_array_equal(step.action, uniform_actions(run.info, obs, rng))
    assert step.records == {}
    with pytest.raises(AssertionError, match="the policy was asked"):
        actor.gather(1, Steps())


def test_an_actor_explores_unless_it_is_told_not_to(run: Run) -> None:
    for explore in (True, False):
        policy = Drawing(run.info)
        Actor(policy, collector_of(run), np.random.default_rng(0), explore=explore).gather(3, Steps())
        assert policy.explored == [explore] * 3


def test_one_episode_is_played_from_its_start_to_its_end() -> None:
    run = build(tiny_config("ppo", num_envs=1))
    run.start()
    actor = Actor(Counting(run.info), collector_of(run), np.random.default_rng(0))
    lengths = set()
    for _ in range(10):
        steps = actor.play(None)
        assert [step.records["seen"].tolist() for step in steps] == [[t] for t in range(len(steps))]
        assert [bool(step.terminated[0] or step.truncated[0]) for step in steps] == [False] * (len(steps) - 1) + [True]
        lengths.add(len(steps))
    assert len(lengths) > 1
    assert len(actor.play(1)) == 1
    run.close()


# What is saved


def saved_and_read(state: Any) -> Any:
    text, tensors = encode(state, "envs")
    return decode(text, decode_tensors(tensors))


@pytest.mark.parametrize("policy", [Counting, CountingWithin])
def test_an_actor_that_is_brought_back_goes_on_as_if_it_had_never_stopped(policy: type[Counting]) -> None:
    first, second = (build(tiny_config("ppo", num_envs=3)) for _ in range(2))
    first.start()
    actor = Actor(policy(first.info), collector_of(first), np.random.default_rng(0))
    actor.gather(10, Steps())
    state = saved_and_read(actor.state_dict())
    assert ("carry" in state) != policy.carry_per_rollout
    generators = [np.random.default_rng(1), np.random.default_rng(1)]
    collector_of(second).rng.bit_generator.state = collector_of(first).rng.bit_generator.state
    actor._rng, again = generators[0], Actor(policy(second.info), collector_of(second), generators[1])
    again.load_state_dict(state)
    if not policy.carry_per_rollout:
        assert differences(again.carry, actor.carry) == []
    for left, right in zip(actor.gather(10, Steps()), again.gather(10, Steps()), strict=True):
        assert differences(plain(left), plain(right)) == []
    first.close()
    second.close()


def test_the_carry_of_an_episode_that_a_resume_lost_begins_anew(run: Run) -> None:
    actor = Actor(Counting(run.info), collector_of(run), np.random.default_rng(0))
    while (actor.carry["seen"] == 0).any():
        actor.gather(1, Steps())
    seen = actor.carry["seen"].copy()
    state = actor.state_dict()
    state["raw"][1] += 1.0  # it will not show this again
    actor.load_state_dict(state)
    assert actor.carry["seen"].tolist() == [seen[0], 0, seen[2]]
    assert not run.source.exact
    lost = run.source.take_lost()
    assert lost is not None
    assert lost.tolist() == [False, True, False]
    assert run.source.take_lost() is None
    (step,) = actor.gather(1, Steps())
    assert step.records["seen"].tolist() == times(step)


def test_the_state_of_environments_is_kept_by_the_name_of_their_actor(run: Run) -> None:
    run.advance()
    state = run.snapshot().envs
    assert state.keys() == {"actor"}
    assert state["actor"]["steps"] == run.source.steps == run.steps > 0


@pytest.mark.parametrize(
    ("names", "there"), [(["actor/1"], "'actor/1'"), (["actor", "other"], "'actor', 'other'"), ([], "none")]
)
def test_the_environments_of_other_actors_are_refused_in_one_line(names: list[str], there: str, run: Run) -> None:
    saved = run.snapshot()
    other = build(run.config)
    with pytest.raises(UserError) as caught:
        other.load(replace(saved, envs=dict.fromkeys(names, saved.envs["actor"])))
    other.close()
    assert str(caught.value) == f"the checkpoint has the environments of {there}; this run has those of 'actor'"


# Sources


def test_a_local_source_shows_its_actor(run: Run) -> None:
    source = run.source
    assert isinstance(source, Local)
    assert (source.num_envs, source.steps, source.exact) == (3, 0, True)
    assert source.actor.policy is run.algorithm.policy
    source.gather(20, Steps())
    assert source.steps == source.collector.steps == 60
    assert source.metrics() == source.collector.metrics()
    assert source.metrics()["episodes"] > 0
    # The actor has the learner's own policy, so that there is nothing to hand over.
    source.publish(pytest.fail, {"epsilon": 0.5}, 1)  # type: ignore[arg-type]
    assert source.actor.policy is run.algorithm.policy


def test_a_run_without_environments_has_a_source_that_gathers_nothing() -> None:
    run = build(tiny_config("bc"))
    run.start()
    source = run.source
    assert isinstance(source, Nothing)
    before = copied(run.streams)
    assert source.gather(5, Steps()) == []
    assert (source.num_envs, source.steps, source.exact, source.metrics()) == (0, 0, True, {})
    assert source.take_lost() is None
    assert copied(run.streams) == before
    run.advance()
    assert run.snapshot().envs == {}
    assert run.snapshot().meta["resume"] == "exact"
    run.close()


# Random streams


def test_the_first_actor_has_the_streams_of_the_run_and_others_have_their_own() -> None:
    streams = make_streams(7)
    pairs = [actor_streams(7, number) for number in range(4)]
    assert [stream.bit_generator.state for stream in pairs[0]] == [
        streams[name].bit_generator.state for name in ("env", "policy")
    ]
    states = [repr(stream.bit_generator.state) for pair in pairs for stream in pair]
    states.append(repr(streams["batch"].bit_generator.state))
    assert len(set(states)) == 9
    assert {repr(stream.bit_generator.state) for stream in actor_streams(8, 1)}.isdisjoint(states)


def test_an_actor_more_moves_no_other_stream() -> None:
    alone = make_streams(7)
    beside, _ = make_streams(7), actor_streams(7, 1)[0].random(100)
    assert copied(alone) == copied(beside)
    first, later = actor_streams(7, 2), actor_streams(7, 2)
    assert [stream.random() for stream in first] == [stream.random() for stream in later]


def test_an_evaluation_draws_from_a_stream_of_its_own(run: Run) -> None:
    policy = Drawing(run.info)
    before = copied(run.streams)
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    first, second = run.evaluator(policy, 5), run.evaluator(policy, 5)
    assert first == second
    assert len(set(first.returns)) > 1
    assert set(policy.explored) == {False}
    assert copied(run.streams) == before
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert np.random.get_state()[1].tolist() == numpy_before  # type: ignore[index]
    # What it draws there is used: other draws are other actions.
    run.evaluator.close()
    greedy = run.evaluate(5)
    assert greedy.returns != first.returns


def test_a_prediction_draws_from_a_stream_of_its_own() -> None:
    from rl_training import PPO

    agent, again = (PPO(TinyEnv, num_envs=2, n_steps=6, hidden_sizes=[8]) for _ in range(2))
    before = copied(agent._run.streams)
    obs = np.zeros((20, 3), np.float32)
    drawn = [agent.predict(obs)[0] for _ in range(2)]
    assert copied(agent._run.streams) == before
    assert not np.array_equal(*drawn)
    np.testing.assert_array_equal(again.predict(obs)[0], drawn[0])
    agent.close()
    again.close()
