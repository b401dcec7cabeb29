"""The values that cross layers. Importing this module loads neither numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Streams = Mapping[str, np.random.Generator]
else:
    Array = Streams = Any

Metrics = dict[str, float]
ActionKind = Literal["discrete", "continuous"]
ObservationKind = Literal["vector", "image"]


class UserError(Exception):
    """A mistake that the user can mend: shown as one message, without a traceback."""


@dataclass(frozen=True, slots=True)
class Step:
    """One transition of every environment: `[B]` from a collector.

    `next_obs` is the true successor, never the first observation of the next episode. Only `terminated` cuts the
    bootstrap. A row that is not `real` was produced by a reset (Gymnasium's NEXT_STEP autoreset) and belongs in no
    memory.
    """

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    truncated: Array
    real: Array
    extras: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Act:
    """What a policy decided: actions `[B, ...]`, what it remembers, and what its update will want to know."""

    action: Array
    carry: Any = None
    extras: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class SpaceInfo:
    """The observation and action spaces of an environment, as plain data that fits into a checkpoint.

    Continuous policies act in [-1, 1]; `action_low` and `action_high` are the environment's own bounds.
    """

    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_kind: ActionKind
    action_shape: tuple[int, ...]
    action_size: int
    action_start: int = 0
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()

    @property
    def obs_kind(self) -> ObservationKind:
        return "image" if len(self.obs_shape) == 3 and self.obs_dtype == "uint8" else "vector"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SpaceInfo:
        plain: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in data.items()}
        return cls(**plain)


@dataclass(frozen=True)
class Capabilities:
    """What an algorithm can work with: enforced when a run is built, printed by `rl-training list`."""

    observations: tuple[ObservationKind, ...]
    actions: tuple[ActionKind, ...]
    recurrent: bool = False
    offline: bool = False
