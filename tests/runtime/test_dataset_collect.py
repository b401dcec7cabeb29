"""Datasets from runs: what policies do when they are let act, and what a run's replay remembers."""

from __future__ import annotations

import copy
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import Agent, Callback, resume_training, train
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.replay_files import read_info
from rl_training.runtime import datasets
from rl_training.runtime.actors import actor
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.datasets import (
    Behaviour,
    EnvSettings,
    UniformPolicy,
    collect,
    look_at,
    open_dataset,
    read_run_replay,
    save_minari,
)
from rl_training.runtime.envs import make
from rl_training.testing import TinyEnv
from rl_training.types import Act, Array, SpaceInfo, UserError
from run_helpers import tiny

RANDOM = Behaviour()
ARRAYS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "starts")


class Ladder(gym.Env[Any, Any]):
    """Shows (episode, t), rewards 10 * episode + t + the action; is over after 4 steps, or 3 in every third episode."""

    observation_space: Any = gym.spaces.Box(0, np.inf, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(2, start=5)

    def __init__(self) -> None:
        self.episode, self.time = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self.shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 10.0 * self.episode + self.time + int(action)
        self.time += 1
        early = self.episode % 3 == 0
        return self.shown(), reward, early and self.time == 3, self.time == 4, {}

    def shown(self) -> Any:
        return np.float32([self.episode, self.time])


class Uneven(Ladder):
    """The ladder with real actions in uneven bounds."""

    action_space: Any = gym.spaces.Box(np.float32([-1, 10]), np.float32([0, 40]))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return super().step(0)


class Endless(Ladder):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:2], False, False, {})


class Masked(Ladder):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0], {"action_mask": np.ones(2, np.bool_)}


class Broken(Ladder):
    def shown(self) -> Any:
        return super().shown() * (np.nan if self.time == 2 else 1)


def some_ladders(num_envs: int) -> Any:
    raise AssertionError("it is never made")


@pytest.fixture(scope="module")
def sac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a Pendulum of its own: another gravity, short episodes, stacked observations."""
    run_dir = tmp_path_factory.mktemp("sac") / "run"
    train(tiny(algo="sac", total_timesteps=96, env_kwargs={"g": 9.0}, time_limit=12, frame_stack=2), run_dir=run_dir)
    return run_dir


@pytest.fixture(scope="module")
def dqn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose exploration ends with it, and whose replay is smaller than what it saw."""
    run_dir = tmp_path_factory.mktemp("dqn") / "run"
    settings = {"env_id": "test_dataset_collect:Ladder", "num_envs": 2, "buffer_size": 60, "total_timesteps": 100}
    train(tiny(algo="dqn", epsilon=1.0, epsilon_schedule=0.0, **settings), run_dir=run_dir)
    return run_dir


def same(left: OfflineDataset, right: OfflineDataset) -> bool:
    return all(getattr(left, name).tobytes() == getattr(right, name).tobytes() for name in ARRAYS)


def episodes_of(dataset: OfflineDataset) -> Iterator[tuple[int, slice]]:
    """The seed and the rows of every episode."""
    for seed, start, length in zip(dataset.source["episode_seeds"], dataset.starts, dataset.lengths, strict=True):
        yield seed, slice(start, start + length)


def assert_happened(dataset: OfflineDataset, env: gym.Env[Any, Any]) -> None:
    """An environment that is reset with the seeds and gets the actions shows and rewards the same."""
    for seed, rows in episodes_of(dataset):
        shown, _ = env.reset(seed=seed)
        for row in range(rows.start, rows.stop):
            np.testing.assert_array_equal(dataset.obs[row], shown, strict=True)
            shown, reward, terminated, truncated, _ = env.step(dataset.action[row])
            np.testing.assert_array_equal(dataset.next_obs[row], shown, strict=True)
            assert dataset.reward[row] == np.float32(reward)
            assert dataset.terminated[row] == terminated
            assert dataset.truncated[row] == truncated or row == len(dataset) - 1
            assert (terminated or truncated) == (row == rows.stop - 1) or row == len(dataset) - 1
    env.close()


# Random actions


def test_random_episodes_are_what_the_environment_did() -> None:
    dataset = collect("CartPole-v1", [RANDOM], episodes=5, seed=3)
    assert dataset.n_episodes == 5
    assert dataset.terminated.sum() == 5
    assert (dataset.action.dtype, dataset.action.shape) == (np.int64, (len(dataset),))
    assert_happened(dataset, gym.make("CartPole-v1"))
    assert len(set(dataset.source["episode_seeds"])) == 5


def test_steps_cut_the_last_episode() -> None:
    dataset = collect("Pendulum-v1", [RANDOM], steps=230)
    assert dataset.lengths.tolist() == [200, 30]
    assert np.flatnonzero(dataset.truncated).tolist() == [199, 229]
    assert not dataset.terminated.any()
    assert_happened(dataset, gym.make("Pendulum-v1"))
    assert (dataset.obs.dtype, dataset.action.dtype, dataset.reward.dtype) == (np.float32,) * 3
    assert collect("Pendulum-v1", [RANDOM], steps=200).truncated.sum() == 1, "no empty episode follows"


def test_random_actions_fill_the_space() -> None:
    uneven = collect("test_dataset_collect:Uneven", [RANDOM], steps=400).action
    assert uneven.shape == (400, 2)
    np.testing.assert_allclose(uneven.min(axis=0), [-1, 10], atol=0.5)
    np.testing.assert_allclose(uneven.max(axis=0), [0, 40], atol=0.5)
    np.testing.assert_allclose(uneven.mean(axis=0), [-0.5, 25], rtol=0.15)
    choices = collect("test_dataset_collect:Ladder", [RANDOM], steps=400).action
    assert 0.4 < (choices == 5).mean() < 0.6
    assert set(choices.tolist()) == {5, 6}


@pytest.mark.parametrize("actions", TinyEnv.ACTIONS)
def test_random_actions_are_samples_of_the_action_space(actions: str) -> None:
    dataset = collect("rl_training.testing:TinyEnv", [RANDOM], steps=30, seed=5, env_kwargs={"actions": actions})
    space = copy.deepcopy(TinyEnv.ACTIONS[actions])
    space.seed(datasets._seed_of(5, 0))
    np.testing.assert_array_equal(dataset.action, np.stack([space.sample() for _ in range(30)]))


def test_the_seed_decides_everything() -> None:
    first, again, other = (collect("CartPole-v1", [RANDOM], steps=60, seed=seed) for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)
    assert not set(first.source["episode_seeds"]) & set(other.source["episode_seeds"])
    # Whatever the environment shows, seeds and behaviours have random actions of their own.
    one, two = (collect("test_dataset_collect:Uneven", [RANDOM, RANDOM], episodes=2, seed=seed) for seed in (1, 2))
    drawn = np.concatenate([one.action, two.action])
    assert len(np.unique(drawn)) == drawn.size


# Policies


def test_a_run_brings_its_environment(sac: Path) -> None:
    dataset = collect(None, [Behaviour(sac)], steps=30, seed=1)
    assert dataset.lengths.tolist() == [12, 12, 6]
    assert dataset.obs.shape == (30, 2, 3)
    env = gym.make("Pendulum-v1", max_episode_steps=12, g=9.0)
    assert_happened(dataset, gym.wrappers.FrameStackObservation(env, 2))
    described = {"env_id": "Pendulum-v1", "env_kwargs": {"g": 9.0}, "time_limit": 12, "frame_stack": 2}
    assert described.items() <= dataset.source.items()
    assert dataset.source["action_units"] == "environment"
    assert same(dataset, collect("Pendulum-v1", [Behaviour(sac)], steps=30, seed=1, env_kwargs={"g": 9.0}))


def test_policies_explore_unless_they_are_deterministic(sac: Path) -> None:
    best = collect(None, [Behaviour(sac)], steps=24, deterministic=True)
    agent = Agent.load(sac)
    np.testing.assert_array_equal(best.action, agent.predict(best.obs, deterministic=True)[0])
    agent.close()
    exploring = collect(None, [Behaviour(sac)], steps=24)
    assert exploring.source["episode_seeds"] == best.source["episode_seeds"]
    assert not np.isclose(exploring.action, best.action).any()
    assert same(exploring, collect(None, [Behaviour(sac)], steps=24))
    assert not same(exploring, collect(None, [Behaviour(sac)], steps=24, seed=9))


def explores(checkpoint: Path) -> bool:
    best, exploring = (collect(None, [Behaviour(checkpoint)], episodes=8, deterministic=d) for d in (True, False))
    return not same(best, exploring)


def test_policies_explore_as_they_did_at_their_step(dqn: Path, tmp_path: Path) -> None:
    assert explores(dqn / "checkpoints" / "step_0"), "its epsilon was 1 in the beginning"
    assert not explores(dqn), "and 0 in the end"
    longer = shutil.copytree(dqn, tmp_path / "longer")
    resume_training(longer, total_timesteps=300, trust=True)
    assert not explores(longer / "checkpoints" / "step_192"), "a run that goes on keeps the end of its schedule"


class Stray(Callback):
    """Makes a policy explore by hand."""

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        run.algorithm.epsilon = 1.0


def test_policies_explore_as_they_were_told_to_by_hand(tmp_path: Path) -> None:
    settings = tiny(algo="dqn", env_id="test_dataset_collect:Ladder", total_timesteps=24, epsilon=0.0)
    for name, callbacks in (("plain", []), ("told", [Stray()])):
        train(settings, run_dir=tmp_path / name, callbacks=callbacks)
        assert explores(tmp_path / name) == (name == "told")


def test_nothing_global_is_touched(sac: Path) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = drawn()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    collect(None, [Behaviour(sac), RANDOM], steps=30)
    assert drawn() == expected


# Mixtures


def players_of(dataset: OfflineDataset) -> list[int]:
    """Who played the episodes of a recording mixture: player k takes the choice 5 + k."""
    return [int(dataset.action[rows.start]) - 5 for _, rows in episodes_of(dataset)]


class Always(UniformPolicy):
    """Takes one choice, whatever it sees."""

    def __init__(self, info: SpaceInfo, choice: int) -> None:
        self.info, self.choice = info, choice

    def act(self, obs: Array, carry: Any, *, explore: bool, rng: np.random.Generator) -> Act:
        return Act(np.full(len(obs), self.choice), carry)


@pytest.fixture
def mixture(monkeypatch: pytest.MonkeyPatch, dqn: Path) -> list[Behaviour]:
    """Two behaviours, 3 to 1: that of the run takes the first choice, the other one the second."""
    monkeypatch.setattr(
        datasets, "_load_policy", lambda saved, seed: Always(read_info(saved.checkpoint.meta["spaces"]), 0)
    )
    monkeypatch.setattr(datasets, "_uniform", lambda info, space, seed: Always(info, 1))
    return [Behaviour(dqn, 3.0), RANDOM]


def test_whole_episodes_are_shared_in_proportion(mixture: list[Behaviour]) -> None:
    dataset = collect(None, mixture, episodes=8, seed=5)
    turns = players_of(dataset)
    assert turns.count(0) == 6
    assert turns[:4].count(0) == 3, "all along, not one after the other"
    for _, rows in episodes_of(dataset):
        assert len(set(dataset.action[rows].tolist())) == 1
    assert dataset.source["notes"][0].endswith("run: 6 episodes; random actions: 2 episodes")


def test_steps_are_shared_in_proportion(mixture: list[Behaviour]) -> None:
    dataset = collect(None, mixture, steps=400)
    share = (dataset.action == 5).mean()
    assert abs(share - 0.75) <= 4 / 400, "to an episode"


def test_the_seed_decides_who_begins(mixture: list[Behaviour]) -> None:
    first = [players_of(collect(None, mixture, episodes=1, seed=seed))[0] for seed in range(12)]
    assert set(first) == {0, 1}
    assert first == [players_of(collect(None, mixture, episodes=1, seed=seed))[0] for seed in range(12)]


# A run's replay


def test_a_replay_is_read_in_the_order_of_time(dqn: Path) -> None:
    dataset = read_run_replay(dqn)
    assert len(dataset) == 60
    np.testing.assert_array_equal(dataset.next_obs, dataset.obs + np.float32([0, 1]))
    np.testing.assert_array_equal(dataset.reward, 10 * dataset.obs[:, 0] + dataset.obs[:, 1] + dataset.action + 5)
    early = dataset.obs[:, 0] % 3 == 0
    np.testing.assert_array_equal(dataset.terminated, early & (dataset.next_obs[:, 1] == 3))
    cut = np.flatnonzero(dataset.truncated & (dataset.next_obs[:, 1] != 4))
    assert set(cut.tolist()) <= {29, 59}, "where each of the two histories ends"
    assert set(np.unique(dataset.action)) <= {0, 1}
    for start, length in zip(dataset.starts, dataset.lengths, strict=True):
        steps = np.diff(dataset.obs[start : start + length], axis=0)
        np.testing.assert_array_equal(steps, np.full((length - 1, 2), [0, 1]))
    assert dataset.source["action_units"] == "normalized"
    assert (dataset.source["env_id"], dataset.source["path"]) == ("test_dataset_collect:Ladder", str(dqn))
    assert same(open_dataset(str(dqn)), dataset)
    assert same(open_dataset(str(find_checkpoint(dqn))), dataset)


def test_clipped_rewards_are_noted(tmp_path: Path) -> None:
    settings = {"env_id": "test_dataset_collect:Ladder", "reward_clip": 2.0}
    train(tiny(algo="dqn", total_timesteps=24, **settings), run_dir=tmp_path / "run")
    dataset = read_run_replay(tmp_path / "run")
    assert dataset.reward.max() == 2.0
    assert dataset.source["notes"] == ("rewards were clipped to +-2",)


def test_the_rewards_of_a_run_that_scaled_them_are_raw_again(tmp_path: Path) -> None:
    scales = {"reward_scale": 0.5, "reward_shift": -1.0, "normalize_obs": False}
    settings = {"env_id": "test_dataset_collect:Uneven", "online": True, "offline_fraction": 0.0, "time_limit": None}
    train(tiny(algo="td3_bc", total_timesteps=48, **settings, **scales), run_dir=tmp_path / "run")
    dataset = read_run_replay(tmp_path / "run")
    assert dataset.obs[:, 0].max() > 1
    np.testing.assert_array_equal(dataset.reward, 10 * dataset.obs[:, 0] + dataset.obs[:, 1])


def test_runs_without_a_replay_say_so(tmp_path: Path) -> None:
    train(tiny(total_timesteps=24), run_dir=tmp_path / "run")
    with pytest.raises(UserError, match=r"run': is a run of ppo, which keeps no replay$"):
        read_run_replay(tmp_path / "run")
    with pytest.raises(UserError, match="there is no such run or checkpoint"):
        read_run_replay(tmp_path / "nothing")


# In Minari's layout


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    for module in ("h5py", "PIL"):
        pytest.importorskip(module)
    return pytest.importorskip("minari")


def test_what_was_collected_comes_back_equal_from_minari(minari: Any, sac: Path) -> None:
    dataset = collect(None, [Behaviour(sac)], steps=40, ref_min_score=-1.0, ref_max_score=2.0)
    settings = EnvSettings.named_in(dataset.source)
    path = save_minari(dataset, "pendulum/own-v0", settings)
    loaded = minari.load_dataset("pendulum/own-v0")
    assert len(loaded) == 4
    for episode, (seed, rows) in zip(loaded, episodes_of(dataset), strict=True):
        np.testing.assert_array_equal(episode.observations[:-1], dataset.obs[rows], strict=True)
        np.testing.assert_array_equal(episode.observations[1:], dataset.next_obs[rows], strict=True)
        np.testing.assert_array_equal(episode.actions, dataset.action[rows], strict=True)
        np.testing.assert_array_equal(episode.rewards.astype(np.float32), dataset.reward[rows], strict=True)
        np.testing.assert_array_equal(episode.terminations, dataset.terminated[rows], strict=True)
        np.testing.assert_array_equal(episode.truncations, dataset.truncated[rows], strict=True)
        (described,) = loaded.storage.get_episode_metadata([episode.id])
        assert described["seed"] == seed
    assert minari.get_normalized_score(loaded, np.array(2.0)) == 1.0
    back = open_dataset("pendulum/own-v0")
    assert same(back, dataset)
    assert same(open_dataset(str(path)), dataset)
    # The environment that Minari makes of it is the run's own, wrappers included.
    assert_happened(back, loaded.recover_environment())


def test_the_actions_of_a_replay_are_brought_to_the_bounds(minari: Any, tmp_path: Path) -> None:
    settings = {"env_id": "test_dataset_collect:Uneven", "total_timesteps": 48, "time_limit": None}
    train(tiny(algo="sac", **settings), run_dir=tmp_path / "run")
    dataset = read_run_replay(tmp_path / "run")
    save_minari(dataset, "uneven-v0", EnvSettings.named_in(dataset.source))
    actions = np.concatenate([episode.actions for episode in minari.load_dataset("uneven-v0")])
    np.testing.assert_allclose(actions, (dataset.action + 1) / 2 * [1, 30] + [-1, 10], rtol=1e-5, atol=1e-6)


def test_an_environment_that_is_made_anew_can_be_made_by_others(minari: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "REBUILT_PER_EPISODE", re.compile("Pendulum"))
    dataset = collect("Pendulum-v1", [RANDOM], steps=5)
    save_minari(dataset, "anew-v0", EnvSettings("Pendulum-v1"))
    env = minari.load_dataset("anew-v0").recover_environment()
    assert env.spec.additional_wrappers == ()
    assert_happened(dataset, env)


# What is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": 5, "episodes": 5}, "steps=5, episodes=5: give one of them"),
        ({}, "steps=None, episodes=None: give one of them"),
        ({"steps": 0}, "steps=0: must be a whole number of at least 1"),
        ({"steps": 5, "seed": -1}, "seed=-1: must be a whole number of at least 0"),
        ({"steps": 5, "sources": []}, "there is no policy to act"),
        ({"steps": 5, "sources": [Behaviour(None, 0.0)]}, "random actions=0: the weight must be a number above 0"),
        ({"steps": 5, "sources": [Behaviour(None, np.nan)]}, "random actions=nan: the weight must be"),
        ({"steps": 5, "sources": [Behaviour("nothing")]}, "'nothing': there is no such run or checkpoint"),
        ({"steps": 5, "env_id": None}, "env_id: is missing; random actions need an environment"),
        ({"steps": 5, "env_id": "Pendulun-v1"}, "env_id='Pendulun-v1': unknown environment"),
        ({"steps": 5, "env_kwargs": {"mass": 1}}, "env_kwargs={'mass': 1}: "),
        ({"steps": 5, "env_id": "test_dataset_collect:Masked"}, "datasets of Dict observations or masks are not"),
        (
            {"steps": 5, "env_id": "test_dataset_collect:some_ladders"},
            "needs a function that makes single environments",
        ),
        (
            {"steps": 5, "env_id": "test_dataset_collect:Broken"},
            "the observation of environment 0 is nan at step 2",
        ),
    ],
)
def test_mistakes_are_one_line(arguments: dict[str, Any], words: str) -> None:
    given = {"env_id": "Pendulum-v1", "sources": [RANDOM], **arguments}
    with pytest.raises(UserError) as refusal:
        collect(**given)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_all_runs_must_be_of_one_environment(sac: Path, dqn: Path) -> None:
    with pytest.raises(
        UserError, match=r"env_id='test_dataset_collect:Ladder', .*but .*'Pendulum-v1', env_kwargs=\{'g'"
    ):
        collect(None, [Behaviour(sac), Behaviour(dqn)], steps=5)
    for asked in ({"env_id": "Pendulum-v0"}, {"env_id": None, "env_kwargs": {"g": 8.0}}):
        with pytest.raises(UserError, match=r"run': was trained on env_id='Pendulum-v1', env_kwargs=\{'g': 9.0\}"):
            collect(**asked, sources=[RANDOM, Behaviour(sac)], steps=5)


def test_an_episode_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "MOST_STEPS", 50)
    with pytest.raises(UserError, match="did not end in 50 steps; give steps instead of episodes"):
        collect("test_dataset_collect:Endless", [RANDOM], episodes=1)
    assert len(collect("test_dataset_collect:Endless", [RANDOM], steps=70)) == 70


def test_the_time_limit_of_an_environment_is_known() -> None:
    assert look_at(EnvSettings("CartPole-v1"))[1] == 500
    assert look_at(EnvSettings("CartPole-v1", time_limit=7))[1] == 7
    info, limit = look_at(EnvSettings("test_dataset_collect:Ladder"))
    assert (info.obs_shape, info.action_starts, limit) == ((2,), (5,), None)
