"""A loss of likelihoods and values in two forms, and how its gradient is computed: by autograd, or by an engine.

An on-policy algorithm writes its loss twice, side by side: readable, in torch, and as a closed-form gradient. Which of
them is used is decided once, when the algorithm is built. A test checks that the two are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.parts.actor_critic_policy import ActorCriticPolicy
from rl_training.models.actor_critic_engine import ActorCriticEngine
from rl_training.models.flat import FlatParameters
from rl_training.ops.kernels import heads as kernels
from rl_training.ops.policy import standardize
from rl_training.types import Array

S = TypeVar("S", Array, Tensor)
T = TypeVar("T", Array, Tensor)


@dataclass(frozen=True)
class Batch(Generic[T]):
    """The real steps of a rollout, flattened `[N]`, ready for an update: arrays, or tensors for autograd."""

    obs: Any
    action: T
    log_prob: T
    value: T
    advantage: T
    target: T

    def __len__(self) -> int:
        return len(self.advantage)

    def map(self, function: Callable[[T], S]) -> Batch[S]:
        return Batch(*(function(getattr(self, name)) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Heads(Generic[T]):
    """The network's results for a batch `[N]`: log-probabilities of its actions, entropies, and values."""

    log_prob: T
    entropy: T
    value: T


class Slopes(NamedTuple):
    """The gradient of a loss with respect to each of the heads; the entropy's is one number for all rows."""

    log_prob: Array
    entropy: float
    value: Array


Loss = Callable[[Heads[Tensor], Batch[Tensor], Any], tuple[Tensor, Sequence[Tensor]]]
Gradient = Callable[[Heads[Array], Batch[Array], Any], tuple[Slopes, tuple[float, ...]]]


@dataclass(frozen=True)
class Objective:
    """A loss and its closed-form gradient, each a function of heads, batch and config.

    Both also return the minibatch's metrics. Without a `gradient`, autograd is used for every network.
    """

    loss: Loss
    gradient: Gradient | None = None


class Form(Protocol):
    """Computes the gradient of an objective."""

    def gradient(self, objective: Objective, batch: Batch[Array], cfg: Any) -> tuple[float, ...]:
        """Write the gradient of a minibatch to the flat buffer; returns what the objective reports."""


class AutogradForm:
    """The readable form, for any network on any device."""

    def __init__(self, policy: ActorCriticPolicy, parameters: FlatParameters) -> None:
        self._policy, self._parameters = policy, parameters

    def gradient(self, objective: Objective, batch: Batch[Array], cfg: Any) -> tuple[float, ...]:
        data, distribution = self.tensors(batch), self._policy.distribution
        params, value = self._policy.network_outputs(batch.obs)
        heads = Heads(distribution.log_prob(params, data.action), distribution.entropy(params), value)
        loss, seen = objective.loss(heads, data, cfg)
        self._parameters.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return tuple(torch.stack([number.detach() for number in seen]).tolist())

    def tensors(self, batch: Batch[Array]) -> Batch[Tensor]:
        """The columns as tensors on the network's device; observations stay rows, which the policy converts."""
        moved = replace(batch, obs=batch.action).map(self._policy.observer.tensor)
        return replace(moved, obs=batch.obs)


class EngineForm:
    """The closed form, for the networks that the engine supports."""

    def __init__(self, policy: ActorCriticPolicy, engine: ActorCriticEngine) -> None:
        self._policy, self.engine = policy, engine

    def gradient(self, objective: Objective, batch: Batch[Array], cfg: Any) -> tuple[float, ...]:
        assert objective.gradient is not None
        slopes, seen = objective.gradient(self.heads(batch), batch, cfg)
        self.engine.backward(*slopes)
        return seen

    def heads(self, batch: Batch[Array]) -> Heads[Array]:
        """The network's results for a batch; valid until the next call."""
        observer = self._policy.observer
        return Heads(*self.engine.evaluate(observer.arrays(batch.obs), batch.action, observer.mask(batch.obs)))


def standardized(advantage: T, cfg: Any) -> T:
    """Advantages with zero mean and unit deviation, if the config says so."""
    if not cfg.normalize_advantage:
        return advantage
    if isinstance(advantage, Tensor):
        return standardize(advantage)
    scaled = np.empty_like(advantage)
    kernels.standardize_kernel(advantage, scaled)
    return scaled
