"""The heads of AWAC and of behaviour cloning by likelihood: clipped data, returns, custom networks, online, resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from conformance import CONTINUOUS, agent, built, trained
from off_policy_reference import acted, transitions
from rl_training import train
from rl_training.algorithms.parts.policies import LOG_STD_RANGE, ClippedGaussianPolicy, SquashedGaussianPolicy
from rl_training.experiment.config import load_config
from rl_training.testing import TinyEnv
from rl_training.types import SpaceInfo, UserError
from run_helpers import cut_and_resume, latest, run_differences, tiny

HEADS = {"gaussian": ClippedGaussianPolicy, "squashed": SquashedGaussianPolicy}
EACH_HEAD = pytest.mark.parametrize("head", HEADS)
EACH_ALGO = pytest.mark.parametrize("algo", ["awac", "bc"])
# Every weight of AWAC is 1 then: pure imitation.
IMITATION: dict[str, dict[str, Any]] = {"awac": {"awac_lambda": 1e6}, "bc": {"loss": "likelihood"}}


def clipped_batch(kind: str, rows: int = 4096) -> Any:
    """States in [-1, 1], and the actions of a controller, clipped to the bounds: many are exactly 1 or -1."""
    obs = np.random.default_rng(0).uniform(-1.0, 1.0, (rows, 3)).astype(np.float32)
    wanted = 2.0 * obs[:, :2] if kind == "clip(2s)" else np.sign(obs[:, :2])
    return replace(transitions(CONTINUOUS, rows), obs=obs, action=wanted.clip(-1.0, 1.0).astype(np.float32))


def imitation_error(algo: str, head: str, kind: str) -> float:
    """The mean absolute error after some hundred updates."""
    batch = clipped_batch(kind)
    settings = {"learning_rate": 1e-3, "batch_size": 256, "hidden_sizes": [64, 64], "normalize_obs": False}
    learner = agent(algo, CONTINUOUS, policy_head=head, **settings, **IMITATION[algo])
    for _ in range(30):
        learner.update(batch)
    return float(np.abs(acted(learner, batch.obs, explore=False) - batch.action).mean())


@EACH_ALGO
@pytest.mark.parametrize("kind", ["clip(2s)", "bang-bang"])
def test_the_default_head_imitates_clipped_actions_far_better(algo: str, kind: str) -> None:
    """The squashed head must reach the inverse tanh of 1, and actions at the bounds outweigh all others."""
    default = load_config({"algo": algo, "env_id": "none"}).flat()["policy_head"]
    found = {head: imitation_error(algo, head, kind) for head in HEADS}
    assert found[default] < 0.07
    assert found["squashed"] > 2.5 * found[default]


class Slider(gym.Env[np.ndarray, np.ndarray]):
    """A mass on a rail, pushed by a force of at most 1; it should stand still at 0. An episode has 40 steps."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-9.0, 9.0, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.place, self.speed, self.time = 0.0, 0.0, 0

    def show(self) -> np.ndarray:
        return np.array([self.place, self.speed], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(-1.0, 1.0, 2)
        self.time = 0
        return self.show(), {}

    def step(self, action: np.ndarray) -> Any:
        self.speed += 0.2 * float(action[0])
        self.place += 0.2 * self.speed
        self.time += 1
        return self.show(), -abs(self.place), False, self.time == 40, {}


def controlled(obs: np.ndarray) -> np.ndarray:
    """The force of a stiff controller, at the bounds nearly always."""
    return np.clip(-20.0 * (obs[..., :1] + obs[..., 1:]), -1.0, 1.0).astype(np.float32)


def slider_data(info: SpaceInfo) -> dict[str, np.ndarray]:
    env, rows = Slider(), []
    for episode in range(60):
        obs, over = env.reset(seed=episode)[0], False
        while not over:
            action = controlled(obs)
            after, reward, _, over, _ = env.step(action)
            rows.append((obs, action, reward, after, False, over))
            obs = after
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    return {name: np.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def slider_return(act: Any) -> float:
    env, total = Slider(), 0.0
    for episode in range(1000, 1020):
        obs, over = env.reset(seed=episode)[0], False
        while not over:
            obs, reward, _, over, _ = env.step(act(obs[None])[0])
            total += reward
    return total / 20


@EACH_ALGO
def test_the_return_on_clipped_data_is_that_of_the_data(algo: str) -> None:
    """The squashed head loses several times as much of it."""
    best, lost = slider_return(controlled), {}
    for head in HEADS:
        run = trained(
            algo,
            Slider,
            dataset="test_policy_heads:slider_data",
            policy_head=head,
            hidden_sizes=[32, 32],
            learning_rate=3e-3,
            batch_size=128,
            total_updates=600,
            normalize_obs=True,
            **IMITATION[algo],
        )
        lost[head] = best - slider_return(lambda obs, learner=run.algorithm: acted(learner, obs, explore=False))
    assert lost["gaussian"] < 0.1 * abs(best)
    assert lost["squashed"] > 2.0 * max(lost["gaussian"], 0.0)


@EACH_ALGO
def test_the_deviation_shrinks_on_exact_data_and_stays_in_its_range(algo: str) -> None:
    batch = clipped_batch("clip(2s)", rows=64)
    calm = replace(batch, action=np.zeros_like(batch.action))
    settings = {"learning_rate": 0.5, "batch_size": 64, "normalize_obs": False}
    learner = agent(algo, CONTINUOUS, **settings, **IMITATION[algo])
    learner.learners["actor"].parameters.data.zero_()
    for _ in range(30):
        learner.update(calm)
    np.testing.assert_array_equal(learner.policy.network.log_std.detach(), LOG_STD_RANGE[0])


# Networks, checkpoints, training that continues online


@EACH_HEAD
def test_a_custom_network_has_the_outputs_of_the_head(head: str) -> None:
    models = {"gaussian": "LinearDeterministicActorCritic", "squashed": "LinearSoftActorCritic"}
    settings = {"dataset": "rl_training.testing:tiny_dataset", "done_means": "terminal", "policy_head": head}
    for name, model in models.items():
        if name == head:
            run = built("awac", tiny_world, model=f"rl_training.testing:{model}", **settings)
            run.advance()
            run.close()
            assert np.isfinite(run.metrics["actor_loss"])
        else:
            with pytest.raises(UserError, match=rf"with policy_head='{head}', actor\(obs\) must return \[B, "):
                built("awac", tiny_world, model=f"rl_training.testing:{model}", **settings)


def tiny_world() -> TinyEnv:
    return TinyEnv(actions="continuous")


def tiny_awac(head: str, **changes: Any) -> dict[str, Any]:
    return tiny(
        algo="awac",
        policy_head=head,
        env_id="rl_training.testing:TinyEnv",
        env_kwargs={"actions": "continuous"},
        time_limit=None,
        dataset="rl_training.testing:tiny_dataset",
        done_means="terminal",
        vectorization="sync",
        **changes,
    )


@EACH_HEAD
def test_a_run_continues_online_and_resumes_exactly(head: str, tmp_path: Path) -> None:
    offline = tmp_path / "offline"
    train(tiny_awac(head, total_timesteps=30), run_dir=offline)
    assert ("actor.log_std" in latest(offline).policy) == (head == "gaussian")
    online = tiny_awac(head, start_from=str(offline), total_timesteps=144, checkpoint_interval=48)
    train(online, run_dir=tmp_path / "straight")
    cut_and_resume(online, tmp_path / "cut", after=72)
    assert run_differences(tmp_path / "straight", tmp_path / "cut") == []


def test_a_run_with_the_other_head_is_refused(tmp_path: Path) -> None:
    train(tiny_awac("squashed", total_timesteps=4), run_dir=tmp_path / "offline")
    with pytest.raises(UserError, match="its policy_head is 'squashed', but that of this run is 'gaussian'"):
        train(tiny_awac("gaussian", start_from=str(tmp_path / "offline")), run_dir=tmp_path / "online")
