"""A custom environment, used as `env_id: custom_env:make_env`.

Run this file, or name the function on the command line, from this folder:

    rl-training train ppo env_id=custom_env:make_env env_kwargs.length=12 n_steps=64 total_timesteps=10000
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training import PPO

Observation = NDArray[np.float32]
Info = dict[str, Any]
LEFT, RIGHT = 0, 1


class Corridor(gym.Env[Observation, np.int64]):
    """Walk to the door at the right end of a corridor. Every step costs a little, the door pays 1.

    All randomness comes from `self.np_random`, which `reset(seed=...)` seeds: so a run that was killed can be resumed
    exactly.
    """

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.position = 0
        self.observation_space = gym.spaces.Box(-1.0, 1.0, shape=(2,), dtype=np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.position = int(self.np_random.integers(self.length // 2))
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, Info]:
        move = 1 if action == RIGHT else -1
        self.position = max(self.position + move, 0)
        at_the_door = self.position == self.length - 1
        return self._look(), 1.0 if at_the_door else -0.05, at_the_door, False, {}

    def _look(self) -> Observation:
        """The position in the corridor, scaled to [-1, 1], and whether there is a wall to the left."""
        done = self.position / (self.length - 1)
        return np.array([2.0 * done - 1.0, float(self.position == 0)], dtype=np.float32)


def make_env(length: int = 8) -> gym.Env[Observation, np.int64]:
    """One environment; `env_kwargs` of the config are its arguments. Training calls it once for each of `num_envs`."""
    return gym.wrappers.TimeLimit(Corridor(length), max_episode_steps=4 * length)


if __name__ == "__main__":
    agent = PPO(make_env, n_steps=64, learning_rate=1e-3).learn(10_000)
    print(f"return {agent.evaluate(20).mean:.2f} (a straight walk to the door earns between 0.70 and 0.85)")
