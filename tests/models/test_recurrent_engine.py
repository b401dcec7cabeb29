"""The fast path of recurrent networks against autograd, over whole updates; and what it does not cover."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.parts.objectives import AutogradForm, EngineForm
from rl_training.models.recurrent_engine import recurrent_within_reach
from rl_training.runtime.train import build
from rl_training.testing import tiny_config


def trained(engine: str, env: dict[str, Any], updates: int = 3, **settings: Any) -> Any:
    common = {"n_steps": 9, "num_envs": 3, "batch_size": 9, "learning_rate": 0.01, "rnn_hidden_size": 6}
    run = build(tiny_config("recurrent_ppo", env, engine=engine, **common, **settings))
    run.start()
    for _ in range(updates):
        run.advance()
    run.close()
    return run.algorithm


@pytest.mark.parametrize("rnn", ["lstm", "gru"])
@pytest.mark.parametrize("env", [{"masked": True}, {"actions": "continuous"}], ids=str)
@pytest.mark.parametrize(
    "settings",
    [{"activation": "relu"}, {"hidden_sizes": [], "shared_core": True}, {"sequence_length": 2, "activation": "silu"}],
    ids=str,
)
def test_three_updates_come_out_the_same(rnn: str, env: dict[str, Any], settings: dict[str, Any]) -> None:
    fast, reference = (trained(engine, env, rnn=rnn, **settings) for engine in ("auto", "autograd"))
    assert isinstance(fast.form, EngineForm)
    assert isinstance(reference.form, AutogradForm)
    torch.testing.assert_close(fast.parameters.data, reference.parameters.data, rtol=1e-3, atol=2e-4)
    before = trained("auto", env, updates=0, rnn=rnn, **settings)
    assert (fast.parameters.data - before.parameters.data).abs().max() > 1e-2


def test_what_is_not_covered_is_left_to_autograd() -> None:
    for settings in ({"activation": "elu"}, {"env": {"observations": "image"}}, {"env": {"observations": "dict"}}):
        env = settings.pop("env", {})
        learner = trained("auto", env, updates=0, **settings)  # type: ignore[arg-type]
        assert isinstance(learner.form, AutogradForm)
        assert learner.engine == "autograd"
    learner = trained("auto", {}, updates=0)
    assert recurrent_within_reach(learner.network, learner.policy.info)
    assert not recurrent_within_reach(learner.network.double(), learner.policy.info)


def test_several_threads_compute_the_same() -> None:
    learner = trained("auto", {"actions": "continuous"}, updates=0)
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(7, 3)).astype(np.float32), np.array([3, 3, 1])
    state, action = rng.normal(size=(3, 24)).astype(np.float32), rng.normal(size=(7, 2)).astype(np.float32)
    gradients = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            log_prob, _, value = learner.form.engine.evaluate_steps(*steps, state, action, None)
            learner.form.engine.backward(log_prob.copy(), 0.1, value.copy())
            gradients.append(learner.parameters.grad.clone())
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
