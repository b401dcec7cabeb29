"""Classic control without velocities: a partially observable task that needs a recurrent policy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.types import Array, UserError

# Which entries of an observation are not velocities.
_SHOWN = {
    "CartPole": [0, 2],
    "Pendulum": [0, 1],
    "MountainCar": [0],
    "MountainCarContinuous": [0],
    "Acrobot": [0, 1, 2, 3],
}


class NoVelocity(gym.ObservationWrapper[Any, Any, Any]):
    """`env_id: rl_training.runtime.no_velocity:NoVelocity` with `env_kwargs: {env_id: CartPole-v1}`.

    Other arguments go to the environment of that id.
    """

    def __init__(self, env_id: str, **env_kwargs: Any) -> None:
        # Ids with a namespace are other implementations, which need more than gymnasium itself.
        known = [key for key, spec in gym.registry.items() if spec.namespace is None and spec.name in _SHOWN]
        if env_id not in known:
            words = f"its velocities are not known; must be one of {', '.join(known)}"
            raise UserError(f"env_kwargs.env_id={env_id!r}: {words}")
        super().__init__(gym.make(env_id, **env_kwargs))
        self._shown = _SHOWN[gym.registry[env_id].name]
        space = self.env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(space.low[self._shown], space.high[self._shown], dtype=np.float32)

    def observation(self, observation: Array) -> Array:
        return observation[self._shown]
