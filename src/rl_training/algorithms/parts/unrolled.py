"""A model that is trained by unrolling it: its network, optimiser and target network, by autograd or by an engine.

A loss is written twice, side by side: readable, in torch, and as a closed-form gradient of the network's outputs.
Which of them is used is decided once, when the algorithm is built. A test checks that they are equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.off_policy import Engine
from rl_training.algorithms.parts.planning_policy import PlanningPolicy
from rl_training.algorithms.parts.unroll_batch import Goals, UnrollBatch, goals_of
from rl_training.models.consistency_engine import ConsistencyEngine
from rl_training.models.efficientzero import Consistency, prefix_targets
from rl_training.models.flat import Follower, Learner
from rl_training.models.muzero import MuZeroNetwork, Unrolled, unroll
from rl_training.models.prefix_engine import engine_of
from rl_training.types import Array


class Slopes(NamedTuple):
    """The gradient of a loss with respect to the outputs of an unrolled model."""

    policy: Array
    value: Array
    reward: Array


class Divergences(NamedTuple):
    """Weighted sums over a minibatch of the divergences KL(target, prediction) of the three heads."""

    policy: Any
    value: Any
    reward: Any


Loss = Callable[[Unrolled[Tensor], Goals[Tensor], Any], tuple[Tensor, Divergences]]
Gradient = Callable[[Unrolled[Array], Goals[Array], Any], tuple[float, Slopes, Divergences]]


@dataclass(frozen=True)
class Objective:
    """A loss of the outputs of an unrolled model, and its closed-form gradient."""

    loss: Loss
    gradient: Gradient


@dataclass(frozen=True)
class Outcome:
    """What an update found: loss, divergences, consistency loss, and the logits `[B, bins]` of the windows' values."""

    loss: float
    divergences: Divergences
    consistency: float
    value: Array


class TrainedConsistency:
    """A consistency loss with its own optimiser: acting has no use for its projections."""

    def __init__(self, module: Consistency) -> None:
        self.module = module
        self.learner = Learner(module)

    def leaves(self) -> list[nn.Parameter]:
        """The parameters that a loss should be differentiated by; their gradients are 0 from now on."""
        self.learner.parameters.zero_grad()
        return list(self.module.parameters())

    def loss(self, latent: Tensor, seen: Tensor, weight: Tensor) -> Tensor:
        """The weighted sum of the losses of latents `[K, B, ...]` against those of what was seen `[K B, ...]`."""
        losses: Tensor = self.module(latent, seen.reshape(latent.shape), weight > 0.0)
        return (weight * losses).sum()


@dataclass(frozen=True)
class Extras:
    """What a model learns besides the heads of MuZero; nothing by default.

    `horizon` is after how many steps a value prefix starts again; `augment` changes some rows of observations before
    the network learns from them.
    """

    consistency: TrainedConsistency | None = None
    horizon: int | None = None
    augment: Callable[[Any, int], Any] | None = None

    def augmented(self, obs: Any, rows: int) -> Any:
        return obs if self.augment is None else self.augment(obs, rows)


class UnrolledModel(ABC):
    """The network of a planning policy, its optimiser and its target network.

    `extras` say what is learned besides the three heads.
    """

    def __init__(self, policy: PlanningPolicy, objective: Objective, extras: Extras) -> None:
        self.policy, self.objective, self.extras = policy, objective, extras
        self.learner = Learner(policy.network, policy.weights)
        self.follower = Follower(self.learner)
        self.reward_support, self.value_support = policy.network.reward_support, policy.network.value_support

    @property
    def learners(self) -> dict[str, Learner]:
        """All that is trained, by name."""
        consistency = self.extras.consistency
        found = {"network": self.learner}
        return found if consistency is None else found | {"consistency": consistency.learner}

    def consistency(self, cfg: Any) -> TrainedConsistency | None:
        """The consistency loss, unless its present weight is 0."""
        consistency = self.extras.consistency
        return consistency if consistency is not None and cfg.consistency_coef > 0.0 else None

    @abstractmethod
    def differentiate(self, batch: UnrollBatch, cfg: Any) -> Outcome:
        """Write the gradient of the objective to the flat buffers."""

    def descend(self, cfg: Any) -> float:
        """Take a step with clipped gradients; returns the norm of the network's."""
        consistency = self.consistency(cfg)
        learners = [self.learner] if consistency is None else [self.learner, consistency.learner]
        norms = [learner.parameters.clip_grad_norm(cfg.max_grad_norm) for learner in learners]
        for learner in learners:
            learner.descend(cfg.learning_rate)
        return norms[0]

    def goals(self, batch: UnrollBatch) -> Goals[Array]:
        reward = batch.reward if self.extras.horizon is None else prefix_targets(batch.reward, self.extras.horizon)
        return goals_of(replace(batch, reward=reward), self.reward_support, self.value_support)


class AutogradUnrolled(UnrolledModel):
    """Any network, by autograd."""

    def differentiate(self, batch: UnrollBatch, cfg: Any) -> Outcome:
        observer, module, extras = self.policy.observer, self.learner.module, self.extras
        consistency = self.consistency(cfg)
        assert isinstance(module, MuZeroNetwork)
        module.train()
        goals: Goals[Tensor] = self.goals(batch).map(observer.tensor)
        out = unroll(
            module, extras.augmented(observer.tensors(batch.obs), len(batch.obs)), observer.tensor(batch.action)
        )
        loss, divergences = self.objective.loss(out, goals, cfg)
        similarity = loss.new_zeros(())
        leaves = list(module.parameters())
        self.learner.parameters.zero_grad()
        if consistency is not None:
            later = batch.later_rows()
            with torch.no_grad():
                seen = module.represent(extras.augmented(observer.tensors(later), len(later)))
            similarity = consistency.loss(out.latent[1:], seen, observer.tensor(batch.later_weight()))
            loss = loss + cfg.consistency_coef * similarity
            leaves += consistency.leaves()
        loss.backward(inputs=leaves)  # type: ignore[no-untyped-call]
        numbers = torch.stack([loss, *divergences, similarity]).detach().cpu().tolist()
        return Outcome(numbers[0], Divergences(*numbers[1:4]), numbers[4], out.value[0].detach().cpu().numpy())


class EngineUnrolled(UnrolledModel):
    """An MLP model, by the engine."""

    def __init__(self, policy: PlanningPolicy, objective: Objective, extras: Extras) -> None:
        super().__init__(policy, objective, extras)
        self._engine = engine_of(policy.network, trained=True)
        self._similarity = None if extras.consistency is None else ConsistencyEngine(extras.consistency.module)

    def differentiate(self, batch: UnrollBatch, cfg: Any) -> Outcome:
        observer, engine = self.policy.observer, self._engine
        out = engine.forward(observer.matrix(batch.obs), batch.action)
        loss, slopes, divergences = self.objective.gradient(out, self.goals(batch), cfg)
        similarity, d_latent = 0.0, None
        if self._similarity is not None and self.consistency(cfg) is not None:
            seen = engine.represent(observer.matrix(batch.later_rows()))
            d_latent = np.zeros_like(out.latent)
            similarity, d_latent[1:] = self._similarity.gradient(
                out.latent[1:], seen, batch.later_weight(), cfg.consistency_coef
            )
            loss += cfg.consistency_coef * similarity
        engine.backward(*slopes, d_latent)
        return Outcome(loss, divergences, similarity, out.value[0])


# The class of each form.
UNROLLED: dict[Engine, Callable[[PlanningPolicy, Objective, Extras], UnrolledModel]] = {
    "autograd": AutogradUnrolled,
    "mlp": EngineUnrolled,
}
