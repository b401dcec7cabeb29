"""Soft actor-critic (Haarnoja et al. 2018); also the base of REDQ, TQC and CQL."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import NonNegativeFloat, field_validator
from torch import Tensor, nn

from rl_training.algorithms.base import AlgorithmSpec, Context, LoopConfig, NetworkConfig, PolicyContext
from rl_training.algorithms.hindsight import HindsightLoopConfig
from rl_training.algorithms.off_policy import ROW_BYTES, Minibatch, OffPolicyAlgorithm, OffPolicyConfig
from rl_training.algorithms.parts.autograd import LEAST, SQUARED_ERROR, CriticLoss, Reduction
from rl_training.algorithms.parts.engine import FORMS
from rl_training.algorithms.parts.networks import EnsembleModelConfig, Networks, build_networks
from rl_training.algorithms.parts.policies import SquashedGaussianPolicy
from rl_training.algorithms.settings import setting
from rl_training.data.batches import Between, chains_of
from rl_training.data.memory import Memory
from rl_training.models.flat import Learner
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.ops.value import td_target
from rl_training.types import Array, Capabilities, Metrics, SpaceInfo


class SACConfig(OffPolicyConfig):
    """Critics: r + gamma (min Q'(s', a') - ent_coef log pi(a' | s')). Actor: maximise min Q - ent_coef log pi."""

    ent_coef: NonNegativeFloat | str = setting(
        "auto",
        "Weight of the entropy: a number, `auto` (learned), or `auto_0.1` (learned, starting at 0.1).",
        aliases=["entropy_coef"],
        report=True,
        probe=0.5,
    )
    target_entropy: float | None = setting(
        None,
        "The entropy that a learned ent_coef aims at; minus the number of actions if null.",
        static=True,
        live_when={"ent_coef": "auto"},
        probe=3.0,
    )

    sizes: ClassVar[tuple[str, ...]] = (*OffPolicyConfig.sizes, "n_step")

    @property
    def soft_targets(self) -> bool:
        """Whether targets count the entropy of every state of a chain."""
        return True

    def least_bytes(self, info: SpaceInfo, model: NetworkConfig, loop: LoopConfig, num_envs: int) -> int:
        inside = self.batch_size * (self.n_step - 1) * (info.obs_bytes + ROW_BYTES) if self.soft_targets else 0
        return inside + super().least_bytes(info, model, loop, num_envs)

    @field_validator("ent_coef", mode="before")
    @classmethod
    def _a_number_or_auto(cls, value: Any) -> Any:
        start = initial_ent_coef(value)
        return value if str(value).startswith("auto") else start


def initial_ent_coef(value: Any) -> float:
    """The initial value of `ent_coef`."""
    learned = isinstance(value, str) and (value == "auto" or value.startswith("auto_"))
    try:
        number = 1.0 if value == "auto" else float(value.removeprefix("auto_") if learned else value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0.0 or (learned and number == 0.0):
        raise ValueError(f"{value!r} is neither a number of at least 0, nor 'auto', nor 'auto_' and a number above 0")
    return number


class LogScalar(nn.Module):
    """One positive learned number, parametrised by its logarithm."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor([math.log(value)]))

    @property
    def value(self) -> float:
        return math.exp(float(self.log.detach()))


class SoftActorLoss(NamedTuple):
    """ent_coef log pi(a | s) - Q(s, a), averaged over the batch (eq. 9), and its gradient in closed form."""

    ent_coef: float

    def loss(self, value: Tensor, log_prob: Tensor) -> Tensor:
        return (self.ent_coef * log_prob - value).mean()

    def gradient(self, value: Array, d_value: Array, log_prob: float) -> tuple[float, Array, float]:
        return self.ent_coef * log_prob - float(value.mean()), -d_value, self.ent_coef / len(value)


def sac_target(agent: SAC, mini: Minibatch, next_action: Array, entropy_cost: Array) -> Array:
    """The least of the target critics' values of the next action, minus the cost of its entropy (eq. 8)."""
    least = agent.critics.target(mini.next_obs, next_action)[..., 0].min(axis=0)
    return td_target(mini.reward, mini.discount, mini.terminated, least - entropy_cost)


def fit_critics(agent: SAC, mini: Minibatch, target: Array) -> Metrics:
    """One step of the critics towards their targets."""
    loss, mean = agent.critics.fit(mini.obs, mini.action, target, agent.cfg.learning_rate)
    return {"critic_loss": loss, "q_mean": mean}


@dataclass(frozen=True)
class Variant:
    """The differences between the soft actor-critics; the defaults are SAC.

    `target` computes the critics' targets from the minibatch, the next actions and ent_coef times their log-densities.
    `fit` is one step of the critics towards them. The policy maximises the `reduction` of their values.
    """

    target: Callable[[SAC, Minibatch, Array, Array], Array] = sac_target
    fit: Callable[[SAC, Minibatch, Array], Metrics] = fit_critics
    critic_loss: CriticLoss = SQUARED_ERROR
    reduction: Reduction = LEAST
    policy_delay: Callable[[Any], int] = lambda cfg: 1
    actor_learning_rate: Callable[[Any], float] = lambda cfg: float(cfg.learning_rate)
    n_quantiles: Callable[[Any], int] = lambda model: 1


class SAC(OffPolicyAlgorithm):
    """Critics regress on soft targets; a stochastic policy maximises their values and its own entropy."""

    cfg: SACConfig

    def __init__(self, context: Context, variant: Variant) -> None:
        networks = _networks(context, variant)
        policy, forms = SquashedGaussianPolicy(context, networks.actor, networks.engine), FORMS[networks.engine]
        actor, critics = forms.actor(policy), forms.critics(networks, policy.observer, variant.critic_loss)
        learners = {"actor": actor.learner, "critic": critics.learner}
        super().__init__(context, policy, learners, {"critic": critics.follower})
        self.actor, self.critics, self.improvement = actor, critics, forms.improvement(actor, critics)
        self._variant = variant
        self._learned: LogScalar | None = None
        if isinstance(self.cfg.ent_coef, str):
            self._learned = LogScalar(initial_ent_coef(self.cfg.ent_coef)).to(context.device)
            self.learners["ent_coef"] = Learner(self._learned)
        wanted = self.cfg.target_entropy
        self._target_entropy = float(-self.info.action_size) if wanted is None else wanted

    def current(self, name: str) -> float:
        if name == "ent_coef" and self._learned is not None:
            return self._learned.value
        return super().current(name)

    def learn_part(self, memory: Memory, rows: int) -> Metrics:
        cfg = self.cfg
        if cfg.n_step == 1 or not cfg.soft_targets:
            return super().learn_part(memory, rows)
        # A soft return counts the entropy of every state that it passes: chains need the states inside of them.
        windows = memory.windows(rows, self.batch_rng, length=cfg.n_step, across_episodes=False)
        return self.update(chains_of(windows, cfg.gamma))

    def learn(self, mini: Minibatch) -> Metrics:
        cfg, variant, size = self.cfg, self._variant, (len(mini), self.info.action_size)
        ent_coef = self.current("ent_coef")
        weight = ent_coef if cfg.soft_targets else 0.0
        noise = self.batch_rng.standard_normal(size, dtype=np.float32)
        next_action, next_log_prob = self.actor.squashed_actions(mini.next_obs, noise)
        if mini.between is not None:
            mini = replace(mini, reward=mini.reward - weight * self._log_prob_inside(mini.between))
        target = variant.target(self, mini, next_action, weight * next_log_prob)
        metrics = variant.fit(self, mini, target)
        if self.n_updates % variant.policy_delay(cfg) == 0:
            noise = self.batch_rng.standard_normal(size, dtype=np.float32)
            metrics |= self._improve(mini, noise, ent_coef)
        self.critics.follower.follow(cfg.tau)
        return metrics

    def _log_prob_inside(self, between: Between) -> Array:
        """The discounted sum `[B]` of the log-densities of fresh actions at the states inside of chains.

        The actions are the current policy's own, so that this estimates its entropy. Those of the memory come from
        older policies, and their log-densities have no lower limit.
        """
        count, rows = between.discount.shape
        noise = self.batch_rng.standard_normal((count * rows, self.info.action_size), dtype=np.float32)
        _, log_prob = self.actor.squashed_actions(between.obs.reshape(count * rows, *between.obs.shape[2:]), noise)
        total: Array = (between.discount * log_prob.reshape(count, rows)).sum(axis=0)
        return total

    def _improve(self, mini: Minibatch, noise: Array, ent_coef: float) -> Metrics:
        loss, log_prob = self.improvement.soft(mini.obs, noise, self._variant.reduction, SoftActorLoss(ent_coef))
        self.actor.learner.descend(self._variant.actor_learning_rate(self.cfg))
        if self._learned is not None:
            # The gradient of -log(ent_coef) (log pi + target), which raises it while the entropy is too low.
            learner = self.learners["ent_coef"]
            learner.parameters.grad.fill_(-(log_prob + self._target_entropy))
            learner.descend(self.cfg.learning_rate)
        return {"actor_loss": loss, "entropy": -log_prob}


def _networks(context: PolicyContext, variant: Variant) -> Networks:
    outputs, n_quantiles = 2 * context.info.action_size, variant.n_quantiles(context.model)
    return build_networks(context, MLPSACModel, actor_outputs=outputs, n_quantiles=n_quantiles)


_SAC = Variant()


def soft_policy(context: PolicyContext, variant: Variant = _SAC) -> SquashedGaussianPolicy:
    """Build only the policy."""
    networks = _networks(context, variant)
    return SquashedGaussianPolicy(context, networks.actor, networks.engine)


SPEC = AlgorithmSpec(
    name="sac",
    family="off_policy",
    summary="Soft actor-critic",
    config=SACConfig,
    loop=HindsightLoopConfig,
    model=EnsembleModelConfig,
    policy=soft_policy,
    build=partial(SAC, variant=_SAC),
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",)),
)
