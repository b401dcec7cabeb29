"""Sources of experience for a loop: the actor of this process, or none for a run that learns from a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from rl_training.runtime.actors.actor import Actor, R
from rl_training.types import Array, Metrics, UserError

FIRST_ACTOR = "actor"


def actor_name(number: int) -> str:
    """The name of an actor in a checkpoint."""
    return FIRST_ACTOR if number == 0 else f"{FIRST_ACTOR}/{number}"


class Experience(Protocol):
    """What a run and its checkpoints know of where experience comes from, in one task or in several."""

    @property
    def num_envs(self) -> int:
        """The number of environments."""

    @property
    def steps(self) -> int:
        """Environment steps so far."""

    @property
    def exact(self) -> bool:
        """Whether a run that is resumed from here continues as if it had never stopped."""

    @property
    def why_not_exact(self) -> list[str]:
        """Why it does not, in one line each."""

    def start(self) -> None:
        """Begin the first episodes."""

    def begin_anew(self) -> None:
        """Begin new episodes: others may have stepped the environments."""

    def go_on_anew(self, state: Mapping[str, Any], why: str) -> None:
        """Go on from the counts of what `state_dict` returned, with new episodes, since other environments are used."""

    def publish(self, weights: Callable[[], Mapping[str, Tensor]], values: Mapping[str, float], version: int) -> None:
        """Send actors the policy after `version` updates; `values` are the hyperparameters that acting uses."""

    def state_dict(self) -> dict[str, Any]:
        """The state of every actor's environments, by the actor's name."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    def close(self) -> None:
        """Close the environments."""


class Source(Experience, Protocol):
    """A source of experience in one task, as a loop asks it. The state of its environments is a mapping by actor."""

    @property
    def width(self) -> int:
        """The number of rows of a step: of environments whose steps are gathered together."""

    def gather(self, count: int, into: R, *, randomly: bool = False) -> R:
        """Add the next `count` steps of every environment, `[B]` each, with the policy's records, to a trajectory."""

    def take_lost(self) -> Array | None:
        """A mask `[B]` of the environments whose running episodes a resume has lost since the last call, if any."""

    def metrics(self) -> Metrics:
        """Returns and lengths of the latest episodes."""

    def returns(self) -> list[float]:
        """The returns of the latest episodes, the newest last."""


class Local:
    """One actor, in this process. It shares its policy with the learner, so nothing has to be published."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.collector = actor.collector
        self.num_envs = self.width = actor.collector.num_envs
        self.gather = actor.gather
        self.start = actor.collector.start
        self.begin_anew = actor.begin_anew
        self.metrics = actor.metrics
        self.returns = actor.collector.episodes.returns
        self.take_lost = actor.collector.take_lost
        self.close = actor.collector.close

    @property
    def steps(self) -> int:
        return self.collector.steps

    @property
    def exact(self) -> bool:
        return self.collector.exact

    @property
    def why_not_exact(self) -> list[str]:
        return self.collector.why_not_exact

    def publish(self, weights: Callable[[], Mapping[str, Tensor]], values: Mapping[str, float], version: int) -> None:
        """Nothing to do: the actor shares the learner's weights and values."""

    def state_dict(self) -> dict[str, Any]:
        return {FIRST_ACTOR: self.actor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.actor.load_state_dict(self._own(state))

    def go_on_anew(self, state: Mapping[str, Any], why: str) -> None:
        self.collector.go_on_anew(self._own(state), why)

    @staticmethod
    def _own(state: Mapping[str, Any]) -> Mapping[str, Any]:
        if state.keys() != {FIRST_ACTOR}:
            there = ", ".join(map(repr, state)) or "none"
            raise UserError(f"the checkpoint has the environments of {there}; this run has those of {FIRST_ACTOR!r}")
        actor: Mapping[str, Any] = state[FIRST_ACTOR]
        return actor


class Nothing:
    """A source without environments, for runs that collect no experience."""

    num_envs = width = 0
    steps = 0
    exact = True
    why_not_exact: list[str] = []

    def start(self) -> None:
        """Nothing to do: there are no episodes."""

    def begin_anew(self) -> None:
        """Nothing to do: there are no episodes."""

    def go_on_anew(self, state: Mapping[str, Any], why: str) -> None:
        """Nothing to do: there are no episodes."""

    def gather(self, count: int, into: R, *, randomly: bool = False) -> R:
        return into

    def publish(self, weights: Callable[[], Mapping[str, Tensor]], values: Mapping[str, float], version: int) -> None:
        """Nothing to do: there is no actor."""

    def take_lost(self) -> None:
        return None

    def metrics(self) -> Metrics:
        return {}

    def returns(self) -> list[float]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to do: there is no state."""

    def close(self) -> None:
        """Nothing to do: there are no environments."""
