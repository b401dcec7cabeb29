"""The example of a recurrent off-policy algorithm: it learns what only memory can solve, and keeps the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training import Agent
from rl_training.testing import (
    check_deterministic,
    check_evaluation_is_invisible,
    check_policy_stands_alone,
    check_resumes,
)
from rl_training.types import Array

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "recurrent_dqn.py"
SPEC = "recurrent_dqn:SPEC"


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))


class Cue(gym.Env[Array, int]):
    """Shows a cue once; the third action must repeat it. A policy without memory is right half of the time."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self.cue - 1.0, 0.0], np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time == 3
        return np.array([0.0, self.time / 3], np.float32), float(over and action == self.cue), over, False, {}


SETTINGS: dict[str, Any] = {
    "num_envs": 4,
    "hidden_sizes": [16],
    "learning_rate": 5e-3,
    "batch_size": 32,
    "learning_starts": 100,
}


def test_it_remembers_where_a_policy_without_memory_cannot() -> None:
    agent = Agent(Cue, algo=SPEC, window=3, **SETTINGS).learn(2_500)
    plain = Agent(Cue, algo="dqn", **SETTINGS).learn(2_500)
    assert agent.evaluate(40).mean == 1.0
    assert plain.evaluate(40).mean < 0.8


def test_states_that_were_computed_again_are_written_back() -> None:
    agent = Agent(Cue, algo=SPEC, window=3, **SETTINGS).learn(400)
    memory = agent._run.loop.memory  # type: ignore[attr-defined]
    windows = memory.windows(64, np.random.default_rng(0), length=3, across_episodes=False)
    stored, first = windows.records["state"], windows.first
    assert not stored[first].any(), "episodes begin with an empty state"
    assert np.abs(stored[windows.real & ~first]).max() > 0.01
    assert stored.shape == (3, 64, 16)


@pytest.mark.parametrize(
    "check", [check_resumes, check_deterministic, check_evaluation_is_invisible, check_policy_stands_alone]
)
def test_the_contract_holds(check: Any) -> None:
    check(SPEC, hidden_sizes=[8])


def test_several_observations_may_be_stacked() -> None:
    agent = Agent(Cue, algo=SPEC, window=3, frame_stack=2, **SETTINGS).learn(160)
    assert np.isfinite(agent.metrics["loss"])


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 120
