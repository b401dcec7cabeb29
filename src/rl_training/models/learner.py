"""A network with its optimiser, and a copy that follows it slowly."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rl_training.models.flat import FlatAdam, FlatParameters

_ADAM_EPS = 1e-8


class Learner:
    """A network that is trained by Adam, its parameters being one flat tensor."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = FlatParameters(module.parameters())
        self.optimizer = FlatAdam(self.parameters, eps=_ADAM_EPS)
        self._leaves = list(module.parameters())

    def differentiate(self, loss: Tensor) -> None:
        """Leave the gradient of a loss in the flat buffer; no other network that the loss went through gets one."""
        self.parameters.zero_grad()
        loss.backward(inputs=self._leaves)  # type: ignore[no-untyped-call]

    def descend(self, learning_rate: float) -> None:
        """One step down the gradient in the flat buffer."""
        self.optimizer.step(learning_rate)

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])


class Follower:
    """A copy of a learner's network that follows it: theta' <- (1 - tau) theta' + tau theta."""

    def __init__(self, leader: Learner) -> None:
        self._leader = leader
        self.module = copy.deepcopy(leader.module).requires_grad_(False).eval()
        self.parameters = FlatParameters(self.module.parameters())
        self._buffers = list(zip(self.module.buffers(), leader.module.buffers(), strict=True))

    def follow(self, tau: float) -> None:
        self.parameters.data.lerp_(self._leader.parameters.data, tau)
        for own, other in self._buffers:
            own.copy_(other)

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.module.load_state_dict(state)
