"""Shows the episodes of an evaluation on the screen, or keeps their pictures."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.types import Array, UserError

# In Gymnasium's words. In the first an environment shows every step by itself, in the second it returns pictures.
MODES = ("human", "rgb_array")


def render_mode(render: Any) -> str | None:
    """The mode that a `render` argument asks for; None for none."""
    if render is None or render is False:
        return None
    mode = MODES[0] if render is True else render
    if mode not in MODES:
        raise UserError(f"render={render!r}: must be true, false, {' or '.join(map(repr, MODES))}")
    return str(mode)


class Camera:
    """Looks at one environment in a render mode; its pictures are kept by episode."""

    def __init__(self, mode: str, env_id: str) -> None:
        self.mode = mode
        self._env_id = env_id
        self._episodes: list[list[Array]] = []

    def on(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """The environment with the camera on it; raises if there is nothing to see."""
        if env.render_mode != self.mode:
            modes = env.metadata.get("render_modes") or ["none"]
            raise UserError(
                f"render={self.mode!r}: {self._env_id} is made with render_mode={env.render_mode!r} (its modes: "
                f"{', '.join(map(str, modes))}); it must take render_mode={self.mode!r} as an argument, or have it"
            )
        return _Filmed(env, self._episodes) if self.mode == "rgb_array" else env

    def pictures(self, episodes: int) -> tuple[Array, ...]:
        """The pictures `[T + 1, height, width, 3]` of the first episodes."""
        return tuple(np.stack(pictures) for pictures in self._episodes[:episodes])


class _Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps a picture of every moment."""

    def __init__(self, env: gym.Env[Any, Any], episodes: list[list[Array]]) -> None:
        super().__init__(env)
        self._episodes = episodes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        came = self.env.reset(seed=seed, options=options)
        self._episodes.append([self._picture()])
        return came

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        came = self.env.step(action)
        self._episodes[-1].append(self._picture())
        return came

    def _picture(self) -> Array:
        return np.array(self.env.render())
