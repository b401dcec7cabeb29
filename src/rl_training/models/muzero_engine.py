"""Explicit unroll of `MLPMuZero` and its gradient on the flat buffer: the fast path of small networks on a CPU.

Only the dynamics go step by step. Predictions at all latents, and the gradients of all weights, are one product each.
Two linear layers on the same features (next latent and reward, policy and value) are one product too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import nn

from rl_training.models.mlp_engine import Workspace, covered, gradients_of, kind_of, multiply, views_of
from rl_training.models.muzero import MLPMuZero, Unrolled
from rl_training.models.torso import MLP
from rl_training.ops.kernels import acting
from rl_training.ops.kernels import unroll as kernels
from rl_training.ops.search import PackedModel
from rl_training.ops.two_hot import expectation
from rl_training.types import Array

Layer = tuple[Array, Array]


class _Hidden:
    """Hidden layers; their results for all rows are kept, so that gradients can go back through any of these."""

    def __init__(self, torso: MLP, inputs: int, *, trained: bool) -> None:
        layers = [layer for layer in torso if isinstance(layer, nn.Linear)]
        self.layers = views_of(layers)
        self.kind = kind_of(torso)
        self._gradients = gradients_of(layers) if trained else []
        widths = [len(bias) for _, bias in self.layers]
        self._outputs = Workspace((), widths)
        self._gates = Workspace((), widths if self.kind == acting.SILU else [])
        # Without a layer, the gradient of the outputs is that of the inputs.
        self._d = Workspace((), widths or [inputs])

    def resize(self, rows: int) -> None:
        for workspace in (self._outputs, self._gates, self._d):
            workspace.resize(rows)

    @property
    def d_outputs(self) -> Array:
        """Where the gradient of the outputs of all rows goes, before `backward`."""
        return self._d.arrays[-1]

    def forward(self, x: Array, rows: slice) -> Array:
        """The outputs for inputs `x`, which belong to some of the rows."""
        for layer, (weight, bias) in enumerate(self.layers):
            out = self._outputs.arrays[layer][rows]
            multiply(x, weight.T, out)
            _activate(out, bias, self.kind, self._gates.arrays[layer][rows] if self._gates.arrays else None)
            x = out
        return x

    def outputs(self, x: Array) -> Array:
        """The outputs of all rows, whose inputs are `x`."""
        return self._outputs.arrays[-1] if self.layers else x

    def backward(self, rows: slice) -> None:
        """Go from the gradient of some rows' outputs to that of what enters the first activation."""
        for layer in range(len(self.layers) - 1, -1, -1):
            h, d = self._outputs.arrays[layer][rows], self._d.arrays[layer][rows]
            if self.kind == acting.TANH:
                kernels.tanh_backward(h, d)
            elif self.kind == acting.RELU:
                kernels.relu_backward(h, d)
            else:
                kernels.silu_backward(h, self._gates.arrays[layer][rows], d)
            if layer:
                multiply(d, self.layers[layer][0], self._d.arrays[layer - 1][rows])

    def input_gradient(self, rows: slice, out: Array) -> None:
        """The gradient of the first columns of some rows' inputs, after `backward`."""
        d, columns = self._d.arrays[0][rows], out.shape[1]
        if self.layers:
            multiply(d, self.layers[0][0][:, :columns], out)
        else:
            np.copyto(out, d[:, :columns])

    def write(self, x: Array) -> None:
        """Write the gradients of weights and biases; the inputs of all rows were `x`."""
        for layer, gradients in enumerate(self._gradients):
            write_layer(x, self._d.arrays[layer], gradients)
            x = self._outputs.arrays[layer]

    def apply(self, x: Array) -> Array:
        """`forward` without keeping anything."""
        for weight, bias in self.layers:
            x = x @ weight.T
            _activate(x, bias, self.kind, np.empty_like(x) if self.kind == acting.SILU else None)
        return x


class _Linears:
    """Linear layers on the same inputs as one; `refresh` copies their weights."""

    def __init__(self, layers: Sequence[nn.Linear], *, trained: bool) -> None:
        self.layers = views_of(layers)
        self._gradients = gradients_of(layers) if trained else []
        self.sizes = [len(bias) for _, bias in self.layers]
        self.weight = np.empty((sum(self.sizes), layers[0].in_features), np.float32)
        self.bias = np.empty(sum(self.sizes), np.float32)
        self._d_weight, self._d_bias = np.empty_like(self.weight), np.empty_like(self.bias)

    def refresh(self) -> None:
        np.concatenate([weight for weight, _ in self.layers], out=self.weight)
        np.concatenate([bias for _, bias in self.layers], out=self.bias)

    def write(self, x: Array, d: Array) -> None:
        """Write the gradients of weights and biases, from the inputs and the gradient of the outputs."""
        write_layer(x, d, (self._d_weight, self._d_bias))
        end = 0
        for weight, bias in self._gradients:
            start, end = end, end + len(bias)
            weight[...], bias[...] = self._d_weight[start:end], self._d_bias[start:end]

    def apply(self, x: Array) -> list[Array]:
        """The outputs of every layer, with its current weights."""
        outputs = []
        for weight, bias in self.layers:
            out = x @ weight.T
            out += bias
            outputs.append(out)
        return outputs


class MuZeroEngine:
    """The functions of an `MLPMuZero` on vectors, without autograd: see `within_reach`.

    It reads and writes the parameters where they are when it is made, so they must be flat by then. What `forward`
    returns is valid until its next call; other methods return new arrays. A network that has given its reward layer
    away has rewards of no bins.
    """

    memory_size = 0  # what a search keeps of a state besides its latent

    def __init__(self, network: MLPMuZero, *, trained: bool) -> None:
        rewards = [network.reward] if isinstance(network.reward, nn.Linear) else []
        info, size, bins = network.info, network.latent_size, sum(layer.out_features for layer in rewards)
        self.network = network
        self.latent_size, self.action_size = size, info.action_size
        width = size + info.action_size
        self._representation = _Hidden(network.representation, math.prod(info.input_shape), trained=trained)
        self._transition = _Hidden(network.transition, width, trained=trained)
        self._prediction = _Hidden(network.prediction, size, trained=trained)
        self._first = _Linears([network.first_latent], trained=trained)
        self._next = _Linears([network.next_latent, *rewards], trained=trained)
        self._heads = _Linears([network.policy, network.value], trained=trained)
        outputs = self._heads.sizes
        # For every latent: itself and the action after it, the outputs of the heads, these apart, and gradients.
        self._latents = Workspace((), [width, sum(outputs), *outputs, sum(outputs), size])
        # For every step: the next latent before it is scaled, with the reward; the reward; ranges; a gradient.
        self._steps = Workspace((), [size + bins, bins, 3, size + bins])
        # For every observation: the first latent before it is scaled, nothing, ranges, and gradients.
        self._rows = Workspace((), [size, 0, 3, size, size])
        self._obs: Array = np.zeros((0, 0), np.float32)
        self._packed = _Packed(
            [*self._transition.layers, *self._next.layers, *self._prediction.layers, *self._heads.layers]
        )

    def forward(self, obs: Array, actions: Array) -> Unrolled[Array]:
        """`rl_training.models.muzero.unroll` of observations `[B, in]` and actions `[K, B]` or `[K, B, d]`."""
        steps, batch = actions.shape[:2]
        self._resize(steps, batch)
        self._obs, size = obs, self.latent_size
        inputs, heads, policy, value, _, _ = self._latents.arrays
        after, reward, ranges, _ = self._steps.arrays
        first, nothing, first_ranges, _, _ = self._rows.arrays
        self._enter(actions.reshape(steps * batch, *actions.shape[2:]), inputs[: steps * batch])

        multiply(self._representation.forward(obs, slice(0, batch)), self._first.weight.T, first)
        kernels.scale_latents(first, self._first.bias, inputs, 0, nothing, first_ranges)
        for step in range(steps):
            rows = slice(step * batch, (step + 1) * batch)
            multiply(self._transition.forward(inputs[rows], rows), self._next.weight.T, after[rows])
            kernels.scale_latents(after[rows], self._next.bias, inputs, rows.stop, reward[rows], ranges[rows])
        features = self._prediction.forward(inputs[:, :size], slice(0, len(inputs)))
        multiply(features, self._heads.weight.T, heads)
        kernels.split_columns(heads, self._heads.bias, policy, value)
        return Unrolled(
            inputs.reshape(steps + 1, batch, -1)[..., :size],
            policy.reshape(steps + 1, batch, -1),
            value.reshape(steps + 1, batch, -1),
            reward.reshape(steps, batch, -1),
        )

    @property
    def features(self) -> Array:
        """The features `[K B, F]` from which the latest `forward` took the next latents."""
        return self._transition.outputs(self._latents.arrays[0][: self._steps.rows])

    def backward(self, d_policy: Array, d_value: Array, d_reward: Array, d_latent: Array | None = None) -> None:
        """Overwrite the gradients of all parameters, given those of the latest `forward`'s results."""
        steps, batch = d_reward.shape[:2]
        split = self._heads.sizes[0]
        inputs, _, _, _, d_heads, d_latents = self._latents.arrays
        after, _, ranges, d_after = self._steps.arrays
        first, _, first_ranges, d_first, d_next = self._rows.arrays
        d_heads[:, :split] = d_policy.reshape(-1, split)
        d_heads[:, split:] = d_value.reshape(-1, d_heads.shape[1] - split)
        d_features = self.rewards_backward(d_reward)

        everything = slice(0, len(inputs))
        multiply(d_heads, self._heads.weight, self._prediction.d_outputs)
        self._prediction.backward(everything)
        self._prediction.input_gradient(everything, d_latents)
        if d_latent is not None:
            d_latents += d_latent.reshape(d_latents.shape)
        d_next[...] = 0.0
        for step in range(steps - 1, -1, -1):
            rows, there = slice(step * batch, (step + 1) * batch), slice((step + 1) * batch, (step + 2) * batch)
            kernels.scale_latents_backward(after[rows], ranges[rows], d_latents[there], d_next, 0.5, d_after[rows])
            multiply(d_after[rows], self._next.weight, self._transition.d_outputs[rows])
            if d_features is not None:
                self._transition.d_outputs[rows] += d_features[rows]
            self._transition.backward(rows)
            self._transition.input_gradient(rows, d_next)
        # The first latent comes from the representation: what the first step sends back is not halved.
        kernels.scale_latents_backward(first, first_ranges, d_latents[:batch], d_next, 1.0, d_first)
        multiply(d_first, self._first.weight, self._representation.d_outputs)
        self._representation.backward(slice(0, batch))
        self._write()

    def rewards_backward(self, d_reward: Array) -> Array | None:
        """Take the gradient of the rewards; returns that of `features`, if it does not come with the next latents'."""
        d_after = self._steps.arrays[3]
        d_after[:, self.latent_size :] = d_reward.reshape(len(d_after), -1)
        return None

    def initial(self, obs: Array) -> tuple[Array, Array, Array]:
        """Latents `[B, D]`, the policy's parameters `[B, P]` and values `[B]` of observations `[B, in]`."""
        latent = self.represent(obs)
        return latent, *self.predict(latent)

    def represent(self, obs: Array) -> Array:
        """The latents `[B, D]` of observations `[B, in]`."""
        (raw,) = self._first.apply(self._representation.apply(obs))
        return scaled(raw)

    def predict(self, latent: Array) -> tuple[Array, Array]:
        """The policy's parameters `[B, P]` and values `[B]` of latents `[B, D]`."""
        policy, value = self._heads.apply(self._prediction.apply(latent))
        return policy, expectation(value, self.network.value_support)

    def values(self, obs: Array) -> Array:
        """The values `[B]` of observations `[B, in]`."""
        features = self._prediction.apply(self.represent(obs))
        weight, bias = self._heads.layers[1]
        return expectation(features @ weight.T + bias, self.network.value_support)

    def step(self, latent: Array, action: Array) -> tuple[Array, Array, Array, Array]:
        """Latents after actions `[B]` or `[B, d]`, rewards `[B]`, the policy's parameters `[B, P]`, values `[B]`."""
        raw, reward = self._next.apply(self.follow(latent, action))
        after = scaled(raw)
        return after, expectation(reward, self.network.reward_support), *self.predict(after)

    def follow(self, latent: Array, action: Array) -> Array:
        """The features `[B, F]` of taking actions at latents."""
        inputs = np.empty((len(latent), self.latent_size + self.action_size), np.float32)
        inputs[:, : self.latent_size] = latent
        self._enter(action, inputs)
        return self._transition.apply(inputs)

    def packed(self, discount: float, spread: Array | None = None) -> PackedModel:
        """Dynamics and prediction for the compiled search; the next call overwrites the weights."""
        self._packed.refresh()
        return PackedModel(
            weights=self._packed.weights,
            layers=self._packed.table,
            hidden=(len(self._transition.layers), len(self._prediction.layers)),
            kind=(self._transition if self._transition.layers else self._prediction).kind,
            latent=self.latent_size,
            action_size=self.action_size if self.network.info.continuous else 0,
            reward_support=self.network.reward_support,
            value_support=self.network.value_support,
            discount=discount,
            spread=spread,
        )

    def _resize(self, steps: int, batch: int) -> None:
        self._latents.resize((steps + 1) * batch)
        self._prediction.resize((steps + 1) * batch)
        self._steps.resize(steps * batch)
        self._transition.resize(steps * batch)
        self._rows.resize(batch)
        self._representation.resize(batch)
        for layers in (self._first, self._next, self._heads):
            layers.refresh()

    def _enter(self, action: Array, inputs: Array) -> None:
        """Write actions to the last columns of the dynamics' inputs."""
        if self.network.info.continuous:
            inputs[:, self.latent_size :] = action
        else:
            inputs[:, self.latent_size :] = 0.0
            inputs[np.arange(len(action)), self.latent_size + action] = 1.0

    def _write(self) -> None:
        """Write the gradients of all weights, from those of all results."""
        inputs, _, _, _, d_heads, _ = self._latents.arrays
        d_after, d_first = self._steps.arrays[3], self._rows.arrays[3]
        latents, before = inputs[:, : self.latent_size], inputs[: len(d_after)]
        self._representation.write(self._obs)
        self._first.write(self._representation.outputs(self._obs), d_first)
        self._transition.write(before)
        self._next.write(self._transition.outputs(before), d_after)
        self._prediction.write(latents)
        self._heads.write(self._prediction.outputs(latents), d_heads)


class _Packed:
    """A copy of layers in one vector: of each, its weights `[in, out]` in row order, then its biases."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        sizes = [(weight.shape[1], weight.shape[0]) for weight, _ in layers]
        ends = np.cumsum([(inputs + 1) * outputs for inputs, outputs in sizes])
        offsets = [0, *ends[:-1].tolist()]
        self.table = np.array([(*size, offset) for size, offset in zip(sizes, offsets, strict=True)], np.int64)
        self.weights = np.empty(ends[-1], np.float32)

    def refresh(self) -> None:
        for (weight, bias), (inputs, outputs, offset) in zip(self._layers, self.table.tolist(), strict=True):
            end = offset + inputs * outputs
            self.weights[offset:end].reshape(inputs, outputs)[...] = weight.T
            self.weights[end : end + outputs] = bias


def within_reach(network: nn.Module) -> bool:
    """Whether the engine can compute a network: an `MLPMuZero` for vectors, with float32 weights on a CPU."""
    if type(network) is not MLPMuZero or network.encoder is not None:
        return False
    return isinstance(network.reward, nn.Linear) and covered(network)


def _activate(x: Array, bias: Array, kind: int, gates: Array | None) -> None:
    """Add biases and apply an activation, in place; SiLU leaves the logistic function of its inputs in `gates`."""
    if kind == acting.TANH:
        kernels.add_bias_tanh(x, bias)
    elif gates is None:
        kernels.add_bias_relu(x, bias)
    else:
        kernels.add_bias_silu(x, bias, gates)


def scaled(raw: Array) -> Array:
    """`min_max` of rows `[B, D]`."""
    latent = np.empty_like(raw)
    rows, size = raw.shape
    nothing, ranges = np.empty((rows, 0), np.float32), np.empty((rows, 3), np.float32)
    kernels.scale_latents(raw, np.zeros(size, np.float32), latent, 0, nothing, ranges)
    return latent


def write_layer(x: Array, d: Array, gradients: Layer) -> None:
    """Write the gradients of a layer's weights and biases."""
    weight, bias = gradients
    multiply(d.T, x, weight)
    np.matmul(np.ones((1, len(d)), np.float32), d, out=bias[None])
