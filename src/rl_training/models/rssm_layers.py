"""The layers of world models: normalised MLPs, block-diagonal layers, and a recurrent unit made of them.

All of them are plain: weights and biases of linear layers, and the scales of root-mean-square norms. They start as in
DreamerV3 (Hafner et al. 2025): weights from a truncated normal distribution, biases at 0, scales at 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# Added to the mean square of what is normalised.
NORM_EPS = 1e-4
# Added to what the update gate sees: a state changes slowly before anything is learned.
UPDATE_BIAS = -1.0
# The deviation of a standard normal variable that is cut at two of its deviations.
_CUT_DEVIATION = 0.87962566103423978


def truncated_normal_(weight: Tensor, fan_in: int, scale: float = 1.0) -> Tensor:
    """Fill a tensor with normal numbers, cut at two deviations, whose variance after the cut is scale^2 / fan_in."""
    if scale == 0.0:
        return nn.init.zeros_(weight)
    deviation = scale / (_CUT_DEVIATION * math.sqrt(fan_in))
    return nn.init.trunc_normal_(weight, std=deviation, a=-2.0 * deviation, b=2.0 * deviation)


def plain_linear(inputs: int, outputs: int, scale: float = 1.0) -> nn.Linear:
    """A linear layer; with a `scale` of 0 it returns zeros before it has learned."""
    layer = nn.Linear(inputs, outputs)
    truncated_normal_(layer.weight, inputs, scale)
    nn.init.zeros_(layer.bias)
    return layer


class NormedLinear(nn.Module):
    """silu(norm(linear(x))) on the last axis."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = plain_linear(inputs, outputs)
        self.norm = nn.RMSNorm(outputs, eps=NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.norm(self.linear(x)))


class NormedMLP(nn.Sequential):
    """`layers` normed layers of `units` each; `features` is how many numbers come out."""

    def __init__(self, inputs: int, layers: int, units: int) -> None:
        super().__init__(*(NormedLinear(inputs if k == 0 else units, units) for k in range(layers)))
        self.features = units if layers else inputs


class OutputMLP(nn.Module):
    """A normed MLP with a plain layer of `outputs` behind it, whose weights start `scale` times as large."""

    def __init__(self, inputs: int, layers: int, units: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.torso = NormedMLP(inputs, layers, units)
        self.out = plain_linear(self.torso.features, outputs, scale)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.torso(x))
        return outputs


class BlockLinear(nn.Module):
    """A linear layer that is block-diagonal: each block of the outputs sees its own block of the inputs.

    The weight is `[blocks, outputs / blocks, inputs / blocks]`, the bias `[outputs]`. Weights start as small as those
    of a dense layer with as many inputs: the fan-in is that of the whole layer, not of a block.
    """

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        if inputs % blocks or outputs % blocks:
            raise ValueError(f"{inputs} inputs and {outputs} outputs cannot be cut into {blocks} blocks")
        self.blocks = blocks
        self.weight = nn.Parameter(torch.empty(blocks, outputs // blocks, inputs // blocks))
        self.bias = nn.Parameter(torch.zeros(outputs))
        truncated_normal_(self.weight, inputs)

    def forward(self, x: Tensor) -> Tensor:
        """From `[..., inputs]` to `[..., outputs]`."""
        columns = x.reshape(-1, self.blocks, x.shape[-1] // self.blocks)
        # All blocks are one batched product.
        out = torch.bmm(columns.transpose(0, 1), self.weight.transpose(1, 2)).transpose(0, 1)
        return out.reshape(*x.shape[:-1], -1) + self.bias


class BlockGRU(nn.Module):
    """A gated recurrent unit whose state `[..., deter]` is cut into blocks that do not see each other.

    Every block sees itself and all of the `inputs`. Its gates r, c and u give the next state:
    s tanh(sigmoid(r) c) + (1 - s) state, where s = sigmoid(u - 1). The norm is over all blocks together.
    """

    def __init__(self, deter: int, inputs: int, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.hidden = BlockLinear(deter + blocks * inputs, deter, blocks)
        self.norm = nn.RMSNorm(deter, eps=NORM_EPS)
        # The outputs of a block are its reset, its candidate and its update, `deter / blocks` of each.
        self.gates = BlockLinear(deter, 3 * deter, blocks)

    def forward(self, state: Tensor, inputs: Tensor) -> Tensor:
        lead = state.shape[:-1]
        own = state.reshape(*lead, self.blocks, -1)
        shared = inputs.unsqueeze(-2).expand(*lead, self.blocks, inputs.shape[-1])
        x = self.hidden(torch.cat([own, shared], dim=-1).flatten(-2))
        x = self.gates(nn.functional.silu(self.norm(x)))
        reset, candidate, update = x.reshape(*lead, self.blocks, 3, -1).unbind(-2)
        share = torch.sigmoid(update + UPDATE_BIAS)
        after = share * torch.tanh(torch.sigmoid(reset) * candidate) + (1.0 - share) * own
        return after.flatten(-2)
