"""The policy of the on-policy algorithms: a network of policy and value, computed by torch or by compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import EncodedModelConfig, Policy, PolicyContext
from rl_training.algorithms.layers import ACTOR_CRITIC, ENCODER, LayerSizes, NetworkNames, widths_help
from rl_training.algorithms.parts.observer import Observer, under
from rl_training.algorithms.settings import setting
from rl_training.models.actor_critic_engine import CompiledActing, within_reach
from rl_training.models.flat import FlatWeights
from rl_training.models.mlp_actor_critic import EncodedActorCritic, MLPActorCritic, Shape
from rl_training.models.trunk import EncoderShape
from rl_training.ops.distributions import FORBIDDEN, DiagonalGaussian, action_distribution
from rl_training.types import Act, Array, ArrayKind, Carry, Records, SpaceInfo, UserError

_SCALAR = ArrayKind((), "float32")


class PolicyModelConfig(EncodedModelConfig):
    """The sizes and the initialisation of policy and value networks."""

    hidden_sizes: LayerSizes = setting((64, 64), widths_help(ACTOR_CRITIC), probe=(8,))
    share_encoder: bool = setting(
        True,
        "One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value, which learns from "
        "both; one each if false.",
        live_when={"observations": "image"},
    )
    ortho_init: bool = setting(True, "Orthogonal initialisation; torch's default otherwise.")
    log_std_init: float | Literal["auto"] = setting(
        "auto",
        "Initial log standard deviation of continuous actions, in the policy's units: its actions are in [-1, 1]. "
        "`auto`: the network computes actions in the environment's units, with a deviation of one unit (at most 1).",
        static=True,
        live_when={"actions": "continuous"},
        probe=-1.0,
    )

    networks: ClassVar[NetworkNames] = ACTOR_CRITIC

    def shape(self, info: SpaceInfo) -> Shape:
        """The shape of the MLPs of policy and value."""
        log_std = (0.0 if self.log_std_init == "auto" else self.log_std_init,) * info.action_size
        policy, value = self.sizes_of("policy"), self.sizes_of("value")
        return Shape(policy, self.activation, self.ortho_init, log_std, value_sizes=value)

    def encoders(self, info: SpaceInfo) -> tuple[nn.Module | None, nn.Module | None, int]:
        """The encoder of the policy, that of the value if it is another, and what the MLPs behind them read."""
        shape = EncoderShape(self.image_encoder, self.sizes_of(ENCODER), self.activation, self.ortho_init)
        policy, features = shape.build(info)
        return policy, None if self.share_encoder else shape.build(info)[0], features

    def unit(self, info: SpaceInfo) -> Array | None:
        """How far one unit of the default network's output is in [-1, 1], for each continuous action; None if it is 1.

        A network that computes actions in the environment's units learns as it would without a scale: the optimiser's
        steps do not know how wide the bounds are.
        """
        if self.log_std_init != "auto" or not info.continuous:
            return None
        halves = [(high - low) / 2.0 for low, high in zip(info.action_low, info.action_high, strict=True)]
        return np.array([1.0 / half for half in halves], np.float32).clip(max=1.0) if max(halves) > 1.0 else None


class ActorCriticModelConfig(PolicyModelConfig):
    """The networks of policy and value."""

    use_sde: bool = setting(
        False, "State-dependent exploration (gSDE) of continuous actions.", live_when={"actions": "continuous"}
    )
    sde_sample_freq: int | None = setting(
        None,
        "Steps between two draws of gSDE's noise; once per rollout if null.",
        ge=1,
        live_when={"use_sde": True, "actions": "continuous"},
        probe=1,
    )

    def shape(self, info: SpaceInfo) -> Shape:
        return replace(super().shape(info), state_dependent_noise=self.use_sde)


def build_actor_critic(info: SpaceInfo, model: ActorCriticModelConfig) -> MLPActorCritic | EncodedActorCritic:
    """The default network: MLPs, behind an encoder for images and Dict observations."""
    encoder, value_encoder, inputs = model.encoders(info)
    network = MLPActorCritic(inputs, info.action_size, model.shape(info), continuous=info.continuous)
    return network if encoder is None else EncodedActorCritic(encoder, network, value_encoder)


class Acting(Protocol):
    """Computes policy outputs and values for a few rows, and samples actions."""

    def outputs(self, rows: Array) -> tuple[Array, Array]:
        """Policy outputs `[B, P]`, with forbidden choices masked, and values `[B]`."""

    def draw(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sampled actions and their log-probabilities."""

    def log_prob(self, params: Array, action: Array) -> Array:
        """The log-probabilities `[B]` of actions in the network's units; it may overwrite the policy outputs."""


class TorchActing:
    """Acting by torch, for any network on any device."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self._policy = policy
        self.draw = policy.distribution.sample

    def outputs(self, rows: Array) -> tuple[Array, Array]:
        # A custom network may have dropout or batch normalization: acting must not use or update them.
        self._policy.network.eval()
        with torch.inference_mode():
            params, value = self._policy.network_outputs(rows)
            return params.cpu().numpy(), value.cpu().numpy()

    def log_prob(self, params: Array, action: Array) -> Array:
        return self._policy.log_prob(params, action)


class EngineActing:
    """Acting by compiled kernels, for the default MLP on a CPU."""

    def __init__(self, compiled: CompiledActing, observer: Observer) -> None:
        self._compiled, self._observer = compiled, observer
        self.draw, self.log_prob = compiled.draw, compiled.log_prob

    def outputs(self, rows: Array) -> tuple[Array, Array]:
        return self._compiled.outputs(self._observer.arrays(rows), self._observer.mask(rows))


class StateDependentNoise:
    """gSDE: the noise is a random linear function of the policy's features, kept until it is drawn again.

    The carry is the noise matrix of each row, and how many steps ago it was drawn (-1: not yet).
    """

    def __init__(self, network: Any, every: int | None) -> None:
        self._network = network
        self._every = every

    def nothing_drawn(self, count: int) -> Carry:
        return np.zeros((count, *self._network.log_std.shape), np.float32), np.full(count, -1)

    def __call__(self, inputs: Any, carry: Carry, rng: np.random.Generator) -> tuple[Array, Array, Array, Carry]:
        """Actions, their log-probabilities, values, and the next carry."""
        with torch.inference_mode():
            outputs = (*self._network.features(inputs), self._network.log_std.exp())
            params, value, features, scale = (tensor.cpu().numpy() for tensor in outputs)
        drawn, age = carry
        if age[0] < 0 or (self._every is not None and age[0] >= self._every):
            drawn, age = rng.standard_normal(drawn.shape, dtype=np.float32), np.zeros_like(age)
        shift = np.einsum("bf,bfa->ba", features, drawn * scale)
        action, log_prob = DiagonalGaussian(scale.shape[-1]).displaced(params, shift)
        return action, log_prob, value, (drawn, age + 1)


def noise_for(network: nn.Module, context: PolicyContext) -> StateDependentNoise | None:
    """The state-dependent noise of a policy, or None if it is not configured."""
    model = context.model
    if not (isinstance(model, ActorCriticModelConfig) and model.use_sde):
        return None
    if not context.info.continuous:
        raise UserError(f"use_sde=True: needs continuous actions; these are {context.info.action_kind}")
    if context.model_factory is not None:
        raise UserError(f"use_sde=True: needs the default network (model=auto), not model={model.model!r}")
    return StateDependentNoise(network, model.sde_sample_freq)


def check_shapes(wanted: str, outputs: Any, fitting: Sequence[tuple[int, ...]]) -> None:
    """Raise a UserError unless a custom network returned tensors of these shapes for two observations."""
    tensors = isinstance(outputs, tuple) and all(isinstance(item, Tensor) for item in outputs)
    shapes = [tuple(item.shape) for item in outputs] if tensors else type(outputs).__name__
    if shapes != fitting:
        raise UserError(f"{wanted}; for a batch of 2 it returned {shapes}")


class ActorCriticPolicy(Policy):
    """A network of policy and value. The log-probability and value of every step are recorded for the update."""

    # The carry, if there is one, is gSDE's noise.
    carry_per_rollout: ClassVar[bool] = True

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        info: SpaceInfo = context.info
        cfg: Any = context.config
        make: Callable[..., Any] = context.model_factory or self.make_network
        self.network = make(info, context.model).to(context.device)
        self.distribution = action_distribution(info)
        self.observer = Observer(info, context.device, normalize=cfg.normalize_obs, clip=cfg.obs_clip)
        if context.model_factory is not None:
            self.check_outputs(context)
        self.weights = FlatWeights(self.ordered_parameters(context))
        # A custom network returns actions in [-1, 1].
        self._unit = context.model.unit(info) if isinstance(context.model, PolicyModelConfig) else None
        self._unit = None if context.model_factory is not None else self._unit
        self._compiled = context.engine == "auto" and self.within_reach(info)
        self.acting = self.make_acting(info, compiled=self._compiled)
        self._noise = noise_for(self.network, context)

    @property
    def engine(self) -> str:
        return "mlp" if self._compiled else "autograd"

    def make_network(self, info: SpaceInfo, model: Any) -> nn.Module:
        """The default network."""
        return build_actor_critic(info, model)

    def within_reach(self, info: SpaceInfo) -> bool:
        """Whether compiled kernels support the network."""
        return type(self.network) is MLPActorCritic and within_reach(self.network, info)

    def make_acting(self, info: SpaceInfo, *, compiled: bool) -> Any:
        """The implementation that computes the network for acting."""
        if not compiled:
            return TorchActing(self)
        return EngineActing(CompiledActing(self.network, self.weights.data, info), self.observer)

    def ordered_parameters(self, context: PolicyContext) -> Iterable[nn.Parameter]:
        """The network's parameters in the order of the flat buffer; those trained separately are contiguous."""
        parameters: Iterable[nn.Parameter] = self.network.parameters()
        return parameters

    def check_outputs(self, context: PolicyContext) -> None:
        """Check that a custom network's outputs for two observations of zeros fit the actions."""
        wanted, fitting = self.wanted_outputs()
        with torch.inference_mode():
            outputs = self.tried(context.info)
        check_shapes(f"model={context.model.model!r}: must return {wanted}", outputs, fitting)

    def wanted_outputs(self) -> tuple[str, list[tuple[int, ...]]]:
        """A description of the outputs that a network must return, and their shapes for a batch of 2."""
        size = self.distribution.param_size
        return f"policy parameters [B, {size}] and values [B]", [(2, size), (2,)]

    def tried(self, info: SpaceInfo) -> Any:
        """The network's outputs for two observations of zeros."""
        self.network.eval()
        return self.network(self.observer.tensors(np.zeros((2, *info.obs_shape), info.obs_dtype)))

    def records(self, info: SpaceInfo) -> Records:
        return {"log_prob": _SCALAR, "value": _SCALAR}

    def initial_carry(self, count: int) -> Carry:
        return None if self._noise is None else self._noise.nothing_drawn(count)

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        rows = self.observer.scaled(obs)
        if not explore:
            return Act(self.from_network(self.distribution.mode(self.acting.outputs(rows)[0])), carry)
        if self._noise is None:
            params, value = self.acting.outputs(rows)
            action, log_prob = self.acting.draw(params, rng)
        else:
            self.network.eval()
            action, log_prob, value, carry = self._noise(self.observer.tensors(rows), carry, rng)
        return Act(self.from_network(action), carry, {"log_prob": log_prob, "value": value})

    def from_network(self, action: Array) -> Array:
        """Actions in [-1, 1] from those in the network's units."""
        return action if self._unit is None else action * self._unit

    def to_network(self, action: Array) -> Array:
        """The inverse: actions in the units in which the network's likelihoods are computed."""
        return action if self._unit is None else action / self._unit

    def log_prob(self, params: Array, action: Array) -> Array:
        """The log-probabilities `[B]` of actions in the network's units, by torch."""
        with torch.inference_mode():
            log_prob: Array = self.distribution.log_prob(torch.from_numpy(params), torch.from_numpy(action)).numpy()
        return log_prob

    def network_outputs(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Policy parameters, with forbidden choices masked, and values; differentiable."""
        params, value = self.network(self.observer.tensors(rows))
        return self.allowed(params, rows), value

    def allowed(self, params: Tensor, rows: Array) -> Tensor:
        """Policy parameters with forbidden choices masked."""
        mask = self.observer.mask(rows)
        return params if mask is None else params.masked_fill(~self.observer.tensor(mask), FORBIDDEN)

    def policy_state(self) -> dict[str, Tensor]:
        network = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        return network | self.observer.state_dict()

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(under(state, "network."))
        self.observer.load_state_dict(state)
