"""Explicit gradient of EfficientZero's consistency loss: the fast path of latent vectors on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import nn

from rl_training.models.efficientzero import Consistency
from rl_training.models.mlp_engine import Workspace, gradient_of, gradients_of, multiply, views_of
from rl_training.models.muzero_engine import write_layer
from rl_training.ops.kernels import layer_norm as kernels
from rl_training.ops.kernels.unroll import relu_backward
from rl_training.types import Array


class ConsistencyEngine:
    """`Consistency` with its gradient; reads and writes the parameters where they are, so they must be flat by then."""

    def __init__(self, module: Consistency) -> None:
        projector, predictor = list(module.projector), list(module.predictor)
        self._projector = _normed(projector)
        self._predictor = _normed(predictor[:-1])
        last = predictor[-1]
        assert isinstance(last, nn.Linear)
        ((self._weight, self._bias),) = views_of([last])
        (self._gradients,) = gradients_of([last])
        size, outputs = self._projector[0].inputs, len(self._bias)
        self._pairs = Workspace((), [size])
        # For every latent: its prediction, the gradient of that, and its own.
        self._rows = Workspace((), [outputs, outputs, size])

    def gradient(self, latent: Array, seen: Array, weight: Array, coef: float) -> tuple[float, Array]:
        """The loss, and `coef` times its gradient with respect to the latents; writes that of the parameters.

        Latents are `[K, B, D]`, what was seen `[K B, D]`, weights `[K, B]`. The gradient is valid until the next call.
        """
        count = weight.size
        self._pairs.resize(2 * count)
        self._rows.resize(count)
        (pairs,) = self._pairs.arrays
        predicted, d_predicted, d_latent = self._rows.arrays
        pairs[:count].reshape(latent.shape)[...] = latent
        pairs[count:] = seen
        projected = pairs
        for layer in self._projector:
            projected = layer.forward(projected)
        hidden, wanted = projected[:count], projected[count:]
        for layer in self._predictor:
            hidden = layer.forward(hidden)
        multiply(hidden, self._weight.T, predicted)
        predicted += self._bias
        loss = kernels.cosine_gradient(predicted, wanted, weight.reshape(-1), coef, d_predicted)

        write_layer(hidden, d_predicted, self._gradients)
        d, into = d_predicted, self._weight
        for layer in reversed([*self._projector, *self._predictor]):
            multiply(d, into, layer.d[:count])
            d, into = layer.backward(count), layer.weight
        multiply(d, into, d_latent)
        return loss, d_latent.reshape(latent.shape)


class _Normed:
    """A linear layer, its layer norm, and a ReLU if it has one; what was computed is kept for the gradient."""

    def __init__(self, linear: nn.Linear, norm: nn.LayerNorm, *, rectified: bool) -> None:
        ((self.weight, self._bias),) = views_of([linear])
        (self._gradients,) = gradients_of([linear])
        self._scale, self._shift = norm.weight.detach().numpy(), norm.bias.detach().numpy()
        self._d_scale, self._d_shift = gradient_of(norm.weight), gradient_of(norm.bias)
        self._eps, self._rectified = norm.eps, rectified
        self.inputs = linear.in_features
        # For every row: normalised products, results, what products were multiplied by, and a gradient.
        self._rows = Workspace((), [linear.out_features, linear.out_features, 1, linear.out_features])
        self._x: Array = np.zeros((0, 0), np.float32)

    @property
    def d(self) -> Array:
        """Where the gradient of the results goes, before `backward`."""
        return self._rows.arrays[3]

    def forward(self, x: Array) -> Array:
        self._x = x
        self._rows.resize(len(x))
        z, out, inverse, _ = self._rows.arrays
        multiply(x, self.weight.T, z)
        lowest = 0.0 if self._rectified else -math.inf
        kernels.layer_norm(z, self._bias, self._scale, self._shift, self._eps, lowest, inverse, out)
        return out

    def backward(self, count: int) -> Array:
        """Write the gradients of all weights, from those of the first `count` results; returns that of the products."""
        z, out, inverse, d = (array[:count] for array in self._rows.arrays)
        if self._rectified:
            relu_backward(out, d)
        self._d_scale[...] = self._d_shift[...] = 0.0
        kernels.layer_norm_backward(z, self._scale, inverse, d, self._d_scale, self._d_shift)
        write_layer(self._x[:count], d, self._gradients)
        return d


def _normed(layers: Sequence[nn.Module]) -> list[_Normed]:
    """The normed layers of a stack that has no others."""
    found = []
    for linear, norm, after in zip(layers, layers[1:], [*layers[2:], None], strict=False):
        if isinstance(linear, nn.Linear) and isinstance(norm, nn.LayerNorm):
            found.append(_Normed(linear, norm, rectified=isinstance(after, nn.ReLU)))
    return found
