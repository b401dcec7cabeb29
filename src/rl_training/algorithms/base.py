"""What every algorithm is made of: config fields, the algorithm contract, the spec that describes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from rl_training.types import Act, Array, Capabilities, Metrics, SpaceInfo, Streams

if TYPE_CHECKING:
    import torch
    from torch import nn

    ModelFactory = Callable[[SpaceInfo, "ModelConfig"], nn.Module]


class ConfigPart(BaseModel):
    """A frozen group of settings. Its fields are the only place where a setting's name, default and help stand."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


def setting(
    default: Any,
    help: str,
    *,
    aliases: Sequence[str] = (),
    static: bool = False,
    report: bool = False,
    live_when: Mapping[str, Any] | None = None,
    probe: Any = None,
    **limits: Any,
) -> Any:
    """A config field.

    `static`: a number that only matters when the run is built, so it takes no schedule. `report`: always among the
    metrics. `live_when`: other settings under which this one has an effect. `probe`: a value that differs enough from
    the default for a test to see that effect. `limits`: ge, gt, le, lt.
    """
    extra: dict[str, Any] = {
        "aliases": list(aliases),
        "static": static,
        "report": report,
        "live_when": dict(live_when or {}),
    }
    return Field(default, description=help, json_schema_extra=extra | {"probe": probe}, **limits)


def setting_extra(part: type[ConfigPart], name: str) -> dict[str, Any]:
    """What `setting` noted about a field beside pydantic's own."""
    extra = part.model_fields[name].json_schema_extra
    return dict(extra) if isinstance(extra, dict) else {}


def model_setting(probe: str) -> Any:
    """The setting by which users bring a network of their own; `probe` names one for the tests."""
    return setting(
        "auto",
        "`auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig).",
        probe=probe,
    )


class ModelConfig(ConfigPart):
    """The default network, or a user's own."""

    model: str = model_setting(probe="rl_training.testing:LinearActorCritic")
    hidden_sizes: tuple[PositiveInt, ...] = setting((64, 64), "Widths of the hidden layers.", probe=(8,))
    activation: Literal["tanh", "relu", "silu", "elu"] = setting("tanh", "Activation of hidden layers.", probe="relu")


class AlgorithmConfig(ConfigPart):
    """The hyperparameters of an algorithm: every float takes `X_schedule` and `X_warmup_steps` unless it is static."""


class LoopConfig(ConfigPart):
    """How a loop comes by experience, and in which environments."""

    time_limit: int | None = setting(
        None, "Truncate episodes after this many steps; the environment's own if null.", ge=1, probe=3
    )
    frame_stack: int = setting(1, "How many of the latest observations the policy sees.", ge=1, probe=2)

    @property
    def collects(self) -> bool:
        """Whether it steps environments itself."""
        return False


class CollectingLoopConfig(LoopConfig):
    """How a loop gathers experience by itself."""

    reward_clip: float | None = setting(
        None, "Rewards are learned from within +- this; returns are reported raw.", gt=0.0, static=True, probe=0.01
    )

    @property
    def collects(self) -> bool:
        return True


@dataclass(frozen=True)
class Context:
    """What an algorithm is built from."""

    info: SpaceInfo
    config: AlgorithmConfig
    model: ModelConfig
    num_envs: int
    device: torch.device
    streams: Streams
    model_factory: ModelFactory | None = None
    engine: str = "auto"


class Algorithm(ABC):
    """Owns parameters, optimisers and counters. Hyperparameters read and write through to its config."""

    cfg: AlgorithmConfig
    # Whether what it carries is a memory of the episode `[B, ...]`: it goes on from one rollout to the next.
    recurrent: ClassVar[bool] = False
    # What to lower when training diverges.
    step_size: ClassVar[str] = "learning_rate"

    def __init__(self, config: AlgorithmConfig) -> None:
        object.__setattr__(self, "cfg", config)

    def set_hyperparameters(self, **values: float) -> None:
        """Change hyperparameters, whose values are checked where they come from: when a config is read."""
        unknown = values.keys() - type(self.cfg).model_fields.keys()
        if unknown:
            raise AttributeError(f"{type(self).__name__} has no hyperparameter {', '.join(sorted(unknown))}")
        object.__setattr__(self, "cfg", self.cfg.model_copy(update=values))

    def current(self, name: str) -> float:
        """The value of a hyperparameter now, where it is learned as well."""
        return float(getattr(self, name))

    def __getattr__(self, name: str) -> Any:
        if name != "cfg" and name in type(self.cfg).model_fields:
            return getattr(self.cfg, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self.cfg).model_fields:
            self.set_hyperparameters(**{name: value})
        else:
            object.__setattr__(self, name, value)

    @property
    def engine(self) -> str:
        """What computes gradients: `autograd`, or the name of a fast path."""
        return "autograd"

    @abstractmethod
    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        """Choose actions for observations `[B, ...]`; without `explore`, the best known ones."""

    def begin_episodes(self, carry: Any, mask: Array) -> Any:
        """What it carries where new episodes begin in the rows of a mask `[B]`: a memory forgets these."""
        return carry

    @abstractmethod
    def update(self, batch: Any) -> Metrics:
        """Learn from what the loop gathered."""

    @abstractmethod
    def policy_state(self) -> dict[str, torch.Tensor]:
        """The tensors that acting needs, by name."""

    @abstractmethod
    def load_policy_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over what `policy_state` gave."""

    @abstractmethod
    def training_state(self) -> dict[str, Any]:
        """The rest of what learning needs: optimisers, counters, statistics that acting does not use."""

    @abstractmethod
    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `training_state` gave."""

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy_state(), "training": self.training_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.load_policy_state(state["policy"])
        self.load_training_state(state["training"])


@dataclass(frozen=True)
class AlgorithmSpec:
    """Everything the runtime needs to know of an algorithm. `family` names its loop."""

    name: str
    family: str
    summary: str
    config: type[AlgorithmConfig]
    loop: type[LoopConfig]
    model: type[ModelConfig]
    build: Callable[[Context], Algorithm]
    capabilities: Capabilities
