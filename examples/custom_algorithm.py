"""An algorithm of your own, used as `algo: custom_algorithm:SPEC`.

Policy gradient with a learned baseline: A2C with Adam, one gradient step on each rollout, and one hyperparameter of its
own. Run this file, or name the SPEC on the command line, from this folder:

    rl-training describe custom_algorithm:SPEC
    rl-training train custom_algorithm:SPEC env_id=CartPole-v1 regret_schedule=0.5 total_timesteps=20000
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, setting
from rl_training.algorithms.on_policy import (
    ActorCriticModelConfig,
    OnPolicyAlgorithm,
    OnPolicyConfig,
    OnPolicyLoopConfig,
)
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatAdam
from rl_training.ops.policy import standardize
from rl_training.ops.value import value_loss
from rl_training.types import Capabilities, Metrics


class PlainPGLoopConfig(OnPolicyLoopConfig):
    """How much experience one update sees."""

    n_steps: int = setting(32, "Steps of each environment between two updates.", ge=1, probe=8)


class PlainPGConfig(OnPolicyConfig):
    """maximise E[log pi(a|s) w(A) A] + ent_coef H - vf_coef (V - target)^2 / 2; w is 1, or regret where A is below 0"""

    # A float takes regret_schedule and regret_warmup_steps without another word; `report` puts it into the metrics.
    regret: float = setting(1.0, "Weight of actions that went worse than expected.", ge=0.0, report=True, probe=0.1)
    learning_rate: float = setting(3e-3, "Step size of the optimiser.", ge=0.0, report=True)


def plain_pg_policy_loss(log_prob: Tensor, advantage: Tensor, regret: float) -> Tensor:
    """The weighted likelihood-ratio gradient of a rollout `[N]`, to be minimised."""
    weight = torch.where(advantage < 0.0, regret, 1.0)
    return -(log_prob * weight * advantage).mean()


class PlainPG(OnPolicyAlgorithm):
    """Acting, advantages, normalisers and checkpoints are the family's; only the update is here."""

    cfg: PlainPGConfig

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.optimizer = FlatAdam(self.parameters, eps=1e-5)

    def update(self, batch: Rollout) -> Metrics:
        arrays = self.prepare(batch)  # the real steps of the rollout, with their advantages and value targets
        data = self.tensors(arrays)
        params, value = self.network_outputs(arrays.obs)
        advantage = standardize(data.advantage) if self.cfg.normalize_advantage else data.advantage
        policy = plain_pg_policy_loss(self.distribution.log_prob(params, data.action), advantage, self.cfg.regret)
        entropy = self.distribution.entropy(params).mean()
        value_error = value_loss(value, data.target)
        self.differentiate(policy + self.cfg.vf_coef * value_error - self.cfg.ent_coef * entropy)
        norm = self.descend(self.cfg.max_grad_norm)
        return {
            "policy_loss": float(policy.detach()),
            "value_loss": float(value_error.detach()),
            "entropy": float(entropy.detach()),
            "grad_norm": norm,
            "n_updates": float(self.n_updates),
        }


SPEC = AlgorithmSpec(
    name="plain_pg",
    family="on_policy",
    summary="Plain policy gradient",
    config=PlainPGConfig,
    loop=PlainPGLoopConfig,
    model=ActorCriticModelConfig,
    build=PlainPG,
    capabilities=Capabilities(observations=("vector",), actions=("discrete", "continuous")),
)


if __name__ == "__main__":
    from rl_training import Agent

    agent = Agent("CartPole-v1", algo="custom_algorithm:SPEC", regret_schedule=0.5).learn(20_000)
    print(f"return {agent.evaluate(20).mean:.1f}, regret {agent.metrics['regret']:g} after {agent.num_timesteps} steps")
