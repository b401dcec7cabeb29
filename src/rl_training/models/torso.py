"""Stacks of layers that turn observations into features."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

# Those of torch that have no parameters and nothing random.
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "mish": nn.Mish,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "sigmoid": nn.Sigmoid,
    "hardswish": nn.Hardswish,
    "hardtanh": nn.Hardtanh,
    "hardsigmoid": nn.Hardsigmoid,
    "relu6": nn.ReLU6,
    "log_sigmoid": nn.LogSigmoid,
    "tanhshrink": nn.Tanhshrink,
    "softshrink": nn.Softshrink,
    "hardshrink": nn.Hardshrink,
}


def linear(inputs: int, outputs: int, *, gain: float | None) -> nn.Linear:
    """A linear layer: orthogonal weights of this gain and no bias, or torch's default where gain is None."""
    layer = nn.Linear(inputs, outputs)
    if gain is not None:
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Sequential):
    """Fully connected layers, each followed by its activation; observations of any shape are flattened."""

    def __init__(self, inputs: int, hidden_sizes: Sequence[int], activation: str, *, orthogonal: bool) -> None:
        gain = math.sqrt(2.0) if orthogonal else None
        layers: list[nn.Module] = []
        for outputs in hidden_sizes:
            layers += [linear(inputs, outputs, gain=gain), ACTIVATIONS[activation]()]
            inputs = outputs
        super().__init__(*layers)
        self.features = inputs

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1).float()
        for layer in self:
            x = layer(x)
        return x
