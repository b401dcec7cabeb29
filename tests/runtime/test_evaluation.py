"""Evaluation with stochastic actions and in other environments: the same every time, without effect on training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training import DQN, PPO, SAC, Agent, UserError, evaluate_checkpoint, train
from rl_training.runtime.train import build
from rl_training.testing import TinyEnv, checkpoint_differences, tiny_config
from run_helpers import Command, tiny

SMALL: dict[str, Any] = {"num_envs": 2, "n_steps": 8, "hidden_sizes": [8], "batch_size": 8}


class Wheel(gym.Env[Any, Any]):
    """An episode of five steps; the reward is the action, in units of the environment."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, low: float = -1.0, high: float = 1.0, size: int = 1) -> None:
        self.action_space = gym.spaces.Box(low, high, (size,), np.float32)
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        return np.ones(2, np.float32), float(action[0]), False, self._time >= 5, {}


class OtherWheel(Wheel):
    """The same with other bounds."""

    def __init__(self) -> None:
        super().__init__(10.0, 30.0)


@pytest.fixture(scope="module")
def agent() -> Any:
    made = PPO("CartPole-v1", **SMALL).learn(32)
    yield made
    made.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DQN run whose exploration went from random actions to none; it is only read."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    schedule = {"type": "linear", "end": 0.0, "steps": 48}
    train(tiny(algo="dqn", epsilon=1.0, epsilon_schedule=schedule, keep_checkpoints=9), run_dir=run_dir)
    return run_dir


# Stochastic actions


def test_stochastic_actions_are_the_same_in_every_evaluation_and_not_the_greedy_ones(agent: Any) -> None:
    greedy, stochastic = agent.evaluate(20), agent.evaluate(20, deterministic=False)
    assert stochastic != greedy
    assert agent.evaluate(20, deterministic=False) == stochastic
    assert agent.evaluate(20) == greedy


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo", "sac", "dqn"])
def test_a_stochastic_evaluation_does_not_change_training(algo: str) -> None:
    plain, evaluated = build(tiny_config(algo)), build(tiny_config(algo))
    for run in (plain, evaluated):
        run.start()
        run.advance()
    evaluated.evaluate(3, deterministic=False)
    evaluated.evaluate(3, deterministic=False, env=TinyEnv if algo != "sac" else lambda: TinyEnv("continuous"))
    plain.advance()
    evaluated.advance()
    assert checkpoint_differences(plain.snapshot(), evaluated.snapshot()) == []
    plain.close()
    evaluated.close()


def test_a_checkpoint_explores_as_it_did_when_it_was_saved(finished: Path) -> None:
    """Its epsilon was 1 at step 0, and 0 from step 48 on, where stochastic actions are greedy."""
    first, last = (finished / "checkpoints" / name for name in ("step_0", "step_240"))
    greedy, stochastic = (evaluate_checkpoint(first, num_episodes=16, deterministic=flag) for flag in (True, False))
    assert greedy != stochastic
    assert stochastic["eval_return_mean"] > 15.0, "random actions"
    assert evaluate_checkpoint(last, deterministic=False) == evaluate_checkpoint(last)


def test_a_checkpoint_is_evaluated_like_the_agent_that_it_was(tmp_path: Path) -> None:
    agent = SAC("Pendulum-v1", num_envs=1, learning_starts=8, hidden_sizes=[8], batch_size=8, time_limit=20).learn(24)
    path = agent.save(tmp_path / "agent")
    for arguments in ({"deterministic": False}, {"env": "Pendulum-v1"}, {"deterministic": False, "env": "Pendulum-v1"}):
        judged = evaluate_checkpoint(path, num_episodes=3, **arguments)
        assert judged == {"step": 24.0} | agent.evaluate(3, **arguments).metrics()
    agent.close()


def test_gsde_draws_new_noise_for_new_episodes() -> None:
    """The noise depends on the state only, and every state is the same: so are the actions between two draws."""
    agent = PPO(Wheel, use_sde=True, log_std_init=-2.0, **SMALL)
    returns = agent.evaluate(48, deterministic=False).returns
    assert len(np.unique(returns)) == 48
    assert len(np.unique(agent.evaluate(48).returns)) == 1
    agent.close()


# Another environment


def test_actions_are_scaled_to_the_bounds_of_the_other_environment(tmp_path: Path) -> None:
    agent = PPO(Wheel, **SMALL)
    own = agent.evaluate(2).mean
    assert agent.evaluate(2, env=OtherWheel).mean == pytest.approx(5 * 20.0 + 10.0 * own, abs=1e-4)
    assert agent.evaluate(2).mean == own, "its own environment is still there"
    judged = evaluate_checkpoint(agent.save(tmp_path / "agent"), num_episodes=2, env=OtherWheel)
    assert judged["eval_return_mean"] == agent.evaluate(2, env=OtherWheel).mean
    agent.close()


def test_an_environment_may_be_an_id_a_function_or_an_environment() -> None:
    agent = SAC("Pendulum-v1", num_envs=1, time_limit=20, hidden_sizes=[8])
    own = agent.evaluate(2)
    assert own.lengths == (20, 20)
    plain = agent.evaluate(2, env="Pendulum-v1")
    assert plain.lengths == (200, 200), "the time limit of training belongs to its environment"
    assert agent.evaluate(2, env=lambda: gym.make("Pendulum-v1")) == plain
    assert agent.evaluate(2, env=gym.make("Pendulum-v1")) == plain
    assert agent.evaluate(2, env=gym.make("Pendulum-v1", max_episode_steps=20)) == own
    assert agent.evaluate(2, env=gym.make("Pendulum-v1", g=1.0)) != plain
    agent.close()


def test_frames_are_stacked_as_in_training() -> None:
    agent = PPO("CartPole-v1", frame_stack=3, **SMALL)
    assert agent.evaluate(5, env="CartPole-v1") == agent.evaluate(5)
    agent.close()


def test_a_run_whose_environment_has_no_name_can_be_evaluated_elsewhere(tmp_path: Path) -> None:
    agent = PPO(lambda: TinyEnv(observations="dict", masked=True), **SMALL).learn(16)
    path = agent.save(tmp_path / "agent")
    with pytest.raises(UserError, match=r"was given as an object.*pass it again \(env=\)"):
        evaluate_checkpoint(path)
    elsewhere = evaluate_checkpoint(path, num_episodes=4, env=lambda: TinyEnv(observations="dict", masked=True))
    assert elsewhere == {"step": 16.0} | agent.evaluate(4).metrics()
    agent.close()


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        (
            "Acrobot-v1",
            r"env='Acrobot-v1': its observations are float32 \(6,\); the policy was trained on float32 \(4,\)",
        ),
        ("MountainCar-v0", r"its observations are float32 \(2,\)"),
        ("CartPole-v2", "env_id='CartPole-v2'"),
        ("CartPol-v1", "unknown environment; did you mean"),
        (gym.Env(), "pass an id, or a function that makes it"),
        (3, "env=3: must be a Gymnasium id, a function"),
    ],
)
def test_an_environment_that_does_not_fit_is_explained(agent: Any, env: Any, complaint: str, tmp_path: Path) -> None:
    path = agent.save(tmp_path / "agent")
    for evaluate in (agent.evaluate, lambda *count, env: evaluate_checkpoint(path, env=env)):
        with pytest.raises(UserError, match=complaint):
            evaluate(2, env=env)


@pytest.mark.parametrize(
    ("trained", "other", "complaint"),
    [
        ({}, {"actions": "multi_discrete"}, r"its actions are multi_discrete of \[3, 2\]; .* on discrete of \[3\]"),
        ({"actions": "continuous"}, {}, r"its actions are discrete of \[3\]; .* on continuous of 2"),
        ({}, {"masked": True}, r"are float32 \(3,\) with a mask of 3 actions; .* on float32 \(3,\)"),
        ({"observations": "dict"}, {}, r"are float32 \(3,\); .* on 'numbers' float32 \(3,\), 'image' uint8"),
    ],
    ids=str,
)
def test_spaces_that_do_not_fit_are_named(trained: Any, other: Any, complaint: str) -> None:
    agent = PPO(lambda: TinyEnv(**trained), **SMALL)
    with pytest.raises(UserError, match=complaint):
        agent.evaluate(1, env=lambda: TinyEnv(**other))
    agent.close()


def test_one_of_two_ways_to_name_an_environment(finished: Path) -> None:
    with pytest.raises(UserError, match="env='CartPole-v1' and env_factory: give one of them"):
        evaluate_checkpoint(finished, env="CartPole-v1", env_factory=lambda: gym.make("CartPole-v1"))


# The command


def test_the_command_takes_both(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(monkeypatch, capsys)
    first = finished / "checkpoints" / "step_0"
    expected = evaluate_checkpoint(first, num_episodes=5, deterministic=False)
    said = command("eval", first, "--episodes", 5, "--stochastic")
    assert said.out.startswith(f"return {expected['eval_return_mean']:.2f} +- {expected['eval_return_std']:.2f} over 5")
    greedy = command("eval", first, "--episodes", 5)
    assert greedy.out != said.out
    assert command("eval", first, "--episodes", 5, "--env", "CartPole-v1").out == greedy.out
    refused = command("eval", finished, "--env", "Acrobot-v1")
    assert refused.code == 2
    assert refused.err.startswith("error: env='Acrobot-v1': its observations are")


def test_a_loaded_agent_evaluates_like_its_checkpoint(finished: Path) -> None:
    loaded = DQN.load(finished / "checkpoints" / "step_0")
    judged = evaluate_checkpoint(finished / "checkpoints" / "step_0", num_episodes=4, deterministic=False)
    assert isinstance(loaded, Agent)
    assert judged == {"step": 0.0} | loaded.evaluate(4, deterministic=False).metrics()
    loaded.close()
