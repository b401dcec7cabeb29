"""Parameters as views of one flat tensor, and what updates them: optimisers, learners, target networks.

Small networks spend more time launching operations than computing: with everything flat, an optimiser step, a norm
and a copy are one operation each, whatever the number of layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rl_training.models.adam import adam_on

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

    @property
    def sizes(self) -> list[int]:
        """How many weights every parameter has, in the order of the flat tensor."""
        return [member.numel() for member in self.members]

    def part_of(self, part: nn.Module | Sequence[nn.Parameter]) -> Tensor:
        """The piece of the flat tensor that holds the parameters of a module, or these, next to each other."""
        parameters = list(part.parameters()) if isinstance(part, nn.Module) else part
        wanted = [id(parameter) for parameter in parameters]
        own = [id(member) for member in self.members]
        first = own.index(wanted[0]) if wanted and wanted[0] in own else len(own)
        if own[first : first + len(wanted)] != wanted:
            name = type(part).__name__ if isinstance(part, nn.Module) else "a part"
            raise ValueError(f"the parameters of {name} are not next to each other in these weights")
        start = sum(self.sizes[:first])
        return self.data[start : start + sum(parameter.numel() for parameter in parameters)]

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


class FlatOptimizer(Protocol):
    """What steps flat parameters; the learning rate is an argument of every step."""

    def step(self, learning_rate: float) -> None: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class FlatAdam:
    """Adam (Kingma and Ba 2015) on flat parameters; the learning rate is an argument of every step."""

    def __init__(self, parameters: FlatGroup, *, eps: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.parameters = parameters
        self.eps = eps
        self.betas = betas
        self.moment = torch.zeros_like(parameters.data)
        self.square = torch.zeros_like(parameters.data)
        self.count = torch.zeros((), dtype=torch.float32, device=parameters.data.device)
        self._step = adam_on(parameters.data.device)

    def step(self, learning_rate: float) -> None:
        flat = self.parameters
        self._step(flat.data, flat.grad, self.moment, self.square, self.count, learning_rate, self.betas, self.eps)

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


class FlatLaProp:
    """LaProp (Ziyin et al. 2020) on flat parameters, with adaptive gradient clipping and a linear warm-up.

    The gradient of every tensor is first scaled to a norm of at most `clip` times that of its weights, or times
    `smallest_norm` where theirs is smaller (Brock et al. 2021, here for whole tensors). Then it is divided by its
    running size, and then averaged over time; Adam does these two the other way round. `sizes` are those of the tensors
    in the flat one (`FlatWeights.sizes`). The first of `warmup` updates has a learning rate of 0. A step leaves the
    clipped gradients behind.
    """

    def __init__(
        self,
        parameters: FlatGroup,
        sizes: Sequence[int],
        *,
        warmup: int,
        clip: float = 0.3,
        smallest_norm: float = 1e-3,
        eps: float = 1e-20,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        if sum(sizes) != parameters.data.numel():
            raise ValueError(f"tensors of {sum(sizes)} weights in all, in a group of {parameters.data.numel()}")
        self.parameters = parameters
        self.warmup = warmup
        self.clip = clip
        self.smallest_norm = smallest_norm
        self.eps = eps
        self.betas = betas
        self.moment = torch.zeros_like(parameters.data)
        self.square = torch.zeros_like(parameters.data)
        self.count = torch.zeros((), dtype=torch.int64)
        self._weights = parameters.data.split_with_sizes(list(sizes))
        self._grads = parameters.grad.split_with_sizes(list(sizes))

    def clip_gradients(self) -> None:
        """Scale the gradient of every tensor to a norm that suits its weights."""
        weight_norms = torch.stack(torch._foreach_norm(self._weights))
        grad_norms = torch.stack(torch._foreach_norm(self._grads))
        largest = self.clip * weight_norms.clamp(min=self.smallest_norm)
        shares = 1.0 / (grad_norms / largest).clamp(min=1.0)
        torch._foreach_mul_(self._grads, shares.unbind())

    def step(self, learning_rate: float) -> None:
        self.clip_gradients()
        done = int(self.count)
        self.count += 1
        momentum, decay = self.betas
        grad = self.parameters.grad
        self.square.mul_(decay).addcmul_(grad, grad, value=1.0 - decay)
        size = self.square.sqrt().mul_((1.0 - decay ** (done + 1)) ** -0.5).add_(self.eps)
        self.moment.mul_(momentum).addcdiv_(grad, size, value=1.0 - momentum)
        rate = learning_rate * (min(done / self.warmup, 1.0) if self.warmup else 1.0)
        self.parameters.data.add_(self.moment, alpha=-rate / (1.0 - momentum ** (done + 1)))

    def state_dict(self) -> dict[str, Tensor]:
        return {"moment": self.moment, "square": self.square, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


class Learner:
    """A network and what trains it, on one flat tensor of parameters: Adam, or the optimiser that `make` makes."""

    def __init__(
        self,
        module: nn.Module,
        weights: FlatWeights | None = None,
        make: Callable[[FlatParameters, FlatWeights], FlatOptimizer] | None = None,
    ) -> None:
        """`weights` are the module's flat weights, if they exist already (those of a policy do), or some of them.

        Weights that are not among them are not trained.
        """
        self.module = module
        self.weights = weights or FlatWeights(module.parameters())
        self.parameters = FlatParameters(self.weights)
        self.optimizer: FlatOptimizer = (
            FlatAdam(self.parameters, eps=_ADAM_EPS) if make is None else make(self.parameters, self.weights)
        )
        self._leaves = self.weights.members

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
    """A target network: a copy of a learner's network, updated by theta' <- (1 - tau) theta' + tau theta.

    `part` is the part of the network that is followed, where it is not all of it. Weights that the learner does not
    train stay as they are.
    """

    def __init__(self, leader: Learner, part: nn.Module | None = None) -> None:
        followed = leader.module if part is None else part
        self.module = copy.deepcopy(followed).requires_grad_(False).eval()
        trained = {id(member) for member in leader.weights.members}
        pairs = zip(followed.parameters(), self.module.parameters(), strict=True)
        led, own = zip(*((theirs, mine) for theirs, mine in pairs if id(theirs) in trained), strict=True)
        self._leading = leader.weights.part_of(led)
        self.weights = FlatWeights(own)
        self._buffers = list(zip(self.module.buffers(), followed.buffers(), strict=True))

    def follow(self, tau: float) -> None:
        self.weights.data.lerp_(self._leading, tau)
        for own, other in self._buffers:
            own.copy_(other)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.module.load_state_dict(state)
        self.module.requires_grad_(False)  # a network may say for itself what is trained
