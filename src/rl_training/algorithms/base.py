"""The base classes of every algorithm: config fields, the policy, the algorithm, and its spec."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import field_validator

from rl_training.algorithms.layers import (
    ACTIVATION_HELP,
    ENCODER,
    Activation,
    LayerSizes,
    NetworkNames,
    checked,
    completed,
    renamed,
)
from rl_training.algorithms.settings import ConfigPart, setting
from rl_training.types import Act, Array, Capabilities, Carry, Metrics, Records, SpaceInfo, Streams

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    ModelFactory = Callable[[SpaceInfo, Any], nn.Module]

P = TypeVar("P", bound="Policy")


def model_setting(probe: str, live_when: Mapping[str, Any] | None = None) -> Any:
    """The setting for a custom network; `probe` names one for the tests, which fits if `live_when` holds."""
    return setting(
        "auto",
        "`auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in "
        "Python also the class or function itself.",
        live_when=live_when,
        probe=probe,
    )


class NetworkConfig(ConfigPart):
    """What every algorithm can be told of its networks: to use a custom one."""

    model: str = model_setting(probe="rl_training.testing:LinearActorCritic")

    @classmethod
    def on_top(cls, given: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
        """Given settings, completed where they change a part of a value below them."""
        return dict(given)

    def least_weights(self, info: SpaceInfo) -> int:
        """At least how many weights the networks have; 0 if that is not known."""
        return 0

    def row_numbers(self, info: SpaceInfo) -> int:
        """At least how many numbers the networks compute of one observation, and keep for its gradient."""
        return 0

    def carry_bytes(self, info: SpaceInfo) -> int:
        """The RAM that acting in one environment takes at least for the steps before the present one."""
        return 0


def dense_weights(widths: Sequence[int]) -> int:
    """At least how many weights a chain of layers of these widths has, whatever its inputs and outputs are."""
    return sum(widths) + sum(one * other for one, other in pairwise(widths))


class ModelConfig(NetworkConfig):
    """The default network of MLPs, or a custom one."""

    hidden_sizes: LayerSizes = setting((64, 64), "Widths of the hidden layers.", probe=(8,))
    activation: Activation = setting("tanh", ACTIVATION_HELP, probe="relu")

    sizes: ClassVar[tuple[str, ...]] = ("hidden_sizes",)
    # The networks that can have widths of their own.
    networks: ClassVar[NetworkNames] = {}

    @field_validator("hidden_sizes", mode="before")
    @classmethod
    def _all_networks(cls, value: Any) -> Any:
        return checked(cls.networks, value, cls.model_fields["hidden_sizes"].default)

    @classmethod
    def on_top(cls, given: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
        """A network that is not named keeps the widths that it has below."""
        sizes = given.get("hidden_sizes")
        if not isinstance(sizes, Mapping):
            return dict(given)
        found = below.get("hidden_sizes", cls.model_fields["hidden_sizes"].default)
        return {**given, "hidden_sizes": completed(cls.networks, renamed(cls.networks, sizes), found)}

    def sizes_of(self, network: str) -> tuple[int, ...]:
        """The widths of the hidden layers of a network."""
        if isinstance(self.hidden_sizes, Mapping):
            return self.hidden_sizes.get(network, ())
        return () if network == ENCODER else self.hidden_sizes

    def least_weights(self, info: SpaceInfo) -> int:
        return sum(map(dense_weights, self._all_sizes())) if self.model == "auto" else 0

    def row_numbers(self, info: SpaceInfo) -> int:
        return max(map(sum, self._all_sizes())) if self.model == "auto" else 0

    def _all_sizes(self) -> list[tuple[int, ...]]:
        return [*self.hidden_sizes.values()] if isinstance(self.hidden_sizes, Mapping) else [self.hidden_sizes]


class EncodedModelConfig(ModelConfig):
    """The default network, behind an encoder where observations are or have images."""

    image_encoder: Literal["nature", "impala"] = setting(
        "nature",
        "Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network of "
        "15 (from 8).",
        live_when={"observations": "image"},
        probe="impala",
    )


class AlgorithmConfig(ConfigPart):
    """The hyperparameters of an algorithm: every float takes `X_schedule` and `X_warmup_steps` unless it is static."""

    def least_bytes(self, info: SpaceInfo, model: NetworkConfig, loop: LoopConfig, num_envs: int) -> int:
        """The RAM that an update takes at least, beside networks and memory."""
        return 0

    def more_weights(self, model: NetworkConfig) -> int:
        """At least how many weights it adds to those that the settings of the model say."""
        return 0


class LoopConfig(ConfigPart):
    """Settings of a loop: where its experience comes from, and in which environments."""

    time_limit: int | None = setting(
        None, "Truncate episodes after this many steps; the environment's own limit if null.", ge=1, probe=3
    )
    frame_stack: int = setting(1, "How many of the latest observations the policy sees.", ge=1, probe=2)

    sizes: ClassVar[tuple[str, ...]] = ("frame_stack",)
    absent: ClassVar[Mapping[str, str]] = {"her": "dqn, ddpg, td3, sac, tqc and redq have hindsight experience replay"}

    def least_bytes(self, info: SpaceInfo, num_envs: int) -> int:
        """The RAM that the memory of the loop takes at least."""
        return 0

    @property
    def collects(self) -> bool:
        """Whether it steps environments itself."""
        return False

    @property
    def origin(self) -> str | None:
        """The run whose networks this one starts from, or None."""
        return None


class CollectingLoopConfig(LoopConfig):
    """Settings of a loop that collects its own experience."""

    reward_clip: float | None = setting(
        None, "Clip rewards to +- this for learning; reported returns are not clipped.", gt=0.0, static=True, probe=0.01
    )

    @property
    def collects(self) -> bool:
        return True

    @property
    def steps_at_once(self) -> int:
        """How many steps of each environment are gathered at once, at most."""
        return 1

    @property
    def rounds_ahead(self) -> int:
        """How many updates old the policy may be that gathers, where several workers do."""
        return 0

    def rollouts_per_round(self, num_workers: int) -> int:
        """How many workers gather what one update learns from."""
        return num_workers

    @property
    def rollouts_stand_alone(self) -> bool:
        """Whether a rollout need not follow from the one before of the same environments."""
        return False


@dataclass(frozen=True, kw_only=True)
class PolicyContext:
    """What a policy is built from: spaces and settings. Acting needs neither an optimiser nor a dataset.

    `tasks` are the spaces of every task, by name; a run in one environment has one task, whose name is empty. `info` is
    that of the first.
    """

    info: SpaceInfo
    config: AlgorithmConfig
    model: Any  # a NetworkConfig, of the type that the SPEC names
    device: torch.device
    model_factory: ModelFactory | None = None
    engine: str = "auto"
    tasks: Mapping[str, SpaceInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tasks:
            object.__setattr__(self, "tasks", {"": self.info})


@dataclass(frozen=True, kw_only=True)
class Context(PolicyContext):
    """What an algorithm is built from. `num_envs` counts the environments of all tasks.

    `target_returns` are the returns at which tasks count as solved, where they are given.
    """

    num_envs: int
    streams: Streams
    target_returns: Mapping[str, float] = field(default_factory=dict)


class Policy(ABC):
    """Chooses actions in training, in evaluation and in actor processes.

    It owns its network and the statistics that normalize observations, but nothing that only learning needs. The caller
    owns the random generator and the carry, which is the policy's state from one step to the next.
    """

    # Whether every rollout starts with a new carry. Otherwise an episode keeps its carry until it ends.
    carry_per_rollout: ClassVar[bool] = False
    # The hyperparameters that acting uses. Their current values are in `values` and are sent with the weights.
    acting_settings: ClassVar[tuple[str, ...]] = ()
    # Whether greedy actions depend on `values` too, as those of a search do.
    greedy_uses_values: ClassVar[bool] = False
    # Whether it is judged by the actions that it samples, and its greedy ones are reported beside them.
    judged_by_samples: ClassVar[bool] = False

    def __init__(self, context: PolicyContext) -> None:
        self.info, self.tasks, self.task = context.info, context.tasks, next(iter(context.tasks))
        self.values = {name: float(getattr(context.config, name)) for name in self.acting_settings}

    @property
    def engine(self) -> str:
        """The implementation that computes the network: `autograd`, or the name of a fast path."""
        return "autograd"

    def for_task(self: P, name: str) -> P:
        """The policy as it acts in a task: with the spaces of that task as `info`, and its name as `task`.

        What SPEC builds is that of the first task. Everything else is shared, so networks and `values` must be changed
        in place. `policy_state` is that of all tasks. A policy that has more than its `info` from a task adds it here.
        """
        if name == self.task:
            return self
        view = copy.copy(self)
        view.info, view.task = self.tasks[name], name
        return view

    @abstractmethod
    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        """Choose actions for observations `[B, ...]`: from the behaviour policy, or greedy ones without `explore`."""

    def act_randomly(self, obs: Array, carry: Carry, *, rng: np.random.Generator) -> Act:
        """Choose uniform actions, before learning starts; records and carry are still computed by the policy."""
        from rl_training.ops.exploration import uniform_actions

        if carry is None and not self.records(self.info):
            return Act(uniform_actions(self.info, obs, rng), carry)
        act = self.act(obs, carry, explore=True, rng=rng)
        return replace(act, action=uniform_actions(self.info, obs, rng))

    def initial_carry(self, count: int) -> Carry:
        """The carry of `count` environments at the start of an episode."""
        return None

    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        """The carry after new episodes have begun in the rows of a mask `[B]`."""
        return carry

    def checked_carry(self, carry: Carry, count: int) -> Carry:
        """A carry that a caller of `predict` gives, or a UserError. Who converts or checks it in acting takes any."""
        return carry

    def records(self, info: SpaceInfo) -> Records:
        """The kinds of the arrays in `Act.records`, which are stored with every step for the update."""
        return {}

    @abstractmethod
    def policy_state(self) -> dict[str, torch.Tensor]:
        """The tensors that acting needs, by name."""

    @abstractmethod
    def load_policy_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load what `policy_state` returned."""


class Algorithm(ABC):
    """A policy and everything that trains it: optimisers, target networks, counters.

    Hyperparameters read and write through to the config: `algorithm.ent_coef = 0.1` replaces it.
    """

    cfg: AlgorithmConfig
    # The hyperparameter to lower when training diverges.
    step_size: ClassVar[str] = "learning_rate"

    def __init__(self, config: AlgorithmConfig, policy: Policy) -> None:
        object.__setattr__(self, "cfg", config)
        object.__setattr__(self, "_settings", frozenset(type(config).model_fields))
        self.policy = policy
        self.n_updates = 0

    def set_hyperparameters(self, **values: float) -> None:
        """Change hyperparameters. Their values were checked when the config was read."""
        unknown = values.keys() - self._settings
        if unknown:
            raise AttributeError(f"{type(self).__name__} has no hyperparameter {', '.join(sorted(unknown))}")
        object.__setattr__(self, "cfg", self.cfg.model_copy(update=values))
        for name in values.keys() & self.policy.values.keys():
            self.policy.values[name] = values[name]

    def current(self, name: str) -> float:
        """The current value of a hyperparameter, also of a learned one."""
        return float(getattr(self.cfg, name))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name != "cfg" and name in self._settings:
            return getattr(self.cfg, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._settings:
            self.set_hyperparameters(**{name: value})
        else:
            object.__setattr__(self, name, value)

    @property
    def engine(self) -> str:
        """The implementation that computes gradients: `autograd`, or the name of a fast path."""
        return self.policy.engine

    @abstractmethod
    def update(self, batch: Any) -> Metrics:
        """Learn from a batch that the loop provides; returns metrics."""

    @abstractmethod
    def training_state(self) -> dict[str, Any]:
        """The state that learning needs besides the policy: optimisers, target networks, counters, statistics."""

    @abstractmethod
    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Load what `training_state` returned."""

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.policy_state(), "training": self.training_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_policy_state(state["policy"])
        self.load_training_state(state["training"])


@dataclass(frozen=True)
class AlgorithmSpec:
    """Everything that the runtime needs to know about an algorithm.

    `family` names its loop. `policy` builds only the policy, `build` the whole algorithm.
    """

    name: str
    family: str
    summary: str
    config: type[AlgorithmConfig]
    loop: type[LoopConfig]
    model: type[NetworkConfig]
    policy: Callable[[PolicyContext], Policy]
    build: Callable[[Context], Algorithm]
    capabilities: Capabilities
