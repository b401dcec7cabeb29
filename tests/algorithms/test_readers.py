"""What a policy says of a rollout that an older one has made, against a plain loop over steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from conformance import chosen
from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from rl_training.algorithms.parts.recurrent_policy import one_step
from rl_training.data.rollout import Rollout
from rl_training.runtime.train import build
from rl_training.testing import TinyEnv, tiny_config

EACH_ENGINE = pytest.mark.parametrize("engine", ["auto", "autograd"])
POLICIES = pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo", {}),
        ("ppo", {"hidden_sizes": [300, 300]}),  # acts by BLAS, into a workspace
        ("recurrent_ppo", {"rnn": "lstm"}),
        ("recurrent_ppo", {"rnn": "gru", "shared_core": True}),
    ],
    ids=["rows", "wide", "lstm", "gru"],
)
WORLDS = pytest.mark.parametrize(
    "env",
    [{"actions": "discrete"}, {"actions": "continuous"}, {"actions": "multi_discrete", "masked": True}],
    ids=["discrete", "continuous", "masked"],
)


def made(
    algo: str, env: dict[str, Any] | None = None, env_factory: Any = None, **settings: Any
) -> tuple[OnPolicyAlgorithm, Rollout]:
    """An algorithm, and the second rollout of its policy, from which nothing was learned."""
    settings = {"n_steps": 11, "num_envs": 5, "time_limit": 4, "ortho_init": False} | settings
    run = build(tiny_config(algo, env, **settings), env_factory=env_factory)
    run.start()
    learner = run.algorithm
    assert isinstance(learner, OnPolicyAlgorithm)
    learner.update = lambda batch: {}  # type: ignore[method-assign]
    for _ in range(2):
        run.advance()
    del learner.update
    run.close()
    return learner, run.loop.rollout  # type: ignore[attr-defined]


def moved(learner: OnPolicyAlgorithm) -> None:
    """Other weights than those that acted."""
    learner.parameters.data += 0.2 * torch.randn(learner.parameters.data.shape, generator=torch.manual_seed(0))


def step_by_step(learner: OnPolicyAlgorithm, rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probabilities and values of all rows, and the values of successors, by the policy's own steps."""
    policy: Any = learner.policy
    values, log_probs = np.zeros((2, *rollout.real.shape), np.float32)
    after: dict[tuple[int, int], Any] = {}
    carry = rollout.records["state"][0] if "state" in rollout.records else None
    for t, obs in enumerate(rollout.obs):
        if carry is not None:
            carry = np.where(rollout.starts[t][:, None], np.float32(0.0), carry)
        act = chosen(learner, obs, carry)
        values[t] = act.records["value"]
        rows = policy.observer.scaled(obs)
        with torch.no_grad():
            inputs = rows if carry is None else one_step(rows, np.ascontiguousarray(carry))
            params = policy.network_outputs(inputs)[0]
            action = torch.from_numpy(policy.to_network(rollout.action[t]))
            log_probs[t] = policy.distribution.log_prob(params, action).numpy()
        carry = act.carry
        for b in range(len(obs)):
            after[t, b] = None if carry is None else carry[b][None].copy()
    places = zip(*rollout.bootstrap_places(), rollout.bootstrap_obs(), strict=True)
    bootstrap = [chosen(learner, obs[None], after[t, b]).records["value"][0] for t, b, obs in places]
    return log_probs, values, np.array(bootstrap)


@EACH_ENGINE
@POLICIES
@WORLDS
def test_the_policy_that_acted_says_what_it_said(
    algo: str, settings: dict[str, Any], env: dict[str, Any], engine: str
) -> None:
    learner, rollout = made(algo, env, engine=engine, **settings)
    judged = learner.reader.judge(rollout)
    np.testing.assert_allclose(judged.log_prob, rollout.records["log_prob"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(judged.value, rollout.records["value"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(judged.bootstrap, learner.bootstrap_values(rollout), rtol=0, atol=2e-6)


@EACH_ENGINE
@POLICIES
@WORLDS
def test_another_policy_is_computed_from_the_first_state_on(
    algo: str, settings: dict[str, Any], env: dict[str, Any], engine: str
) -> None:
    learner, rollout = made(algo, env, engine=engine, normalize_obs=True, **settings)
    assert rollout.truncated.any()
    moved(learner)
    judged = learner.reader.judge(rollout)
    assert np.abs(judged.value - rollout.records["value"]).max() > 1e-2
    for found, expected in zip(judged, step_by_step(learner, rollout), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_of_recorded_states_only_those_at_the_start_count() -> None:
    """A state in the middle is that of an older network: a value that started from it would be of two networks."""
    learner, rollout = made("recurrent_ppo", num_envs=1, time_limit=100)
    moved(learner)
    before = learner.reader.judge(rollout)
    rollout.records["state"][1:] = 7.0
    rollout.records["state"][rollout.starts] = 0.0
    for found, expected in zip(learner.reader.judge(rollout), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@EACH_ENGINE
@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
def test_rows_that_a_reset_made_change_nothing(algo: str, engine: str) -> None:
    def in_next_step_mode(num_envs: int, actions: str) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: TinyEnv(actions)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)

    learner, rollout = made(algo, env_factory=in_next_step_mode, engine=engine, time_limit=None)
    real = rollout.real
    assert not real.all()
    before = learner.reader.judge(rollout)
    rollout.obs[~real] = 9.0
    after = learner.reader.judge(rollout)
    for found, expected in zip(after[:2], before[:2], strict=True):
        np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=1e-6)
    np.testing.assert_allclose(before.value[real], rollout.records["value"][real], rtol=0, atol=2e-6)
    rows, envs = rollout.bootstrap_places()
    np.testing.assert_allclose(after.bootstrap[real[rows, envs]], before.bootstrap[real[rows, envs]], rtol=0, atol=1e-6)
