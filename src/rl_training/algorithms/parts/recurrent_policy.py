"""A recurrent policy: an LSTM or a GRU before the MLPs of policy and value."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import PolicyContext, model_setting
from rl_training.algorithms.parts.actor_critic_policy import ActorCriticPolicy, PolicyModelConfig
from rl_training.algorithms.parts.objectives import Batch, EngineForm, Heads
from rl_training.algorithms.parts.observer import Observer
from rl_training.algorithms.settings import setting
from rl_training.data.sequence import Packed
from rl_training.models.recurrent import CoreShape, RecurrentActorCritic
from rl_training.models.recurrent_engine import RecurrentActing, RecurrentEngine, recurrent_within_reach
from rl_training.types import Act, Array, ArrayKind, Carry, Records, SpaceInfo, UserError


class RecurrentModelConfig(PolicyModelConfig):
    """A recurrent core, and MLPs of policy and value behind it."""

    model: str = model_setting(probe="rl_training.testing:LinearRecurrentActorCritic")
    rnn: Literal["lstm", "gru"] = setting("lstm", "Kind of the recurrent core.", probe="gru")
    rnn_hidden_size: int = setting(128, "Width of the recurrent core.", aliases=["lstm_hidden_size"], ge=1, probe=4)
    shared_core: bool = setting(False, "One core for policy and value, which learns from both; one each if false.")

    sizes: ClassVar[tuple[str, ...]] = ("hidden_sizes", "rnn_hidden_size")

    def least_weights(self, info: SpaceInfo) -> int:
        core = core_weights(self.rnn, self.rnn_hidden_size) if self.model == "auto" else 0
        return super().least_weights(info) + core


def core_weights(rnn: Literal["lstm", "gru"], width: int) -> int:
    """At least how many weights a recurrent core has, whatever its inputs are."""
    return (4 if rnn == "lstm" else 3) * width**2


class PackedActing(Protocol):
    """Computes a few packed steps, and samples actions."""

    def run(self, steps: Packed) -> tuple[Array, Array, Array]:
        """Policy outputs and values of the steps, and the state after them."""

    def draw(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sampled actions and their log-probabilities."""

    def log_prob(self, params: Array, action: Array) -> Array:
        """The log-probabilities of actions in the network's units; it may overwrite the policy outputs."""


class TorchPackedActing:
    """Acting by torch, for any network on any device."""

    def __init__(self, policy: RecurrentPolicy) -> None:
        self._policy = policy
        self.draw = policy.distribution.sample

    def run(self, steps: Packed) -> tuple[Array, Array, Array]:
        self._policy.network.eval()
        with torch.inference_mode():
            params, value, after = (tensor.cpu().numpy() for tensor in self._policy.packed_outputs(steps))
            return params, value, after

    def log_prob(self, params: Array, action: Array) -> Array:
        return self._policy.log_prob(params, action)


class EnginePackedActing:
    """Acting by compiled kernels, for the default network on a CPU."""

    def __init__(self, compiled: RecurrentActing, observer: Observer) -> None:
        self._compiled, self._observer = compiled, observer
        self.draw, self.log_prob = compiled.draw, compiled.log_prob

    def run(self, steps: Packed) -> tuple[Array, Array, Array]:
        arrays, mask = self._observer.arrays(steps.rows), self._observer.mask(steps.rows)
        return self._compiled.run(arrays, steps.sizes, steps.state, mask)


class PackedEngineForm(EngineForm):
    """The closed form on packed steps."""

    engine: RecurrentEngine

    def heads(self, batch: Batch[Array]) -> Heads[Array]:
        steps: Packed = batch.obs
        arrays, mask = self._policy.observer.arrays(steps.rows), self._policy.observer.mask(steps.rows)
        return Heads(*self.engine.evaluate_steps(arrays, steps.sizes, steps.state, batch.action, mask))


class RecurrentPolicy(ActorCriticPolicy):
    """The carry is the network's state `[B, S]`, 0 at the start of an episode. Every step records its state."""

    carry_per_rollout: ClassVar[bool] = False
    acting: PackedActing

    def make_network(self, info: SpaceInfo, model: Any) -> nn.Module:
        core = CoreShape(model.rnn, model.rnn_hidden_size, model.shared_core)
        encoder, value_encoder, inputs = model.encoders(info)
        if model.shared_core and value_encoder is not None:
            raise UserError("share_encoder=False, shared_core=True: one core reads one encoder; change one of the two")
        return RecurrentActorCritic(
            inputs,
            info.action_size,
            core,
            model.shape(info),
            continuous=info.continuous,
            encoder=encoder,
            value_encoder=value_encoder,
        )

    def within_reach(self, info: SpaceInfo) -> bool:
        return recurrent_within_reach(self.network, info)

    def make_acting(self, info: SpaceInfo, *, compiled: bool) -> PackedActing:
        if not compiled:
            return TorchPackedActing(self)
        return EnginePackedActing(RecurrentActing(self.network, self.weights.data, info), self.observer)

    def records(self, info: SpaceInfo) -> Records:
        return {**super().records(info), "state": ArrayKind((self.network.state_size,), "float32")}

    def initial_carry(self, count: int) -> Carry:
        return np.zeros((count, self.network.state_size), np.float32)

    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        return np.where(mask[:, None], np.float32(0.0), self._state(carry, len(mask)))

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        state = self._state(carry, len(obs))
        params, value, after = self.acting.run(one_step(self.observer.scaled(obs), state))
        if not explore:
            return Act(self.from_network(self.distribution.mode(params)), after)
        action, log_prob = self.acting.draw(params, rng)
        return Act(self.from_network(action), after, {"log_prob": log_prob, "value": value, "state": state})

    def wanted_outputs(self) -> tuple[str, list[tuple[int, ...]]]:
        size, state = self.distribution.param_size, self.network.state_size
        words = f"policy parameters [N, {size}], values [N] and the state after [B, {state}]"
        return words, [(2, size), (2,), (2, state)]

    def check_outputs(self, context: PolicyContext) -> None:
        size = getattr(self.network, "state_size", None)
        if not isinstance(size, int) or size < 1:
            raise UserError(
                f"model={context.model.model!r}: needs state_size, the size of its recurrent state (a whole number "
                f"from 1), not {size!r}"
            )
        super().check_outputs(context)
        with torch.inference_mode():
            alike = self._packs(context.info)
        if not alike:
            raise UserError(
                f"model={context.model.model!r}: forward(obs, sizes, state) must return for steps packed by sizes "
                "[2, 1] what it returns for them one after the other"
            )

    def tried(self, info: SpaceInfo) -> Any:
        self.network.eval()
        return self._tried(one_step(np.zeros((2, *info.obs_shape), info.obs_dtype), self.initial_carry(2)))

    def _tried(self, steps: Packed) -> Any:
        try:
            return self._called(steps)
        except Exception as error:
            raise UserError(
                f"model: forward(obs, sizes, state) of {type(self.network).__name__} fails for sizes "
                f"{steps.sizes.tolist()}: {type(error).__name__}: {error}"
            ) from error

    def _packs(self, info: SpaceInfo) -> bool:
        """Whether a custom network returns the same for packed parts of two steps and one as for single steps."""
        rows = np.zeros((3, *info.obs_shape), info.obs_dtype)
        inputs = self.observer.arrays(rows)
        for array in inputs.values() if isinstance(inputs, dict) else [inputs]:
            array[:2] = 1
        # Start from two different states that the network itself has produced.
        before = self._state(self._tried(one_step(rows[1:], self.initial_carry(2)))[2].cpu().numpy(), 2)
        first = self._tried(one_step(rows[:2], before))
        second = self._tried(one_step(rows[2:], self._state(first[2][:1].cpu().numpy(), 1)))
        expected = (
            *(torch.cat(pair) for pair in zip(first[:2], second[:2], strict=True)),
            torch.cat([second[2], first[2][1:]]),
        )
        packed = self._tried(Packed(rows, np.array([2, 1]), before))
        return len(packed) == 3 and all(
            found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
            for found, wanted in zip(packed, expected, strict=True)
        )

    def _state(self, carry: Carry, count: int) -> Array:
        """The carry as the network's state `[B, S]`.

        The policy's own carry is not checked for finite numbers: training reports a policy that diverged itself.
        """
        own = isinstance(carry, np.ndarray) and carry.dtype == np.float32
        state: Array = carry if own else _numbers(carry)
        if state.shape != (count, self.network.state_size):
            raise UserError(f"state: has shape {state.shape}; must be {(count, self.network.state_size)}")
        return np.require(state, requirements=["C", "W"])

    def packed_outputs(self, steps: Packed) -> tuple[Tensor, Tensor, Tensor]:
        """Policy parameters, with forbidden choices masked, values, and the state after; differentiable."""
        params, value, after = self._called(steps)
        return self.allowed(params, steps.rows), value, after

    def network_outputs(self, rows: Packed) -> tuple[Tensor, Tensor]:
        return self.packed_outputs(rows)[:2]

    def _called(self, steps: Packed) -> Any:
        sizes, state = torch.from_numpy(steps.sizes), self.observer.tensor(steps.state)
        return self.network(self.observer.tensors(steps.rows), sizes, state)


def one_step(rows: Array, state: Array) -> Packed:
    """One step of every row, from its state."""
    return Packed(rows, np.array([len(rows)]), state)


def _numbers(state: Any) -> Array:
    """A state that a caller passed in another form, as float32."""
    try:
        given = np.asarray(state)
    except (RuntimeError, TypeError, ValueError):  # rows of different lengths, or a tensor that NumPy cannot convert
        given = np.empty(0, object)
    if given.dtype.kind not in "biuf":
        raise UserError(f"state: is a {type(state).__name__} that is not made of numbers; give what predict returned")
    with np.errstate(over="ignore"):
        numbers: Array = given.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise UserError("state: has numbers that are not finite (as float32)")
    return numbers
