"""Before the first rollout: random steps for the scale of observations, and a word about phases that never come."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training import PPG, resume_training, train
from rl_training.experiment.registry import REGISTRY
from rl_training.runtime.train import Run, build
from rl_training.testing import TinyEnv, tiny_config
from run_helpers import cut_and_resume, latest, run_differences, tiny

FAMILIES = ("on_policy", "imitation", "actor_learner")
ON_POLICY = [name for name, entry in REGISTRY.items() if entry.family in FAMILIES]
N_STEPS, NUM_ENVS = 6, 2  # of `tiny_config`


class Far(gym.Env[Any, Any]):
    """Observations around 500, with a deviation of 20; an episode has seven steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        return self._obs(), 1.0, False, self._time >= 7, {}

    def _obs(self) -> Any:
        return self.np_random.normal(500.0, 20.0, 3).astype(np.float32)


def in_next_step_mode(num_envs: int, actions: str) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: TinyEnv(actions)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def started(algo: str = "ppo", env_factory: Any = None, **settings: Any) -> Run:
    run = build(tiny_config(algo, **settings), env_factory=env_factory)
    run.start()
    return run


def inputs_of(run: Run) -> list[np.ndarray]:
    """What the policy's network will see from now on when it acts by itself."""
    seen: list[np.ndarray] = []
    policy: Any = run.algorithm.policy
    outputs = policy.acting.outputs

    def watched(rows: np.ndarray) -> Any:
        seen.append(np.array(rows))
        return outputs(rows)

    policy.acting.outputs = watched
    return seen


def test_the_policy_never_sees_unscaled_observations() -> None:
    run = started(env_factory=lambda **_: Far(), normalize_obs=True, n_steps=50)
    seen = inputs_of(run)
    run.advance()
    rows = np.concatenate(seen[50:100])  # the first fifty are those of the random steps, whose outputs nobody uses
    assert np.abs(rows.mean(axis=0)).max() < 0.5
    assert np.abs(rows.std(axis=0) - 1.0).max() < 0.3
    assert np.abs(rows).max() < 10.0, "nothing is clipped"
    run.close()


@pytest.mark.parametrize("algo", ON_POLICY)
def test_the_random_steps_are_on_the_clock_and_in_the_statistics_once(algo: str) -> None:
    run = started(algo, normalize_obs=True)
    run.advance()
    moments = run.algorithm.observer.normalizer.moments
    rows = N_STEPS * NUM_ENVS
    assert run.steps == 2 * rows, "the random steps, and a rollout"
    assert moments.count == 2 * rows
    run.advance()
    assert run.steps == moments.count == 3 * rows
    run.close()
    plain = started(algo)
    plain.advance()
    assert plain.steps == rows, "no random steps without statistics"
    plain.close()


def test_random_steps_are_few_in_long_rollouts_and_random() -> None:
    taken: list[int] = []

    class Watched(Far):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            taken.append(int(action))
            return super().step(action)

    run = started(env_factory=lambda **_: Watched(), normalize_obs=True, n_steps=700, num_envs=2)
    policy: Any = run.algorithm.policy
    act = policy.act
    policy.act = lambda *rows, **how: replace(act(*rows, **how), action=np.ones(2, np.int64))
    run.advance()
    assert run.steps == 1000 + 1400
    assert np.bincount(taken[:1000], minlength=3).min() > 250, "all three actions"
    assert set(taken[1000:]) == {1}, "the policy's"
    run.close()


def test_rows_of_a_reset_are_not_in_the_statistics() -> None:
    run = started(env_factory=in_next_step_mode, normalize_obs=True, n_steps=40)
    run.advance()
    assert run.algorithm.observer.normalizer.moments.count == run.steps < 2 * 80
    run.close()


def test_demonstrations_that_a_policy_cloned_first_make_random_steps_needless() -> None:
    run = started("gail", normalize_obs=True, bc_updates=1)
    run.advance()
    assert run.steps == N_STEPS * NUM_ENVS
    run.close()


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
def test_a_run_that_is_resumed_from_its_very_start_is_exact(algo: str, tmp_path: Path) -> None:
    settings = tiny(algo=algo, normalize_obs=True, normalize_reward=True, total_timesteps=120, checkpoint_interval=1000)
    train(settings, run_dir=tmp_path / "straight")
    cut_and_resume(settings, tmp_path / "cut", after=0)
    assert run_differences(tmp_path / "straight", tmp_path / "cut") == []
    assert latest(tmp_path / "cut").meta["step"] == 120


# What a run will never do


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


SHORT = {"num_envs": 2, "n_steps": 8, "hidden_sizes": [8], "batch_size": 8}


@pytest.mark.parametrize(
    ("steps", "normalize_obs", "warned"), [(48, False, True), (49, False, False), (64, True, True)]
)
def test_ppg_says_that_its_auxiliary_phase_never_comes(
    steps: int, normalize_obs: bool, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent = PPG("CartPole-v1", aux_interval=4, normalize_obs=normalize_obs, **SHORT).learn(steps)
    said = [words for words in warnings_of(caplog) if words.startswith("aux_interval=4: this run has 3 rollouts of 16")]
    assert len(said) == warned
    assert ("n_aux_updates" in agent.metrics) != warned
    agent.close()


def test_a_resumed_ppg_run_is_warned_about_what_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"algo": "ppg", "env_id": "CartPole-v1", "aux_interval": 4, "eval_episodes": 1, **SHORT}
    train(settings | {"total_timesteps": 32}, run_dir=tmp_path / "run")
    assert len(warnings_of(caplog)) == 1
    resume_training(tmp_path / "run", total_timesteps=48)
    assert len(warnings_of(caplog)) == 2
    resume_training(tmp_path / "run", total_timesteps=64)
    resume_training(tmp_path / "run", total_timesteps=80)
    assert len(warnings_of(caplog)) == 2, "the phase comes, and has come"


def test_off_policy_runs_that_end_before_they_learn_are_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = tiny(algo="dqn", learning_starts=100, updates_per_step=1.0)  # in steps of 24
    train(settings | {"total_timesteps": 96}, run_dir=tmp_path / "short")
    (said,) = warnings_of(caplog)
    assert said == "learning_starts=100: this run ends at step 96, before its first update"
    result = train(settings | {"total_timesteps": 97}, run_dir=tmp_path / "long")
    assert result["n_updates"] == 20.0, "the last step of the loop is a whole one"
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("algo", ["ppo", "sac", "bc"])
def test_other_runs_are_not_warned(algo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tiny(algo=algo, total_timesteps=72), run_dir=tmp_path / "run")
    assert warnings_of(caplog) == []
