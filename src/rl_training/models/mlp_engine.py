"""Explicit forward and backward of MLPs on the flat buffer: the fast path of small networks on a CPU.

Autograd spends most of a small network's time on bookkeeping. Here the layers are NumPy views of the parameters and
of their gradients, every intermediate result has an array that is allocated once, and the loss provides its own
gradient. A test checks every path against autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.ensemble import StackedMLP
from rl_training.models.heads import MLPNetwork
from rl_training.models.torso import MLP
from rl_training.ops.kernels import acting, jit
from rl_training.types import Array

# For a layer with more weights than this, BLAS is faster than the compiled call, even on one row.
_WIDE = 8192

KINDS: dict[type[nn.Module], int] = {nn.Tanh: acting.TANH, nn.ReLU: acting.RELU, nn.SiLU: acting.SILU}


def multiply(a: Array, b: Array, out: Array) -> None:
    """`out = a @ b`: by NumPy on one thread, where it has the least overhead; by torch on several threads."""
    if torch.get_num_threads() == 1:
        np.matmul(a, b, out=out)
    else:
        torch.matmul(torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(out))


@jit
def _add_and_rectify(output: Array, biases: Array) -> None:
    """Add biases `[members, 1, width]` to `[members, rows, width]` and apply ReLU, in one pass."""
    for member in range(output.shape[0]):
        bias = biases[member, 0]
        for row in range(output.shape[1]):
            h = output[member, row]
            for i in range(h.size):
                h[i] = max(h[i] + bias[i], np.float32(0.0))


@jit
def _tanh_backward(h: Array, d: Array) -> None:
    for i in range(h.size):
        d[i] *= np.float32(1.0) - h[i] * h[i]


@jit
def _relu_backward(h: Array, d: Array) -> None:
    for i in range(h.size):
        d[i] = d[i] if h[i] > 0.0 else np.float32(0.0)


@jit
def _silu_backward(h: Array, gate: Array, d: Array) -> None:
    for i in range(h.size):
        d[i] *= gate[i] + h[i] * (np.float32(1.0) - gate[i])


class Workspace:
    """Contiguous arrays `[*stack, rows, width]`, views of buffers that only grow."""

    def __init__(self, stack: tuple[int, ...], widths: Sequence[int]) -> None:
        self._stack = stack
        self._widths = list(widths)
        self._memory = [np.empty(0, np.float32) for _ in widths]
        self.rows = 0
        self.arrays: list[Array] = []

    def resize(self, rows: int) -> None:
        if rows == self.rows:
            return
        self.rows, self.arrays = rows, []
        for index, width in enumerate(self._widths):
            shape = (*self._stack, rows, width)
            size = math.prod(shape)
            if size > self._memory[index].size:
                self._memory[index] = np.empty(size, np.float32)
            self.arrays.append(self._memory[index][:size].reshape(shape))


class MLPEngine:
    """One MLP, or a stack of equal ones whose parameters have a leading axis: `[..., out, in]` and `[..., out]`.

    `forward` takes `[..., N, in]`, or `[N, in]` for all members of a stack. `backward` takes the gradient of the latest
    outputs and overwrites the gradients of the parameters; `input_gradient` and `tangent` do not change these. Returned
    arrays are only valid until the next call.
    """

    def __init__(
        self, layers: Sequence[tuple[Array, Array]], kind: int, gradients: Sequence[tuple[Array, Array]] = ()
    ) -> None:
        """Weights and biases of every layer, and the arrays for their gradients if the MLP is trained."""
        self.weights = [weight for weight, _ in layers]
        self.biases = [bias[..., None, :] for _, bias in layers]
        self.d_weights = [weight for weight, _ in gradients]
        self.d_biases = [bias[..., None, :] for _, bias in gradients]
        self.kind = kind
        stack, widths = self.weights[0].shape[:-2], [weight.shape[-2] for weight in self.weights]
        self._flat_stack = (math.prod(stack),)
        self._stacked_biases = [bias.reshape(*self._flat_stack, 1, -1) for bias in self.biases]
        self._outputs = Workspace(stack, widths)
        self._gradients = Workspace(stack, widths[:-1])
        # silu(z) = z * gate(z): its derivative cannot be computed from its output only.
        self._gates = Workspace(stack, widths[:-1] if kind == acting.SILU else [])
        self._tangents, self._carried = Workspace(stack, widths), Workspace(stack, widths[1:])
        self._x: Array = np.zeros(0)

    def forward(self, x: Array) -> Array:
        self._x = x
        for workspace in (self._outputs, self._gradients, self._gates):
            workspace.resize(x.shape[-2])
        for layer, out in enumerate(self._outputs.arrays):
            multiply(x, self.weights[layer].swapaxes(-1, -2), out)
            if layer == len(self.weights) - 1:
                out += self.biases[layer]
            elif self.kind == acting.RELU:
                _add_and_rectify(out.reshape(self._flat_stack + out.shape[-2:]), self._stacked_biases[layer])
            else:
                out += self.biases[layer]
                self._activate(layer, out)
            x = out
        return x

    def backward(self, d_output: Array) -> None:
        ones = np.ones((1, d_output.shape[-2]), np.float32)
        for layer in range(len(self.weights) - 1, -1, -1):
            inputs = self._outputs.arrays[layer - 1] if layer else self._x
            multiply(d_output.swapaxes(-1, -2), inputs, self.d_weights[layer])
            np.matmul(ones, d_output, out=self.d_biases[layer])
            if layer:
                d_output = self._through_layer(layer, d_output)

    def input_gradient(self, d_output: Array, columns: int) -> Array:
        """The gradient of the first columns of the input, `[..., N, columns]`."""
        for layer in range(len(self.weights) - 1, 0, -1):
            d_output = self._through_layer(layer, d_output)
        d_input: Array = np.matmul(d_output, self.weights[0][..., :columns])
        return d_input

    def tangent(self, direction: Sequence[tuple[Array, Array]]) -> Array:
        """The derivative of the latest outputs along a direction of weights and biases (forward mode)."""
        for workspace in (self._tangents, self._carried):
            workspace.resize(self._outputs.rows)
        x, moving = self._x, None
        for layer, (weight, bias) in enumerate(direction):
            out = self._tangents.arrays[layer]
            multiply(x, weight.swapaxes(-1, -2), out)
            out += bias[..., None, :]
            if moving is not None:
                carried = self._carried.arrays[layer - 1]
                multiply(moving, self.weights[layer].swapaxes(-1, -2), carried)
                out += carried
            if layer < len(self.weights) - 1:
                self._through_activation(layer, out)
            x, moving = self._outputs.arrays[layer], out
        return out

    def _through_layer(self, layer: int, d_output: Array) -> Array:
        """The gradient of the previous layer's output, from that of a layer's output."""
        d_inputs, weights = self._gradients.arrays[layer - 1], self.weights[layer]
        if weights.shape[-2] == 1:  # an outer product, for which a matrix product is slow
            np.multiply(d_output, weights, out=d_inputs)
        else:
            multiply(d_output, weights, d_inputs)
        self._through_activation(layer - 1, d_inputs)
        return d_inputs

    def _activate(self, layer: int, out: Array) -> None:
        if self.kind == acting.TANH:
            np.tanh(out, out=out)
        else:
            gate = self._gates.arrays[layer]
            np.tanh(np.multiply(out, 0.5, out=gate), out=gate)  # the logistic function, by way of a fast tanh
            gate *= 0.5
            gate += 0.5
            out *= gate

    def _through_activation(self, layer: int, d_output: Array) -> None:
        # As vectors: a kernel is compiled once for each number of axes.
        h, d = self._outputs.arrays[layer].reshape(-1), d_output.reshape(-1)
        if self.kind == acting.TANH:
            _tanh_backward(h, d)
        elif self.kind == acting.RELU:
            _relu_backward(h, d)
        else:
            _silu_backward(h, self._gates.arrays[layer].reshape(-1), d)


class ActingMLP:
    """An MLP on a few rows: a small one by one compiled call that reads the flat buffer, a wide one by BLAS."""

    def __init__(self, layers: Sequence[nn.Linear], flat: Tensor, kind: int) -> None:
        """`flat` is the buffer that the layers' parameters are views of."""
        self._flat = flat.numpy()
        self._kind = kind
        self._sizes = np.array([layers[0].in_features, *(layer.out_features for layer in layers)])
        offsets = [(layer.weight.storage_offset(), layer.bias.storage_offset()) for layer in layers]
        self._offsets = np.array(offsets)
        wide = max(layer.weight.numel() for layer in layers) > _WIDE
        self._engine = MLPEngine(views_of(layers), kind) if wide else None

    def __call__(self, x: Array) -> Array:
        """`[B, in]`, as `matrix_of` returns it, to `[B, out]`."""
        if self._engine is not None:
            return self._engine.forward(x)
        out: Array = acting.mlp_rows(self._flat, self._offsets, self._sizes, self._kind, x)
        return out


def matrix_of(inputs: Array) -> Array:
    """Inputs `[B, ...]` as a matrix `[B, in]` of float32 in row order: for any other, kernels would be compiled again.

    Some environments return observations in column order.
    """
    if inputs.ndim == 2 and inputs.dtype == np.float32 and inputs.flags.c_contiguous:
        return inputs
    return np.ascontiguousarray(inputs, np.float32).reshape(len(inputs), math.prod(inputs.shape[1:]))


def linears(torso: MLP, head: nn.Linear) -> list[nn.Linear]:
    """The layers of a network that have parameters."""
    return [layer for layer in (*torso, head) if isinstance(layer, nn.Linear)]


def kind_of(torso: MLP) -> int:
    """The kernels' number of the activation between layers."""
    return next((KINDS[type(layer)] for layer in torso if type(layer) in KINDS), acting.TANH)


def views_of(layers: Sequence[nn.Linear]) -> list[tuple[Array, Array]]:
    """Weights and biases of layers, as views."""
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in layers]


def gradients_of(layers: Sequence[nn.Linear]) -> list[tuple[Array, Array]]:
    """The arrays of the gradients of weights and biases."""
    return [(gradient_of(layer.weight), gradient_of(layer.bias)) for layer in layers]


def covered(module: nn.Module) -> bool:
    """Whether the engine can compute a whole network: MLPs with float32 weights on a CPU and a known activation."""
    if any(getattr(part, "encoder", None) is not None for part in module.modules()):
        return False
    floats = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in module.parameters())
    leaves = [part for part in module.modules() if not list(part.children())]
    return floats and all(isinstance(leaf, (nn.Linear, nn.ParameterList, MLP, *KINDS)) for leaf in leaves)


def network_engine(network: MLPNetwork, *, trained: bool) -> MLPEngine:
    """The engine of a network without an encoder."""
    layers = linears(network.torso, network.head)
    return MLPEngine(views_of(layers), kind_of(network.torso), gradients_of(layers) if trained else ())


def acting_engine(network: MLPNetwork, flat: Tensor) -> ActingMLP:
    """A network without an encoder, for a few rows."""
    return ActingMLP(linears(network.torso, network.head), flat, kind_of(network.torso))


def stacked_engine(stack: StackedMLP, *, trained: bool, members: slice = slice(None)) -> MLPEngine:
    """The engine of some members of a stack, or of all."""
    pairs = list(zip(stack.weights, stack.biases, strict=True))
    layers = [(weight.detach()[members].numpy(), bias.detach()[members].numpy()) for weight, bias in pairs]
    gradients = (
        [(gradient_of(weight)[members], gradient_of(bias)[members]) for weight, bias in pairs] if trained else []
    )
    return MLPEngine(layers, KINDS[type(stack.activation)], gradients)


def gradient_of(parameter: Tensor) -> Array:
    """The array of a parameter's gradient."""
    assert parameter.grad is not None
    return parameter.grad.numpy()
