"""Observation spaces as parts, each of which is an array of numbers, and observations translated to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.ops.images import ImageLayout
from rl_training.ops.observations import coded
from rl_training.runtime.envs.grids import missions_of
from rl_training.runtime.envs.rules import BrokenRule, observation_complaints
from rl_training.types import Array, Choices, Coding, ObsPart, Pixels, Text, UserError

# The numbers that a text may take, one-hot.
_LONGEST_TEXT = 16_384
_WHOLE = frozenset({int, np.int64, np.int32})
# The sides of the smallest array of floats that is taken for an image.
_SMALLEST_IMAGE = 8


class Leaf:
    """One array of an observation: the part that is made of it, the keys that lead to it, and its space."""

    def __init__(self, part: ObsPart, path: tuple[Any, ...], space: gym.Space[Any]) -> None:
        self.part = part
        self._path, self._space = path, space
        self._shape, self._dtype = part.shape, np.dtype(part.dtype)
        self._plain = part.coding is None
        choice = part.coding if isinstance(part.coding, Choices) and not part.coding.shape else None
        self._first, self._count = (choice.firsts[0], choice.counts[0]) if choice is not None else (0, 0)

    def array(self, obs: Any) -> Array:
        """What an observation has at its place, as numbers; a BrokenRule says why it is none of its space.

        What the observation lacks is a KeyError, an IndexError or a TypeError.
        """
        value = obs
        for key in self._path:
            value = value[key]
        # What is right at first glance; all else is looked at more closely.
        if type(value) is np.ndarray:
            if self._plain and value.dtype == self._dtype and value.shape == self._shape:
                return value
        elif type(value) in _WHOLE and 0 <= value - self._first < self._count:
            row: Array = np.zeros(self._count, np.float32)
            row[value - self._first] = 1.0
            return row
        return self._translated(value)

    def _translated(self, value: Any) -> Array:
        name, coding = self.part.name, self.part.coding
        if not isinstance(coding, (Choices, Text)):  # these are checked as they are coded
            for words in observation_complaints(self._space, value, name):
                raise BrokenRule(words)
        try:
            return np.asarray(coded(value, coding), self._dtype)
        except ValueError as error:
            where = f"observation {name!r}" if name else "an observation"
            raise BrokenRule(f"{where} is {value!r:.60}: it {error}") from None


def leaves_of(space: gym.Space[Any], env_id: str) -> list[Leaf]:
    """All arrays of an observation space; raises a UserError if something in it cannot be translated to numbers."""
    leaves = list(_leaves(space, (), env_id))
    names = [leaf.part.name for leaf in leaves]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"env_id={env_id!r}: two entries of the observation have the name {name!r}; rename one")
    if not leaves:
        raise UserError(f"env_id={env_id!r}: observations are empty ({space})")
    return leaves


def _leaves(space: gym.Space[Any], path: tuple[Any, ...], env_id: str) -> Iterator[Leaf]:
    if isinstance(space, gym.spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*path, key), env_id)
    elif isinstance(space, gym.spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*path, index), env_id)
    else:
        name = ".".join(map(str, path))
        yield Leaf(_part(space, name, env_id), path, space)


def _part(space: gym.Space[Any], name: str, env_id: str) -> ObsPart:
    if isinstance(space, gym.spaces.Box):
        highest = _highest_pixel(space)
        if highest is not None:
            return ObsPart(name, space.shape, "float32", Pixels(highest))
        return ObsPart(name, space.shape, stored_dtype(space))
    if isinstance(space, gym.spaces.MultiBinary):
        return ObsPart(name, space.shape, "float32")
    coding: Coding | None = None
    if isinstance(space, gym.spaces.Discrete):
        coding = Choices((int(space.start),), (int(space.n),), ())
    elif isinstance(space, gym.spaces.MultiDiscrete):
        firsts, counts = (tuple(map(int, np.ravel(numbers))) for numbers in (space.start, space.nvec))
        coding = Choices(firsts, counts, space.shape)
    elif isinstance(space, gym.spaces.Text):  # sorted: the order of a set differs between processes
        coding = Text(tuple(sorted(space.character_set)), space.max_length, words=False)
    else:
        coding = _words_of(space)
    where = f"the observation {name!r}" if name else "the observation"
    write = f"write a gymnasium.ObservationWrapper that turns {where} into a Box"
    if coding is None:
        raise UserError(
            f"env_id={env_id!r}: {where} is a {type(space).__name__}, which is not supported (Box, Discrete, "
            f"MultiDiscrete, MultiBinary, Text, and Dict and Tuple of these); {write}"
        )
    size = sum(coding.counts) if isinstance(coding, Choices) else coding.length * len(coding.symbols)
    if isinstance(coding, Text) and not 0 < size <= _LONGEST_TEXT:
        raise UserError(
            f"env_id={env_id!r}: {where} is text of up to {coding.length} of {len(coding.symbols)} characters, which "
            f"takes {size:,} numbers one-hot; up to {_LONGEST_TEXT:,} are supported: {write}, or give the space a "
            "shorter max_length or a smaller charset"
        )
    return ObsPart(name, (size,), "float32", coding)


def _words_of(space: gym.Space[Any]) -> Text | None:
    """The words of a space of MiniGrid's missions, of which there are only so many; None for any other space."""
    missions = [mission.split() for mission in missions_of(space)]
    if not missions:
        return None
    words = sorted({word for mission in missions for word in mission})
    return Text(tuple(words), max(map(len, missions)), words=True)


def stored_dtype(space: gym.spaces.Box) -> str:
    """Images of bytes are stored as they are, which the network scales; anything else as floats."""
    return "uint8" if space.dtype == np.uint8 and len(space.shape) >= 2 else "float32"


def _highest_pixel(space: gym.spaces.Box) -> float | None:
    """The highest value of an image of floats, [0, 1] or [0, 255]; None for what is none."""
    if space.dtype.kind != "f" or len(space.shape) != 3:
        return None
    image, highest = ImageLayout(space.shape), float(space.high.max())
    sides = min(image.height, image.width)
    if image.channels >= sides or sides < _SMALLEST_IMAGE or highest not in (1.0, 255.0):
        return None
    return highest if bool((space.low == 0).all() and (space.high == space.high.max()).all()) else None


class CodedObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Translates an observation of one array to numbers."""

    def __init__(self, env: gym.Env[Any, Any], leaf: Leaf) -> None:
        super().__init__(env)
        self._leaf = leaf
        highest = 255 if leaf.part.kind == "image" else 1
        # One-hot numbers are whole, as those of Gymnasium's own wrapper.
        dtype: Any = np.int64 if isinstance(leaf.part.coding, Choices) else np.float32
        self.observation_space = gym.spaces.Box(0, highest, leaf.part.shape, dtype)

    def observation(self, observation: Any) -> Array:
        return self._leaf.array(observation).astype(self.observation_space.dtype, copy=False)
