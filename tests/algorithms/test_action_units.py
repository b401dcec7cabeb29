"""On-policy networks compute actions in the environment's units, whatever its bounds are."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.experiment.config import load_config
from rl_training.runtime.train import Run, build


class Target(gym.Env[np.ndarray, np.ndarray]):
    """Hit a point that is shown; `reach` is how far the bounds are, which nobody gets near."""

    def __init__(self, reach: float) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Box(-reach, reach, (2,), np.float32)
        self._shown = np.zeros(1, np.float32)
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._time = 0
        return self._show(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._time += 1
        reward = -float(np.square(action - self._shown).sum())
        return self._show(), reward, False, self._time == 5, {}

    def _show(self) -> np.ndarray:
        self._shown = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self._shown


SMALL = {"num_envs": 2, "n_steps": 16, "hidden_sizes": [8], "total_timesteps": 10_000}
VARIANTS = [
    ("ppo", {}),
    ("ppo", {"engine": "autograd"}),
    ("ppo", {"use_sde": True}),
    ("a2c", {}),
    ("trpo", {}),
    ("ppg", {"aux_interval": 2}),
    ("recurrent_ppo", {"rnn_hidden_size": 8}),
    ("impala", {}),
    ("impala", {"rnn": "gru", "rnn_hidden_size": 8}),
    ("appo", {"target_update_interval": 2}),
]


def run_of(algo: str, reach: float, **settings: Any) -> Run:
    target = {"env_id": "test_action_units:Target", "env_kwargs": {"reach": reach}}
    return build(load_config({"algo": algo, **target, **SMALL, **settings}))


def weights_after(algo: str, reach: float, **settings: Any) -> np.ndarray:
    run = run_of(algo, reach, **settings)
    run.start()
    for _ in range(4):
        run.advance()
    weights = np.concatenate([tensor.numpy().ravel() for tensor in run.algorithm.policy.policy_state().values()])
    run.close()
    return weights


@pytest.mark.parametrize(("algo", "settings"), VARIANTS)
def test_wider_bounds_that_nobody_reaches_change_nothing(algo: str, settings: dict[str, Any]) -> None:
    """But for rounding: a float32 in [-1, 1] is an action to 4e-6 at bounds of 64. With a number, bounds are units."""
    by_auto, by_number = (
        np.abs(weights_after(algo, 16.0, **given, **settings) - weights_after(algo, 64.0, **given, **settings)).max()
        for given in ({}, {"log_std_init": 0.0})
    )
    assert by_auto < 1e-4
    assert by_number > 10.0 * by_auto


def test_a_custom_network_acts_in_the_policys_units() -> None:
    for model, unit in (("auto", 1 / 16), ("rl_training.testing:LinearActorCritic", 1.0)):
        run = run_of("ppo", 16.0, model=model)
        action = np.ones((1, 2), np.float32)
        assert run.algorithm.policy.from_network(action).tolist() == [[unit, unit]]
        assert run.algorithm.policy.to_network(action * np.float32(unit)).tolist() == [[1.0, 1.0]]
        run.close()
