"""Trust region policy optimisation (Schulman et al. 2015), with generalised advantages (Schulman et al. 2016)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import AlgorithmSpec, Context, model_setting, setting
from rl_training.algorithms.on_policy import (
    EVERY_SPACE,
    ActorCriticModelConfig,
    AdvantageConfig,
    Batch,
    OnPolicyAlgorithm,
    OnPolicyLoopConfig,
)
from rl_training.algorithms.parts.surrogates import AutogradSurrogate, ClosedFormSurrogate, Judgement, Surrogate
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatAdam
from rl_training.ops.kernels import heads
from rl_training.ops.trust_region import conjugate_gradient, line_search
from rl_training.ops.value import explained_variance, value_loss
from rl_training.types import Array, Metrics, UserError

_ADAM_EPS = 1e-5
# Where the line search has something to do: the KL of a step as long as that is far from the quadratic one.
_LONG_STEPS = {"target_kl": 100.0, "actions": "continuous"}


class TRPOConfig(AdvantageConfig):
    """maximise E[r A] + ent_coef H, where E[KL(old, new)] <= target_kl; then fit V, which has parameters of its own"""

    learning_rate: float = setting(1e-3, "Step size of the critic's optimiser.", ge=0.0, report=True)
    normalize_advantage: bool = setting(True, "Standardise the advantages of every rollout.")
    target_kl: float = setting(0.01, "How far a step may take the policy: its mean KL.", ge=0.0, report=True)
    cg_max_steps: int = setting(15, "Conjugate gradient's steps to the natural gradient.", ge=1, probe=1)
    cg_damping: float = setting(0.1, "Added to the diagonal of the Fisher information.", ge=0.0)
    line_search_shrinking_factor: float = setting(
        0.8, "A step that is not accepted is shortened by this.", gt=0.0, lt=1.0, live_when=_LONG_STEPS
    )
    line_search_max_iter: int = setting(
        10, "Lengths that are tried before the policy stays as it is.", ge=1, live_when=_LONG_STEPS, probe=1
    )
    n_critic_updates: int = setting(10, "Passes of the critic over each rollout.", ge=1, probe=3)
    batch_size: int = setting(128, "Samples in a minibatch of the critic.", ge=1, probe=5)


class TRPOModelConfig(ActorCriticModelConfig):
    """The networks of policy and value; the value must have parameters of its own."""

    model: str = model_setting(probe="rl_training.testing:LinearSeparateActorCritic")


class TRPO(OnPolicyAlgorithm):
    """One step of the policy for each rollout, as long as its trust region allows; then several of the critic.

    What the policy depends on belongs to it, an encoder that both use too; the critic has the rest. Networks are in
    evaluation mode throughout, since the KL must be that of the policy which acts: batch statistics do not move.
    """

    cfg: TRPOConfig
    step_size: ClassVar[str] = "target_kl or learning_rate"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.policy, self.critic = self.parameters.split(sum(leaf.numel() for leaf in self._policy_leaves))
        self.optimizer = FlatAdam(self.critic, eps=_ADAM_EPS)

    def ordered_parameters(self, context: Context) -> list[nn.Parameter]:
        """The policy's, then the critic's, then those that nothing depends on."""
        everything: list[nn.Parameter] = list(self.network.parameters())
        params, value = (_needed(output, everything) for output in self.tried(context.info))
        self._policy_leaves = [leaf for leaf in everything if leaf in params]
        self._critic_leaves = [leaf for leaf in everything if leaf in value - params]
        if not self._policy_leaves or not self._critic_leaves:
            raise UserError(
                f"model={context.model.model!r}: trpo trains policy and value apart, so each needs parameters of its "
                f"own; the {'value' if self._policy_leaves else 'policy'} has none that it could train"
            )
        return [
            *self._policy_leaves,
            *self._critic_leaves,
            *(leaf for leaf in everything if leaf not in params | value),
        ]

    def update(self, batch: Rollout) -> Metrics:
        data = self.prepare(batch)
        # Not as in training: the policy whose KL is measured must be the one that acts.
        self.network.eval()
        improved = self._improve_policy(self._surrogate(data))
        value_error = self._fit_values(data)
        self.n_updates += 1
        return improved | {
            "value_loss": value_error,
            "explained_variance": explained_variance(data.value, data.target),
            "n_updates": float(self.n_updates),
        }

    def _surrogate(self, data: Batch[Array]) -> Surrogate:
        advantage = self.standardized(data.advantage)
        if self.mlp is not None:
            rows = (self.observer.arrays(data.obs), data.action, self.observer.mask(data.obs))
            return ClosedFormSurrogate(self.mlp, self.policy, rows, advantage, self.cfg.ent_coef)
        return AutogradSurrogate(
            lambda: self.network_outputs(data.obs)[0],
            self._policy_leaves,
            self.distribution,
            self.observer.tensor(data.action),
            self.observer.tensor(advantage),
            self.cfg.ent_coef,
        )

    def _improve_policy(self, surrogate: Surrogate) -> Metrics:
        """The natural gradient's step, shortened until it is a gain within the trust region (appendix C)."""
        cfg, gradient = self.cfg, surrogate.gradient
        direction, residual = conjugate_gradient(
            lambda vector: surrogate.fisher_product(vector) + cfg.cg_damping * vector, gradient, cfg.cg_max_steps
        )
        # x' A x, since A x is what the residual does not have of the gradient.
        curvature = float(direction @ (gradient - residual))
        step = direction * (math.sqrt(2.0 * cfg.target_kl / curvature) if curvature > 0.0 else 0.0)
        old, tried = self.policy.data.clone(), [surrogate.start]

        def objective(judged: Judgement) -> float:
            return cfg.ent_coef * judged.entropy - judged.policy_loss

        def accepts(fraction: float) -> bool:
            self.policy.data.copy_(old + torch.from_numpy(fraction * step).to(old))
            tried.append(surrogate.judge())
            return tried[-1].kl <= cfg.target_kl and objective(tried[-1]) > objective(surrogate.start)

        fraction = line_search(accepts, cfg.line_search_shrinking_factor, cfg.line_search_max_iter)
        if not fraction:
            self.policy.data.copy_(old)
        return (tried[-1] if fraction else surrogate.start)._asdict() | {
            "step_fraction": fraction,
            "accepted": float(fraction > 0.0),
            "grad_norm": float(np.linalg.norm(gradient)),
            "cg_residual": float(np.linalg.norm(residual)),
        }

    def _fit_values(self, data: Batch[Array]) -> float:
        """Passes of value regression over the rollout; gives the mean loss."""
        cfg, losses = self.cfg, []
        for _ in range(cfg.n_critic_updates):
            order = self.batch_rng.permutation(len(data))
            obs, target = data.obs.take(order, axis=0), data.target.take(order)
            for start in range(0, len(data), cfg.batch_size):
                chosen = slice(start, start + cfg.batch_size)
                losses.append(self._value_gradient(obs[chosen], target[chosen]))
                self.optimizer.step(cfg.learning_rate)
        return float(np.mean(losses))

    def _value_gradient(self, obs: Array, target: Array) -> float:
        """Leave the gradient of the critic's parameters, and of no others, in the flat buffer; gives the loss."""
        if self.mlp is not None:
            d_value = np.empty_like(target)
            loss: float = heads.value_gradient(self.mlp.values(self.observer.arrays(obs)), target, 1.0, d_value)
            self.mlp.value.backward(d_value[:, None])
            return loss
        self.critic.zero_grad()
        error = value_loss(self.network_outputs(obs)[1], self.observer.tensor(target))
        error.backward(inputs=self._critic_leaves)  # type: ignore[no-untyped-call]
        return error.item()


def _needed(output: Tensor, leaves: list[nn.Parameter]) -> set[nn.Parameter]:
    """Those parameters, of which some may be frozen, that an output depends on."""
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
    build=TRPO,
    capabilities=EVERY_SPACE,
)
