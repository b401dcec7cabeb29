"""Parameters as views of one flat tensor, and what updates them: optimisers, learners, target networks.

Small networks spend more time launching operations than computing: with everything flat, an optimiser step, a norm
and a copy are one operation each, whatever the number of layers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_ADAM_EPS = 1e-8


class FlatGroup:
    """A flat tensor of weights and one of their gradients."""

    def __init__(self, data: Tensor, grad: Tensor) -> None:
        self.data = data
        self.grad = grad

    def split(self, size: int) -> tuple[FlatGroup, FlatGroup]:
        """The first `size` weights and the others, as groups with separate optimisers."""
        return FlatGroup(self.data[:size], self.grad[:size]), FlatGroup(self.data[size:], self.grad[size:])

    def zero_grad(self) -> None:
        self.grad.zero_()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients to a norm of at most `max_norm`; returns the norm before."""
        norm = float(self.grad.norm())
        if norm > max_norm:
            self.grad.mul_(max_norm / (norm + 1e-6))
        return norm


class FlatWeights:
    """The parameters of a network as views of one flat tensor, without gradients: enough for acting."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.members = list(parameters)
        first = self.members[0]
        size = sum(member.numel() for member in self.members)
        self.data = torch.empty(size, dtype=first.dtype, device=first.device)
        for member, view in self.views_of(self.data):
            view.copy_(member.detach())
            member.data = view

    def views_of(self, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Every parameter, and the part of a flat tensor that belongs to it, in its shape."""
        end = 0
        for member in self.members:
            start, end = end, end + member.numel()
            yield member, flat[start:end].view_as(member)


class FlatParameters(FlatGroup):
    """Flat weights, and their gradients as views of another flat tensor."""

    def __init__(self, weights: FlatWeights | Iterable[nn.Parameter]) -> None:
        weights = weights if isinstance(weights, FlatWeights) else FlatWeights(weights)
        super().__init__(weights.data, torch.zeros_like(weights.data))
        for member, view in weights.views_of(self.grad):
            member.grad = view


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


class Learner:
    """A network and the Adam that trains it, on one flat tensor of parameters."""

    def __init__(self, module: nn.Module, weights: FlatWeights | None = None) -> None:
        """`weights` are the module's flat weights, if they exist already (those of a policy do)."""
        self.module = module
        self.weights = weights or FlatWeights(module.parameters())
        self.parameters = FlatParameters(self.weights)
        self.optimizer = FlatAdam(self.parameters, eps=_ADAM_EPS)
        self._leaves = list(module.parameters())

    def differentiate(self, loss: Tensor) -> None:
        """Write the gradient of a loss to the flat buffer; other networks in the loss get no gradient."""
        self.parameters.zero_grad()
        loss.backward(inputs=self._leaves)  # type: ignore[no-untyped-call]

    def descend(self, learning_rate: float) -> None:
        """Take an optimiser step with the gradient in the flat buffer."""
        self.optimizer.step(learning_rate)

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])


class Follower:
    """A target network: a copy of a learner's network, updated by theta' <- (1 - tau) theta' + tau theta."""

    def __init__(self, leader: Learner) -> None:
        self._leader = leader
        self.module = copy.deepcopy(leader.module).requires_grad_(False).eval()
        self.weights = FlatWeights(self.module.parameters())
        self._buffers = list(zip(self.module.buffers(), leader.module.buffers(), strict=True))

    def follow(self, tau: float) -> None:
        self.weights.data.lerp_(self._leader.weights.data, tau)
        for own, other in self._buffers:
            own.copy_(other)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.module.load_state_dict(state)
