"""Explicit value prefixes: the engine of MuZero's MLP with an LSTM on the features of its dynamics.

Latents do not depend on the LSTM. So an update first follows all latents, then runs the LSTM over their features, and
on the way back the LSTM comes first: what it sends to the features is added to what the latents send there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

from rl_training.models.efficientzero import ValuePrefixNetwork
from rl_training.models.mlp_engine import Workspace, covered, gradients_of, multiply, views_of
from rl_training.models.muzero import MLPMuZero, Unrolled
from rl_training.models.muzero_engine import MuZeroEngine, scaled, write_layer
from rl_training.models.muzero_engine import within_reach as body_within_reach
from rl_training.models.recurrent_engine import LSTMEngine
from rl_training.ops.kernels import recurrent as kernels
from rl_training.ops.two_hot import expectation
from rl_training.types import Array


class PrefixEngine(MuZeroEngine):
    """The functions of a `ValuePrefixNetwork` around an `MLPMuZero`; embeddings are latents, then memories."""

    def __init__(self, network: ValuePrefixNetwork, *, trained: bool) -> None:
        assert isinstance(network.body, MLPMuZero)
        super().__init__(network.body, trained=trained)
        self.memory_size = network.memory_size
        self._sums = _Sums(network, trained=trained)

    def forward(self, obs: Array, actions: Array) -> Unrolled[Array]:
        out = super().forward(obs, actions)
        return replace(out, reward=self._sums.forward(self.features, len(actions)))

    def rewards_backward(self, d_reward: Array) -> Array | None:
        return self._sums.backward(d_reward)

    def initial(self, obs: Array) -> tuple[Array, Array, Array]:
        latent, policy, value = super().initial(obs)
        nothing = np.zeros((len(obs), self.memory_size), np.float32)
        return np.concatenate([latent, nothing], axis=1), policy, value

    def step(self, latent: Array, action: Array) -> tuple[Array, Array, Array, Array]:
        """`MuZeroEngine.step` of embeddings in place of latents."""
        features, memory = self.follow(latent[:, : self.latent_size], action), latent[:, self.latent_size :]
        (raw,) = self._next.apply(features)
        after = scaled(raw)
        remembered, reward = self._sums.step(features, memory)
        return np.concatenate([after, remembered], axis=1), reward, *self.predict(after)


class _Sums:
    """The LSTM of value prefixes and its head.

    Every reset begins a part of its own, and parts run side by side: see `rl_training.models.recurrent`. So their rows
    are in another order than the steps: all first steps after a reset, then all second ones, and so on.
    """

    def __init__(self, network: ValuePrefixNetwork, *, trained: bool) -> None:
        head = network.reward
        assert isinstance(head, nn.Linear)
        self._core = LSTMEngine(network.core, trained=trained)
        ((self._weight, self._bias),) = views_of([head])
        self._gradients = gradients_of([head]) if trained else []
        self._size, self._horizon, self._support = network.hidden_size, network.horizon, network.reward_support
        self._order: list[int] = []
        features, bins = network.core.input_size, head.out_features
        # For every step: features, logits, and the gradients of outputs and features, in the order of the parts.
        self._rows = Workspace((), [features, bins, self._size, features])
        self._outputs: Array = np.zeros((0, 0), np.float32)

    def forward(self, features: Array, steps: int) -> Array:
        """The logits `[K, B, bins]` of the sums, from features `[K B, F]`."""
        since = np.arange(steps) % self._horizon
        self._order = np.argsort(since, kind="stable").tolist()
        self._rows.resize(len(features))
        x, logits, _, _ = self._rows.arrays
        batch = len(features) // steps
        np.take(features.reshape(steps, -1), self._order, axis=0, out=x.reshape(steps, -1))
        sizes = np.bincount(since) * batch
        empty = np.zeros((sizes[0], 2 * self._size), np.float32)
        self._outputs, _ = self._core.forward(x, sizes, empty, fresh=True)
        multiply(self._outputs, self._weight.T, logits)
        logits += self._bias
        return self._in_steps(logits).reshape(steps, batch, -1)

    def backward(self, d_logits: Array) -> Array:
        """Overwrite the gradients of all weights; returns that of the features `[K B, F]`."""
        _, _, d_outputs, d_features = self._rows.arrays
        d = d_logits[self._order].reshape(len(d_outputs), -1)
        write_layer(self._outputs, d, self._gradients[0])
        multiply(d, self._weight, d_outputs)
        self._core.backward(d_outputs)
        self._core.input_gradient(d_features)
        return self._in_steps(d_features)

    def step(self, features: Array, memory: Array) -> tuple[Array, Array]:
        """The memories after a step with these features, and its rewards `[B]`."""
        size, core = self._size, self._core
        before, cell = memory[:, :size], memory[:, size : 2 * size].copy()
        gates = features @ core.from_inputs.T
        gates += core.known_bias()
        squashed, output = np.empty_like(cell), np.empty_like(cell)
        kernels.lstm_forward(gates, before @ core.from_outputs.T, cell, squashed, output)
        total = expectation(output @ self._weight.T + self._bias, self._support)
        after = np.empty_like(memory)
        after[:, :size], after[:, size : 2 * size] = output, cell
        after[:, -2], after[:, -1] = total, memory[:, -1] + 1.0
        after[after[:, -1] >= self._horizon] = 0.0
        return after, total - memory[:, -2]

    def _in_steps(self, rows: Array) -> Array:
        """Rows `[K B, W]` of parts, in the order of the steps."""
        found = np.empty_like(rows)
        steps = len(self._order)
        found.reshape(steps, -1)[self._order] = rows.reshape(steps, -1)
        return found


def engine_of(network: nn.Module, *, trained: bool) -> MuZeroEngine:
    """The engine of a network that is within reach."""
    if isinstance(network, ValuePrefixNetwork):
        return PrefixEngine(network, trained=trained)
    assert isinstance(network, MLPMuZero)
    return MuZeroEngine(network, trained=trained)


def within_reach(network: nn.Module) -> bool:
    """Whether there is an engine for a network: an `MLPMuZero` for vectors, with or without value prefixes."""
    if type(network) is not ValuePrefixNetwork:
        return body_within_reach(network)
    body = network.body
    if type(body) is not MLPMuZero or body.encoder is not None or not isinstance(network.reward, nn.Linear):
        return False
    return all(covered(part) for part in (*body.children(), network.reward) if part is not body.reward)
