"""The surrogate objective of a trust-region step: its gradient, Fisher-vector products, and the KL of a new policy.

Both forms compute the same: the readable one by autograd, and the closed form of the engine. The policy at the time
when a surrogate is created is the old one, from which the KL is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.parts.actor_critic_policy import ActorCriticPolicy
from rl_training.algorithms.parts.objectives import Batch
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.actor_critic_engine import ActorCriticEngine
from rl_training.models.flat import FlatGroup
from rl_training.ops.distributions import Categorical, DiagonalGaussian, MultiCategorical
from rl_training.ops.kernels import heads
from rl_training.ops.policy import surrogate_loss
from rl_training.ops.value import value_loss
from rl_training.types import Array


class PolicyChange(NamedTuple):
    """A new policy on the old policy's rollout: its surrogate loss, its mean entropy, and KL(old || new)."""

    policy_loss: float
    entropy: float
    kl: float


class Surrogate(Protocol):
    """The objective at a rollout; vectors are flat, in the order of the policy's parameters.

    No products may follow the first `measure`.
    """

    gradient: Array
    start: PolicyChange

    def fisher_product(self, direction: Array) -> Array:
        """The mean Fisher information of the old policy times a direction."""

    def measure(self) -> PolicyChange:
        """Measure the policy with its current weights."""


class AutogradSurrogate:
    """For any network: the Fisher information is the Hessian of the KL at the old policy."""

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
        policy_loss, entropy, kl = self._measured(params)
        self.start = PolicyChange(policy_loss.item(), entropy.item(), 0.0)
        self.gradient = _array(self._derivative(ent_coef * entropy - policy_loss))
        self._slope = self._derivative(kl, create_graph=True)

    def _measured(self, params: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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

    def measure(self) -> PolicyChange:
        with torch.no_grad():
            return PolicyChange(*torch.stack(self._measured(self._outputs())).tolist())


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
        """`rows` are observations, actions and the mask of allowed choices."""
        self._mlp, self._grad, self._rows, self._advantage = mlp, policy.grad.numpy(), rows, advantage
        log_prob, entropy = mlp.likelihood(*rows)
        self._old, self._old_log_prob = mlp.policy_outputs(), log_prob.copy()
        policy_loss = heads.surrogate(log_prob, self._old_log_prob, advantage)
        self.start = PolicyChange(policy_loss, float(entropy.mean()), 0.0)
        # The ratio is 1 everywhere, so its derivative is that of the log-probability.
        mlp.likelihood_backward(advantage / len(advantage), ent_coef / len(advantage))
        self.gradient = self._grad.astype(np.float64)

    def fisher_product(self, direction: Array) -> Array:
        self._mlp.fisher_product(self._old, direction.astype(np.float32))
        return self._grad.astype(np.float64)

    def measure(self) -> PolicyChange:
        log_prob, entropy = self._mlp.likelihood(*self._rows)
        policy_loss = heads.surrogate(log_prob, self._old_log_prob, self._advantage)
        return PolicyChange(policy_loss, float(entropy.mean()), self._mlp.divergence(self._old))


class TrustRegionForm(Protocol):
    """Computes TRPO's policy surrogate and the critic's gradient."""

    def surrogate(self, data: Batch[Array], advantage: Array, ent_coef: float) -> Surrogate:
        """The policy's objective at a rollout."""

    def value_gradient(self, obs: Array, target: Array) -> float:
        """Write the gradient of half the critic's squared error to the flat buffer, for its parameters and no others.

        Returns the mean squared error.
        """


class AutogradTrustRegion:
    """For any network on any device."""

    def __init__(
        self,
        policy: ActorCriticPolicy,
        critic: FlatGroup,
        leaves: tuple[Sequence[nn.Parameter], Sequence[nn.Parameter]],
    ) -> None:
        """`leaves` are the policy's parameters and the critic's."""
        self._policy, self._critic = policy, critic
        self._policy_leaves, self._critic_leaves = leaves

    def surrogate(self, data: Batch[Array], advantage: Array, ent_coef: float) -> Surrogate:
        policy, tensor = self._policy, self._policy.observer.tensor
        return AutogradSurrogate(
            lambda: policy.network_outputs(data.obs)[0],
            self._policy_leaves,
            policy.distribution,
            tensor(data.action),
            tensor(advantage),
            ent_coef,
        )

    def value_gradient(self, obs: Array, target: Array) -> float:
        self._critic.zero_grad()
        error = value_loss(self._policy.network_outputs(obs)[1], self._policy.observer.tensor(target))
        (0.5 * error).backward(inputs=self._critic_leaves)  # type: ignore[no-untyped-call]
        return error.item()


class EngineTrustRegion:
    """For the networks that the engine supports."""

    def __init__(self, observer: Observer, policy: FlatGroup, engine: ActorCriticEngine) -> None:
        """`policy` are the policy's parameters in the flat buffer."""
        self._observer, self._policy, self._engine = observer, policy, engine

    def surrogate(self, data: Batch[Array], advantage: Array, ent_coef: float) -> Surrogate:
        rows = (self._observer.arrays(data.obs), data.action, self._observer.mask(data.obs))
        return ClosedFormSurrogate(self._engine, self._policy, rows, advantage, ent_coef)

    def value_gradient(self, obs: Array, target: Array) -> float:
        d_value = np.empty_like(target)
        loss: float = heads.value_gradient(self._engine.values(self._observer.arrays(obs)), target, 0.5, d_value)
        self._engine.value.backward(d_value[:, None])
        return loss


def _array(tensor: Tensor) -> Array:
    """A NumPy copy in double precision, which conjugate gradients need to keep their directions conjugate."""
    return tensor.detach().double().cpu().numpy()
