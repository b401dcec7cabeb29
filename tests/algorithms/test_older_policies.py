"""Learning while a policy of several updates ago acts: the real loop, with weights that reach the actor late."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from conformance import Bandit, CutShort, built, chosen, values
from rl_training.data.rollout import Rollout
from rl_training.runtime.actors.sources import Local
from rl_training.runtime.train import Run, policy_for
from rl_training.types import Metrics

FORMS = pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("impala", {}),
        ("impala", {"rnn": "gru", "optimizer": "adam"}),
        ("appo", {"n_epochs": 2}),
        ("appo", {"n_epochs": 2, "target_update_interval": 4}),
        ("appo", {"n_epochs": 2, "kl_coef": 0.1, "kl_target": 0.05}),
    ],
    ids=["impala", "impala_gru", "appo", "appo_target", "appo_penalty"],
)


def learned_with_lag(run: Run, updates: int, steps: int) -> list[Metrics]:
    """Train for some steps with an actor whose policy is that of so many updates ago; the metrics of all updates."""
    learner: Any = run.algorithm
    assert isinstance(run.source, Local)
    behaviour = run.source.actor.policy = policy_for(run.config, learner.policy.tasks)
    seen: list[Metrics] = []
    update = learner.update

    def weights() -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in learner.policy.policy_state().items()}

    waiting = deque([weights()])
    behaviour.load_policy_state(waiting[0])

    def late(rollout: Rollout) -> Metrics:
        seen.append(update(rollout))
        waiting.append(weights())
        if len(waiting) > updates + 1:
            waiting.popleft()
        behaviour.load_policy_state(waiting[0])
        return seen[-1]

    learner.update = late
    while run.steps < steps:
        run.advance()
    run.close()
    return seen


@FORMS
def test_a_bandit_is_solved_from_rollouts_of_eight_updates_ago(algo: str, settings: dict[str, Any]) -> None:
    steps = 4_000
    rates = {"learning_rate": 0.02, "learning_rate_schedule": "linear", "max_grad_norm": 1.0, "ent_coef": 0.01}
    run = built(algo, Bandit, n_steps=8, num_envs=4, total_timesteps=steps, **rates, **settings)
    seen = learned_with_lag(run, 8, steps)
    assert chosen(run.algorithm, np.ones((1, 1), np.float32), explore=False).action.tolist() == [2]
    assert max(metrics["approx_kl"] for metrics in seen) > 1e-2  # the policies that acted were other ones
    if algo == "impala":
        assert min(metrics["rho_mean"] for metrics in seen) < 0.99
        assert all(metrics["rho_mean"] <= 1.0 for metrics in seen)


@pytest.mark.parametrize("algo", ["impala", "appo"])
def test_values_are_right_whoever_acted(algo: str) -> None:
    """B is worth 1, C 5, and A gamma times B: a truncation bootstraps from its own successor, late or not."""
    steps, gamma = 6_000, 0.9
    rates = {"learning_rate": 0.02, "learning_rate_schedule": "linear", "max_grad_norm": 100.0, "ent_coef": 0.0}
    run = built(algo, CutShort, n_steps=16, num_envs=4, total_timesteps=steps, gamma=gamma, **rates)
    learned_with_lag(run, 8, steps)
    np.testing.assert_allclose(values(run, np.eye(4)[:3]), [gamma, 1.0, 5.0], atol=0.05)
