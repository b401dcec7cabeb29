"""What a recurrent policy carries: from step to step, from rollout to rollout, and never into another episode."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance import chosen
from rl_training import PPO, RecurrentPPO, UserError
from rl_training.experiment.config import load_config
from rl_training.runtime.actors.sources import Local
from rl_training.runtime.datasets import Behaviour, UniformPolicy, collect
from rl_training.runtime.train import Run, build
from rl_training.testing import TinyEnv, tiny_config
from rl_training.types import Act

SMALL: dict[str, Any] = {"num_envs": 2, "n_steps": 6, "rnn_hidden_size": 8, "hidden_sizes": [8], "ortho_init": False}

EACH_ENGINE = pytest.mark.parametrize("agent", ["auto", "autograd"], indirect=True)


def started(**settings: Any) -> Run:
    run = build(tiny_config("recurrent_ppo", **settings))
    run.start()
    return run


@pytest.fixture
def agent(request: pytest.FixtureRequest) -> Any:
    made = RecurrentPPO("CartPole-v1", engine=getattr(request, "param", "auto"), **SMALL)
    made.learn(24)
    yield made
    made.close()


def noted(run: Run) -> tuple[list[Any], list[Any]]:
    """What the policy will carry into every step of training from now on, and the steps themselves."""
    carried: list[Any] = []
    steps: list[Any] = []
    assert isinstance(run.source, Local)
    actor, step = run.source.actor, run.source.collector.step

    def noting_step(action: Any, records: Any) -> Any:
        carried.append(deepcopy(actor.carry))  # with which the action was chosen
        steps.append(step(action, records))
        return steps[-1]

    run.source.collector.step = noting_step  # type: ignore[method-assign]
    return carried, steps


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_memory_lasts_as_long_as_an_episode(vectorization: str) -> None:
    config = load_config({"algo": "recurrent_ppo", "env_id": "CartPole-v1", "vectorization": vectorization, **SMALL})
    run = build(config)
    run.start()
    carried, steps = noted(run)
    for _ in range(9):
        run.advance()
    run.close()
    assert not carried[0].any()
    assert any((~step.real).any() for step in steps) == (vectorization == "native")
    for step, carry in zip(steps[:-1], carried[1:], strict=True):
        over = step.terminated | step.truncated | ~step.real
        assert carry.any(axis=1).tolist() == (~over).tolist()
    assert any(step.terminated.any() for step in steps)


class Lives(TinyEnv):
    """Says of every third step that a life was lost there; the episode goes on."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | {"life_lost": self._time % 3 == 0}


def test_a_lost_life_is_forgotten() -> None:
    run = build(tiny_config("recurrent_ppo", n_steps=12), env_factory=Lives)
    run.start()
    carried, steps = noted(run)
    for _ in range(3):
        run.advance()
    run.close()
    lost_in_episode = 0
    for step, following, carry in zip(steps[:-1], steps[1:], carried[1:], strict=True):
        time = np.rint(7.0 * following.obs[:, 2])  # 0 where an episode begins
        lost_in_episode += (time == 3).sum()
        assert step.terminated[time == 3].all()
        assert carry.any(axis=1).tolist() == (~np.isin(time, [0, 3, 6])).tolist()
    assert lost_in_episode > 3
    rollout = run.loop.rollout  # type: ignore[attr-defined]
    np.testing.assert_array_equal(rollout.starts[1:], ~rollout.records["state"][1:].any(axis=2))


def test_the_noise_of_a_policy_without_memory_is_drawn_for_every_rollout() -> None:
    run = build(tiny_config("ppo", {"actions": "continuous"}, use_sde=True))
    run.start()
    carried, _ = noted(run)
    for _ in range(2):
        run.advance()
    run.close()
    drawn, ages = zip(*carried, strict=True)
    assert [age.tolist() for age in ages] == [[-1, -1], *([steps, steps] for steps in range(1, 6))] * 2
    assert [noise.any() for noise in drawn] == [False, *[True] * 5] * 2
    assert all(np.array_equal(noise, drawn[1]) for noise in drawn[1:6])
    assert not np.array_equal(drawn[1], drawn[7])
    # A resume needs none of it.
    assert run.loop.parts == {}
    assert "carry" not in run.snapshot().envs["actor"]


def test_what_a_resume_lost_is_forgotten() -> None:
    run = started()
    for _ in range(3):
        run.advance()
    saved = run.snapshot()
    remembered = saved.envs["actor"]["carry"].numpy()
    assert remembered.any(axis=1).all()
    run.close()
    # As if the second environment had not shown again what it showed when the run was saved.
    resumed = build(run.config)
    resumed.load(replace(saved, envs={"actor": saved.envs["actor"] | {"lost": torch.tensor([False, True])}}))
    carried, _ = noted(resumed)
    resumed.advance()
    np.testing.assert_array_equal(carried[0], remembered * [[1.0], [0.0]])
    # What was lost is forgotten once: the next checkpoint says nothing of it.
    assert "lost" not in resumed.snapshot().envs["actor"]
    resumed.close()


def test_predict_remembers_by_its_state(agent: RecurrentPPO) -> None:
    obs = np.random.default_rng(0).normal(size=(5, 2, 4)).astype(np.float32)
    algorithm: Any = agent._run.algorithm
    state, carry = None, algorithm.policy.initial_carry(2)
    for row in obs:
        _, state = agent.predict(row, state, deterministic=True)
        carry = chosen(algorithm, row, carry, explore=False).carry
        np.testing.assert_array_equal(state, carry)
    started_anew = agent.predict(obs[0], state, episode_start=np.array([False, True]), deterministic=True)[1]
    fresh = agent.predict(obs[0], deterministic=True)[1]
    went_on = agent.predict(obs[0], state, deterministic=True)[1]
    np.testing.assert_allclose(started_anew[1], fresh[1], atol=1e-7)
    np.testing.assert_allclose(started_anew[0], went_on[0], atol=1e-7)
    assert np.abs(went_on - fresh).max(axis=1).min() > 1e-3
    np.testing.assert_array_equal(agent.predict(obs[0], None, np.ones(2), True)[1], fresh)


def test_predict_takes_one_observation_and_one_start(agent: RecurrentPPO) -> None:
    obs = np.ones(4, np.float32)
    action, state = agent.predict(obs, None, True, deterministic=True)
    assert np.shape(action) == ()
    again = agent.predict(obs, state, episode_start=[1], deterministic=True)[1]
    np.testing.assert_array_equal(again, state)


@pytest.mark.parametrize(
    ("state", "start", "words"),
    [
        (None, [True], r"episode_start=\[True\]: must be true or false for each of 2 observations"),
        (None, [0, 7], "must be true or false"),
        (np.zeros((3, 32), np.float32), None, "state: belongs to 3 observations, but 2 are given"),
        (np.zeros((2, 5), np.float32), None, r"state: has shape \(2, 5\); must be \(2, 32\)"),
        (np.zeros((2, 5)).tolist(), None, r"state: has shape \(2, 5\); must be \(2, 32\)"),
        (np.zeros((2, 5), np.float32), [0, 1], r"state: has shape \(2, 5\); must be \(2, 32\)"),
        (3.0, None, r"state: has shape \(\); must be \(2, 32\)"),
        ("memory", None, "state: is a str that is not made of numbers"),
        ([[0.0], [0.0, 1.0]], None, "state: is a list that is not made of numbers"),
        (np.full((2, 32), "0.5"), None, "state: is a ndarray that is not made of numbers"),
        (np.full((2, 32), None), [0, 1], "state: is a ndarray that is not made of numbers"),
        (np.full((2, 32), np.nan, np.float32), None, "state: has numbers that are not finite"),
        (np.full((2, 32), np.inf), [1, 1], "state: has numbers that are not finite"),
        (np.full((2, 32), 1e300), None, "state: has numbers that are not finite"),
        (np.full((2, 32), np.nan).tolist(), None, "state: has numbers that are not finite"),
    ],
)
@EACH_ENGINE
def test_a_wrong_state_or_start_is_said_in_one_line(state: Any, start: Any, words: str, agent: RecurrentPPO) -> None:
    with pytest.raises(UserError, match=words):
        agent.predict(np.zeros((2, 4), np.float32), state, start)


def _read_only(state: Any) -> Any:
    state = state.copy()
    state.flags.writeable = False
    return state


@pytest.mark.parametrize(
    "form",
    [np.ndarray.tolist, list, np.float64, torch.from_numpy, np.asfortranarray, _read_only, lambda a: a.astype(">f4")],
    ids=["lists", "rows", "double", "tensor", "fortran", "read only", "big endian"],
)
@pytest.mark.parametrize("start", [None, np.array([False, True])])
@EACH_ENGINE
def test_a_state_may_be_kept_in_another_form(form: Any, start: Any, agent: RecurrentPPO) -> None:
    obs = np.ones((2, 4), np.float32)
    state = agent.predict(obs, deterministic=True)[1]
    expected = agent.predict(obs, state, start, deterministic=True)[1]
    found = agent.predict(obs, form(state), start, deterministic=True)[1]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_a_policy_without_memory_takes_starts_too() -> None:
    plain = PPO("CartPole-v1", num_envs=2, n_steps=6)
    action, state = plain.predict(np.zeros((2, 4), np.float32), None, np.array([True, False]), deterministic=True)
    plain.close()
    assert action.shape == (2,)
    assert state is None


class Counting(UniformPolicy):
    """Remembers how many steps of the episode it has seen, which `TinyEnv` shows as well."""

    def __init__(self) -> None:
        """It has no settings."""

    def initial_carry(self, count: int) -> Any:
        return np.zeros(count)

    def act(self, obs: Any, carry: Any, *, explore: bool, rng: np.random.Generator) -> Act:
        np.testing.assert_allclose(7.0 * obs[:, 2], carry, atol=1e-5)
        return Act(np.full(len(obs), 2), carry + 1.0)

    def begin_episodes(self, carry: Any, mask: Any) -> Any:
        return np.where(mask, 0.0, carry)


def test_every_evaluation_episode_begins_with_a_fresh_memory() -> None:
    """Also those that an environment plays after others."""
    run = started()
    lengths = run.evaluator(Counting(), 40).lengths
    run.close()
    assert len(set(lengths)) > 1


def test_collected_episodes_begin_with_a_fresh_memory(tmp_path: Path) -> None:
    agent = RecurrentPPO(TinyEnv, **SMALL)
    agent.learn(24)
    run = agent.save(tmp_path / "saved")
    dataset = collect(None, [Behaviour(run)], episodes=4, deterministic=True)
    assert dataset.n_episodes == 4
    for begin, end in pairwise([*dataset.starts.tolist(), len(dataset)]):
        state = None
        for row in range(begin, end):
            action, state = agent.predict(dataset.obs[row], state, deterministic=True)
            assert action == dataset.action[row]
    agent.close()
