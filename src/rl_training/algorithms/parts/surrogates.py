"""What a trust-region step asks of a policy at a rollout: a gradient, products with its curvature, and a judgement.

Both forms here are the same mathematics: the readable one by autograd, and the closed one of the engine. The policy
that is there when one is made is the old one, from which the others are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.actor_critic_engine import ActorCriticEngine
from rl_training.models.flat import FlatGroup
from rl_training.ops.distributions import Categorical, DiagonalGaussian, MultiCategorical
from rl_training.ops.kernels import heads
from rl_training.ops.policy import surrogate_loss
from rl_training.types import Array


class Judgement(NamedTuple):
    """A policy on the rollout of another: what it would lose, how random it is, and how far away."""

    policy_loss: float
    entropy: float
    kl: float


class Surrogate(Protocol):
    """Directions and gradients are flat, in the order of the policy's parameters; no product comes after a `judge`."""

    gradient: Array
    start: Judgement

    def fisher_product(self, direction: Array) -> Array:
        """The mean Fisher information of the old policy, times a direction."""

    def judge(self) -> Judgement:
        """The policy as it is now."""


class AutogradSurrogate:
    """For any network: the Fisher information is the second derivative of the KL where both policies are the same."""

    def __init__(
        self,
        outputs: Callable[[], Tensor],
        leaves: Sequence[nn.Parameter],
        distribution: Categorical | MultiCategorical | DiagonalGaussian,
        action: Tensor,
        advantage: Tensor,
        ent_coef: float,
    ) -> None:
        self._outputs, self._leaves, self._distribution = outputs, leaves, distribution
        self._action, self._advantage = action, advantage
        params = outputs()
        self._old = params.detach()
        self._old_log_prob = distribution.log_prob(self._old, action)
        policy_loss, entropy, kl = self._judged(params)
        self.start = Judgement(policy_loss.item(), entropy.item(), 0.0)
        self.gradient = _array(self._derivative(ent_coef * entropy - policy_loss))
        self._slope = self._derivative(kl, create_graph=True)

    def _judged(self, params: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_ratio = self._distribution.log_prob(params, self._action) - self._old_log_prob
        entropy = self._distribution.entropy(params).mean()
        return surrogate_loss(log_ratio, self._advantage), entropy, self._distribution.kl(self._old, params).mean()

    def _derivative(self, scalar: Tensor, *, create_graph: bool = False) -> Tensor:
        parts = torch.autograd.grad(
            scalar, self._leaves, retain_graph=True, create_graph=create_graph, materialize_grads=True
        )
        return torch.cat([part.reshape(-1) for part in parts])

    def fisher_product(self, direction: Array) -> Array:
        vector = torch.from_numpy(direction).to(self._slope)
        return _array(self._derivative(self._slope @ vector))

    def judge(self) -> Judgement:
        with torch.no_grad():
            return Judgement(*torch.stack(self._judged(self._outputs())).tolist())


class ClosedFormSurrogate:
    """For the networks of the engine: no graph is built."""

    def __init__(
        self,
        mlp: ActorCriticEngine,
        policy: FlatGroup,
        rows: tuple[Array, Array, Array | None],
        advantage: Array,
        ent_coef: float,
    ) -> None:
        """`rows` are observations, actions and what is allowed."""
        self._mlp, self._grad, self._rows, self._advantage = mlp, policy.grad.numpy(), rows, advantage
        log_prob, entropy = mlp.likelihood(*rows)
        self._old, self._old_log_prob = mlp.policy_outputs(), log_prob.copy()
        policy_loss = heads.surrogate(log_prob, self._old_log_prob, advantage)
        self.start = Judgement(policy_loss, float(entropy.mean()), 0.0)
        # The ratio is 1 everywhere, so its derivative is that of the log-probability.
        mlp.likelihood_backward(advantage / len(advantage), ent_coef / len(advantage))
        self.gradient = self._grad.astype(np.float64)

    def fisher_product(self, direction: Array) -> Array:
        self._mlp.fisher_product(self._old, direction.astype(np.float32))
        return self._grad.astype(np.float64)

    def judge(self) -> Judgement:
        log_prob, entropy = self._mlp.likelihood(*self._rows)
        policy_loss = heads.surrogate(log_prob, self._old_log_prob, self._advantage)
        return Judgement(policy_loss, float(entropy.mean()), self._mlp.divergence(self._old))


def _array(tensor: Tensor) -> Array:
    """In double precision: conjugate directions lose each other in less."""
    return tensor.detach().double().cpu().numpy()
