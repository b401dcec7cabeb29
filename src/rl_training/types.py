"""The values that cross layers. Importing this module loads neither numpy nor torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Streams = Mapping[str, np.random.Generator]
else:
    Array = Streams = Any

Metrics = dict[str, float]
ActionKind = Literal["discrete", "multi_discrete", "multi_binary", "continuous"]
ObservationKind = Literal["vector", "image", "dict"]


class UserError(Exception):
    """A mistake that the user can fix: shown as one message, without a traceback."""


def mean_metrics(found: Iterable[Metrics]) -> Metrics:
    """The means of the metrics of several updates, each over those that report it."""
    seen: dict[str, list[float]] = {}
    for metrics in found:
        for name, value in metrics.items():
            seen.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in seen.items()}


class ArrayKind(NamedTuple):
    """The shape and dtype of one row of a column."""

    shape: tuple[int, ...]
    dtype: str


# What a policy records with every step, by name. Rollouts and replay buffers have a column for each.
Records = Mapping[str, ArrayKind]
# What a policy carries from one step to the next: None, an array `[B, ...]`, or a tuple or dict of carries.
Carry = Any


@dataclass(frozen=True, slots=True)
class Step:
    """One transition of every environment `[B]`.

    `next_obs` is the true successor, never the first observation of the next episode. Only `terminated` cuts the
    bootstrap. A row that is not `real` was produced by a reset (Gymnasium's NEXT_STEP autoreset) and must not be
    learned from. `records` are what the policy recorded when it acted.
    """

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    truncated: Array
    real: Array
    records: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Act:
    """The output of a policy: actions `[B, ...]`, the carry for the next step, and the records of this step.

    `metrics` say how the actions came about; the actor reports their means.
    """

    action: Array
    carry: Carry = None
    records: Mapping[str, Array] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Choices:
    """Whole numbers `[..., *shape]`, of which each is one of `counts`, from `firsts` on: one-hot, side by side."""

    firsts: tuple[int, ...]
    counts: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Text:
    """Texts `[...]` of at most `length` symbols, characters or words: one-hot, side by side, zeros after the end."""

    symbols: tuple[str, ...]
    length: int
    words: bool


@dataclass(frozen=True)
class Pixels:
    """Images of numbers from 0 to `highest`: on the scale of bytes, 0 to 255, without being rounded."""

    highest: float


# How numbers are made of what an environment shows, where that is something else: `ops.observations.coded` does it.
Coding = Choices | Text | Pixels


@dataclass(frozen=True)
class ObsPart:
    """One array of an observation: its name (empty if it is the only one), shape and dtype, and how it is made.

    The name of an entry within entries is their names, joined by dots; entries of a Tuple space are numbered.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    coding: Coding | None = None

    @property
    def kind(self) -> Literal["vector", "image"]:
        bytes_of_image = self.dtype == "uint8" and len(self.shape) >= 2
        return "image" if bytes_of_image or isinstance(self.coding, Pixels) else "vector"


@dataclass(frozen=True)
class SpaceInfo:
    """The observation and action spaces of an environment, as plain data that fits into a checkpoint.

    An observation is one array of `obs_shape`. If it has more than one array (a Dict or Tuple space, an action mask),
    it is packed into one row of bytes by `rl_training.ops.observations`: `parts` describe its entries, and the last
    `mask_size` bytes are the mask. `coding` is that of an observation which is not packed.

    `action_size` is how many numbers a policy outputs: `sum(action_counts)` logits for discrete actions, or one mean
    for each continuous action. Continuous policies act in [-1, 1]; `action_low` and `action_high` are the
    environment's own bounds.

    In a game for two players (`two_player`) a step is one move. Observation, mask and reward are those of the player
    who moves, so they change sides with every step.
    """

    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_kind: ActionKind
    action_shape: tuple[int, ...]
    action_size: int
    action_counts: tuple[int, ...] = ()
    action_starts: tuple[int, ...] = ()
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    coding: Coding | None = None
    parts: tuple[ObsPart, ...] = ()
    mask_size: int = 0
    two_player: bool = False

    @property
    def packed(self) -> bool:
        return bool(self.parts)

    @property
    def obs_kind(self) -> ObservationKind:
        return "dict" if any(part.name for part in self.parts) else self.arrays[0].kind

    @property
    def arrays(self) -> tuple[ObsPart, ...]:
        """The arrays of an observation, packed or not; one that is the only one has an empty name."""
        return self.parts or (ObsPart("", self.obs_shape, self.obs_dtype, self.coding),)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a network's input for an observation that is one array (a Dict has `parts`)."""
        return self.arrays[0].shape

    @property
    def obs_bytes(self) -> int:
        """The bytes of one stored observation."""
        import numpy as np

        return math.prod(self.obs_shape) * np.dtype(self.obs_dtype).itemsize

    @property
    def continuous(self) -> bool:
        return self.action_kind == "continuous"

    @property
    def stored_action(self) -> ArrayKind:
        """Shape and dtype of one stored action, as the policy returned it."""
        if self.continuous:
            return ArrayKind((self.action_size,), "float32")
        return ArrayKind(() if self.action_kind == "discrete" else (len(self.action_counts),), "int64")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Capabilities:
    """What an algorithm supports: checked when a run is built, printed by `rl-training list`."""

    observations: tuple[ObservationKind, ...]
    actions: tuple[ActionKind, ...]
    recurrent: bool | Literal["optional"] = False
    offline: bool = False
    two_player: bool = False
    multi_task: bool = False
