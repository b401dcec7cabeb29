"""Hindsight experience replay in runs: settings, what is refused, resumes, workers, and what it teaches."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training import SAC, UserError, evaluate_checkpoint, load_config, resume_training, train
from rl_training.data.hindsight import HindsightMemory
from rl_training.experiment.fields import json_schema, settings_of
from rl_training.experiment.registry import REGISTRY, load_spec
from rl_training.runtime.envs.goals import GoalJudge, success_of
from rl_training.runtime.envs.spaces import PackedObservation
from rl_training.runtime.goal_worlds import BitFlipping, PointGoal, bit_flipping, point_goal
from rl_training.runtime.train import build
from rl_training.testing import TinyEnv, TinyGoalEnv
from run_helpers import (
    Command,
    cut_and_resume,
    latest,
    metrics_rows,
    own_process,
    run_differences,
    tiny,
    training_differences,
    wait_for,
)

ALGORITHMS = ("dqn", "ddpg", "td3", "sac", "tqc", "redq")
TINY_GOAL = "rl_training.testing:TinyGoalEnv"


def goal_config(algo: str = "dqn", **changes: Any) -> dict[str, Any]:
    actions = "discrete" if algo == "dqn" else "continuous"
    return tiny(algo=algo, env_id=TINY_GOAL, env_kwargs={"actions": actions}, her="future") | changes


# Settings.


@pytest.mark.parametrize(
    ("given", "strategy", "goals"),
    [
        (True, "future", 4),
        ("final", "final", 4),
        ({"n_sampled_goal": 2}, "future", 2),
        ({"strategy": "episode", "n_sampled_goal": 1}, "episode", 1),
    ],
)
def test_forms_of_the_setting(given: Any, strategy: str, goals: int) -> None:
    config = load_config(goal_config(her=given))
    assert config.flat()["her"] == {"strategy": strategy, "n_sampled_goal": goals}
    assert config.replace(seed=3).flat()["her"] == config.flat()["her"]
    assert load_config(goal_config(), ["her.strategy=final"] if goals == 4 else []).flat()["her"]["n_sampled_goal"] == 4


@pytest.mark.parametrize("given", [False, None])
def test_it_can_be_turned_off(given: Any) -> None:
    config = load_config("dqn/bit_flipping", her=given)
    assert config.flat()["her"] is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("futur", r"her.strategy='futur': must be one of future, final, episode; did you mean 'future'\?"),
        ({"strategie": "final"}, r"her.strategie: unknown key; did you mean 'strategy'\?"),
        ({"n_sampled_goal": 0}, "her.n_sampled_goal=0: must be at least 1"),
        (3, "her: 3 is neither true nor one of future, final, episode nor a mapping of both"),
    ],
)
def test_wrong_settings_are_one_line(given: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"^config: {words}$"):
        load_config(goal_config(her=given))


def test_the_schema_knows_the_short_forms() -> None:
    forms = json_schema(load_spec("sac"))["properties"]["her"]["anyOf"]
    assert {"type": "boolean"} in forms
    assert any(form.get("enum") == ["future", "final", "episode"] for form in forms)


@pytest.mark.parametrize("algo", [name for name in REGISTRY if name not in ALGORITHMS])
def test_algorithms_without_it_name_those_that_have_it(algo: str) -> None:
    assert "her" not in settings_of(load_spec(algo))
    words = f"her: {algo} has none: dqn, ddpg, td3, sac, tqc and redq have hindsight experience replay"
    with pytest.raises(UserError, match=words):
        load_config(algo, env_id="CartPole-v1", her="future")


def test_those_that_are_named_have_it() -> None:
    assert {name for name in REGISTRY if "her" in settings_of(load_spec(name))} == set(ALGORITHMS)


# What is refused before training starts.


class WithoutReward(gym.Wrapper):
    """Hides what would be asked for."""

    def has_wrapper_attr(self, name: str) -> bool:
        return name != "compute_reward" and super().has_wrapper_attr(name)


class Scaled(gym.Wrapper):
    """Another reward than `compute_reward` says."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, 0.5 * float(reward), *rest


class Answers(TinyGoalEnv):
    """Answers in a wrong way; its own rewards are right."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self._answer = answer

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        rewards = super().compute_reward(achieved_goal, desired_goal, info)
        if self._answer == "info":
            return rewards * info["weight"]
        return {"one": rewards.sum(), "column": rewards[..., None], "nan": rewards * np.nan}[self._answer]


class UnlikeGoals(TinyGoalEnv):
    def __init__(self) -> None:
        super().__init__()
        spaces = dict(self.observation_space.spaces)
        self.observation_space = gym.spaces.Dict(spaces | {"desired_goal": gym.spaces.Box(-9, 9, (2,), np.float32)})

    def _shown(self, obs: Any) -> dict[str, Any]:
        return super()._shown(obs) | {"desired_goal": np.zeros(2, np.float32)}


def many(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([TinyEnv] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


def refused(tmp_path: Path, words: str, **changes: Any) -> None:
    """A run ends with these words in one line, and leaves nothing behind."""
    with pytest.raises(UserError, match=words) as error:
        train(goal_config(output_dir=str(tmp_path / "runs")) | changes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env_id": "CartPole-v1", "env_kwargs": {}}, "her: CartPole-v1 is no goal environment; .* and are a Box$"),
        (
            {"env_id": "rl_training.testing:TinyEnv", "env_kwargs": {"observations": "dict"}},
            "her: .*TinyEnv is no goal environment; its observations must be a Dict of observation, achieved_goal, "
            "desired_goal, and are a Dict of .*numbers",
        ),
        ({"prioritized": True}, "her: cannot be combined with prioritized=True; "),
    ],
)
def test_what_cannot_work_is_one_line(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    refused(tmp_path, words, **changes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WithoutReward(TinyGoalEnv()), r"has no compute_reward\(achieved_goal, desired_goal, info\)"),
        (
            lambda: Scaled(TinyGoalEnv()),
            "gave the reward -0.5 for a step of which compute_reward says -1; ",
        ),
        (lambda: Answers("one"), r"must return 30 rewards for goals of shape \(30, 1\).*of shape \(\)$"),
        (lambda: Answers("column"), r"must return 30 rewards .* of shape \(30, 1\)$"),
        (lambda: Answers("nan"), "returned a reward that is not finite$"),
        (lambda: Answers("info"), "failed on goals .* with an empty info for each row: TypeError: list indices"),
        (many, "is no goal environment; .* and are a Box$"),
        (UnlikeGoals, r"achieved_goal of .* is float32 \(1,\) and desired_goal float32 \(2,\); they must be alike"),
    ],
)
def test_environments_that_answer_wrongly_are_one_line(make: Any, words: str, tmp_path: Path) -> None:
    settings = goal_config(output_dir=str(tmp_path / "runs"), env_kwargs={}, env_id="mine")
    with pytest.raises(UserError, match=f"^her: .*{words}") as error:
        train(settings, env_factory=make)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_an_environment_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(UserError, match="her: goals are judged in an environment of their own: copies of the given"):
        SAC(gym.Wrapper(PointGoal(2, 0.1)), her=True)


def test_goals_that_are_stored_in_another_form_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    make = PackedObservation.__init__

    def moved(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self.parts = tuple(replace(part, shape=(1, 1)) if "goal" in part.name else part for part in self.parts)

    run = build(load_config(goal_config(her=None)))
    monkeypatch.setattr(PackedObservation, "__init__", moved)
    with pytest.raises(UserError, match=r"her: goals of .* must be plain arrays; \(1,\) is stored as"):
        GoalJudge(run.evaluator.maker, None)
    run.close()


# What the environment is asked.


class OneByOne(TinyGoalEnv):
    """Says of one end at a time, as Gymnasium-Robotics does: of many it would say something wrong."""

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return bool(np.linalg.norm(achieved_goal - desired_goal) < 0.3)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return TinyGoalEnv().compute_reward(achieved_goal, desired_goal, info)


class WholeGoals(gym.Wrapper):
    """Counts goals in whole numbers, and wants to be asked in them."""

    def __init__(self) -> None:
        super().__init__(BitFlipping(3))
        goal = gym.spaces.Box(0, 1, (3,), np.int8)
        shown = {"observation": self.env.observation_space["observation"], "achieved_goal": goal, "desired_goal": goal}
        self.observation_space = gym.spaces.Dict(shown)

    def _whole(self, obs: dict[str, Any]) -> dict[str, Any]:
        return {name: value if name == "observation" else value.astype(np.int8) for name, value in obs.items()}

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        return self._whole(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return self._whole(obs), *rest

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        assert achieved_goal.dtype == desired_goal.dtype == np.int8
        assert len(info) == len(achieved_goal)
        return -((achieved_goal ^ desired_goal).any(axis=-1)).astype(float)


def judge_of(make: Any, **changes: Any) -> GoalJudge:
    run = build(load_config(goal_config(env_id="mine", env_kwargs={}, **changes)), env_factory=make)
    run.close()
    memory = run.loop.memory  # type: ignore[attr-defined]
    assert isinstance(memory, HindsightMemory)
    judge = memory._outcome
    assert isinstance(judge, GoalJudge)
    return judge


def test_ends_are_asked_for_one_by_one_where_they_have_to_be() -> None:
    rng = np.random.default_rng(0)
    achieved, desired = rng.normal(size=(2, 50, 1)).astype(np.float32)
    expected = np.abs(achieved - desired)[:, 0] < 0.3
    assert 0 < expected.sum() < 50
    for make in (TinyGoalEnv, OneByOne):
        np.testing.assert_array_equal(judge_of(make).ends(achieved, desired), expected)
    assert judge_of(point_goal, algo="sac").ends(np.zeros((2, 3)), np.zeros((2, 3))) is None


def test_goals_are_asked_for_in_the_dtype_of_their_space_and_rewards_are_clipped() -> None:
    judge = judge_of(WholeGoals, reward_clip=0.25)
    rewards = judge.rewards(np.array([[1, 0, 1], [1, 1, 1]], np.float32), np.ones((2, 3), np.float32))
    assert rewards.tolist() == [-0.25, 0.0]
    assert rewards.dtype == np.float32


def test_what_is_learned_from_is_relabelled() -> None:
    """The share of successes among what is drawn is that of goals, not that of what happened."""
    shares = []
    for her in (None, "final"):
        config = goal_config(env_id="mine", env_kwargs={}, her=her, learning_starts=1_000)
        run = build(load_config(config), env_factory=lambda: bit_flipping(12))
        run.start()
        for _ in range(6):
            run.advance()
        batch = run.loop.memory.transitions(4_000, np.random.default_rng(0), gamma=0.9)  # type: ignore[attr-defined]
        shares.append(float((batch.reward == 0.0).mean()))
        run.close()
    assert shares[0] < 0.01
    assert 0.05 < shares[1] < 0.12, "the last of 12 steps, and those after which the bits happened to be the same"


# Exact, wherever it is trained.


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_run_resumes_to_the_bit(algo: str, tmp_path: Path) -> None:
    config = goal_config(algo, normalize_obs=True, n_step=3 if algo in ("dqn", "sac") else 1, buffer_size=60)
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "half", after=130)
    assert run_differences(tmp_path / "whole", tmp_path / "half") == []
    assert latest(tmp_path / "half").meta["resume"] == "exact"


def test_a_killed_process_is_resumed_to_the_bit(tmp_path: Path) -> None:
    config = goal_config(env_id="rl_training.runtime.goal_worlds:bit_flipping", env_kwargs={"bits": 5}, her="episode")
    config |= {"total_timesteps": 480, "checkpoint_interval": 24}
    train(config, run_dir=tmp_path / "whole")
    file = tmp_path / "slow"
    job = {"config": config, "run_dir": str(tmp_path / "killed"), "slow_after": 240, "signal_file": str(file)}
    with own_process(tmp_path, **job) as process:
        wait_for(file, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert latest(tmp_path / "killed").meta["step"] < 480
    resume_training(tmp_path / "killed")
    assert run_differences(tmp_path / "whole", tmp_path / "killed") == []


def test_workers_in_processes_gather_for_it() -> None:
    config = goal_config()
    results = []
    for actors in ("inline", "process"):
        run = build(load_config(config | {"actors": actors}))
        run.start()
        try:
            for _ in range(4):
                run.advance()
            results.append(run.snapshot())
        finally:
            run.close()
    left = training_differences(*results)
    # The streams of the environments and of the policy are those of the worker, and are saved with it.
    assert all(where.startswith(("envs", "rng.streams")) for where in left), left


def test_a_resumed_run_keeps_its_goals(tmp_path: Path) -> None:
    train(goal_config(total_timesteps=24), run_dir=tmp_path / "run")
    with pytest.raises(UserError, match=r"her=.*final.*: a resumed run keeps its her"):
        resume_training(tmp_path / "run", her="final", total_timesteps=480)


# Success, and what is learned.


def test_evaluations_report_successes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(goal_config(eval_interval=120, eval_episodes=20), run_dir=tmp_path / "run")
    assert 0.0 < result["eval_success_rate"] < 1.0
    evaluated = [row["eval_success_rate"] for row in metrics_rows(tmp_path / "run") if "eval_success_rate" in row]
    assert evaluated[-1] == result["eval_success_rate"]
    judged = evaluate_checkpoint(tmp_path / "run", num_episodes=20)
    assert judged["eval_success_rate"] == result["eval_success_rate"]
    said = Command(monkeypatch, capsys)("eval", tmp_path / "run", "--episodes", 20)
    assert f", success {result['eval_success_rate']:.0%}) at step 240" in said.out


def test_a_run_may_stop_at_a_rate_of_success(tmp_path: Path) -> None:
    rule = {"metric": "eval_success_rate", "target_value": 0.0}
    stopped = train(goal_config(eval_interval=24, early_stopping=rule), run_dir=tmp_path / "run")
    assert stopped.stop_reason.startswith("early_stopping: eval_success_rate reached")
    with pytest.raises(UserError, match=r"early_stopping\.metric='eval_success_rate': the environment does not"):
        train(tiny(eval_interval=24, early_stopping=rule), run_dir=tmp_path / "other")


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        ({"is_success": np.array([False, True]), "_is_success": np.array([True, True])}, True),
        ({"success": np.array([0.0, 1.0])}, True),
        ({"is_success": np.array([False, True]), "_is_success": np.array([True, False])}, None),
        ({"final_info": {"is_success": np.array([True, False])}, "is_success": np.array([True, True])}, False),
        ({"success": np.array(["no", "yes"])}, None),
        ({"success": True}, None),
        ({}, None),
    ],
)
def test_what_counts_as_success(infos: dict[str, Any], expected: bool | None) -> None:
    assert success_of(infos, 1) is expected


@pytest.mark.parametrize("make", [lambda: bit_flipping(6), lambda: point_goal(2), TinyGoalEnv])
def test_goal_worlds_keep_the_convention(make: Any) -> None:
    env = make()
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        over = False
        while not over:
            obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
            asked = env.get_wrapper_attr("compute_reward")(obs["achieved_goal"], obs["desired_goal"], info)
            assert reward == asked == float(info["is_success"]) - 1.0
            assert env.observation_space.contains(obs)
            over = terminated or truncated


def test_states_of_goal_worlds_can_be_saved() -> None:
    for make in (lambda: BitFlipping(7), lambda: PointGoal(2, 0.1)):
        one, other = make(), make()
        one.reset(seed=1)
        other.reset(seed=2)
        one.step(one.action_space.sample())
        other.set_state(one.get_state())
        action = one.action_space.sample()
        for left, right in zip(one.step(action), other.step(action), strict=True):
            np.testing.assert_equal(left, right)


@pytest.mark.parametrize(("name", "value"), [("bits", 0), ("steps", 1.5)])
def test_wrong_arguments_of_goal_worlds_are_one_line(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"env_kwargs.{name}={value}: must be a whole number of at least 1"):
        bit_flipping(**{name: value})


def test_environments_of_gymnasium_robotics_train_and_resume(tmp_path: Path) -> None:
    """A maze says of one end at a time, names its success otherwise, and has an id with a module."""
    pytest.importorskip("gymnasium_robotics")
    pytest.importorskip("mujoco")
    maze = {"env_id": "gymnasium_robotics:PointMaze_UMaze-v3", "env_kwargs": {"continuing_task": False}}
    config = tiny(algo="sac", her=True, **maze, time_limit=20, num_envs=2, total_timesteps=96)
    result = train(config, run_dir=tmp_path / "whole")
    assert 0.0 <= result["eval_success_rate"] <= 1.0
    cut_and_resume(config, tmp_path / "half", after=60)
    # The environment keeps the name of a temporary file, which is another one after a resume.
    found = training_differences(latest(tmp_path / "whole"), latest(tmp_path / "half"))
    assert all(where.startswith("envs") for where in found), found
