"""CartPole as a picture: a small task for learning from images, in which a single image does not show velocities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from rl_training.types import Array, UserError

_LEAST = 16
_WHITE, _GROUND = (255, 255, 255), (150, 150, 150)
_CART, _POLE = (30, 30, 30), (200, 60, 20)


def cartpole_pixels(size: int = 64, gray: bool = False, **env_kwargs: Any) -> gym.Env[Any, Any]:
    """`env_id: rl_training.runtime.cartpole_pixels:cartpole_pixels`: CartPole-v1, seen as images.

    Images are RGB, `[size, size, 3]`, or gray, `[size, size]`. Other arguments are those of CartPole-v1.
    """
    limit = gym.spec("CartPole-v1").max_episode_steps
    assert limit is not None
    return gym.wrappers.TimeLimit(CartPolePixels(size=size, gray=gray, **env_kwargs), limit)


class CartPolePixels(CartPoleEnv):
    """CartPole whose observation is a picture of cart and pole, without a time limit.

    It is drawn with NumPy, since pygame takes tens of times as long. The pole is drawn longer than it is, so that a
    small angle moves its tip by some pixels. Edges are blended, so that less than a pixel shows.
    """

    def __init__(self, size: int = 64, gray: bool = False, **env_kwargs: Any) -> None:
        if type(size) is not int or size < _LEAST:
            raise UserError(f"env_kwargs.size={size!r}: must be a whole number of at least {_LEAST}")
        super().__init__(**env_kwargs)
        shape = (size, size) if gray else (size, size, 3)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self._picture = Picture(size, gray=gray, reach=self.x_threshold)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        return self._draw(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return self._draw(obs), reward, terminated, truncated, info

    def _draw(self, obs: Array) -> Array:
        return self._picture(float(obs[0]), float(obs[2]))

    def get_state(self) -> dict[str, Any]:
        """All that changes in an episode; Gymnasium's generator is saved apart."""
        return {"state": np.asarray(self.state, np.float64), "beyond": self.steps_beyond_terminated}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` returned."""
        self.state, self.steps_beyond_terminated = state["state"].copy(), state["beyond"]


class Picture:
    """Draws a cart at a place in [-reach, reach] with a pole at an angle, in radians from upright."""

    def __init__(self, size: int, *, gray: bool, reach: float) -> None:
        self._gray = gray
        self._columns: Array = np.arange(size, dtype=np.float32)
        # At the ends of the track there is room for a pole that leans outwards.
        self._middle, self._scale = (size - 1) / 2, 0.35 * size / reach
        # Rows from the top: air, the pole, the cart, and the ground.
        self._tip, self._top, self._bottom = size // 8, (25 * size) // 32, (28 * size) // 32
        self._half_cart, self._half_pole = size / 10, max(size / 50, 0.75)
        # How far the rows of the pole are above the cart.
        self._heights: Array = np.arange(self._top - self._tip, 0, -1, dtype=np.float32)[:, None]
        white, ground = _shades(_WHITE, _WHITE, gray)[0], _shades(_GROUND, _GROUND, gray)[0]
        self._cart, self._pole = _shades(_WHITE, _CART, gray), _shades(_WHITE, _POLE, gray)
        self._empty: Array = np.empty((size, size, len(white)), np.uint8)
        self._empty[: self._bottom], self._empty[self._bottom :] = white, ground

    def __call__(self, place: float, angle: float) -> Array:
        """The picture, a new array."""
        image: Array = self._empty.copy()
        beside = self._columns - (self._middle + place * self._scale)
        image[self._top : self._bottom] = self._cart.take(_covered(beside, self._half_cart), axis=0)
        leaning = beside - self._heights * math.tan(angle)
        image[self._tip : self._top] = self._pole.take(_covered(leaning, self._half_pole), axis=0)
        return image[..., 0] if self._gray else image


def _shades(start: tuple[int, ...], end: tuple[int, ...], gray: bool) -> Array:
    """The colours between two, by how much of 255 is the second: `[256, 3]`, or `[256, 1]` in gray."""
    ends: Array = np.array([start, end], np.float64)
    ends = ends.mean(axis=1, keepdims=True) if gray else ends
    share: Array = np.linspace(0.0, 1.0, 256)[:, None]
    shades: Array = np.rint(ends[0] + share * (ends[1] - ends[0])).astype(np.uint8)
    return shades


def _covered(distance: Array, half: float) -> Array:
    """How much of 255 of each pixel at these distances is covered by something this wide."""
    share: Array = np.abs(distance)
    np.subtract(half + 0.5, share, out=share)
    np.maximum(share, 0.0, out=share)
    np.minimum(share, 1.0, out=share)
    whole: Array = (share * 255.0).astype(np.intp)
    return whole
