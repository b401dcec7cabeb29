"""Recurrent actor-critics: an LSTM or a GRU before the MLPs of policy and value.

A custom network for `model: module:Name` needs `state_size`, the size of its recurrent state, and
`forward(obs, sizes, state)`, which runs several parts of episodes side by side, the longest first: the first `sizes[0]`
rows of `obs` `[N, ...]` are their first steps, the next `sizes[1]` rows the second steps of those that have one, and so
on. Part k starts from `state[k]` `[S]`, which is 0 where an episode begins. It returns policy parameters `[N, P]`,
values `[N]`, and the state of every part after its last step, `[sizes[0], S]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rl_training.models.mlp_actor_critic import MLPActorCritic, Shape

CORES: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


@dataclass(frozen=True)
class CoreShape:
    """Kind and size of the recurrent core, and whether policy and value share it."""

    kind: str
    hidden_size: int
    shared: bool


class RecurrentActorCritic(nn.Module):
    """Encoders if observations need them, separate or shared recurrent cores of policy and value, and their MLPs.

    A part's state holds that of the policy's core, then that of the value's; an LSTM's is its output, then its cell.
    """

    def __init__(
        self,
        inputs: int,
        action_size: int,
        core: CoreShape,
        shape: Shape,
        *,
        continuous: bool,
        encoder: nn.Module | None = None,
        value_encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.value_encoder = encoder, value_encoder
        count = 1 if core.shared else 2
        self.cores = nn.ModuleList([CORES[core.kind](inputs, core.hidden_size) for _ in range(count)])
        # The state of an LSTM has a cell beside its output.
        self.state_size = count * core.hidden_size * (2 if core.kind == "lstm" else 1)
        self.heads = MLPActorCritic(core.hidden_size, action_size, shape, continuous=continuous)
        if shape.orthogonal:
            for name, parameter in self.cores.named_parameters():
                nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)

    def forward(self, obs: Any, sizes: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs = obs.flatten(1).float() if self.encoder is None else self.encoder(obs)
        steps = [PackedSequence(inputs, sizes)] * len(self.cores)
        if self.value_encoder is not None:
            steps[-1] = PackedSequence(self.value_encoder(obs), sizes)
        features, after = [], []
        for core, packed, before in zip(self.cores, steps, state.chunk(len(self.cores), dim=-1), strict=True):
            if isinstance(core, nn.LSTM):
                out, (hidden, cell) = core(packed, tuple(part[None].contiguous() for part in before.chunk(2, dim=-1)))
                after += [hidden[0], cell[0]]
            else:
                out, hidden = core(packed, before[None].contiguous())
                after.append(hidden[0])
            features.append(out.data)
        params, _ = self.heads.policy(features[0])
        return params, self.heads.value(features[-1]), torch.cat(after, dim=-1)
