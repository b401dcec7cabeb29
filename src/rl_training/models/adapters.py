"""Weights that grow by low-rank adapters: each stage freezes what was trained before and adds a small correction.

With the adapters of stages 1 to s, a weight is a_0 W_0 + sum_j a_j (alpha / r) A_j B_j (LoRA, arXiv:2106.09685; stages
and scales of ScaleZero, arXiv:2509.07945). A_j is `[..., in, r]`, and B_j `[..., r, out]` starts at 0: a new stage
changes no output, to the bit. Stage s trains A_s, B_s and the scales a_0 to a_{s-1} of what it froze, which stay within
1 +- 0.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SCALE_RANGE = 0.2  # how far a scale may be from 1


@dataclass(frozen=True)
class AdapterShape:
    """The rank r of adapters, and alpha: adapters are multiplied by alpha / r."""

    rank: int
    alpha: float


class AdaptedWeight(nn.Module):
    """A matrix `[..., in, out]` with the adapters of its stages; calling it returns the matrix."""

    def __init__(self, *shape: int, adapter: AdapterShape) -> None:
        super().__init__()
        self.adapter = adapter
        # As torch's linear layers begin.
        bound = 1.0 / math.sqrt(shape[-2])
        self.base = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.down, self.up, self.raw_scale = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()

    def begin_stage(self, generator: torch.Generator | None) -> None:
        """Freeze the matrix and its adapters, and add one; the scales of what is frozen can be trained."""
        for frozen in (self.base, *self.down, *self.up):
            frozen.requires_grad_(False)
        *many, inputs, outputs = self.base.shape
        rank, bound = self.adapter.rank, 1.0 / math.sqrt(inputs)
        down = torch.empty(*many, inputs, rank).uniform_(-bound, bound, generator=generator)
        self.down.append(nn.Parameter(down.to(self.base)))
        self.up.append(nn.Parameter(self.base.new_zeros(*many, rank, outputs)))
        self.raw_scale.append(nn.Parameter(self.base.new_zeros(*many, 1, 1)))

    def scales(self) -> list[Tensor]:
        """The scales `[..., 1, 1]` of the first matrix and of all adapters but the last, which needs none."""
        return [1.0 + SCALE_RANGE * raw.tanh() for raw in self.raw_scale]

    def forward(self) -> Tensor:
        if not len(self.down):
            return self.base
        scales = self.scales()
        weight = scales[0] * self.base
        share = self.adapter.alpha / self.adapter.rank
        for index, (down, up) in enumerate(zip(self.down, self.up, strict=True), start=1):
            part = share * (down @ up)
            weight = weight + (scales[index] * part if index < len(scales) else part)
        return weight


def adapted(module: nn.Module) -> Iterator[AdaptedWeight]:
    """All weights of a module that can grow."""
    return (part for part in module.modules() if isinstance(part, AdaptedWeight))
