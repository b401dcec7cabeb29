"""The shared base of the off-policy and the offline algorithms: settings, policies, minibatches, state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    CollectingLoopConfig,
    Context,
    EncodedModelConfig,
    LoopConfig,
    NetworkConfig,
    Policy,
    PolicyContext,
)
from rl_training.algorithms.layers import ACTIVATION_HELP, Activation, LayerSizes
from rl_training.algorithms.parts.observer import Observer, under
from rl_training.algorithms.settings import setting
from rl_training.data.batches import Between, Transitions
from rl_training.data.memory import Memory
from rl_training.data.replay import replay_kind
from rl_training.models.flat import FlatWeights, Follower, Learner
from rl_training.models.heads import MLPNetwork
from rl_training.models.mlp_engine import acting_engine
from rl_training.types import Array, Metrics, SpaceInfo, Step, mean_metrics

# The implementation of networks and gradients: torch, or compiled kernels for small MLPs on a CPU.
Engine = Literal["autograd", "mlp"]
# Where a row of a window is stored, and its number.
ROW_BYTES = 16


class OffPolicyLoopConfig(CollectingLoopConfig):
    """Some steps of experience into the replay buffer, then the updates that are due for them."""

    buffer_size: int = setting(1_000_000, "Capacity of the replay buffer.", ge=1, probe=4)
    learning_starts: int = setting(100, "Steps of random actions before learning starts.", ge=0, probe=9)
    train_every: int = setting(1, "Steps between two phases of learning.", aliases=["train_freq"], ge=1, probe=7)
    updates_per_step: float = setting(
        1.0, "Gradient updates per step of experience, whatever num_envs is.", gt=0.0, static=True, probe=0.75
    )

    sizes: ClassVar[tuple[str, ...]] = ("frame_stack", "buffer_size")
    of_rows: ClassVar[bool] = False  # whether the memory has rows in place of transitions

    def least_bytes(self, info: SpaceInfo, num_envs: int) -> int:
        if not self.collects:
            return 0
        kind = replay_kind(info, self.frame_stack, rows=self.of_rows)
        return kind.bytes_needed(info, num_envs, self.buffer_size)


class OffPolicyModelConfig(EncodedModelConfig):
    """The networks of the off-policy algorithms: wider, with another activation."""

    hidden_sizes: LayerSizes = setting((256, 256), "Widths of the hidden layers.", probe=(8,))
    activation: Activation = setting("relu", ACTIVATION_HELP, probe="tanh")

    absent: ClassVar[Mapping[str, str]] = {"share_encoder": "there is one network, which has one encoder"}


class MinibatchConfig(AlgorithmConfig):
    """Hyperparameters of all algorithms that learn from minibatches of a memory."""

    learning_rate: float = setting(3e-4, "Step size of the optimisers.", ge=0.0, report=True)
    batch_size: int = setting(256, "Transitions in a minibatch.", ge=1, probe=5)
    normalize_obs: bool | Literal["auto"] = setting(
        False, "Scale observations by mean and deviation; `auto`: where they are numbers, not images.", probe=True
    )
    obs_clip: float = setting(
        10.0, "Scaled observations stay within this.", gt=0.0, static=True, live_when={"normalize_obs": True}, probe=0.1
    )

    sizes: ClassVar[tuple[str, ...]] = ("batch_size",)

    def least_bytes(self, info: SpaceInfo, model: NetworkConfig, loop: LoopConfig, num_envs: int) -> int:
        return self.batch_size * (info.obs_bytes + 4 * model.row_numbers(info))


class OffPolicyConfig(MinibatchConfig):
    """Hyperparameters of all algorithms that learn values off-policy."""

    gamma: float = setting(0.99, "Discount factor.", ge=0.0, le=1.0, probe=0.5)
    tau: float = setting(0.005, "Share of the online weights in a target network's update.", ge=0.0, le=1.0, probe=0.5)
    n_step: int = setting(1, "Rewards in a target before it bootstraps.", ge=1, probe=3)


class Outputs(Protocol):
    """The network's outputs for (scaled) observations, without a gradient. They are valid until the next call."""

    def __call__(self, rows: Array) -> Array: ...


class TorchOutputs:
    """Outputs by torch, for any network on any device."""

    def __init__(self, network: nn.Module, observer: Observer) -> None:
        self._network, self._observer = network, observer

    def __call__(self, rows: Array) -> Array:
        array: Array = self.tensor(rows).cpu().numpy()
        return array

    def tensor(self, rows: Array) -> Tensor:
        # A custom network may have dropout or batch normalization: acting must not use or update them.
        self._network.eval()
        with torch.inference_mode():
            outputs: Tensor = self._network(self._observer.tensors(rows))
        return outputs


class KernelOutputs:
    """Outputs by compiled kernels, for an MLP on a CPU."""

    def __init__(self, layers: MLPNetwork, weights: FlatWeights, observer: Observer) -> None:
        self._mlp, self._matrix = acting_engine(layers, weights.data), observer.matrix

    def __call__(self, rows: Array) -> Array:
        return self._mlp(self._matrix(rows))


class TrainedPolicy(Policy):
    """A policy with one network, and the statistics that scale its observations."""

    # Its name among the learners, and the prefix of its tensors in a checkpoint.
    name: ClassVar[str] = "actor"

    def __init__(self, context: PolicyContext, network: nn.Module, engine: Engine) -> None:
        super().__init__(context)
        cfg = context.config
        assert isinstance(cfg, MinibatchConfig)
        self.observer = Observer(context.info, context.device, normalize=cfg.normalize_obs, clip=cfg.obs_clip)
        self.network = network
        self.weights = FlatWeights(network.parameters())
        self._engine = engine

    @property
    def engine(self) -> Engine:
        return self._engine

    def policy_state(self) -> dict[str, Tensor]:
        network = {f"{self.name}.{name}": tensor for name, tensor in self.network.state_dict().items()}
        return network | self.observer.state_dict()

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(under(state, f"{self.name}."))
        self.observer.load_state_dict(state)


class NetworkPolicy(TrainedPolicy):
    """A policy that acts on the outputs of its network. Subclasses define how they become actions."""

    def __init__(
        self, context: PolicyContext, network: nn.Module, engine: Engine, layers: nn.Module | None = None
    ) -> None:
        """`layers` is the MLP that an engine computes, if it is only a part of the network."""
        super().__init__(context, network, engine)
        self.layers = network if layers is None else layers
        self.by_torch = TorchOutputs(network, self.observer)
        self.outputs: Outputs = self.by_torch
        if engine == "mlp":
            assert isinstance(self.layers, MLPNetwork)
            self.outputs = KernelOutputs(self.layers, self.weights, self.observer)

    def confine(self) -> None:
        """Bring parameters that have a range back into it, after a step of the optimiser."""


@dataclass(frozen=True)
class Minibatch:
    """Transitions `[B]` with scaled observations; `weight` corrects for a prioritised draw.

    `between` are the states inside of chains, if the algorithm asked for them.
    """

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    discount: Array
    weight: Array | None
    between: Between | None = None

    def __len__(self) -> int:
        return len(self.reward)


class ReplayAlgorithm(Algorithm):
    """Learns from a memory. Subclasses define what they draw from it, and what they note in it.

    `learners` are the networks that are trained, by name, that of the policy among them; `followers` are their target
    networks.
    """

    cfg: MinibatchConfig
    policy: TrainedPolicy

    def __init__(
        self,
        context: Context,
        policy: TrainedPolicy,
        learners: Mapping[str, Learner],
        followers: Mapping[str, Follower] | None = None,
    ) -> None:
        super().__init__(context.config, policy)
        self.info, self.observer = policy.info, policy.observer
        self.batch_rng = context.streams["batch"]
        self.learners, self.followers = dict(learners), dict(followers or {})
        # The modules that behave differently in training. The engine does not call modules.
        self.modules = [learner.module for learner in learners.values()] if policy.engine == "autograd" else []

    @property
    def prioritized(self) -> bool:
        """Whether the memory should be drawn from by priority, not uniformly."""
        return False

    @abstractmethod
    def learn_from(self, memory: Memory, updates: int) -> Metrics:
        """Make `updates` updates; returns the metrics of the last ones."""

    def observe(self, steps: Sequence[Step]) -> None:
        """Update the statistics that scale observations from new experience."""
        self.observer.observe(steps)

    def training_state(self) -> dict[str, Any]:
        learners = {name: learner.state_dict() for name, learner in self.learners.items()}
        del learners[self.policy.name]["module"]  # it is in the policy's state
        followers = {name: follower.state_dict() for name, follower in self.followers.items()}
        return {"learners": learners, "followers": followers, "n_updates": self.n_updates}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        acting = {"module": self.policy.network.state_dict()}
        for name, learner in self.learners.items():
            if name in state["learners"]:  # a learner that a change of the config has added starts anew
                learner.load_state_dict(acting | state["learners"][name])
        for name, follower in self.followers.items():
            follower.load_state_dict(state["followers"][name])
        self.n_updates = state["n_updates"]


class OffPolicyAlgorithm(ReplayAlgorithm):
    """Learns from minibatches of transitions. Subclasses define the update."""

    policy: NetworkPolicy

    @abstractmethod
    def learn(self, mini: Minibatch) -> Metrics:
        """One gradient update."""

    def learn_from(self, memory: Memory, updates: int) -> Metrics:
        metrics: Metrics = {}
        # Several minibatches are drawn together, but not all of a phase: that bounds the RAM that they take.
        for start in range(0, updates, memory.at_once):
            count = min(memory.at_once, updates - start)
            metrics = self.learn_part(memory, count * self.cfg.batch_size)
        return metrics

    def learn_part(self, memory: Memory, rows: int) -> Metrics:
        """Draw `rows` transitions, learn from them, and note the results in the memory."""
        cfg = self.cfg
        assert isinstance(cfg, OffPolicyConfig)
        return self.update(memory.transitions(rows, self.batch_rng, n_step=cfg.n_step, gamma=cfg.gamma))

    def update(self, batch: Transitions) -> Metrics:
        """One update for each `batch_size` transitions, in order; returns the mean of their metrics."""
        for module in self.modules:  # acting has put them into evaluation mode
            module.train()
        found = []
        for mini in self._minibatches(batch):
            self.n_updates += 1
            found.append(self.learn(mini))
        return mean_metrics(found)

    def _minibatches(self, batch: Transitions) -> Iterator[Minibatch]:
        obs, next_obs = self.observer.scaled(batch.obs), self.observer.scaled(batch.next_obs)
        weight, between = batch.weight, self._scaled_between(batch.between)
        for start in range(0, len(batch.reward), self.cfg.batch_size):
            part = slice(start, start + self.cfg.batch_size)
            yield Minibatch(
                obs[part],
                batch.action[part],
                batch.reward[part],
                next_obs[part],
                batch.terminated[part],
                batch.discount[part],
                None if weight is None else weight[part],
                None if between is None else Between(between.obs[:, part], between.discount[:, part]),
            )

    def _scaled_between(self, between: Between | None) -> Between | None:
        if between is None:
            return None
        shape = between.obs.shape
        scaled = self.observer.scaled(between.obs.reshape(-1, *shape[2:]))
        return Between(scaled.reshape(shape), between.discount)
