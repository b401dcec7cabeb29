"""The settings of the planning family: algorithms that learn a model and search in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rl_training.algorithms.base import LoopConfig, ModelConfig, NetworkConfig, dense_weights, model_setting
from rl_training.algorithms.layers import ACTIVATION_HELP, Activation, LayerSizes, NetworkNames, widths_help
from rl_training.algorithms.off_policy import ROW_BYTES, MinibatchConfig, OffPolicyLoopConfig
from rl_training.algorithms.settings import ConfigPart, setting
from rl_training.ops.two_hot import Support, support_up_to
from rl_training.types import SpaceInfo


class PlanningLoopConfig(OffPolicyLoopConfig):
    """Searched steps into the replay buffer, then the updates that are due for them."""

    buffer_size: int = setting(100_000, "Capacity of the replay buffer.", ge=1, probe=4)
    learning_starts: int = setting(1_000, "Steps of random actions before learning starts.", ge=0, probe=9)
    train_every: int = setting(8, "Steps between two phases of learning.", aliases=["train_freq"], ge=1, probe=7)
    updates_per_step: float = setting(
        0.25, "Gradient updates per step of experience, whatever num_envs is.", gt=0.0, static=True, probe=0.75
    )


class LatentModelConfig(ConfigPart):
    """What models with one latent state share: the ranges of values and rewards, and how finely they are divided."""

    value_bins: int = setting(51, "Points of the distribution that a value is.", ge=2, probe=11)
    value_limit: float = setting(
        500.0, "Largest value, either way, that the value head can represent.", gt=0.0, static=True, probe=10.0
    )
    reward_bins: int = setting(21, "Points of the distribution that a reward is.", ge=2, probe=11)
    reward_limit: float = setting(
        20.0, "Largest reward, either way, that the reward head can represent.", gt=0.0, static=True, probe=1.0
    )

    absent: ClassVar[Mapping[str, str]] = {
        "share_encoder": "policy and value are read off one latent state, so they share all that makes it"
    }

    @property
    def value_support(self) -> Support:
        return support_up_to(self.value_limit, self.value_bins)

    @property
    def reward_support(self) -> Support:
        return support_up_to(self.reward_limit, self.reward_bins)


# The prediction is that of policy and value, which have layers of their own for images only.
_NETWORKS: NetworkNames = {"representation": (), "dynamics": (), "prediction": ()}


class PlanningModelConfig(LatentModelConfig, ModelConfig):
    """Representation, dynamics and prediction: MLPs on a latent vector, or residual convolutions for images."""

    model: str = model_setting(probe="rl_training.testing:LinearMuZero")
    hidden_sizes: LayerSizes = setting((64,), widths_help(_NETWORKS), probe=(8,))
    activation: Activation = setting("relu", ACTIVATION_HELP, probe="tanh")
    latent_size: int = setting(64, "Size of the latent state of MLPs.", ge=1, probe=5)
    channels: int = setting(
        32, "Channels of the residual convolutions on images.", ge=1, live_when={"observations": "image"}, probe=8
    )
    blocks: int = setting(1, "Residual blocks in each part.", ge=0, live_when={"observations": "image"}, probe=0)

    sizes: ClassVar[tuple[str, ...]] = (
        "hidden_sizes",
        "latent_size",
        "channels",
        "blocks",
        "value_bins",
        "reward_bins",
    )
    networks: ClassVar[NetworkNames] = _NETWORKS

    def least_weights(self, info: SpaceInfo) -> int:
        if self.model != "auto":
            return 0
        points = self.value_bins + self.reward_bins
        if info.obs_kind == "image":
            return points + 9 * self.channels**2 * (1 + 2 * self.blocks)
        # Transition and prediction read latents; representation and transition make them.
        reading = [(self.latent_size, *self.sizes_of(network)) for network in ("dynamics", "prediction")]
        making = (*self.sizes_of("representation"), self.latent_size)
        return points + sum(map(dense_weights, reading)) + dense_weights(making)

    def row_numbers(self, info: SpaceInfo) -> int:
        if self.model != "auto":
            return 0
        return self.channels if info.obs_kind == "image" else self.latent_size


class PlanningConfig(MinibatchConfig):
    """Hyperparameters of all algorithms that plan with a learned model."""

    learning_rate: float = setting(1e-3, "Step size of the optimiser.", ge=0.0, report=True)
    batch_size: int = setting(128, "Windows in a minibatch.", ge=1, probe=5)
    gamma: float = setting(0.997, "Discount factor.", ge=0.0, le=1.0, probe=0.5)
    num_simulations: int = setting(25, "Simulations of every search.", ge=1, probe=3)
    unroll_steps: int = setting(5, "Steps that the model is unrolled for in an update.", ge=1, probe=1)
    n_step: int = setting(5, "Rewards in a value target before it bootstraps.", ge=1, probe=2)
    search_value_age: int | None = setting(
        None,
        "Value targets of windows older than this are the values of their (latest) search; null: never.",
        ge=0,
        probe=0,
    )
    value_coef: float = setting(0.25, "Weight of the value loss.", ge=0.0)
    reward_coef: float = setting(1.0, "Weight of the reward loss.", ge=0.0)
    policy_coef: float = setting(1.0, "Weight of the policy loss.", ge=0.0)
    ent_coef: float = setting(
        0.0, "Weight of the policy's entropy.", aliases=["entropy_coef"], ge=0.0, report=True, probe=0.5
    )
    max_grad_norm: float = setting(10.0, "Gradients are scaled down to this norm.", gt=0.0, probe=1e-3)
    target_update_interval: int = setting(100, "Updates between two copies to the target network.", ge=1, probe=1)
    temperature_moves: int | None = setting(
        None, "From this move of an episode on the temperature is 0; null: it is the same for all moves.", ge=0, probe=1
    )
    prioritized: bool = setting(False, "Draw windows by the error of their first value instead of uniformly.")
    per_alpha: float = setting(
        0.6, "Exponent of the priorities; 0 is uniform.", ge=0.0, le=1.0, live_when={"prioritized": True}, probe=0.1
    )
    per_beta: float = setting(
        0.4, "Exponent of the importance weights.", ge=0.0, le=1.0, live_when={"prioritized": True}, probe=1.0
    )
    reanalyze_ratio: float = setting(
        0.0,
        "Share of each minibatch whose targets are searched again, with the target network; written back.",
        ge=0.0,
        le=1.0,
        static=True,
        probe=1.0,
    )

    sizes: ClassVar[tuple[str, ...]] = ("batch_size", "unroll_steps", "n_step", "num_simulations")

    @property
    def reanalyzed_states(self) -> int:
        """How many states of a minibatch are searched again at once, where all of them are real."""
        return round(self.reanalyze_ratio * self.batch_size) * (self.unroll_steps + 1)

    def least_bytes(self, info: SpaceInfo, model: NetworkConfig, loop: LoopConfig, num_envs: int) -> int:
        windows = self.batch_size * (self.unroll_steps + self.n_step) * (info.obs_bytes + ROW_BYTES)
        return windows + 4 * model.row_numbers(info) * num_envs * (self.num_simulations + 1)


class SampledActionsConfig(PlanningConfig):
    """How a search samples continuous actions."""

    sampled_actions: int = setting(
        16,
        "Sampled actions of a search's root (continuous actions).",
        ge=2,
        static=True,  # the replay buffer has room for so many
        live_when={"actions": "continuous"},
        probe=4,
    )
    interior_actions: int = setting(
        4, "Sampled actions of the other nodes.", ge=1, live_when={"actions": "continuous"}, probe=2
    )
    wide_share: float = setting(
        0.5,
        "Share of the sampled actions that come from a wider policy.",
        ge=0.0,
        le=1.0,
        static=True,
        live_when={"actions": "continuous"},
        probe=0.0,
    )
    wide_scale: float = setting(
        3.0,
        "How many times wider its deviation is.",
        ge=1.0,
        static=True,
        live_when={"actions": "continuous"},
        probe=1.0,
    )
