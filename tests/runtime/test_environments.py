"""How environments are made, described, seeded, stepped and brought back."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training import PPO, Callback, UserError, resume_training, train
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.presets import preset_names
from rl_training.experiment.references import is_reference, resolve_reference
from rl_training.runtime import evaluate as evaluation
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.envs.atari import is_atari
from rl_training.runtime.envs.boards import is_board
from rl_training.runtime.envs.dmc import is_dmc
from rl_training.runtime.envs.grids import is_grid
from rl_training.runtime.envs.in_turn import InTurn
from rl_training.runtime.envs.make import EnvMaker, SavableCartPole
from rl_training.runtime.envs.processes import OwnProcesses
from rl_training.runtime.extras import clash
from rl_training.runtime.train import Run, build
from run_helpers import Pulled, PullPlug, Walk, latest, metrics_rows, run_differences, tiny, walks


def built(**changes: Any) -> Run:
    run = build(load_config(tiny(**changes)))
    run.start()
    return run


class Watched(gym.Env[Any, Any]):
    """Writes down what it is given and counts its steps aloud; ends after `length` steps."""

    observation_space: Any = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space: Any = gym.spaces.Discrete(3)
    seeds: ClassVar[list[list[int | None]]] = []
    actions: ClassVar[list[Any]] = []
    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, length: int = 5, reward: float = 1.0, start: int = 0, **extra: Any) -> None:
        type(self).made.append({"length": length, "reward": reward, "start": start})
        self.length, self.reward, self.time = length, reward, 0
        self.action_space = gym.spaces.Discrete(3, start=start)
        self.own_seeds: list[int | None] = []
        type(self).seeds.append(self.own_seeds)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.own_seeds.append(seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        type(self).actions.append(action)
        self.time += 1
        return self.observe(), self.reward, self.time >= self.length, False, {}

    def observe(self) -> Any:
        return np.array([self.time], np.float32)


@pytest.fixture(autouse=True)
def _forget() -> None:
    Watched.seeds.clear()
    Watched.actions.clear()
    Watched.made.clear()


WATCHED = "test_environments:Watched"


# Config: time limit, frame stack, reward clip, arguments.


@pytest.mark.parametrize("vectorization", ["sync", "async", "native"])
def test_time_limit_truncates_episodes(vectorization: str, tmp_path: Path) -> None:
    result = train(tiny(vectorization=vectorization, time_limit=4), run_dir=tmp_path / "run")
    assert result["episode_length_mean"] == 4.0
    assert result["episode_return_mean"] == 4.0
    assert result["eval_length_mean"] == 4.0


def test_time_limit_of_an_environment_of_ones_own(tmp_path: Path) -> None:
    run = built(env_id=WATCHED, env_kwargs={"length": 100}, time_limit=3)
    try:
        steps = [run.source.collector.step(np.zeros(3, np.int64)) for _ in range(3)]
    finally:
        run.close()
    assert [step.truncated.all() for step in steps] == [False, False, True]
    assert not any(step.terminated.any() for step in steps)


def test_without_a_time_limit_the_environments_own_holds() -> None:
    run = built(env_id="Acrobot-v1")
    try:
        assert [env.spec.max_episode_steps for env in run.source.collector.envs.envs] == [500, 500, 500]
    finally:
        run.close()


def test_frame_stack_shows_the_latest_observations() -> None:
    run = built(env_id=WATCHED, frame_stack=3, num_envs=1)
    try:
        assert run.info.obs_shape == (3, 1)
        seen = [run.source.collector.obs.copy()]
        for _ in range(6):
            step = run.source.collector.step(np.zeros(1, np.int64))
            seen.append(run.source.collector.obs.copy())
            if step.terminated.any():
                assert step.next_obs.ravel().tolist() == [3.0, 4.0, 5.0]
    finally:
        run.close()
    assert [obs.ravel().tolist() for obs in seen[:4]] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert seen[5].ravel().tolist() == [0, 0, 0], "nothing of the last episode is seen in the next"


@pytest.mark.parametrize("changes", [{}, {"frame_stack": 2}])
def test_frame_stack_trains_and_is_judged(changes: dict[str, Any], tmp_path: Path) -> None:
    result = train(tiny(**changes), run_dir=tmp_path / "run")
    inputs = latest(tmp_path / "run").policy
    widths = {tensor.shape[1] for name, tensor in inputs.items() if tensor.ndim == 2 and tensor.shape[0] == 8}
    assert 4 * changes.get("frame_stack", 1) in widths
    assert result["eval_return_mean"] > 0


def test_reward_clip_is_for_learning_and_returns_are_raw(tmp_path: Path) -> None:
    run = built(env_id=WATCHED, env_kwargs={"reward": 7.5}, reward_clip=2.0)
    try:
        rewards = [run.source.collector.step(np.zeros(3, np.int64)).reward for _ in range(5)]
        metrics = run.source.collector.metrics()
    finally:
        run.close()
    assert {float(value) for reward in rewards for value in reward} == {2.0}
    assert metrics["episode_return_mean"] == 37.5
    result = train(tiny(env_id=WATCHED, env_kwargs={"reward": -7.5}, reward_clip=2.0), run_dir=tmp_path / "run")
    assert result["episode_return_mean"] == -37.5
    assert result["eval_return_mean"] == -37.5


def test_reward_normalisation_leaves_returns_raw(tmp_path: Path) -> None:
    config = tiny(env_id=WATCHED, env_kwargs={"reward": 50.0}, normalize_reward=True, normalize_obs=True)
    result = train(config, run_dir=tmp_path / "run")
    assert result["episode_return_mean"] == 250.0
    assert result["eval_return_mean"] == 250.0


def test_env_kwargs_reach_the_environment(tmp_path: Path) -> None:
    train(tiny(env_id=WATCHED, env_kwargs={"length": 7, "reward": 2.0}), run_dir=tmp_path / "run")
    assert Watched.made
    assert all(made == {"length": 7, "reward": 2.0, "start": 0} for made in Watched.made)
    for vectorization in ("native", "sync"):
        run = built(vectorization=vectorization, env_kwargs={"sutton_barto_reward": True})
        try:
            assert run.source.collector.step(np.zeros(3, np.int64)).reward.tolist() == [0.0, 0.0, 0.0]
        finally:
            run.close()


# Spaces.


def test_discrete_observations_are_shown_as_one_hot(tmp_path: Path) -> None:
    run = built(env_id="FrozenLake-v1", num_envs=2)
    try:
        assert run.info.obs_shape == (16,)
        assert run.source.collector.obs.tolist() == np.eye(16)[[0, 0]].tolist()
        moved = [run.source.collector.step(np.array([1, 2])).next_obs for _ in range(5)]
    finally:
        run.close()
    assert all(obs.sum(axis=1).tolist() == [1.0, 1.0] and set(np.unique(obs)) == {0.0, 1.0} for obs in moved)
    assert train(tiny(env_id="FrozenLake-v1"), run_dir=tmp_path / "run")["episodes"] > 0


def test_discrete_actions_that_do_not_start_at_0(tmp_path: Path) -> None:
    train(tiny(env_id=WATCHED, env_kwargs={"start": 5}), run_dir=tmp_path / "run")
    assert {int(action) for action in Watched.actions} == {5, 6, 7}


class Asymmetric(Watched):
    """Bounds that are neither symmetric nor equal, and an action with two axes."""

    low = np.array([[-1.0, 0.0], [10.0, -3.0]], np.float32)
    high = np.array([[3.0, 0.5], [20.0, -2.0]], np.float32)

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(self.low, self.high, dtype=np.float32)


def test_actions_are_scaled_to_the_bounds_once() -> None:
    run = built(env_id="test_environments:Asymmetric", num_envs=1)
    try:
        assert run.info.action_size == 4
        for value, expected in (
            (-1.0, Asymmetric.low),
            (1.0, Asymmetric.high),
            (0.0, (Asymmetric.low + Asymmetric.high) / 2),
            (7.0, Asymmetric.high),
            (-7.0, Asymmetric.low),
        ):
            action = np.full((1, 4), value, np.float32)
            step = run.source.collector.step(action)
            sent = Asymmetric.actions[-1]
            assert sent.dtype == np.float32
            assert sent.shape == (2, 2)
            np.testing.assert_array_equal(sent, expected)
            # What the policy chose is what is learned from: neither scaled nor clipped.
            np.testing.assert_array_equal(step.action, action)
    finally:
        run.close()


class Stops(Watched):
    """Actions are whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(-2, 2, (1,), np.int64)


def test_whole_actions_are_rounded_and_not_cut() -> None:
    run = built(env_id="test_environments:Stops", num_envs=1)
    try:
        for value, expected in ((-1.0, -2), (-0.8, -2), (-0.7, -1), (-0.2, 0), (0.2, 0), (0.7, 1), (0.8, 2), (1.0, 2)):
            run.source.collector.step(np.full((1, 1), value, np.float32))
            assert Stops.actions[-1].dtype == np.int64
            assert Stops.actions[-1].tolist() == [expected], value
    finally:
        run.close()


def test_evaluation_and_prediction_scale_actions_too(tmp_path: Path) -> None:
    from rl_training import PPO

    config = tiny(env_id="test_environments:Asymmetric", log_std_init=2.0)
    train(config, run_dir=tmp_path / "run")
    assert Asymmetric.actions
    for action in Asymmetric.actions:
        assert (action >= Asymmetric.low).all()
        assert (action <= Asymmetric.high).all()
    agent = PPO.load(tmp_path / "run")
    try:
        before = len(Asymmetric.actions)
        agent.evaluate(1)
        first = Asymmetric.actions[before]
        predicted, _ = agent.predict(np.zeros(1, np.float32), deterministic=True)
        np.testing.assert_array_equal(predicted, first)
    finally:
        agent.close()


class DoubleWalk(Walk):
    """Shows float64."""

    observation_space: Any = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def observe(self) -> Any:
        return self.place.astype(np.float64)


def test_float64_observations_are_learned_from_as_float32_and_replayed_exactly(tmp_path: Path) -> None:
    config = tiny(env_id="test_environments:DoubleWalk", normalize_obs=True)
    run = built(env_id="test_environments:DoubleWalk")
    try:
        assert run.source.collector.obs.dtype == np.float32
        assert run.snapshot().envs["actor"]["raw"].dtype == torch.float64
    finally:
        run.close()
    train(config, run_dir=tmp_path / "whole")
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "cut", callbacks=[PullPlug(120)])
    resume_training(tmp_path / "cut")
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []


# Which vector environment.


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"num_envs": 8}, SavableCartPole),
        ({"num_envs": 7}, InTurn),  # so few are faster one by one
        ({"num_envs": 1, "vectorization": "native"}, SavableCartPole),
        ({"num_envs": 8, "time_limit": 7}, SavableCartPole),
        ({"num_envs": 8, "vectorization": "sync"}, InTurn),
        ({"num_envs": 8, "frame_stack": 2}, InTurn),
        ({"num_envs": 8, "env_id": "Acrobot-v1"}, InTurn),
        ({"vectorization": "async", "num_envs": 2}, OwnProcesses),
    ],
)
def test_the_native_vector_environment_is_used_where_it_can_be(changes: dict[str, Any], kind: type) -> None:
    run = build(load_config(tiny(**changes)))
    try:
        assert type(run.source.collector.envs) is kind
    finally:
        run.close()


@pytest.mark.parametrize("changes", [{"env_id": "Acrobot-v1"}, {"frame_stack": 2}])
def test_native_where_there_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"vectorization='native'.*use auto or sync"):
        build(load_config(tiny(vectorization="native", **changes)))


def test_the_native_limit_is_that_of_the_id() -> None:
    for env_id, limit in (("CartPole-v0", 200), ("CartPole-v1", 500)):
        run = build(load_config(tiny(env_id=env_id, vectorization="native")))
        assert run.source.collector.envs.max_episode_steps == limit
        run.close()


def test_asynchronous_environments_train_as_synchronous_ones(tmp_path: Path) -> None:
    for env_id in ("Acrobot-v1", "Pendulum-v1"):
        changes = {"env_id": env_id, "time_limit": 20, "total_timesteps": 96, "num_envs": 2}
        train(tiny(**changes, vectorization="sync"), run_dir=tmp_path / f"{env_id}-sync")
        train(tiny(**changes, vectorization="async"), run_dir=tmp_path / f"{env_id}-async")
        assert run_differences(tmp_path / f"{env_id}-sync", tmp_path / f"{env_id}-async") == []


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: str(mode.value))
def test_every_autoreset_mode_gives_the_same_transitions(mode: AutoresetMode) -> None:
    """Walks without noise from outside: each transition leads from where the last one ended, or from a new start."""
    envs = walks(3, mode.value)
    run = build(load_config(tiny(env_id="run_helpers:walks", env_kwargs={"mode": mode.value})))
    collector = Collector(envs, run.info, np.random.default_rng(0))
    run.close()
    rng = np.random.default_rng(1)
    counted = ended = 0
    try:
        collector.start()
        started = collector.obs.copy()
        fresh = np.ones(3, bool)
        for _ in range(60):
            before = collector.obs.copy()
            step = collector.step(rng.integers(0, 2, 3))
            done = step.terminated | step.truncated
            np.testing.assert_array_equal(step.obs, before)
            for b in np.flatnonzero(step.real):
                # A walk starts near 0 and moves by little: a reset between obs and next_obs would be seen.
                assert np.abs(step.next_obs[b] - step.obs[b]).max() < 1.2
                assert step.reward[b] == step.next_obs[b, 0]
                assert (np.abs(step.next_obs[b]).max() > 1.0) == step.terminated[b]
                assert not fresh[b] or np.abs(step.obs[b]).max() < 0.6
            assert not done[~step.real].any()
            counted += int(step.real.sum())
            ended += int(done.sum())
            assert collector.steps == counted
            if mode == AutoresetMode.NEXT_STEP:
                fresh = ~step.real
            else:
                fresh = done
                assert step.real.all()
        assert not np.array_equal(started, collector.obs)
        assert collector.metrics()["episodes"] == ended > 5
    finally:
        collector.close()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: str(mode.value))
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_every_autoreset_mode_trains(algo: str, mode: AutoresetMode, tmp_path: Path) -> None:
    config = tiny(algo=algo, env_id="run_helpers:walks", env_kwargs={"mode": mode.value}, eval_interval=100)
    result = train(config, run_dir=tmp_path / "run")
    assert result["step"] >= 240
    assert result["episodes"] > 5
    assert 1 <= result["eval_length_mean"] <= 11


def test_a_vector_environment_of_ones_own_must_be_one(tmp_path: Path) -> None:
    for env_id, words in (
        ("test_environments:not_a_vector", "must make a gymnasium.vector.VectorEnv"),
        ("test_environments:modeless", "name its autoreset_mode"),
        ("test_environments:not_an_env", "it made a int, not a gymnasium.Env"),
        ("test_environments:says_no_env", "makes an environment; it says that it returns int"),
        ("test_environments:WATCHED", "must name a function or class"),
    ):
        with pytest.raises(UserError, match=words):
            train(tiny(env_id=env_id), run_dir=tmp_path / "run")
    with pytest.raises(UserError, match="takes no time_limit or frame_stack"):
        train(tiny(env_id="run_helpers:walks", time_limit=4), run_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def not_a_vector(num_envs: int) -> gym.Env[Any, Any]:
    return Watched()


def modeless(num_envs: int) -> Any:
    envs = SyncVectorEnv([Watched] * num_envs)
    envs.metadata = {}
    return envs


def not_an_env() -> Any:
    return 5


def says_no_env() -> int:
    raise AssertionError("nobody calls it")


# Seeds.


def test_seeds_are_distinct_for_every_environment_and_every_episode(tmp_path: Path) -> None:
    run = built(env_id=WATCHED, num_envs=4)
    try:
        training = Watched.seeds[-4:]
        for _ in range(4):
            run.advance()
    finally:
        run.close()
    used = [seed for own in training for seed in own[-6:]]
    assert len(used) == 24
    assert None not in used
    assert len(set(used)) == 24


def test_evaluation_episodes_have_seeds_of_their_own_that_never_change(tmp_path: Path) -> None:
    runs = []
    for seed in (0, 1):
        Watched.seeds.clear()
        run = built(env_id=WATCHED, seed=seed)
        try:
            run.advance()
            training = {seed for own in Watched.seeds for seed in own}
            known = len(Watched.seeds)
            run.evaluate(5)
            judged = [own[0] for own in Watched.seeds[known:]]
            run.evaluate(5)
        finally:
            run.close()
        assert len(judged) == len(set(judged)) == 5
        assert not training & set(judged)
        runs.append(judged)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("changes", [{}, {"env_id": "Pendulum-v1"}, {"vectorization": "async", "num_envs": 2}])
def test_first_observations_repeat_for_one_seed_only(changes: dict[str, Any]) -> None:
    shown = []
    for seed in (3, 3, 4):
        run = built(**changes, seed=seed)
        shown.append(run.source.collector.obs.copy())
        run.close()
    np.testing.assert_array_equal(shown[0], shown[1])
    assert not np.array_equal(shown[0], shown[2])
    assert len(np.unique(shown[0], axis=0)) == len(shown[0]), "every environment starts elsewhere"


# Bringing them back.


def test_the_journal_replays_unequal_episodes_exactly() -> None:
    """At every step of a random history, other environments are brought to the same place and go on equally."""
    config = load_config(tiny(env_id="run_helpers:limited_walk", env_kwargs={"noise": 0.5}, num_envs=4))
    first, second = build(config), build(config)
    rng = np.random.default_rng(5)
    lengths = set()
    try:
        first.start()
        for moment in range(40):
            first.source.collector.step(rng.integers(0, 2, 4))
            if moment % 3:
                continue
            state = first.source.collector.state_dict()
            lengths.add(tuple(state["lengths"].tolist()))
            second.source.collector.load_state_dict(state)
            assert second.source.collector.restarts == 0
            np.testing.assert_array_equal(second.source.collector.obs, first.source.collector.obs)
            # They show the same now, and after the same actions.
            for env, other in zip(first.source.collector.envs.envs, second.source.collector.envs.envs, strict=True):
                np.testing.assert_array_equal(env.unwrapped.place, other.unwrapped.place)
                assert env.unwrapped.np_random.bit_generator.state == other.unwrapped.np_random.bit_generator.state
                assert env._elapsed_steps == other._elapsed_steps
    finally:
        first.close()
        second.close()
    assert sum(len(set(each)) > 1 for each in lengths) > 3, "episodes of unequal length were replayed"


def test_the_native_cartpole_is_brought_back_at_every_moment() -> None:
    """Right after an episode's end too, when the next step is its reset."""
    rng = np.random.default_rng(0)
    envs, others = SavableCartPole(num_envs=6, max_episode_steps=30), SavableCartPole(num_envs=6, max_episode_steps=30)
    envs.reset(seed=1)
    ended = 0
    for _ in range(80):
        action = rng.integers(0, 2, 6)
        ended += int(envs.prev_done.any())
        others.reset(seed=2)
        others.set_state(envs.get_state())
        for left, right in zip(envs.step(action)[:4], others.step(action)[:4], strict=True):
            np.testing.assert_array_equal(left, right)
    assert ended > 5
    envs.close()
    others.close()


def test_the_journal_keeps_no_more_than_the_running_episodes_and_those_before(tmp_path: Path) -> None:
    train(tiny(env_id="run_helpers:limited_walk", total_timesteps=960), run_dir=tmp_path / "run")
    keeper = latest(tmp_path / "run").envs["actor"]["keeper"]
    assert len(keeper["actions"]) <= 22
    assert int(keeper["starts"].min()) == 0


def test_bipedal_walker_is_made_anew_for_every_episode() -> None:
    pytest.importorskip("Box2D")
    from rl_training.runtime.envs.make import RebuiltPerEpisode

    run = built(env_id="BipedalWalker-v3", num_envs=1, time_limit=5)
    try:
        (env,) = run.source.collector.envs.envs
        assert isinstance(env, RebuiltPerEpisode)
        first = env.unwrapped
        for _ in range(5):
            run.source.collector.step(np.zeros((1, 4), np.float32))
        assert env.unwrapped is not first
    finally:
        run.close()


# NaN is not learned from.


class Poisoned(Walk):
    """Shows something that is no number, in its reward or its observation, at a step or a reset."""

    resets = 0

    def __init__(self, where: str, value: float = float("nan")) -> None:
        super().__init__()
        self.where, self.value, self.time = where, value, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        type(self).resets += 1
        obs, info = super().reset(seed=seed, options=options)
        return np.full_like(obs, self.value) if self.where == "reset" and type(self).resets > 12 else obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        obs, reward, _, _, info = super().step(action)
        late = self.time > 4 and type(self).resets > 12
        if self.where == "observation" and late:
            obs = np.array([0.0, self.value], np.float32)
        return obs, self.value if self.where == "reward" and late else reward, self.time > 5, False, info


def poisoned_walks(num_envs: int, where: str, mode: str) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Poisoned(where)] * num_envs, autoreset_mode=AutoresetMode(mode))


class FiniteWeights(Callback):
    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        assert all(bool(torch.isfinite(tensor).all()) for tensor in run.algorithm.policy.policy_state().values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["reward", "observation", "reset"])
def test_nan_stops_the_run_before_anything_is_learned_from_it(
    where: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Poisoned, "resets", 0)
    config = tiny(env_id="test_environments:Poisoned", env_kwargs={"where": where}, checkpoint_interval=24)
    with pytest.raises(UserError) as complaint:
        train(
            config,
            run_dir=tmp_path / "run",
            env_factory=lambda **_: Poisoned(where, value),
            callbacks=[FiniteWeights()],
        )
    name = "observation" if where == "reset" else where
    message = str(complaint.value)
    assert f"the {name} of environment" in message
    assert f"is {value} at step" in message
    kept = latest(tmp_path / "run")
    assert f"The last good checkpoint is {tmp_path / 'run' / 'checkpoints' / kept_name(kept)}" in message
    assert kept.meta["step"] > 0
    assert all(bool(torch.isfinite(tensor).all()) for tensor in kept.policy.values())
    assert metrics_rows(tmp_path / "run")


def kept_name(checkpoint: Any) -> str:
    return f"step_{checkpoint.meta['step']}"


@pytest.mark.parametrize("where", ["reward", "observation", "reset"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_nan_is_seen_in_every_autoreset_mode(
    mode: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Poisoned, "resets", 0)
    config = tiny(env_id="test_environments:poisoned_walks", env_kwargs={"where": where, "mode": mode})
    with pytest.raises(UserError, match=f"the {'observation' if where == 'reset' else where} of environment"):
        train(config, run_dir=tmp_path / "run", callbacks=[FiniteWeights()])


# Training that diverges is stopped by that name, and its last good checkpoint is good.


def ends_diverged(run_dir: Path, said: str, **settings: Any) -> None:
    callbacks = settings.pop("own", [])
    with pytest.raises(UserError, match=rf"training diverged at step \d+ \({said}\); lower learning_rate") as complaint:
        train(tiny(env_id="Pendulum-v1", **settings), run_dir=run_dir, callbacks=callbacks)
    kept = latest(run_dir)
    assert f"The last good checkpoint is {run_dir / 'checkpoints' / kept_name(kept)}" in str(complaint.value)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in kept.policy.values())


class Poisons(Callback):
    """Spoils the weights after a step, as a last gradient may."""

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        if run.steps == 48:
            weights = run.algorithm.policy.policy_state()
            run.algorithm.policy.load_policy_state({name: torch.full_like(weights[name], np.nan) for name in weights})


def test_metrics_that_are_no_numbers_end_the_training(tmp_path: Path) -> None:
    ends_diverged(
        tmp_path / "run", r"\w+ is -?(nan|inf)", learning_rate=1e30, checkpoint_interval=24, engine="autograd"
    )
    rows = metrics_rows(tmp_path / "run") if (tmp_path / "run" / "metrics.jsonl").exists() else []
    assert all(np.isfinite(list(row.values())).all() for row in rows)


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    ends_diverged(tmp_path / "run", r"[\w.]+ is nan", own=[Poisons()], checkpoint_interval=24)
    assert latest(tmp_path / "run").meta["step"] == 24


def test_actions_that_are_no_numbers_are_not_taken(tmp_path: Path) -> None:
    ends_diverged(tmp_path / "run", "the policy's action is nan", own=[Poisons()], checkpoint_interval=1000)


# Environments that do not end, are not new, or hide their masks.


class Endless(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


def test_an_evaluation_episode_that_never_ends_is_cut_off_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 40)
    config = tiny(env_id="test_environments:Endless", eval_interval=48)
    endless = train(config, run_dir=tmp_path / "run")
    assert endless.stop_reason == "completed"
    said = [record.getMessage() for record in caplog.records if "did not end" in record.getMessage()]
    assert said == [
        "evaluation episode 1 did not end in 40 steps and was cut off there; its return counts as it was by then "
        "(time_limit ends episodes earlier, in training too)"
    ]
    limited = train(config | {"time_limit": 40}, run_dir=tmp_path / "limited")
    assert limited["eval_length_mean"] == endless["eval_length_mean"] == 40
    returns = [
        [row["eval_return_mean"] for row in metrics_rows(tmp_path / name) if "eval_return_mean" in row]
        for name in ("run", "limited")
    ]
    assert returns[0][0] == returns[1][0], "the rewards up to there count"


def test_a_longer_time_limit_holds_in_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 40)
    result = train(tiny(env_id="test_environments:Endless", time_limit=50), run_dir=tmp_path / "run")
    assert result["eval_length_mean"] == 50


class CountsItsSteps(Endless):
    max_steps = 30


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"env_id": "test_environments:Endless"}, True),
        ({"env_id": "test_environments:Endless", "vectorization": "async"}, True),
        ({"env_id": "test_environments:Endless", "time_limit": 9}, False),
        ({"env_id": "test_environments:CountsItsSteps"}, False),
        ({"env_id": "run_helpers:limited_walk"}, False),
        ({"env_id": "run_helpers:walks"}, False),
        ({"env_id": "CartPole-v1"}, False),
        ({"env_id": "CartPole-v1", "num_envs": 8}, False),
        ({"algo": "muzero", "env_id": "pettingzoo/tictactoe_v3"}, False),
        ({"env_id": "MiniGrid-Empty-5x5-v0"}, False),
        ({"env_id": "ALE/Pong-v5"}, False),
    ],
)
def test_an_environment_that_shows_no_time_limit_is_said_at_the_start(changes: dict[str, Any], warned: bool) -> None:
    run = built(**changes)
    run.close()
    (name,) = {changes["env_id"]}
    said = f"env_id={name!r}: shows no time limit; give one with time_limit if episodes may not end (evaluations"
    assert [words.startswith(said) for words in run.evaluator.warnings()] == [True] * warned


def test_a_missing_time_limit_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tiny(env_id="run_helpers:Walk"), run_dir=tmp_path / "run")
    assert [record.levelname for record in caplog.records if "shows no time limit" in record.getMessage()] == [
        "WARNING"
    ]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_function_that_gives_one_environment_twice_is_refused(num_envs: int) -> None:
    env = Walk()
    with pytest.raises(UserError, match="returned the same environment twice"):
        PPO(lambda: env, num_envs=num_envs, hidden_sizes=[8]).evaluate(1)


class LateMask(Walk):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"action_mask": np.ones(2, np.int8)}


def test_a_mask_that_only_a_step_gives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="from step only; reset must return one too"):
        train(tiny(env_id="test_environments:LateMask"), run_dir=tmp_path / "run")


# Environments in processes of their own.


class KillsAWorker(Callback):
    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        os.kill(run.source.collector.envs.processes[0].pid, signal.SIGKILL)


def test_the_end_of_an_environments_process_is_said(tmp_path: Path) -> None:
    config = tiny(vectorization="async", num_envs=2)
    with pytest.raises(UserError, match=r"^environment 0: its process ended by signal 9; it was killed"):
        train(config, run_dir=tmp_path / "run", callbacks=[KillsAWorker()])
    assert multiprocessing.active_children() == []


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux which processes there are")
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_no_process_of_an_environment_outlives_the_main_one(end: str, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from rl_training.experiment.config import load_config\n"
        "from rl_training.runtime.train import build\n"
        f"run = build(load_config({tiny(vectorization='async', num_envs=2)!r}))\n"
        "run.start()\n"
        "print(*(process.pid for process in run.source.collector.envs.processes), flush=True)\n"
        "sys.stdin.readline()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        workers = [int(word) for word in process.stdout.readline().split()]
        assert [is_running(pid) for pid in workers] == [True, True]
        if end == "kill":
            process.kill()
        process.stdin.close()
        process.wait(timeout=60)
        deadline = time.monotonic() + 30
        while any(map(is_running, workers)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(map(is_running, workers))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# Presets.


@pytest.mark.parametrize("preset", preset_names())
def test_the_environments_of_every_preset_can_be_made(preset: str) -> None:
    config = load_config(preset)
    for task in config.run.tasks or [""]:
        _make_environment(config.for_task(task))


def _make_environment(config: Config) -> None:
    """Make the environment of one task as a run does, or skip the test where its extra is not installed."""
    if is_reference(config.run.env_id):
        assert isinstance(resolve_reference(config.run.env_id, key="env_id")(**config.run.env_kwargs), gym.Env)
        return
    for known, module in ((is_atari, "ale_py"), (is_board, "pettingzoo"), (is_dmc, "shimmy"), (is_grid, "minigrid")):
        if known(config.run.env_id):
            pytest.importorskip(module)
            if is_dmc(config.run.env_id) and (problem := clash("dmc")) is not None:
                pytest.skip(problem)
            EnvMaker(config.run, config.loop).single().close()
            return
    for package, module in (("box2d", "Box2D"), ("mujoco", "mujoco")):
        if package in str(gym.spec(config.run.env_id).entry_point):
            pytest.importorskip(module)
    env = gym.make(config.run.env_id, **config.run.env_kwargs)
    try:
        assert env.spec is not None
        assert env.spec.id == config.run.env_id
    finally:
        env.close()
