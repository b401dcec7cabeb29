"""Environments as objects: made again where that is possible, else used as they are, one at a time."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from agent_helpers import OFF_POLICY, SMALL, Doubled, Recorded, ShownWalk, state_of, wrapped
from rl_training import BC, DQN, PPO, RecurrentPPO, UserError, resume_training, train
from run_helpers import Pulled, PullPlug, Walk, differences, savable_walks, training_differences

BETTER = r"give a function that makes it: PPO\(lambda: Doubled\(gym.make\('CartPole-v1'\), \.\.\.\)\)"


# One environment


def test_an_environment_in_a_wrapper_of_ones_own_is_trained_in_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    env = wrapped(3.0)
    with caplog.at_level(logging.WARNING):
        agent = PPO(env, **SMALL).learn(32)
    assert (agent.config.run.num_envs, agent.config.run.env_id) == (1, "custom agent_helpers:Doubled")
    assert agent.num_timesteps == 32
    assert "eval_return_mean" not in agent.metrics
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("env: copies of the given Doubled cannot be made, so it is trained in alone")
    assert said.endswith("PPO(lambda: Doubled(gym.make('CartPole-v1'), ...))")
    agent.close()
    assert env.closed == 0  # it is the user's
    env.reset()


def test_a_function_instead_is_evaluated_as_ever() -> None:
    agent = PPO(lambda: wrapped(3.0), **SMALL).learn(32)
    assert agent.config.run.num_envs == 8
    assert "eval_return_mean" in agent.metrics
    agent.close()


def test_a_subclass_with_arguments_is_trained_in(tmp_path: Path) -> None:
    agent = DQN(ShownWalk(7), **OFF_POLICY | {"time_limit": None}).learn(40)
    assert agent.metrics["episode_length_mean"] == 7.0
    assert agent.metrics["n_updates"] > 0
    with pytest.raises(UserError, match=r"needs another \(env=\).*DQN\(lambda: ShownWalk\(\.\.\.\)\)"):
        agent.evaluate(2)
    agent.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_envs": 4}, "num_envs=4: copies of the given Doubled cannot be made; "),
        ({"vectorization": "async"}, "vectorization='async': copies"),
        ({"actors": "process"}, r"workers have environments of their own \(actors, num_workers, lag\): copies"),
        ({"eval_interval": 16}, r"eval_interval=16: env: copies .* evaluations need another"),
        ({"env_kwargs": {"g": 1}}, "env_kwargs={'g': 1}: custom agent_helpers:Doubled cannot be called with them"),
    ],
)
def test_what_one_environment_cannot_do_is_refused(settings: dict[str, Any], words: str) -> None:
    env = wrapped()
    with pytest.raises(UserError, match=words + ("" if "env_kwargs" in settings else f".*{BETTER}")):
        PPO(env, **SMALL | settings)
    PPO(env, **SMALL).learn(8).close()  # nothing was left behind


def test_an_evaluation_needs_another_environment_and_disturbs_no_training() -> None:
    env = wrapped()
    agent, quiet = PPO(env, **SMALL).learn(16), PPO(wrapped(), **SMALL).learn(16)
    with pytest.raises(
        UserError, match=rf"^env: training uses it, and an evaluation needs another \(env=\): .*{BETTER}"
    ):
        agent.evaluate(2)
    for same in (env, gym.wrappers.TimeLimit(env, 5)):
        with pytest.raises(UserError, match=rf"is the environment that the agent trains in; {BETTER}"):
            agent.evaluate(2, env=same)
    by_function = agent.evaluate(4, env=wrapped)
    assert agent.evaluate(4, env=wrapped()) == by_function  # one after the other, on the same seeds
    assert training_differences(state_of(agent.learn(16)), state_of(quiet.learn(16))) == []
    agent.close()
    quiet.close()


def test_an_offline_agent_evaluates_in_the_environment_that_it_was_given() -> None:
    env = gym.wrappers.TimeLimit(Walk(), 5)
    agent = BC(
        env, dataset="made_up_data:noise", hidden_sizes=[8], batch_size=8, eval_episodes=2, bc_baseline_updates=0
    )
    assert agent.learn(8).metrics["eval_episodes"] == 2.0
    assert agent.evaluate(3) == agent.evaluate(3, env=env)
    agent.close()


def test_every_learn_begins_new_episodes_since_the_owner_may_have_stepped_it() -> None:
    env, untouched = wrapped(), wrapped()
    agent, quiet = RecurrentPPO(env, **SMALL), RecurrentPPO(untouched, **SMALL)
    for _ in range(2):
        env.reset(seed=5)
        for _ in range(3):
            env.step(0)
        agent.learn(16)
        quiet.learn(16)
    assert training_differences(state_of(agent), state_of(quiet)) == []
    agent.close()
    quiet.close()


def test_a_saved_agent_is_loaded_with_an_environment_and_goes_on_exactly(tmp_path: Path) -> None:
    agent = PPO(wrapped(), **SMALL).learn(24)
    path = agent.save(tmp_path / "agent")
    with pytest.raises(UserError, match=r"env_id='custom agent_helpers:Doubled': .*pass it again \(env=\)"):
        PPO.load(path)
    loaded = PPO.load(path, env=wrapped())
    assert differences(state_of(agent).envs, state_of(loaded).envs) == []
    assert training_differences(state_of(agent.learn(24)), state_of(loaded.learn(24))) == []
    agent.close()
    loaded.close()


@pytest.mark.parametrize("interval", [16, 1_000], ids=["saved", "begun"])
def test_a_run_that_was_killed_in_an_environment_is_resumed_exactly(interval: int, tmp_path: Path) -> None:
    settings = SMALL | {"checkpoint_interval": interval}
    whole = PPO(wrapped(), **settings, output_dir=str(tmp_path / "whole")).learn(64)
    killed = PPO(wrapped(), **settings, output_dir=str(tmp_path / "killed"))
    with pytest.raises(Pulled):
        killed.learn(64, PullPlug(40))
    killed.close()
    (run,) = (tmp_path / "killed").iterdir()
    resume_training(run, env_factory=wrapped, eval_episodes=1)
    resumed = PPO.load(run, env=wrapped())
    assert training_differences(state_of(whole), state_of(resumed)) == []
    whole.close()
    resumed.close()


def test_a_run_that_names_no_environment_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = SMALL | {"num_envs": 1, "total_timesteps": 8, "algo": "ppo", "env_id": "custom here:make"}
    with caplog.at_level(logging.WARNING):
        train(settings, env_factory=wrapped, run_dir=tmp_path / "run")
    assert any("only those can resume the run who pass the environment again" in said for said in caplog.messages)


# Made again


def test_wrappers_that_record_their_arguments_are_made_again() -> None:
    agent = PPO(Recorded(gym.make("CartPole-v1"), 3.0), **SMALL | {"num_envs": 2}).learn(16)
    like = PPO(lambda: Recorded(gym.make("CartPole-v1"), 3.0), **SMALL | {"num_envs": 2}).learn(16)
    assert agent.config.run.env_id == "custom CartPole-v1"
    assert training_differences(state_of(agent), state_of(like)) == []
    agent.close()
    like.close()


def test_a_recording_wrapper_that_is_not_found_by_name_is_used_as_it_is() -> None:
    class Hidden(Recorded):
        pass

    agent = PPO(Hidden(gym.make("CartPole-v1"), 3.0), **SMALL)
    assert agent.config.run.num_envs == 1
    agent.close()


def test_arguments_that_no_config_can_hold_do_not_stand_in_the_way() -> None:
    gym.register("Held-v0", entry_point=lambda maker: maker(), max_episode_steps=5)
    try:
        agent = PPO(gym.make("Held-v0", maker=Walk), **SMALL | {"num_envs": 2}).learn(16)
        assert agent.config.run.env_id == "custom Held-v0"
        assert agent.evaluate(2).lengths == (5, 5)
        agent.close()
    finally:
        del gym.registry["Held-v0"]


# Vector environments


def short_walk() -> gym.Env[Any, Any]:
    return ShownWalk(5)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_a_vector_environment_is_trained_in_and_its_functions_make_one_to_evaluate(kind: Any, tmp_path: Path) -> None:
    envs = kind([short_walk] * 3)
    agent = PPO(envs, **SMALL).learn(48)
    assert agent.config.run.num_envs == 3
    assert agent.metrics["eval_length_mean"] == 5.0
    assert agent.evaluate(4) == agent.evaluate(4, env=short_walk)
    with pytest.raises(UserError, match="num_envs=2: the given vector environment has 3: copies of"):
        PPO(envs, **SMALL | {"num_envs": 2})
    loaded = PPO.load(agent.save(tmp_path / "agent"), env=envs)
    assert loaded.learn(24).num_timesteps >= agent.num_timesteps + 24
    agent.close()
    loaded.close()
    envs.reset()  # still open
    envs.close()


def test_a_vector_environment_that_cannot_be_made_again_says_what_evaluations_need() -> None:
    envs = gym.wrappers.vector.ClipReward(SyncVectorEnv([short_walk] * 2), max_reward=1.0)
    assert isinstance(envs, VectorEnv)
    agent = PPO(envs, **SMALL).learn(16)
    assert "eval_return_mean" not in agent.metrics
    with pytest.raises(UserError, match=r"^env: an evaluation needs an environment of its own \(env=\): .*PPO\(lambda"):
        agent.evaluate(2)
    assert agent.evaluate(2, env=short_walk).lengths == (5, 5)
    agent.close()


def test_functions_that_return_the_same_environment_do_not_disturb_training() -> None:
    one = short_walk()
    agent = PPO(SyncVectorEnv([lambda: one]), **SMALL)
    with pytest.raises(UserError, match="its functions return the same environment again"):
        agent.evaluate(1)
    agent.close()


def test_a_vector_environment_with_states_is_restored_exactly(tmp_path: Path) -> None:
    agent = PPO(savable_walks(2), **SMALL).learn(32)
    path = agent.save(tmp_path / "agent")
    assert state_of(agent).meta["resume"] == "exact"
    loaded = PPO.load(path, env=savable_walks(2))
    assert training_differences(state_of(agent.learn(32)), state_of(loaded.learn(32))) == []


@pytest.mark.parametrize(("mode", "vectorization"), [("sync", "sync"), ("vector_entry_point", "native")])
def test_what_make_vec_has_made_is_made_again_by_its_id(mode: str, vectorization: str) -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode=mode, sutton_barto_reward=True)
    agent = PPO(envs, **SMALL)
    run = agent.config.run
    assert (run.env_id, run.num_envs, run.vectorization) == ("CartPole-v1", 3, vectorization)
    assert run.env_kwargs == {"sutton_barto_reward": True}
    assert agent.config.loop.time_limit is None
    agent.close()
    envs.close()


def test_wrapped_environments_of_make_vec_are_used_as_they_are() -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync", wrappers=[Doubled])
    agent = PPO(envs, **SMALL).learn(16)
    assert agent.config.run.env_id.startswith("custom ")
    assert np.abs(agent.get_env().reset(seed=0)[0]).max() > 0.0
    agent.close()
    envs.close()
