"""Weights that grow by low-rank adapters: each stage freezes what was trained before and adds a small correction.

In stage s a weight is a_0 W_0 + sum_{j < s} a_j (alpha / r) A_j B_j + (alpha / r) A_s B_s (LoRA, arXiv:2106.09685;
stages and scales of ScaleZero, arXiv:2509.07945). A_j is `[..., in, r]`, and B_j `[..., r, out]` starts at 0; scales go
on from where they were: a new stage changes no output, to the bit. Stage s trains A_s, B_s and its own copy of the
scales a_0 to a_{s-1}, which stay within 1 +- 0.2. So a weight as it was at the end of any stage is kept for ever.
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
    """The rank r of adapters, and alpha: they are multiplied by alpha / r.

    `adapters` is how many a weight can get: one for each stage after the first.
    """

    rank: int
    alpha: float
    adapters: int = 0


class AdaptedWeight(nn.Module):
    """A matrix `[..., in, out]` with the adapters of its stages; calling it returns the matrix as of a stage."""

    def __init__(self, *shape: int, adapter: AdapterShape) -> None:
        super().__init__()
        self.adapter = adapter
        *many, inputs, outputs = shape
        rank, bound = adapter.rank, 1.0 / math.sqrt(inputs)  # as torch's linear layers begin
        self.base = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.down, self.up, self.raw_scale = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        for stage in range(1, adapter.adapters + 1):
            self.down.append(nn.Parameter(torch.empty(*many, inputs, rank).uniform_(-bound, bound)))
            self.up.append(nn.Parameter(torch.zeros(*many, rank, outputs)))
            self.raw_scale.append(nn.Parameter(torch.zeros(stage, *many, 1, 1)))
        self.train_in(0)

    def begin_stage(self, stage: int) -> None:
        """Take over the scales of the stage before, and train what `stage` adds."""
        if stage > 1:
            with torch.no_grad():
                self.raw_scale[stage - 1][: stage - 1].copy_(self.raw_scale[stage - 2])
        self.train_in(stage)

    def train_in(self, stage: int) -> None:
        """Freeze everything but what a stage trains."""
        self.base.requires_grad_(stage == 0)
        for parts in (self.down, self.up, self.raw_scale):
            for number, part in enumerate(parts, start=1):
                part.requires_grad_(number == stage)

    def scales(self, stage: int) -> Tensor:
        """The scales `[stage, ..., 1, 1]` of the first matrix and of all adapters but the last, which needs none."""
        raw: Tensor = self.raw_scale[stage - 1]
        return 1.0 + SCALE_RANGE * raw.tanh()

    def forward(self, stage: int) -> Tensor:
        if stage == 0:
            return self.base
        scales, share = self.scales(stage), self.adapter.alpha / self.adapter.rank
        weight = scales[0] * self.base
        for number in range(1, stage + 1):
            part = share * (self.down[number - 1] @ self.up[number - 1])
            weight = weight + (scales[number] * part if number < stage else part)
        return weight


def adapted(module: nn.Module) -> Iterator[AdaptedWeight]:
    """All weights of a module that can grow."""
    return (part for part in module.modules() if isinstance(part, AdaptedWeight))
