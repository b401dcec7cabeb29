"""The settings of algorithms that learn a model of the world and dream in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from rl_training.algorithms.base import LoopConfig, NetworkConfig, model_setting
from rl_training.algorithms.off_policy import MinibatchConfig, OffPolicyLoopConfig
from rl_training.algorithms.settings import setting
from rl_training.models.rssm import SIZES, UNIMIX, WorldSize
from rl_training.types import SpaceInfo

_OWN_SIZE = "null: that of `size`."


class WorldLoopConfig(OffPolicyLoopConfig):
    """Rows of experience into a memory of sequences, then the updates that are due for them."""

    buffer_size: int = setting(1_000_000, "Capacity of the replay buffer, in rows.", ge=1, probe=12)
    learning_starts: int = setting(1_024, "Steps of random actions before learning starts.", ge=0, probe=31)
    updates_per_step: float = setting(
        0.25,
        "Gradient updates per step of experience; times batch_size and batch_length it is the paper's train ratio.",
        gt=0.0,
        static=True,
        probe=0.75,
    )

    of_rows: ClassVar[bool] = True


class WorldModelConfig(NetworkConfig):
    """Encoder, recurrent states, decoder, and the heads on a state. `size` is a named set of the numbers below it."""

    model: str = model_setting(probe="rl_training.testing:SmallDreamer")
    size: Literal["xxs", "1m", "12m", "25m", "50m", "100m", "200m"] = setting(
        "1m", "How large the networks are; all but xxs are those of the paper's code.", probe="1m"
    )
    deter: int | None = setting(None, f"Numbers that a state remembers; {_OWN_SIZE}", ge=1, probe=40)
    stoch: int | None = setting(None, f"Categoricals in a latent; {_OWN_SIZE}", ge=1, probe=5)
    classes: int | None = setting(None, f"Classes of each categorical; {_OWN_SIZE}", ge=2, le=255, probe=7)
    hidden: int | None = setting(None, f"Width of the layers between states; {_OWN_SIZE}", ge=1, probe=9)
    units: int | None = setting(None, f"Width of encoders, decoders and heads; {_OWN_SIZE}", ge=1, probe=9)
    depth: int | None = setting(
        None, f"Channels of convolutions, times 2 to 4; {_OWN_SIZE}", ge=2, live_when={"observations": "image"}, probe=6
    )
    blocks: int | None = setting(None, f"Blocks that deter is cut into; {_OWN_SIZE}", ge=1, probe=2)
    unimix: float = setting(
        UNIMIX, "Share of the uniform distribution in latents and choices.", ge=0.0, lt=1.0, static=True, probe=0.5
    )
    number_heads: Literal["symexp", "gaussian"] = setting(
        "symexp",
        "Rewards and values: distributions over symexp points, or means that are learned by squared errors.",
        probe="gaussian",
    )
    bins: int = setting(255, "Points of a symexp distribution.", ge=2, probe=31)

    sizes: ClassVar[tuple[str, ...]] = ("deter", "stoch", "classes", "hidden", "units", "bins")
    absent: ClassVar[Mapping[str, str]] = {
        "hidden_sizes": "its layers are those of the paper; size, units and hidden say how wide they are",
        "activation": "its layers are normalised ones with silu, as in the paper",
        "share_encoder": "policy and value read the states of one world model, so they share all that makes them",
    }

    @property
    def world_size(self) -> WorldSize:
        """The sizes of all parts."""
        named = SIZES[self.size]
        own = {name: getattr(self, name) for name in WorldSize.__dataclass_fields__}
        return WorldSize(**{name: getattr(named, name) if value is None else value for name, value in own.items()})

    def least_weights(self, info: SpaceInfo) -> int:
        if self.model != "auto":
            return 0
        size = self.world_size
        recurrent = 4 * size.deter**2 // size.blocks + size.hidden * (size.deter + size.stoch * size.classes)
        return recurrent + size.units * (4 * size.features + self.bins)

    def row_numbers(self, info: SpaceInfo) -> int:
        return self.world_size.features if self.model == "auto" else 0


class DreamerConfig(MinibatchConfig):
    """learn a model of the world from windows of experience, and policy and value from what it imagines"""

    learning_rate: float = setting(
        4e-5, "Step size of the optimiser; 4e-4 suits runs of a few thousand updates.", ge=0.0, report=True
    )
    batch_size: int = setting(16, "Windows in a minibatch.", ge=1, probe=5)
    batch_length: int = setting(64, "Rows of a window that are learned from.", ge=2, probe=5)
    imagination_horizon: int = setting(15, "Steps of a dream.", ge=1, probe=2)
    imagination_starts: int | None = setting(
        None, "States of a minibatch, drawn at random, that dreams start from; null: all of them.", ge=1, probe=3
    )
    gamma: float = setting(1.0 - 1.0 / 333.0, "Discount factor.", ge=0.0, le=1.0, probe=0.5)
    return_lambda: float = setting(0.95, "Weight of later rewards against values in a return.", ge=0.0, le=1.0)
    entropy_coef: float = setting(
        3e-4, "Weight of the policy's entropy.", aliases=["ent_coef"], ge=0.0, report=True, probe=0.5
    )
    actor_gradient: Literal["reinforce", "pathwise"] = setting(
        "reinforce",
        "How a policy learns: by the likelihood of what it did, or through the model (straight-through for choices).",
        probe="pathwise",
    )
    free_nats: float = setting(1.0, "Divergences below this have no gradient.", ge=0.0, probe=100.0)
    dynamics_coef: float = setting(1.0, "Weight of the divergence that teaches the prior.", ge=0.0)
    representation_coef: float = setting(0.1, "Weight of the divergence that teaches the posterior.", ge=0.0)
    reconstruction_coef: float = setting(1.0, "Weight of the squared errors of observations.", ge=0.0)
    reward_coef: float = setting(1.0, "Weight of the reward loss.", ge=0.0)
    continue_coef: float = setting(1.0, "Weight of the losses of continuation and of allowed choices.", ge=0.0)
    policy_coef: float = setting(1.0, "Weight of the policy loss.", ge=0.0)
    value_coef: float = setting(1.0, "Weight of the value loss on dreams.", ge=0.0)
    replay_value_coef: float = setting(0.3, "Weight of the value loss on what was really seen.", ge=0.0)
    replay_value_grad: bool = setting(True, "Whether that loss teaches the states of the model too.")
    slow_value_coef: float = setting(1.0, "Weight of staying close to the slow value, in both value losses.", ge=0.0)
    tau: float = setting(0.02, "Share of the value's weights in an update of the slow value.", ge=0.0, le=1.0)
    max_grad_ratio: float = setting(
        0.3, "The gradient of a tensor is scaled down to this share of its own norm.", gt=0.0, probe=1e-3
    )
    warmup_updates: int = setting(1_000, "Updates over which the learning rate rises from 0.", ge=0, probe=2)

    sizes: ClassVar[tuple[str, ...]] = ("batch_size", "batch_length")

    def least_bytes(self, info: SpaceInfo, model: NetworkConfig, loop: LoopConfig, num_envs: int) -> int:
        return self.batch_length * super().least_bytes(info, model, loop, num_envs)
