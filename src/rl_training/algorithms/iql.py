"""Implicit Q-learning (Kostrikov et al. 2022)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from rl_training.algorithms.base import AlgorithmSpec, Context, model_setting, setting
from rl_training.algorithms.off_policy import Minibatch, OffPolicyAlgorithm, OffPolicyConfig
from rl_training.algorithms.offline import OfflineLoopConfig
from rl_training.algorithms.parts.actors import MeanActor, noisy
from rl_training.algorithms.parts.critics import Critics
from rl_training.algorithms.parts.imitators import GaussianActor
from rl_training.algorithms.parts.networks import EnsembleModelConfig, build_networks
from rl_training.algorithms.parts.state_values import StateValues
from rl_training.models.mlp_iql import MLPIQLModel
from rl_training.ops.policy import advantage_weights, effective_share
from rl_training.ops.value import td_target
from rl_training.types import Act, Array, Capabilities, Metrics


class IQLModelConfig(EnsembleModelConfig):
    """An actor, critics and a network for the values of states."""

    model: str = model_setting(probe="rl_training.testing:LinearImplicitModel")
    policy_head: Literal["gaussian", "deterministic"] = setting(
        "gaussian",
        "The policy has a deviation and learns by likelihood, or has none and learns by squares.",
        probe="deterministic",
    )


class IQLConfig(OffPolicyConfig):
    """V: an expectile of Q'(s, a). Q: r + gamma V(s'). Actor: repeat what was done, weighted by exp(beta (Q' - V))."""

    actor_learning_rate: float = setting(
        3e-4, "Step size of the actor; the paper lets it go to 0 (`actor_learning_rate_schedule: cosine`).", ge=0.0
    )
    expectile: float = setting(
        0.7, "Which expectile V is: 0.5 is the mean, towards 1 the best that was seen.", gt=0.0, lt=1.0, report=True
    )
    beta: float = setting(3.0, "How much an advantage counts: the inverse temperature.", ge=0.0, report=True)
    max_weight: float = setting(100.0, "The largest weight of an action.", gt=0.0, probe=0.1)
    noise_std: float = setting(
        0.1,
        "Deviation of the noise on actions that a deterministic policy takes online.",
        ge=0.0,
        live_when={"online": True, "policy_head": "deterministic"},
        probe=0.5,
    )


class IQL(OffPolicyAlgorithm):
    """Values of what was seen, never of actions that nobody took; in the order V, policy, Q of the paper's own code."""

    cfg: IQLConfig
    policy = "actor"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        model, size = context.model, self.info.action_size
        assert isinstance(model, IQLModelConfig)
        networks = build_networks(context, MLPIQLModel, actor_outputs=size, with_value=True)
        assert networks.value is not None
        self.actor: GaussianActor | MeanActor = (
            GaussianActor(networks, self.observer, size)
            if model.policy_head == "gaussian"
            else MeanActor(networks, self.observer)
        )
        self.critics = Critics(networks, self.observer)
        self.values = StateValues(networks.value, self.observer, fast=networks.fast)
        self.learners = {
            "actor": self.actor.learner,
            "critic": self.critics.learner,
            "value": self.values.learner,
        }
        self.followers = {"critic": self.critics.follower}

    @property
    def engine(self) -> str:
        return "mlp" if self.actor.fast else "autograd"

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        action = self.actor.decide(self.observer.scaled(obs), self.policy_rng if explore else None)
        if explore and isinstance(self.actor, MeanActor):
            action = noisy(action, self.cfg.noise_std, self.policy_rng)
        return Act(action, carry)

    def learn(self, mini: Minibatch) -> Metrics:
        cfg = self.cfg
        judged = self.critics.target(mini.obs, mini.action)[..., 0].min(axis=0)
        value_loss = self.values.fit(mini.obs, judged, cfg.expectile, cfg.learning_rate)
        advantage = judged - self.values(mini.obs)
        weight = iql_weights(advantage, cfg.beta, cfg.max_weight)
        cost = self.actor.imitate(mini.obs, mini.action, weight, cfg.actor_learning_rate)
        target = td_target(mini.reward, mini.discount, mini.terminated, self.values(mini.next_obs))
        critic_loss, q_mean = self.critics.fit(mini.obs, mini.action, target, cfg.learning_rate)
        self.critics.follower.follow(cfg.tau)
        return {
            "value_loss": value_loss,
            "actor_loss": float((weight * cost).mean()),
            "critic_loss": critic_loss,
            "q_mean": q_mean,
            "advantage_mean": float(advantage.mean()),
            "advantage_weight_mean": float(weight.mean()),
            "effective_sample_size": float(effective_share(torch.from_numpy(weight))) * len(weight),
            "weight_clip_fraction": float((weight >= cfg.max_weight * (1.0 - 1e-6)).mean()),
        }


def iql_weights(advantage: Array, beta: float, max_weight: float) -> Array:
    """exp(beta * advantage), at most `max_weight` (eq. 7)."""
    if beta == 0.0:
        return np.full_like(advantage, min(1.0, max_weight))
    return advantage_weights(torch.from_numpy(advantage), 1.0 / beta, max_weight).numpy()


SPEC = AlgorithmSpec(
    name="iql",
    family="offline",
    summary="Implicit Q-learning",
    config=IQLConfig,
    loop=OfflineLoopConfig,
    model=IQLModelConfig,
    build=IQL,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",), offline=True),
)
