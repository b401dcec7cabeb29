"""What the methods of agents, and `train`, take: evaluation, environments, loading, networks as classes, settings."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml

from agent_helpers import OFF_POLICY, SMALL, ShownWalk, state_of, wrapped
from rl_training import (
    DQN,
    PPG,
    PPO,
    SAC,
    ConfigError,
    Dreamer,
    MuZero,
    RecurrentPPO,
    UserError,
    evaluate_checkpoint,
    load_config,
    resume_training,
    train,
)
from rl_training.testing import LinearActorCritic
from run_helpers import latest, limited_walk, training_differences

# evaluate


def test_episodes_are_given_by_position_or_by_either_name() -> None:
    agent = PPO("CartPole-v1", **SMALL)
    assert agent.evaluate(3) == agent.evaluate(episodes=3) == agent.evaluate(num_episodes=3)
    for call, words in (
        (lambda: agent.evaluate(3, episodes=3), "num_episodes=3 and episodes=3: two names of one argument"),
        (lambda: agent.evaluate(episodes=0), "episodes=0: must be a whole number of at least 1"),
        (lambda: agent.evaluate(2, render="film"), "render='film': must be true, false, 'human' or 'rgb_array'"),
    ):
        with pytest.raises(UserError, match=f"^{words}"):
            call()
    agent.close()


def test_pictures_of_an_evaluation_are_kept_by_episode() -> None:
    agent = PPO(ShownWalk, **SMALL, num_envs=2, env_kwargs={"length": 4}).learn(16)
    judged = agent.evaluate(episodes=3, render="rgb_array")
    assert [frames.shape for frames in judged.frames] == [(5, 3, 4, 3)] * 3
    assert [frame.max() for frame in judged.frames[0]] == [0, 1, 2, 3, 4]
    assert judged == agent.evaluate(episodes=3)
    assert agent.evaluate(3).frames == ()
    agent.close()


def test_pictures_of_a_known_environment() -> None:
    agent = PPO("CartPole-v1", **SMALL)
    judged = agent.evaluate(1, render="rgb_array")
    (frames,) = judged.frames
    assert frames.shape == (judged.lengths[0] + 1, 400, 600, 3)
    assert frames.dtype == np.uint8
    agent.close()


def test_episodes_are_shown_one_after_the_other() -> None:
    made: list[ShownWalk] = []

    def shown(render_mode: str | None = None) -> ShownWalk:
        made.append(ShownWalk(4, render_mode))
        return made[-1]

    agent = PPO(shown, **SMALL, num_envs=2)
    made.clear()
    assert agent.evaluate(5, render=True).lengths == (4,) * 5
    assert [env.render_mode for env in made] == ["human"]
    agent.close()


def test_an_environment_that_cannot_be_looked_at_says_so() -> None:
    agent = PPO(limited_walk, **SMALL, num_envs=2)
    with pytest.raises(UserError, match=r"render='human': run_helpers:limited_walk is made with render_mode=None"):
        agent.evaluate(1, render=True)
    assert agent.evaluate(1, env=lambda: ShownWalk(4, "rgb_array"), render="rgb_array").frames[0].shape[0] == 5
    agent.close()


# get_env


@pytest.mark.parametrize("stack", [1, 2])
def test_environments_for_a_loop_of_ones_own_disturb_no_training(stack: int) -> None:
    settings = SMALL | {"num_envs": 2, "frame_stack": stack, "vectorization": "sync"}
    agent, quiet = (PPO("CartPole-v1", **settings).learn(16) for _ in range(2))
    envs = agent.get_env()
    assert envs.num_envs == 2
    obs, _ = envs.reset(seed=3)
    for _ in range(30):
        obs, *_ = envs.step(agent.predict(obs)[0])
    envs.close()
    assert training_differences(state_of(agent.learn(16)), state_of(quiet.learn(16))) == []
    agent.close()
    quiet.close()


def test_the_one_environment_that_was_given_is_given_back() -> None:
    env = wrapped()
    agent = PPO(env, **SMALL)
    envs = agent.get_env()
    assert envs.num_envs == 1
    assert envs.reset(seed=1)[0].tolist() == [env.reset(seed=1)[0].tolist()]
    envs.close()
    assert env.closed == 0
    agent.learn(8).close()


# load

CHANGED = [
    (PPO, "CartPole-v1", SMALL | {"normalize_reward": True, "normalize_obs": True}),
    (PPG, "CartPole-v1", {"n_steps": 8, "hidden_sizes": [8], "aux_interval": 3, "eval_episodes": 1}),
    (RecurrentPPO, "CartPole-v1", SMALL),
    (DQN, "CartPole-v1", OFF_POLICY | {"prioritized": True, "n_step": 3}),
    (SAC, "Pendulum-v1", OFF_POLICY),
    (MuZero, "CartPole-v1", {"num_simulations": 2, "hidden_sizes": [8], "batch_size": 4, "learning_starts": 20}),
    (Dreamer, "CartPole-v1", {"size": "xxs", "batch_size": 2, "batch_length": 6, "learning_starts": 20}),
]


@pytest.mark.parametrize(("kind", "env", "settings"), CHANGED, ids=[kind.__name__ for kind, *_ in CHANGED])
def test_a_loaded_agent_goes_on_with_another_number_of_environments(
    kind: Any, env: str, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings | {"num_envs": 2, "eval_episodes": 1, "time_limit": 20}
    agent = kind(env, **settings).learn(48)
    with caplog.at_level(logging.WARNING):
        loaded = kind.load(agent.save(tmp_path / "agent"), num_envs=3)
    assert any("the environments are not restored exactly: num_envs is 3, was 2" in said for said in caplog.messages)
    assert loaded.num_timesteps == agent.num_timesteps
    obs = np.zeros((2, *agent.policy.info.obs_shape), np.float32)
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], agent.predict(obs, deterministic=True)[0])
    loaded.learn(48)
    assert loaded.metrics["n_updates"] > agent.metrics["n_updates"]
    assert state_of(loaded).meta["resume"] == "restarted"
    again = kind.load(loaded.save(tmp_path / "again"))  # from here on it is exact
    found = training_differences(state_of(loaded.learn(24)), state_of(again.learn(24)))
    assert [words for words in found if "why_not_exact" not in words] == []
    for each in (agent, loaded, again):
        each.close()


def test_an_emptied_replay_is_filled_before_it_is_learned_from(tmp_path: Path) -> None:
    settings = OFF_POLICY | {"num_envs": 2, "learning_starts": 20, "updates_per_step": 0.5, "train_every": 2}
    agent = DQN("CartPole-v1", **settings).learn(40)
    loaded = DQN.load(agent.save(tmp_path / "agent"), num_envs=1)
    updates = agent.metrics["n_updates"]
    loaded.learn(20)
    assert (loaded.metrics["replay_size"], loaded.metrics["n_updates"]) == (20.0, updates)
    assert loaded.learn(10).metrics["n_updates"] == updates + 5
    assert "the replay buffer starts empty" in " ".join(state_of(loaded).meta["why_restarted"])
    agent.close()
    loaded.close()


def test_a_loaded_agent_takes_another_seed_arguments_or_device(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", **SMALL, num_envs=2).learn(32)
    path = agent.save(tmp_path / "agent")
    same, seeded, rewarded, placed = (
        PPO.load(path, **change)
        for change in ({}, {"seed": 5}, {"env_kwargs": {"sutton_barto_reward": True}}, {"device": "cpu"})
    )
    assert (seeded.config.run.seed, rewarded.evaluate(2).returns) == (5, (-1.0, -1.0))
    assert placed.policy.device == torch.device("cpu")
    for loaded, exact in ((same, True), (placed, True), (seeded, False), (rewarded, False)):
        loaded.learn(32)
        assert state_of(loaded).meta["resume"] == ("exact" if exact else "restarted")
    assert training_differences(state_of(same), state_of(agent.learn(32))) == []
    assert training_differences(state_of(same), state_of(seeded)) != []
    for each in (agent, same, seeded, rewarded, placed):
        each.close()


def test_a_run_that_is_resumed_keeps_these_settings(tmp_path: Path) -> None:
    settings = SMALL | {"num_envs": 2, "total_timesteps": 16, "algo": "ppo", "env_id": "CartPole-v1"}
    run = train(settings, run_dir=tmp_path / "run").run_dir
    for change in ({"num_envs": 3}, {"seed": 1}, {"env_kwargs": {"sutton_barto_reward": True}}):
        with pytest.raises(UserError, match=f"{next(iter(change))}=.*: a resumed run keeps its"):
            resume_training(run, total_timesteps=32, **change)


def test_the_arguments_of_an_instance_count_at_loading(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", **SMALL, num_envs=2).learn(16)
    loaded = PPO.load(agent.save(tmp_path / "agent"), env=gym.make("CartPole-v1", sutton_barto_reward=True))
    assert loaded.config.run.env_kwargs == {"sutton_barto_reward": True}
    one = PPO.load(tmp_path / "agent", env=wrapped(1.0))
    assert one.config.run.num_envs == 1
    assert one.learn(16).num_timesteps == 32
    for each in (agent, loaded, one):
        each.close()


# train


def test_train_takes_settings_as_load_config_does(tmp_path: Path) -> None:
    quick = {"total_timesteps": 32, "num_envs": 2, "n_steps": 8, "eval_episodes": 1}
    run = train("ppo/cartpole", run_dir=tmp_path / "run", **quick).run_dir
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert {key: saved[key] for key in quick} == quick
    checked = train(load_config("ppo/cartpole", **quick), run_dir=tmp_path / "checked", seed=3).run_dir
    assert yaml.safe_load((checked / "config.yaml").read_text())["seed"] == 3
    longer = train("ppo/cartpole", resume=run, **quick | {"total_timesteps": 48})
    assert longer["step"] == 48.0
    with pytest.raises(ConfigError, match="total_timestep: unknown key; did you mean 'total_timesteps'"):
        train("ppo/cartpole", total_timestep=5)


# model


def test_a_class_of_a_module_is_recorded_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = SMALL | {"num_envs": 2}
    with caplog.at_level(logging.WARNING):
        by_class = PPO("CartPole-v1", **settings, model=LinearActorCritic, output_dir=str(tmp_path)).learn(16)
    assert not [said for said in caplog.messages if said.startswith("model=")]
    by_name = PPO("CartPole-v1", **settings, model="rl_training.testing:LinearActorCritic").learn(16)
    assert training_differences(state_of(by_class), state_of(by_name)) == []
    (run,) = tmp_path.iterdir()
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["model"] == "rl_training.testing.tiny:LinearActorCritic"
    assert evaluate_checkpoint(run, num_episodes=1)["step"] == 16.0
    by_class.close()
    by_name.close()


def test_a_class_that_no_name_leads_to_is_passed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Net(LinearActorCritic):
        pass

    settings = SMALL | {"num_envs": 2, "output_dir": str(tmp_path / "runs")}
    with caplog.at_level(logging.WARNING):
        agent = PPO("CartPole-v1", **settings, model=Net).learn(16)
    (said,) = [said for said in caplog.messages if said.startswith("model=")]
    assert "only those can load the run who pass it again (model=)" in said
    (run,) = (tmp_path / "runs").iterdir()
    name = "custom test_agent_arguments:test_a_class_that_no_name_leads_to_is_passed_again.<locals>.Net"
    assert yaml.safe_load((run / "config.yaml").read_text())["model"] == name
    for use in (PPO.load, lambda path: evaluate_checkpoint(path, num_episodes=1)):
        with pytest.raises(UserError, match=r"model='custom .*was given as an object.*pass it again \(model=\)"):
            use(run)
    loaded = PPO.load(run, model=Net)
    assert loaded.learn(16).policy.predict(np.zeros(4), deterministic=True) == agent.learn(16).policy.predict(
        np.zeros(4), deterministic=True
    )
    assert training_differences(state_of(agent), state_of(loaded)) == []
    agent.close()
    loaded.close()
    assert evaluate_checkpoint(run, num_episodes=1, model=Net)["step"] == 32.0
    assert resume_training(run, total_timesteps=48, model=Net)["step"] == 48.0
    assert latest(run).meta["config"]["model"] == name


def test_a_script_finds_its_own_class_and_another_program_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = sys.modules["__main__"]
    net = type("ScriptsNet", (LinearActorCritic,), {"__module__": "__main__"})
    monkeypatch.setattr(script, "ScriptsNet", net, raising=False)
    agent = PPO("CartPole-v1", **SMALL, model=net)
    assert agent.config.model.model == "__main__:ScriptsNet"
    path = agent.save(tmp_path / "agent")
    PPO.load(path, trust=True).close()
    monkeypatch.delattr(script, "ScriptsNet")
    with pytest.raises(UserError, match="has no 'ScriptsNet': it was in the script or notebook that trained the run"):
        PPO.load(path, trust=True)
    PPO.load(path, model=net).close()
    agent.close()


def test_workers_get_the_class_too(tmp_path: Path) -> None:
    class Net(LinearActorCritic):
        pass

    agent = PPO("CartPole-v1", **SMALL, num_envs=2, num_workers=2, model=Net).learn(16)
    assert agent.num_timesteps == 16
    path = agent.save(tmp_path / "agent")
    with pytest.raises(UserError, match="num_envs is 4, was 2: a run with workers keeps its environments"):
        PPO.load(path, num_envs=4, model=Net)
    agent.close()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (torch.nn.Linear(2, 2), r"model=Linear\(\.\.\.\): is a network; give the class or a function that makes it"),
        (int, "int is a part of Python itself"),
        (5, "model=5: must be text"),
    ],
)
def test_what_makes_no_network_is_refused(model: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        PPO("CartPole-v1", **SMALL, model=model)
