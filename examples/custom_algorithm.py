"""A custom algorithm, used as `algo: custom_algorithm:SPEC`.

Policy gradient with a learned baseline: A2C with Adam, one gradient step on each rollout, and one hyperparameter of its
own. Run this file, or name the SPEC on the command line, from this folder:

    rl-training describe custom_algorithm:SPEC
    rl-training train custom_algorithm:SPEC env_id=CartPole-v1 regret_schedule=0.5 total_timesteps=20000
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context
from rl_training.algorithms.on_policy import (
    ActorCriticModelConfig,
    ActorCriticPolicy,
    Batch,
    Heads,
    Objective,
    OnPolicyAlgorithm,
    OnPolicyConfig,
    OnPolicyLoopConfig,
)
from rl_training.algorithms.settings import setting
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatAdam
from rl_training.ops.policy import standardize
from rl_training.ops.value import value_loss
from rl_training.types import Capabilities, Metrics


class PlainPGLoopConfig(OnPolicyLoopConfig):
    """How much experience one update sees."""

    n_steps: int = setting(32, "Steps of each environment between two updates.", ge=1, probe=8)


class PlainPGConfig(OnPolicyConfig):
    """maximise E[log pi(a|s) w(A) A] + ent_coef H - vf_coef (V - target)^2; w is 1, or regret where A is below 0"""

    # A float also accepts regret_schedule and regret_warmup_steps; `report` puts it into the metrics.
    regret: float = setting(1.0, "Weight of actions that went worse than expected.", ge=0.0, report=True, probe=0.1)
    learning_rate: float = setting(3e-3, "Step size of the optimiser.", ge=0.0, report=True)


def plain_pg_policy_loss(log_prob: Tensor, advantage: Tensor, regret: float) -> Tensor:
    """The weighted likelihood-ratio gradient of a rollout `[N]`, to be minimised."""
    weight = torch.where(advantage < 0.0, regret, 1.0)
    return -(log_prob * weight * advantage).mean()


def plain_pg_objective(
    heads: Heads[Tensor], batch: Batch[Tensor], cfg: PlainPGConfig
) -> tuple[Tensor, Sequence[Tensor]]:
    """The whole loss of a rollout, and its metrics: its two parts and the entropy."""
    advantage = standardize(batch.advantage) if cfg.normalize_advantage else batch.advantage
    policy, entropy = plain_pg_policy_loss(heads.log_prob, advantage, cfg.regret), heads.entropy.mean()
    value_error = value_loss(heads.value, batch.target)
    return policy + cfg.vf_coef * value_error - cfg.ent_coef * entropy, (policy, value_error, entropy)


class PlainPG(OnPolicyAlgorithm):
    """Only the update is here; the base class provides acting, advantages, normalisers and checkpoints."""

    cfg: PlainPGConfig
    objective = Objective(plain_pg_objective)  # a second function would be its closed-form gradient

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.optimizer = FlatAdam(self.parameters, eps=1e-5)

    def update(self, batch: Rollout) -> Metrics:
        data = self.prepare(batch)  # the real steps of the rollout, with their advantages and value targets
        policy, value_error, entropy = self.gradient(data)
        return {
            "policy_loss": policy,
            "value_loss": value_error,
            "entropy": entropy,
            "grad_norm": self.descend(self.cfg.max_grad_norm),
            "n_updates": float(self.n_updates),
        }


SPEC = AlgorithmSpec(
    name="plain_pg",
    family="on_policy",
    summary="Plain policy gradient",
    config=PlainPGConfig,
    loop=PlainPGLoopConfig,
    model=ActorCriticModelConfig,
    policy=ActorCriticPolicy,
    build=PlainPG,
    capabilities=Capabilities(observations=("vector",), actions=("discrete", "continuous")),
)


if __name__ == "__main__":
    from rl_training import Agent

    agent = Agent("CartPole-v1", algo="custom_algorithm:SPEC", regret_schedule=0.5).learn(20_000)
    print(f"return {agent.evaluate(20).mean:.1f}, regret {agent.metrics['regret']:g} after {agent.num_timesteps} steps")
