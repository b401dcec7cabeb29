"""`agent.policy`: a small object that acts, without an environment or an optimiser, which may be pickled."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agent_helpers import OFF_POLICY, SMALL
from rl_training import DQN, PPO, SAC, Dreamer, MuZero, Predictor, RecurrentPPO, UserError
from rl_training.runtime.envs.make import EnvMaker
from rl_training.testing import LinearActorCritic, TinyEnv

AGENTS = [
    (PPO, "CartPole-v1", SMALL),
    (PPO, "Pendulum-v1", SMALL | {"use_sde": True}),
    (RecurrentPPO, "CartPole-v1", SMALL),
    (DQN, "CartPole-v1", OFF_POLICY),
    (SAC, "Pendulum-v1", OFF_POLICY),
    (MuZero, "CartPole-v1", {"num_simulations": 3, "hidden_sizes": [8], "eval_episodes": 1}),
    (Dreamer, "CartPole-v1", {"size": "xxs", "eval_episodes": 1}),
]
EVERY_KIND = pytest.mark.parametrize(
    ("kind", "env", "settings"), AGENTS, ids=[f"{kind.__name__}-{env[:4]}" for kind, env, _ in AGENTS]
)


def observations(agent: Any, count: int = 5) -> Any:
    return np.random.default_rng(0).normal(size=(count, *agent.policy.info.obs_shape)).astype(np.float32)


@EVERY_KIND
def test_a_pickled_policy_predicts_the_same(kind: Any, env: str, settings: dict[str, Any]) -> None:
    agent = kind(env, num_envs=2, **settings).learn(20)
    obs = observations(agent)
    agent.policy(obs)  # a policy that remembers has a state now
    copy = pickle.loads(pickle.dumps(agent.policy))
    assert isinstance(copy, Predictor)
    for deterministic in (True, False, False):
        ours, theirs = (policy(obs, deterministic=deterministic) for policy in (agent.policy, copy))
        np.testing.assert_array_equal(ours, theirs)
    agent.close()
    np.testing.assert_array_equal(copy(obs, deterministic=True).shape, ours.shape)


def test_it_acts_for_one_observation_or_a_batch_as_the_agent_predicts() -> None:
    agent = PPO("Pendulum-v1", **SMALL)
    obs = observations(agent)
    batch = agent.policy(obs, deterministic=True)
    np.testing.assert_array_equal(batch, agent.predict(obs, deterministic=True)[0])
    assert batch.shape == (5, 1)
    assert agent.policy(obs[0], deterministic=True).shape == (1,)
    assert agent.policy.device == torch.device("cpu")
    with pytest.raises(UserError, match=r"obs: has shape \(7,\); must be \(3,\), or a batch"):
        agent.policy(np.zeros(7))
    agent.close()


def test_it_follows_the_training_and_a_copy_does_not() -> None:
    agent = PPO("Pendulum-v1", **SMALL)
    policy, copy, obs = agent.policy, agent.policy.to("cpu"), observations(agent)
    before = policy(obs, deterministic=True)
    agent.learn(64)
    assert (policy(obs, deterministic=True) != before).any()
    np.testing.assert_array_equal(copy(obs, deterministic=True), before)
    assert repr(copy) == "<policy of ppo for Pendulum-v1>"
    agent.close()


def test_a_recurrent_one_keeps_its_state_from_call_to_call() -> None:
    agent = RecurrentPPO("Pendulum-v1", **SMALL)
    obs, policy = observations(agent, 3), agent.policy
    expected, state = [], None
    for row in obs:
        action, state = agent.predict(row, state, deterministic=True)
        expected.append(action)
    for _ in range(2):
        np.testing.assert_array_equal([policy(row, deterministic=True) for row in obs], expected)
        policy.reset()
    policy(obs[1], deterministic=True)
    np.testing.assert_array_equal(policy(obs[0], deterministic=True, episode_start=True), expected[0])
    with pytest.raises(
        UserError, match=r"state: belongs to 1 observations, but 3 are given; pass None, or call reset\(\)"
    ):
        policy(obs)
    agent.close()


def test_exploration_goes_on_as_it_was_when_it_was_pickled() -> None:
    agent = DQN("CartPole-v1", **OFF_POLICY, epsilon=1.0, epsilon_schedule=0.5).learn(40)
    copy = pickle.loads(pickle.dumps(agent.policy))
    obs = observations(agent, 64)
    np.testing.assert_array_equal(copy(obs), agent.policy(obs))
    assert len(set(copy(np.zeros((64, 4))).tolist())) == 2  # half of them are random
    agent.close()


def test_masks_and_dicts_are_taken_as_they_are() -> None:
    agent = PPO(lambda: TinyEnv(observations="dict", masked=True), **SMALL, num_envs=2)
    copy = pickle.loads(pickle.dumps(agent.policy))
    obs, info = TinyEnv(observations="dict", masked=True).reset(seed=1)
    for policy in (agent.policy, copy):
        assert (
            policy(obs, action_masks=info["action_mask"], deterministic=True)
            == agent.predict(obs, action_masks=info["action_mask"], deterministic=True)[0]
        )
    agent.close()


def test_it_needs_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    gym.register("Unknown-v0", entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=9)
    try:
        agent = PPO("Unknown-v0", **SMALL)
    finally:
        del gym.registry["Unknown-v0"]
    pickled = pickle.dumps(agent.policy)
    monkeypatch.setattr(EnvMaker, "__init__", lambda *_: pytest.fail("an environment was made"))
    obs = observations(agent)
    np.testing.assert_array_equal(pickle.loads(pickled)(obs), agent.policy(obs))
    agent.close()


def test_a_network_of_the_users_own_is_pickled_by_its_name() -> None:
    agent = PPO("CartPole-v1", **SMALL, model=LinearActorCritic)
    copy, obs = pickle.loads(pickle.dumps(agent.policy)), observations(agent)
    np.testing.assert_array_equal(copy(obs), agent.policy(obs))
    agent.close()
