"""Explicit forward and backward of normed layers and output MLPs: what the engine of world models is made of.

Results of all rows are kept, so that rows may be computed a few at a time, and the gradients of weights all at once.
Layers read and write the parameters where they are when they are made, so these must be flat by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.mlp_engine import Workspace, gradient_of, multiply
from rl_training.models.rssm_layers import NORM_EPS, NormedLinear, OutputMLP
from rl_training.ops.kernels import normed as kernels
from rl_training.ops.kernels.products import PANEL, pack, panels_for, product
from rl_training.types import Array

# From so many rows on, weights are copied to panels: then it pays.
_MANY = 256


class Product:
    """Products of rows with a weight `[outputs, inputs]`, or with its transpose, which gradients need.

    Inputs are columns of wider rows, from `left` on. Those of many rows are computed by compiled calls on one thread,
    where these are faster than BLAS: layers are narrow. Rows must be next to each other in memory.
    """

    def __init__(self, weight: Array) -> None:
        self.weight = weight
        self._panels: list[Array | None] = [None, None]
        self._packed = [False, False]

    def begin(self) -> None:
        """The weights may have changed."""
        self._packed = [False, False]

    def forward(self, x: Array, left: int, out: Array) -> None:
        """Write the products of inputs `x` to the first columns of `out`; columns behind them are free."""
        outputs, inputs = self.weight.shape
        if _compiled(len(x), out.shape[1]):
            product(x, left, inputs, self._copied(0, self.weight.T), 0, out, 0, out.shape[1], 0)
        else:
            multiply(x[:, left : left + inputs], self.weight.T, out[:, :outputs])

    def backward(self, d: Array, d_x: Array, left: int) -> None:
        """Write the gradient of inputs to `d_x`, from that of the products, in the first columns of `d`."""
        outputs, inputs = self.weight.shape
        if _compiled(len(d), inputs):
            product(d, 0, outputs, self._copied(1, self.weight), 0, d_x, left, inputs, 0)
        else:
            multiply(d[:, :outputs], self.weight, d_x[:, left : left + inputs])

    def _copied(self, which: int, matrix: Array) -> Array:
        panels = self._panels[which]
        if panels is None:
            panels = self._panels[which] = panels_for(*matrix.shape)
        if not self._packed[which]:
            pack(matrix, panels)
            self._packed[which] = True
        return panels


def _compiled(rows: int, outputs: int) -> bool:
    return rows >= _MANY and outputs % PANEL == 0 and torch.get_num_threads() == 1


class Stack:
    """Parameters of one shape as one array `[G, ...]`: a view of a single one, a copy of several."""

    def __init__(self, parameters: Sequence[Tensor], *, trained: bool) -> None:
        self._values = [parameter.detach().numpy() for parameter in parameters]
        # Those that are not trained come last.
        self._gradients = [gradient_of(parameter) for parameter in parameters if trained and parameter.requires_grad]
        single = len(parameters) == 1
        self.value: Array = self._values[0][None] if single else np.stack(self._values)
        self.gradient: Array = self._gradients[0][None] if single and trained else np.zeros_like(self.value)
        self._copies = not single

    def refresh(self) -> None:
        """Bring a copy up to date."""
        if self._copies:
            for own, value in zip(self.value, self._values, strict=True):
                own[...] = value

    def write(self) -> None:
        """Copy the gradients to where they belong."""
        if self._copies:
            for own, gradient in zip(self._gradients, self.gradient, strict=False):
                own[...] = gradient


class Norm:
    """The part of normed layers behind their products: of one layer, or of several of equal width side by side.

    `z` `[rows, G * W]` takes the products, `d` the gradient of the results. `begin` comes before anything else of an
    update; biases and scales get the sum of what `backward` finds until `write`.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, nn.RMSNorm]], *, trained: bool) -> None:
        """Bias and norm of every layer."""
        self.bias = Stack([bias for bias, _ in layers], trained=trained)
        self.scale = Stack([norm.weight for _, norm in layers], trained=trained)
        self.groups, self.width = self.bias.value.shape
        self._trained, size = trained, self.groups * self.width
        self._kept = Workspace((), [size, size, size, self.groups])
        self._slopes = Workspace((), [size] if trained else [])

    def begin(self, rows: int) -> None:
        """Make room for so many rows, with the weights of now."""
        self._kept.resize(rows)
        self._slopes.resize(rows)
        self.bias.refresh()
        self.scale.refresh()
        if self._trained:
            self.bias.gradient[...] = self.scale.gradient[...] = 0.0

    @property
    def z(self) -> Array:
        return self._kept.arrays[0]

    @property
    def out(self) -> Array:
        return self._kept.arrays[2]

    @property
    def d(self) -> Array:
        return self._slopes.arrays[0]

    @property
    def kept(self) -> tuple[Array, ...]:
        """What is kept of all rows, as kernels take it: products, gates, results, what rows were multiplied by."""
        return tuple(self._kept.arrays)

    @property
    def weights(self) -> tuple[Array, Array, float]:
        """Bias, scale, and what keeps norms above 0, as kernels take them."""
        return self.bias.value, self.scale.value, NORM_EPS

    @property
    def slopes(self) -> tuple[Array, Array, Array]:
        """The gradients of results, bias and scale, as kernels take them."""
        return self.d, self.bias.gradient, self.scale.gradient

    def activate(self, rows: slice) -> Array:
        """The results of rows whose products are in `z`."""
        z, gates, out, inverse = (array[rows] for array in self._kept.arrays)
        kernels.norm_silu(z, self.bias.value, self.scale.value, NORM_EPS, inverse, gates, out)
        return out

    def backward(self, rows: slice, groups: int | None = None) -> Array:
        """Turn `d` into the gradient of the products; of the first groups alone, if it is said of how many."""
        z, gates, _, inverse = (array[rows] for array in self._kept.arrays)
        d, scale = self.d[rows], self.scale.value[:groups]
        kernels.norm_silu_backward(
            z, scale, inverse, gates, d, self.bias.gradient[:groups], self.scale.gradient[:groups]
        )
        return d

    def write(self) -> None:
        """Copy the gradients of biases and scales to where they belong."""
        self.bias.write()
        self.scale.write()


class NormedLayers(Norm):
    """One normed layer, or several of equal width on the same inputs, which are one product."""

    def __init__(self, layers: Sequence[NormedLinear], *, trained: bool) -> None:
        super().__init__([(layer.linear.bias, layer.norm) for layer in layers], trained=trained)
        self._weight = Stack([layer.linear.weight for layer in layers], trained=trained)
        self.product = Product(self.weight)

    def begin(self, rows: int) -> None:
        super().begin(rows)
        self._weight.refresh()
        self.product.begin()

    @property
    def weight(self) -> Array:
        """`[G * W, inputs]`"""
        return self._weight.value.reshape(self.groups * self.width, -1)

    @property
    def d_weight(self) -> Array:
        """The gradient of `weight`."""
        return self._weight.gradient.reshape(self.groups * self.width, -1)

    def forward(self, x: Array, rows: slice, left: int = 0) -> Array:
        """The results of some rows, whose inputs are the columns of `x` from `left` on."""
        self.product.forward(x, left, self.z[rows])
        return self.activate(rows)

    def write(self) -> None:
        super().write()
        self._weight.write()


class HiddenLayers:
    """Normed layers behind each other."""

    def __init__(self, layers: Iterable[nn.Module], *, trained: bool) -> None:
        self.layers = [NormedLayers([layer], trained=trained) for layer in layers if isinstance(layer, NormedLinear)]

    def begin(self, rows: int) -> None:
        """Make room for so many rows, with the weights of now."""
        for layer in self.layers:
            layer.begin(rows)

    def forward(self, x: Array, rows: slice, left: int = 0) -> Array:
        """The results of some rows, whose inputs are the columns of `x` from `left` on."""
        for layer in self.layers:
            x, left = layer.forward(x, rows, left), 0
        return x

    @property
    def d(self) -> Array:
        """Where the gradient of the results goes, before `backward`."""
        return self.layers[-1].d

    def backward(self, x: Array, rows: slice, left: int = 0) -> None:
        """Write the gradients of all weights, from some rows with inputs in `x`: all that have a gradient."""
        for k in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[k]
            d = layer.backward(rows)
            inputs = self.layers[k - 1].out[rows] if k else x[:, left : left + layer.weight.shape[1]]
            multiply(d.T, inputs, layer.d_weight)
            layer.write()
            if k:
                layer.product.backward(d, self.layers[k - 1].d[rows], 0)

    def input_gradient(self, rows: slice, d_x: Array, left: int = 0) -> None:
        """Write the gradient of the inputs of some rows to the columns of `d_x` from `left` on, after `backward`."""
        self.layers[0].product.backward(self.layers[0].d[rows], d_x, left)


class OutputLayers:
    """An output MLP on rows: all of it, or what is behind its first layer, which is then somebody else's.

    With `padded`, the rows of its outputs have free columns at the end, as many as fill a panel.
    """

    def __init__(self, mlp: OutputMLP, *, trained: bool, skip: int = 0, padded: bool = False) -> None:
        self.hidden = HiddenLayers(list(mlp.torso)[skip:], trained=trained)
        self.weight, self.bias = mlp.out.weight.detach().numpy(), mlp.out.bias.detach().numpy()
        self._gradients = (gradient_of(mlp.out.weight), gradient_of(mlp.out.bias)) if trained else None
        self._product, outputs = Product(self.weight), len(self.bias)
        self._products = Workspace((), [-(-outputs // PANEL) * PANEL if padded else outputs])

    def begin(self, rows: int) -> None:
        """Make room for so many rows, with the weights of now."""
        self._products.resize(rows)
        self._product.begin()
        self.hidden.begin(rows)

    @property
    def products(self) -> Array:
        """The outputs `[rows, outputs]` without their bias, and free columns; who reads them adds it on the way."""
        return self._products.arrays[0]

    def forward(self, x: Array, rows: slice, left: int = 0) -> Array:
        """The products of some rows, whose inputs are the columns of `x` from `left` on."""
        if self.hidden.layers:
            x, left = self.hidden.forward(x, rows, left), 0
        self._product.forward(x, left, self.products[rows])
        return self.products[rows]

    def backward(self, x: Array, d: Array, rows: slice, d_x: Array | None, left: int = 0) -> None:
        """Write the gradients of all weights, given that of the products of some rows, in the first columns of `d`.

        The gradient of the inputs, which are columns of `x`, goes to the same columns of `d_x`.
        """
        assert self._gradients is not None
        layers, (outputs, inputs) = self.hidden.layers, self.weight.shape
        write_linear(layers[-1].out[rows] if layers else x[:, left : left + inputs], d[:, :outputs], *self._gradients)
        if layers:
            self._product.backward(d, self.hidden.d[rows], 0)
            self.hidden.backward(x, rows, left)
            if d_x is not None:
                self.hidden.input_gradient(rows, d_x, left)
        elif d_x is not None:
            self._product.backward(d, d_x, left)


def write_linear(x: Array, d: Array, d_weight: Array, d_bias: Array) -> None:
    """Write the gradients of a linear layer, from its inputs and the gradient of its outputs."""
    multiply(d.T, x, d_weight)
    np.matmul(np.ones((1, len(d)), np.float32), d, out=d_bias[None])
