"""Trust region policy optimisation (Schulman et al. 2015), with generalised advantages (Schulman et al. 2016)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext, model_setting
from rl_training.algorithms.on_policy import (
    EVERY_SPACE,
    ActorCriticModelConfig,
    ActorCriticPolicy,
    AdvantageConfig,
    OnPolicyAlgorithm,
    OnPolicyLoopConfig,
)
from rl_training.algorithms.parts.objectives import Batch, standardized
from rl_training.algorithms.parts.surrogates import (
    AutogradTrustRegion,
    EngineTrustRegion,
    PolicyChange,
    Surrogate,
    TrustRegionForm,
)
from rl_training.algorithms.settings import setting
from rl_training.data.rollout import Rollout
from rl_training.models.actor_critic_engine import ActorCriticEngine
from rl_training.models.flat import FlatAdam
from rl_training.ops.trust_region import conjugate_gradient, line_search
from rl_training.ops.value import explained_variance
from rl_training.types import Array, Metrics, UserError

_ADAM_EPS = 1e-5
# Where the line search has an effect: the KL of such a long step is far from its quadratic approximation.
_LONG_STEPS = {"target_kl": 100.0, "actions": "continuous"}


class TRPOConfig(AdvantageConfig):
    """maximise E[r A] + ent_coef H, where E[KL(old, new)] <= target_kl; then fit V, which has parameters of its own"""

    learning_rate: float = setting(1e-3, "Step size of the critic's optimiser.", ge=0.0, report=True)
    normalize_advantage: bool = setting(True, "Standardise the advantages of every rollout.")
    target_kl: float = setting(0.01, "Largest mean KL(old || new) of a policy step.", ge=0.0, report=True)
    cg_max_steps: int = setting(15, "Steps of conjugate gradients for the natural gradient.", ge=1, probe=1)
    cg_damping: float = setting(0.1, "Added to the diagonal of the Fisher information.", ge=0.0)
    line_search_shrinking_factor: float = setting(
        0.8, "A step that is not accepted is shortened by this factor.", gt=0.0, lt=1.0, live_when=_LONG_STEPS
    )
    line_search_max_iter: int = setting(
        10, "Step lengths to try; if all are rejected, the policy stays.", ge=1, live_when=_LONG_STEPS, probe=1
    )
    n_critic_updates: int = setting(10, "Passes of the critic over each rollout.", ge=1, probe=3)
    batch_size: int = setting(128, "Samples in a minibatch of the critic.", ge=1, probe=5)


class TRPOModelConfig(ActorCriticModelConfig):
    """The networks of policy and value; the value must have parameters of its own."""

    model: str = model_setting(probe="rl_training.testing:LinearSeparateActorCritic")


class TRPOPolicy(ActorCriticPolicy):
    """Policy and value are trained separately, so the parameters of each are contiguous in the flat buffer.

    All parameters that the policy depends on are its own, also those of a shared encoder; the critic has the rest.
    """

    def ordered_parameters(self, context: PolicyContext) -> list[nn.Parameter]:
        """The policy's parameters, then the critic's, then unused ones."""
        everything: list[nn.Parameter] = list(self.network.parameters())
        params, value = (_needed(output, everything) for output in self.tried(context.info))
        self.policy_leaves = [leaf for leaf in everything if leaf in params]
        self.critic_leaves = [leaf for leaf in everything if leaf in value - params]
        if not self.policy_leaves or not self.critic_leaves:
            raise UserError(
                f"model={context.model.model!r}: trpo trains policy and value separately, so each needs parameters of "
                f"its own; the {'value' if self.policy_leaves else 'policy'} has none that can be trained"
            )
        return [
            *self.policy_leaves,
            *self.critic_leaves,
            *(leaf for leaf in everything if leaf not in params | value),
        ]


class TRPO(OnPolicyAlgorithm):
    """One policy step for each rollout, as long as the trust region allows; then several critic steps.

    Networks are always in evaluation mode, since the KL must be that of the policy that acts: batch statistics do not
    change.
    """

    cfg: TRPOConfig
    policy: TRPOPolicy
    policy_type = TRPOPolicy
    step_size: ClassVar[str] = "target_kl or learning_rate"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        leaves = self.policy.policy_leaves, self.policy.critic_leaves
        self.policy_group, critic = self.parameters.split(sum(leaf.numel() for leaf in leaves[0]))
        self.trust_region: TrustRegionForm = (
            EngineTrustRegion(self.observer, self.policy_group, ActorCriticEngine(self.network, context.info))
            if self.engine == "mlp"
            else AutogradTrustRegion(self.policy, critic, leaves)
        )
        self.optimizer = FlatAdam(critic, eps=_ADAM_EPS)

    def update(self, batch: Rollout) -> Metrics:
        data = self.prepare(batch)
        # Evaluation mode: the policy whose KL is measured must be the one that acts.
        self.network.eval()
        advantage = standardized(data.advantage, self.cfg)
        improved = self._improve_policy(self.trust_region.surrogate(data, advantage, self.cfg.ent_coef))
        value_error = self._fit_values(data)
        self.n_updates += 1
        return improved | {
            "value_loss": value_error,
            "explained_variance": explained_variance(data.value, data.target),
            "n_updates": float(self.n_updates),
        }

    def _improve_policy(self, surrogate: Surrogate) -> Metrics:
        """A natural-gradient step, shortened until it improves the objective within the trust region (appendix C)."""
        cfg, gradient = self.cfg, surrogate.gradient
        direction, residual = conjugate_gradient(
            lambda vector: surrogate.fisher_product(vector) + cfg.cg_damping * vector, gradient, cfg.cg_max_steps
        )
        # x' A x, since A x = gradient - residual.
        curvature = float(direction @ (gradient - residual))
        step = direction * (math.sqrt(2.0 * cfg.target_kl / curvature) if curvature > 0.0 else 0.0)
        old, tried = self.policy_group.data.clone(), [surrogate.start]

        def objective(change: PolicyChange) -> float:
            return cfg.ent_coef * change.entropy - change.policy_loss

        def accepts(fraction: float) -> bool:
            self.policy_group.data.copy_(old + torch.from_numpy(fraction * step).to(old))
            tried.append(surrogate.measure())
            return tried[-1].kl <= cfg.target_kl and objective(tried[-1]) > objective(surrogate.start)

        fraction = line_search(accepts, cfg.line_search_shrinking_factor, cfg.line_search_max_iter)
        if not fraction:
            self.policy_group.data.copy_(old)
        return (tried[-1] if fraction else surrogate.start)._asdict() | {
            "step_fraction": fraction,
            "accepted": float(fraction > 0.0),
            "grad_norm": float(np.linalg.norm(gradient)),
            "cg_residual": float(np.linalg.norm(residual)),
        }

    def _fit_values(self, data: Batch[Array]) -> float:
        """Fit the values to their targets in several passes over the rollout; returns the mean loss."""
        cfg, losses = self.cfg, []
        for _ in range(cfg.n_critic_updates):
            order = self.batch_rng.permutation(len(data))
            obs, target = data.obs.take(order, axis=0), data.target.take(order)
            for start in range(0, len(data), cfg.batch_size):
                chosen = slice(start, start + cfg.batch_size)
                losses.append(self.trust_region.value_gradient(obs[chosen], target[chosen]))
                self.optimizer.step(cfg.learning_rate)
        return float(np.mean(losses))


def _needed(output: Tensor, leaves: list[nn.Parameter]) -> set[nn.Parameter]:
    """The parameters that an output depends on; frozen ones are left out."""
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    if not output.requires_grad:
        return set()
    found = torch.autograd.grad(output.sum(), trained, retain_graph=True, allow_unused=True)
    return {leaf for leaf, slope in zip(trained, found, strict=True) if slope is not None}


SPEC = AlgorithmSpec(
    name="trpo",
    family="on_policy",
    summary="Trust region policy optimisation",
    config=TRPOConfig,
    loop=OnPolicyLoopConfig,
    model=TRPOModelConfig,
    policy=TRPOPolicy,
    build=TRPO,
    capabilities=EVERY_SPACE,
)
