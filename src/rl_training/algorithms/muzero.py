"""MuZero (Schrittwieser et al. 2020): a model of what planning needs, learned by unrolling it, and searched by PUCT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext
from rl_training.algorithms.off_policy import ReplayAlgorithm
from rl_training.algorithms.parts.planning_policy import PlanningPolicy
from rl_training.algorithms.parts.reanalysis import reanalyze, with_search_values
from rl_training.algorithms.parts.searching import PuctPlay
from rl_training.algorithms.parts.unroll_batch import (
    Goals,
    UnrollBatch,
    actions_along,
    returns_to,
    step_weights,
    targets_along,
    targets_from,
)
from rl_training.algorithms.parts.unrolled import UNROLLED, Divergences, Extras, Objective, Slopes
from rl_training.algorithms.parts.value_range import RangeWatch
from rl_training.algorithms.planning import (
    PlanningConfig,
    PlanningLoopConfig,
    PlanningModelConfig,
    SampledActionsConfig,
)
from rl_training.algorithms.settings import setting
from rl_training.data.batches import Windows
from rl_training.data.memory import Memory
from rl_training.models.muzero import Unrolled
from rl_training.ops.sampled_policy import density_gradient, log_density
from rl_training.ops.two_hot import expectation
from rl_training.types import Array, Capabilities, Metrics, Step, mean_metrics

# Where the search can be chosen, these settings act if it is this one.
_PUCT = {"search": "puct"}


class PuctSearchConfig(PlanningConfig):
    """The settings of MuZero's search, for all algorithms that can use it."""

    temperature: float = setting(
        0.25,
        "Root actions are drawn in proportion to visits^(1 / temperature); 0 takes the most visited one.",
        ge=0.0,
        default_schedule={"type": "linear", "start": 1.0, "end": 0.25},
        report=True,
        probe=0.1,
    )
    dirichlet_alpha: float = setting(
        0.3, "Concentration of the noise on the root's prior.", gt=0.0, live_when=_PUCT, probe=30.0
    )
    dirichlet_fraction: float = setting(
        0.25, "Share of that noise in the root's prior.", ge=0.0, le=1.0, report=True, live_when=_PUCT
    )
    pb_c_init: float = setting(1.25, "Weight of the prior in the search rule.", ge=0.0, live_when=_PUCT, probe=20.0)
    pb_c_base: float = setting(
        19_652.0, "How slowly that weight grows with the visits.", gt=0.0, live_when=_PUCT, probe=1.0
    )
    value_normalization: Literal["tree", "node"] = setting(
        "tree",
        "Values are scaled by the extremes of the whole tree, or of a node and its children.",
        live_when=_PUCT,
        probe="node",
    )
    unvisited: Literal["mean", "lowest"] = setting(
        "mean",
        "The value of a child without visits: the mean of its visited siblings, or the lowest.",
        live_when=_PUCT | {"pb_c_init": 0.1},  # where few simulations follow values more than priors
        probe="lowest",
    )


class MuZeroConfig(PuctSearchConfig, SampledActionsConfig):
    """minimise the cross-entropies of policy, value and reward along K steps of the model"""


def muzero_loss(out: Unrolled[Tensor], goals: Goals[Tensor], cfg: PlanningConfig) -> tuple[Tensor, Divergences]:
    """The weighted sum of the heads' cross-entropies, less the policy's entropy (Schrittwieser et al. 2020, eq. 1)."""
    if goals.sampled is None:
        log_policy = out.policy.log_softmax(dim=-1)
        entropy = -(log_policy.exp() * log_policy).sum(dim=-1)
    else:
        log_policy, entropy = log_density(out.policy, goals.sampled)
    policy = divergence(log_policy, goals.policy, goals.policy_weight)
    value = divergence(out.value.log_softmax(dim=-1), goals.value, goals.value_weight)
    reward = divergence(out.reward.log_softmax(dim=-1), goals.reward, goals.reward_weight)
    loss = cfg.policy_coef * policy + cfg.value_coef * value + cfg.reward_coef * reward
    loss = loss - cfg.ent_coef * (goals.policy_weight * entropy).sum()
    return loss, Divergences(policy, value, reward)


def divergence(log_prob: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The weighted sum of KL(target, prediction).

    Its gradient is that of the cross-entropy, which cannot fall below the target's own entropy.
    """
    return (weight * (torch.xlogy(target, target) - target * log_prob).sum(dim=-1)).sum()


def muzero_gradient(
    out: Unrolled[Array], goals: Goals[Array], cfg: PlanningConfig
) -> tuple[float, Slopes, Divergences]:
    """The same loss, and its gradient with respect to the outputs in closed form."""
    if goals.sampled is None:
        d_policy, policy, entropy = _categorical_policy_gradient(out.policy, goals, cfg)
    else:
        d_policy, policy, entropy = density_gradient(
            out.policy, goals.sampled, goals.policy, goals.policy_weight, cfg.policy_coef, cfg.ent_coef
        )
    d_value, value = _categorical_gradient(out.value, goals.value, goals.value_weight, cfg.value_coef)
    d_reward, reward = _categorical_gradient(out.reward, goals.reward, goals.reward_weight, cfg.reward_coef)
    loss = cfg.policy_coef * policy + cfg.value_coef * value + cfg.reward_coef * reward - cfg.ent_coef * entropy
    return loss, Slopes(d_policy, d_value, d_reward), Divergences(policy, value, reward)


def _categorical_gradient(logits: Array, target: Array, weight: Array, coef: float) -> tuple[Array, float]:
    """The gradient of `coef` times the weighted divergence, and the divergence."""
    log_prob = _log_softmax(logits)
    d_logits = (np.exp(log_prob) - target) * (np.float32(coef) * weight)[..., None]
    return d_logits, _divergence(log_prob, target, weight)


def _categorical_policy_gradient(logits: Array, goals: Goals[Array], cfg: PlanningConfig) -> tuple[Array, float, float]:
    log_prob = _log_softmax(logits)
    prob, weight = np.exp(log_prob), goals.policy_weight
    d_logits = (prob - goals.policy) * (np.float32(cfg.policy_coef) * weight)[..., None]
    entropy = -(prob * log_prob).sum(axis=-1)
    if cfg.ent_coef:
        d_logits += (np.float32(cfg.ent_coef) * weight)[..., None] * prob * (log_prob + entropy[..., None])
    return d_logits, _divergence(log_prob, goals.policy, weight), float((weight * entropy).sum())


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_prob: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return log_prob


def _divergence(log_prob: Array, target: Array, weight: Array) -> float:
    own = target * np.log(np.maximum(target, np.float32(1e-30)))
    return float((weight * (own - target * log_prob).sum(axis=-1)).sum())


MUZERO = Objective(muzero_loss, muzero_gradient)


def muzero_policy(context: PolicyContext) -> PlanningPolicy:
    """Build only the policy."""
    return PlanningPolicy(context, PuctPlay())


def all_rewards(cfg: PlanningConfig, ages: Array) -> Array:
    """How many rewards `[B]` the value targets of windows of these ages `[B]` have: always `n_step`."""
    return np.full(len(ages), cfg.n_step, np.int64)


class MuZero(ReplayAlgorithm):
    """Learns a model along windows of the replay buffer. The policy says which search gives it targets.

    `extras` are what is learned besides; `horizon` says how many rewards value targets have before they bootstrap.
    """

    cfg: PlanningConfig
    policy: PlanningPolicy

    def __init__(
        self,
        context: Context,
        policy: PlanningPolicy | None = None,
        extras: Extras | None = None,
        horizon: Callable[[PlanningConfig, Array], Array] = all_rewards,
    ) -> None:
        policy = muzero_policy(context) if policy is None else policy
        model = UNROLLED[policy.engine](policy, MUZERO, Extras() if extras is None else extras)
        super().__init__(context, policy, model.learners, {"network": model.follower})
        self.model = model
        self.teacher = policy.planner_of(model.follower.module)
        self._horizon = horizon
        self.range = RangeWatch(model.reward_support, model.value_support, two_player=self.info.two_player)

    @property
    def prioritized(self) -> bool:
        return self.cfg.prioritized

    def set_time_limit(self, steps: int | None) -> None:
        """Called once, before the first step: the longest episode in steps, or None if not known."""
        self.range.time_limit = steps

    def observe(self, steps: Sequence[Step]) -> None:
        super().observe(steps)
        self.range.see(np.concatenate([step.reward[step.real] for step in steps]), self.cfg.gamma)

    def learn_from(self, memory: Memory, updates: int) -> Metrics:
        return mean_metrics(self.update(memory) for _ in range(updates))

    def update(self, memory: Memory) -> Metrics:
        cfg, model = self.cfg, self.model
        length = cfg.unroll_steps + cfg.n_step
        windows = memory.windows(
            cfg.batch_size, self.batch_rng, length=length, across_episodes=False, beta=cfg.per_beta
        )
        reanalyzed = self.reanalyze(memory, windows)
        batch = self.unroll_batch(windows, self.value_targets(windows, memory.ages(windows.index[0])))
        outcome = model.differentiate(batch, cfg)
        norm = model.descend(cfg)
        self.n_updates += 1
        if self.n_updates % cfg.target_update_interval == 0:
            model.follower.follow(1.0)
        errors = np.abs(expectation(outcome.value, model.value_support) - batch.value[0])
        if cfg.prioritized:
            memory.note(windows.index[0], errors=errors, alpha=cfg.per_alpha)
        return {
            "loss": outcome.loss,
            "policy_kl": outcome.divergences.policy,
            "value_kl": outcome.divergences.value,
            "reward_kl": outcome.divergences.reward,
            "value_error": float(errors.mean()),
            "value_target_mean": float(batch.value[0].mean()),
            "reanalyzed": reanalyzed,
            "grad_norm": norm,
        } | ({"consistency_loss": outcome.consistency} if model.extras.consistency is not None else {})

    def unroll_batch(self, windows: Windows, value: Array) -> UnrollBatch:
        """The targets of a minibatch: searched policies, the given values, and the rewards that were seen."""
        steps = self.cfg.unroll_steps
        weight = step_weights(steps, windows.weight, len(windows))
        later = self.model.consistency(self.cfg) is not None
        return targets_along(
            windows,
            self.observer.scaled(windows.obs[0]),
            actions_along(windows, steps, self.info, self.batch_rng),
            value,
            (weight, weight[1:]),
            sampled=windows.records["actions"][: steps + 1] if self.info.continuous else None,
            later_obs=self.observer.scaled(windows.obs[1 : steps + 1]) if later else None,
        )

    def value_targets(self, windows: Windows, ages: Array) -> Array:
        """Values `[K + 1, B]`: returns, or what the search of old windows found."""
        target = self.returns(windows, self._horizon(self.cfg, ages))
        return with_search_values(target, windows, ages, self.cfg.search_value_age)

    def returns(self, windows: Windows, n_step: Array) -> Array:
        """Returns `[K + 1, B]` of `n_step` `[B]` rewards and the target network's value of what follows them."""
        rows = targets_from(windows, n_step, self.cfg.unroll_steps)
        seen = windows.next_obs[rows, np.arange(len(windows))]
        values = self.teacher.values(self.observer.scaled(seen.reshape(-1, *seen.shape[2:])))
        return returns_to(windows, rows, values.reshape(rows.shape), self.teacher.discount)

    def reanalysis_bytes(self) -> int:
        """The RAM that the searches of one reanalysis take."""
        return self.teacher.searcher.bytes_needed(self.cfg.reanalyzed_states, self.policy.network.latent_size)

    def reanalyze(self, memory: Memory, windows: Windows) -> float:
        """Search a share of the windows again with the target network, and keep what it found; returns that share."""
        rng = self.batch_rng

        def search(again: Array) -> dict[str, Array]:
            rows = self.observer.scaled(windows.obs[: len(again)][again])
            return self.policy.recorded(self.teacher.search(rows, rng))

        return reanalyze(memory, windows, self.cfg.reanalyze_ratio, self.cfg.unroll_steps, rng, search)


SPEC = AlgorithmSpec(
    name="muzero",
    family="planning",
    summary="Tree search in a learned model",
    config=MuZeroConfig,
    loop=PlanningLoopConfig,
    model=PlanningModelConfig,
    policy=muzero_policy,
    build=MuZero,
    capabilities=Capabilities(
        observations=("vector", "image", "dict"), actions=("discrete", "continuous"), two_player=True
    ),
)
