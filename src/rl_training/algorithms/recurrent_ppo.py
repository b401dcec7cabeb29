"""PPO whose policy and values remember: an LSTM or a GRU, trained on sequences of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import AlgorithmSpec, Context, model_setting, setting
from rl_training.algorithms.on_policy import EVERY_SPACE, Batch, OnPolicyLoopConfig, PolicyModelConfig
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.data.rollout import Rollout
from rl_training.data.sequence import Packed, Sequences
from rl_training.models.encoders import encoder_for
from rl_training.models.recurrent import CoreShape, RecurrentActorCritic
from rl_training.models.recurrent_engine import RecurrentEngine, recurrent_engine_for
from rl_training.types import Act, Array, SpaceInfo, UserError


class RecurrentModelConfig(PolicyModelConfig):
    """A core that remembers, and MLPs of policy and value behind it."""

    model: str = model_setting(probe="rl_training.testing:LinearRecurrentActorCritic")
    rnn: Literal["lstm", "gru"] = setting("lstm", "Kind of the core.", probe="gru")
    rnn_hidden_size: int = setting(128, "Width of the core.", aliases=["lstm_hidden_size"], ge=1, probe=4)
    shared_core: bool = setting(False, "One core for policy and value, which learns from both; one each if false.")


class RecurrentPPOLoopConfig(OnPolicyLoopConfig):
    """Rollouts that are long enough to remember something in."""

    n_steps: int = setting(128, "Steps of each environment between two updates.", ge=1, probe=8)


class RecurrentPPOConfig(PPOConfig):
    """PPO's objective, with pi(a | all observations of the episode so far)"""

    batch_size: int = setting(
        128, "Steps in a minibatch, which is made of whole sequences: at least one, however long.", ge=1, probe=12
    )
    sequence_length: int | None = setting(
        None,
        "Steps of an environment through which gradients flow; n_steps, the whole rollout, if null or more than that.",
        ge=1,
        probe=2,
    )


def build_network(info: SpaceInfo, model: RecurrentModelConfig) -> RecurrentActorCritic:
    """The default network, behind an encoder where observations are more than a vector."""
    core = CoreShape(model.rnn, model.rnn_hidden_size, model.shared_core)
    encoder = encoder_for(info, orthogonal=model.ortho_init)
    inputs = encoder.features if encoder is not None else math.prod(info.input_shape)
    return RecurrentActorCritic(
        inputs, info.action_size, core, model.shape(), continuous=info.continuous, encoder=encoder
    )


class RecurrentPPO(PPO):
    """PPO's update on minibatches of sequences, each from the state that acting had there.

    What it carries is the state `[B, S]` of its network, 0 where an episode begins.
    """

    recurrent: ClassVar[bool] = True
    cfg: RecurrentPPOConfig
    mlp: RecurrentEngine | None

    def make_network(self, info: SpaceInfo, model: Any) -> nn.Module:
        return build_network(info, model)

    def make_engine(self, info: SpaceInfo) -> RecurrentEngine | None:
        return recurrent_engine_for(self.network, self.parameters, info)

    def wanted_outputs(self) -> tuple[str, list[tuple[int, ...]]]:
        size, state = self.distribution.param_size, self.network.state_size
        words = f"policy parameters [N, {size}], values [N] and the state after [B, {state}]"
        return words, [(2, size), (2,), (2, state)]

    def _check_outputs(self, context: Context) -> None:
        size = getattr(self.network, "state_size", None)
        if not isinstance(size, int) or size < 1:
            raise UserError(
                f"model={context.model.model!r}: needs state_size, the numbers that it remembers (a whole number from "
                f"1), not {size!r}"
            )
        super()._check_outputs(context)
        with torch.inference_mode():
            alike = self._packs(context.info)
        if not alike:
            raise UserError(
                f"model={context.model.model!r}: forward(obs, sizes, state) must give for steps that are packed by "
                "sizes [2, 1] what it gives for them one after the other"
            )

    def tried(self, info: SpaceInfo) -> Any:
        self.network.eval()
        return self._tried(_one_step(np.zeros((2, *info.obs_shape), info.obs_dtype), self._fresh(2)))

    def _tried(self, steps: Packed) -> Any:
        try:
            return self._called(steps)
        except Exception as error:
            raise UserError(
                f"model: forward(obs, sizes, state) of {type(self.network).__name__} fails for sizes "
                f"{steps.sizes.tolist()}: {type(error).__name__}: {error}"
            ) from error

    def _packs(self, info: SpaceInfo) -> bool:
        """Whether a user's network runs two parts of two steps and one as it runs their steps one after the other."""
        rows = np.zeros((3, *info.obs_shape), info.obs_dtype)
        inputs = self.observer.arrays(rows)
        for array in inputs.values() if isinstance(inputs, dict) else [inputs]:
            array[:2] = 1
        # It starts from states that it may really have, and which differ.
        before = self._state(self._tried(_one_step(rows[1:], self._fresh(2)))[2].cpu().numpy(), 2)
        first = self._tried(_one_step(rows[:2], before))
        second = self._tried(_one_step(rows[2:], self._state(first[2][:1].cpu().numpy(), 1)))
        expected = (
            *(torch.cat(pair) for pair in zip(first[:2], second[:2], strict=True)),
            torch.cat([second[2], first[2][1:]]),
        )
        packed = self._tried(Packed(rows, np.array([2, 1]), before))
        return len(packed) == 3 and all(
            found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
            for found, wanted in zip(packed, expected, strict=True)
        )

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        state = self._fresh(len(obs)) if carry is None else self._state(carry, len(obs))
        params, value, after = self._run(_one_step(self.observer.scaled(obs), state))
        if not explore:
            return Act(self.distribution.mode(params), after)
        draw = self.distribution.sample if self.mlp is None else self.mlp.draw
        action, log_prob = draw(params, self.policy_rng)
        return Act(action, after, {"log_prob": log_prob, "value": value, "state": state})

    def begin_episodes(self, carry: Any, mask: Array) -> Any:
        return None if carry is None else np.where(mask[:, None], np.float32(0.0), self._state(carry, len(mask)))

    def _fresh(self, count: int) -> Array:
        return np.zeros((count, self.network.state_size), np.float32)

    def _state(self, carry: Any, count: int) -> Array:
        """What is carried, as the network takes it `[B, S]`.

        Its own passes whatever its numbers are, so that training can say of a policy that diverged that it did.
        """
        own = isinstance(carry, np.ndarray) and carry.dtype == np.float32
        state: Array = carry if own else _numbers(carry)
        if state.shape != (count, self.network.state_size):
            raise UserError(f"state: has shape {state.shape}; must be {(count, self.network.state_size)}")
        return np.require(state, requirements=["C", "W"])

    def _run(self, steps: Packed) -> tuple[Array, Array, Array]:
        """Policy outputs and values of a few steps, and the state after them."""
        if self.mlp is not None:
            arrays, mask = self.observer.arrays(steps.rows), self.observer.mask(steps.rows)
            return self.mlp.run_steps(arrays, steps.sizes, steps.state, mask)
        self.network.eval()
        with torch.inference_mode():
            params, value, after = (tensor.cpu().numpy() for tensor in self._network(steps))
            return params, value, after

    def _network(self, steps: Packed) -> tuple[Tensor, Tensor, Tensor]:
        params, value, after = self._called(steps)
        return self.allowed(params, steps.rows), value, after

    def _called(self, steps: Packed) -> Any:
        sizes, state = torch.from_numpy(steps.sizes), self.observer.tensor(steps.state)
        return self.network(self.observer.tensors(steps.rows), sizes, state)

    def network_outputs(self, rows: Packed) -> tuple[Tensor, Tensor]:
        return self._network(rows)[:2]

    def evaluate(self, batch: Batch[Array]) -> tuple[Array, Array, Array]:
        assert self.mlp is not None
        steps: Packed = batch.obs
        arrays, mask = self.observer.arrays(steps.rows), self.observer.mask(steps.rows)
        return self.mlp.evaluate_steps(arrays, steps.sizes, steps.state, batch.action, mask)

    def tensors(self, batch: Batch[Array]) -> Batch[Tensor]:
        # Observations are moved where they are used; the few sizes stand for them here.
        return replace(super().tensors(replace(batch, obs=batch.obs.sizes)), obs=batch.obs)

    def bootstrap_values(self, rollout: Rollout) -> Array:
        """The step before each of them is made again, since its state is known and the one after it is not."""
        before = rollout.bootstrap_places()
        count = len(before[0])
        rows = self.observer.scaled(np.concatenate([rollout.obs[before], rollout.bootstrap_obs()]))
        _, value, _ = self._run(Packed(rows, np.array([count, count]), rollout.extras["state"][before]))
        return value[count:]

    def prepare(self, rollout: Rollout) -> Batch[Array]:
        data = super().prepare(rollout)
        real = rollout.real
        length = min(self.cfg.sequence_length or len(real), len(real))
        return replace(data, obs=Sequences(data.obs, rollout.extras["state"][real], real, rollout.starts, length))

    def minibatches(self, data: Batch[Array]) -> Iterator[Batch[Array]]:
        """Whole sequences, about `batch_size` steps of them at a time."""
        sequences: Sequences = data.obs
        columns = replace(data, obs=sequences.rows)
        count = max(1, self.cfg.batch_size // sequences.length)
        for _ in range(self.cfg.n_epochs):
            order = self.batch_rng.permutation(len(sequences))
            for start in range(0, len(sequences), count):
                picked, sizes = sequences.pack(order[start : start + count])
                mini = columns.map(lambda column: column.take(picked, axis=0))  # noqa: B023
                yield replace(mini, obs=Packed(mini.obs, sizes, sequences.state[picked[: sizes[0]]]))


def _one_step(rows: Array, state: Array) -> Packed:
    return Packed(rows, np.array([len(rows)]), state)


def _numbers(state: Any) -> Array:
    """A state that a caller kept in another form, as float32."""
    try:
        given = np.asarray(state)
    except (RuntimeError, TypeError, ValueError):  # rows of different lengths, or a tensor that is no plain one
        given = np.empty(0, object)
    if given.dtype.kind not in "biuf":
        raise UserError(f"state: is a {type(state).__name__} that is not made of numbers; give what predict gave")
    with np.errstate(over="ignore"):
        numbers: Array = given.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise UserError("state: has numbers that are not finite (as float32)")
    return numbers


SPEC = AlgorithmSpec(
    name="recurrent_ppo",
    family="on_policy",
    summary="PPO with a memory: LSTM or GRU",
    config=RecurrentPPOConfig,
    loop=RecurrentPPOLoopConfig,
    model=RecurrentModelConfig,
    build=RecurrentPPO,
    capabilities=replace(EVERY_SPACE, recurrent=True),
)
