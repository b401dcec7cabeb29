"""MiniGrid, with observations that a network can learn from: numbers or pixels in place of words and codes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from rl_training.runtime.extras import import_extra
from rl_training.types import Array, UserError

# The codes of a cell: its object, its colour, and its state (of a door, or where an agent looks).
_CODES = (11, 6, 4)
_DIRECTIONS = 4
_AGENT, _RED = 10, 0
_MOST_MISSIONS = 10_000

OBSERVATIONS = ("grid", "pixels")
VIEWS = ("agent", "whole")
# What is asked of us; all other arguments are MiniGrid's.
_OWN = ("observation", "view", "image_size")


def is_grid(env_id: str) -> bool:
    """Whether an id names an environment of MiniGrid."""
    return env_id.startswith("MiniGrid-")


def register_grids(env_id: str) -> None:
    """Register the environments with Gymnasium, or say which extra is missing."""
    gym.register_envs(import_extra("minigrid", "minigrid", asked_by=f"env_id={env_id!r}"))


def make_grid(env_id: str, env_kwargs: Mapping[str, Any], time_limit: int | None = None) -> gym.Env[Any, Any]:
    """An environment of MiniGrid with our observations."""
    own = {key: value for key, value in env_kwargs.items() if key in _OWN}
    theirs = {key: value for key, value in env_kwargs.items() if key not in _OWN}
    return GridObservation(gym.make(env_id, max_episode_steps=time_limit, **theirs), **own)


class GridObservation(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """What an agent of MiniGrid sees, as numbers.

    `grid`: a vector with a 1 for the object, the colour and the state of every cell, and for the direction in which the
    agent looks. `pixels`: an RGB image of `image_size` x `image_size`. `view` is the agent's own, of which it is the
    centre of the lower edge, or the whole grid from above.

    Where missions differ between episodes, a 1 for each of their variable words is at the end of the vector, or a part
    of its own, `mission`, beside `image`.
    """

    def __init__(
        self, env: gym.Env[Any, Any], observation: str = "grid", view: str = "agent", image_size: int = 64
    ) -> None:
        RecordConstructorArgs.__init__(self, observation=observation, view=view, image_size=image_size)
        gym.ObservationWrapper.__init__(self, env)
        for key, value, choices in (("observation", observation, OBSERVATIONS), ("view", view, VIEWS)):
            if value not in choices:
                raise UserError(f"env_kwargs.{key}={value!r}: must be {' or '.join(choices)}")
        self._grid = cast(Any, env.unwrapped)
        self._whole, self._pixels = view == "whole", observation == "pixels"
        side = self._grid.agent_view_size
        self._cells = (self._grid.width, self._grid.height) if self._whole else (side, side)
        if self._pixels and (type(image_size) is not int or image_size < max(self._cells)):
            raise UserError(
                f"env_kwargs.image_size={image_size!r}: must be a whole number of at least {max(self._cells)}, a pixel "
                "for each cell"
            )
        self._size = image_size
        self._missions = mission_vectors(env.observation_space["mission"])  # type: ignore[index]
        self.observation_space = self._space()

    def _space(self) -> gym.Space[Any]:
        words = len(next(iter(self._missions.values()))) if self._missions else 0
        if not self._pixels:
            length = self._cells[0] * self._cells[1] * sum(_CODES) + _DIRECTIONS + words
            return gym.spaces.Box(0.0, 1.0, (length,), np.float32)
        image = gym.spaces.Box(0, 255, (self._size, self._size, 3), np.uint8)
        if not words:
            return image
        return gym.spaces.Dict({"image": image, "mission": gym.spaces.Box(0.0, 1.0, (words,), np.float32)})

    def observation(self, observation: Mapping[str, Any]) -> Any:
        mission = self._missions[observation["mission"]] if self._missions else None
        if not self._pixels:
            codes = self._whole_codes() if self._whole else observation["image"]
            direction = _one_hot(int(observation["direction"]), _DIRECTIONS)
            return np.concatenate([_hot_codes(codes), direction, *([] if mission is None else [mission])])
        image = self._image()
        return image if mission is None else {"image": image, "mission": mission}

    def _whole_codes(self) -> Array:
        codes: Array = self._grid.grid.encode()
        codes[self._grid.agent_pos] = (_AGENT, _RED, self._grid.agent_dir)
        return codes

    def _image(self) -> Array:
        """The view with as many pixels for each cell as there is room for, in the middle of a black image."""
        tile = self._size // max(self._cells)
        frame = self._grid.get_frame(tile_size=tile, agent_pov=not self._whole, highlight=self._grid.highlight)
        height, width = frame.shape[:2]
        top, left = (self._size - height) // 2, (self._size - width) // 2
        image = np.zeros((self._size, self._size, 3), np.uint8)
        image[top : top + height, left : left + width] = frame
        return image


def mission_vectors(space: Any) -> dict[str, Array]:
    """Every mission of a space, and a 1 for each of its variable words; nothing if there is one mission only."""
    words = space.ordered_placeholders or []
    vectors: dict[str, Array] = {}
    for text, choice in _missions(space):
        hot = [_one_hot(index, len(options)) for options, index in zip(words, choice, strict=True) if len(options) > 1]
        vectors.setdefault(text, np.concatenate([np.zeros(0, np.float32), *hot]))
    return vectors if len(vectors) > 1 else {}


def missions_of(space: Any) -> set[str]:
    """Every mission of a space of MiniGrid's missions; nothing for any other space, or if there are too many.

    The space of BabyAI, whose missions are sentences, has one mission and takes any text.
    """
    if not (hasattr(space, "ordered_placeholders") and hasattr(space, "mission_func")) or space.contains(""):
        return set()
    counts = [len(options) for options in space.ordered_placeholders or []]
    return {text for text, _ in _missions(space)} if math.prod(counts) <= _MOST_MISSIONS else set()


def _missions(space: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Missions, and which of the options of each variable word they have."""
    words = space.ordered_placeholders or []
    for choice in product(*(range(len(options)) for options in words)):
        yield space.mission_func(*(options[index] for options, index in zip(words, choice, strict=True))), choice


def _one_hot(index: int, size: int) -> Array:
    row: Array = np.zeros(size, np.float32)
    row[index] = 1.0
    return row


def _hot_codes(codes: Array) -> Array:
    """Cells `[W, H, 3]` of codes as one row with a 1 for each code."""
    flat = codes.reshape(-1, len(_CODES)).astype(np.intp)
    row: Array = np.zeros((len(flat), sum(_CODES)), np.float32)
    cells, start = np.arange(len(flat)), 0
    for column, count in enumerate(_CODES):
        row[cells, start + flat[:, column]] = 1.0
        start += count
    return row.reshape(-1)
