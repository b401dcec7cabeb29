"""Parameters of a group as views of one flat tensor, and the optimisers that step it in one call.

Small networks spend more time launching operations than computing: with everything flat, an optimiser step, a norm
and a copy are one operation each, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatGroup:
    """A flat tensor of weights and one of their gradients."""

    def __init__(self, data: Tensor, grad: Tensor) -> None:
        self.data = data
        self.grad = grad

    def split(self, size: int) -> tuple[FlatGroup, FlatGroup]:
        """The first `size` weights and the others, as groups that an optimiser can step apart."""
        return FlatGroup(self.data[:size], self.grad[:size]), FlatGroup(self.data[size:], self.grad[size:])

    def zero_grad(self) -> None:
        self.grad.zero_()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients to a norm of at most `max_norm`; gives the norm before."""
        norm = float(self.grad.norm())
        if norm > max_norm:
            self.grad.mul_(max_norm / (norm + 1e-6))
        return norm


class FlatParameters(FlatGroup):
    """The parameters of modules as views of one flat tensor, and their gradients as views of another."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        members = list(parameters)
        first = members[0]
        size = sum(member.numel() for member in members)
        data = torch.empty(size, dtype=first.dtype, device=first.device)
        super().__init__(data, torch.zeros_like(data))
        offset = 0
        for member in members:
            end = offset + member.numel()
            self.data[offset:end].copy_(member.detach().reshape(-1))
            member.data = self.data[offset:end].view_as(member)
            member.grad = self.grad[offset:end].view_as(member)
            offset = end


class FlatAdam:
    """Adam (Kingma and Ba 2015) on flat parameters; the learning rate is an argument of every step."""

    def __init__(self, parameters: FlatGroup, *, eps: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.parameters = parameters
        self.eps = eps
        self.betas = betas
        self.moment = torch.zeros_like(parameters.data)
        self.square = torch.zeros_like(parameters.data)
        self.count = torch.zeros((), dtype=torch.float32, device=parameters.data.device)

    def step(self, learning_rate: float) -> None:
        self.count += 1
        torch._fused_adam_(
            [self.parameters.data],
            [self.parameters.grad],
            [self.moment],
            [self.square],
            [],
            [self.count],
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {"moment": self.moment, "square": self.square, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


class FlatRMSprop:
    """RMSprop without momentum on flat parameters; the learning rate is an argument of every step."""

    def __init__(self, parameters: FlatGroup, *, eps: float, alpha: float) -> None:
        self.parameters = parameters
        self.eps = eps
        self.alpha = alpha
        self.square = torch.zeros_like(parameters.data)

    def step(self, learning_rate: float) -> None:
        grad = self.parameters.grad
        self.square.mul_(self.alpha).addcmul_(grad, grad, value=1.0 - self.alpha)
        self.parameters.data.addcdiv_(grad, self.square.sqrt().add_(self.eps), value=-learning_rate)

    def state_dict(self) -> dict[str, Tensor]:
        return {"square": self.square}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.square.copy_(state["square"])
