"""Feed-forward parts of a transformer with a mixture of experts.

A router says for every token how likely each expert is: softmax over all of them. The token goes to the likeliest one,
whose output is weighed by that probability, so that the router gets a gradient (Switch transformer, arXiv:2101.03961).
One more expert is shared by all tokens. Without a choice of experts it is an ordinary feed-forward part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_training.models.adapters import AdaptedWeight, AdapterShape
from rl_training.models.transformer_blocks import Mixture
from rl_training.ops.attention import gated


class Routing(NamedTuple):
    """How tokens were sent to experts."""

    probability: Tensor  # [N, E]
    choice: Tensor  # int64 [N]


class Experts(nn.Module):
    """Gated feed-forward experts (SwiGLU, arXiv:2002.05202): silu(x W_gate) * (x W_up), then W_out."""

    def __init__(self, width: int, hidden: int, experts: int, adapter: AdapterShape) -> None:
        """`experts` are those that the router chooses from; there may be none."""
        super().__init__()
        self.count = experts
        self.shared_in = AdaptedWeight(width, 2 * hidden, adapter=adapter)
        self.shared_out = AdaptedWeight(hidden, width, adapter=adapter)
        if experts:
            self.router = nn.Parameter(torch.randn(width, experts) * width**-0.5)
            self.expert_in = AdaptedWeight(experts, width, 2 * hidden, adapter=adapter)
            self.expert_out = AdaptedWeight(experts, hidden, width, adapter=adapter)

    def forward(self, x: Tensor, stage: int = 0) -> tuple[Tensor, Routing | None]:
        """The outputs `[N, D]` of tokens `[N, D]` in a stage, and where they were sent."""
        shared = swiglu(x, self.shared_in(stage), self.shared_out(stage))
        if not self.count:
            return shared, None
        probability = (x @ self.router).softmax(dim=-1)
        weight, choice = probability.max(dim=-1)
        return shared + weight[:, None] * self._dispatch(x, choice, stage), Routing(probability, choice)

    def mixture(self, stage: int) -> Mixture | None:
        """The weights of those that the router chooses from, if there are any."""
        return Mixture(self.router, self.expert_in(stage), self.expert_out(stage)) if self.count else None

    def _dispatch(self, x: Tensor, choice: Tensor, stage: int) -> Tensor:
        """The output of each token's own expert: tokens are sorted by expert, so that each is one product."""
        into, out = self.expert_in(stage), self.expert_out(stage)
        if self.count == 1:
            return swiglu(x, into[0], out[0])
        order = choice.argsort(stable=True)
        sizes = torch.bincount(choice, minlength=self.count).tolist()
        parts = torch.split(x[order], sizes)
        done = torch.cat([swiglu(part, into[e], out[e]) for e, part in enumerate(parts) if len(part)])
        return done[order.argsort()]


def swiglu(x: Tensor, into: Tensor, out: Tensor) -> Tensor:
    """silu(gate) * up, where `into` `[D, 2 H]` makes the gates and then the others; `out` is `[H, D]`."""
    return gated(x @ into) @ out


def expert_loads(routing: Routing, tokens: slice | None = None) -> Tensor:
    """The shares `[E]` of tokens that went to each expert; `tokens` are those that count, if not all."""
    choice = routing.choice if tokens is None else routing.choice[tokens]
    counts = torch.bincount(choice, minlength=routing.probability.shape[1])
    return counts / max(len(choice), 1)


def balance_loss(routing: Routing) -> Tensor:
    """E * sum_e f_e P_e (Switch transformer, eq. 4): 1 where all experts are used equally, E where one does it all.

    f_e is the share of tokens that went to expert e, P_e its mean probability, which the gradient reaches.
    """
    probability = routing.probability
    count, experts = probability.shape
    share = expert_loads(routing).to(probability.dtype)
    return probability.sum(dim=0) @ (share * (experts / max(count, 1)))
