"""Advantage actor-critic: the synchronous form of Mnih et al. 2016."""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, ModelConfig, setting
from rl_training.algorithms.on_policy import OnPolicyAlgorithm, OnPolicyConfig, OnPolicyLoopConfig
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatRMSprop
from rl_training.ops.policy import policy_gradient_loss, standardize
from rl_training.ops.value import explained_variance, value_loss
from rl_training.types import Capabilities, Metrics


class A2CLoopConfig(OnPolicyLoopConfig):
    """Short rollouts."""

    n_steps: int = setting(5, "Steps of each environment between two updates.", ge=1, probe=8)


class A2CConfig(OnPolicyConfig):
    """maximise E[log pi(a|s) A] + ent_coef H - vf_coef (V - target)^2 / 2"""

    learning_rate: float = setting(7e-4, "Step size of the optimiser.", ge=0.0, report=True)
    gae_lambda: float = setting(1.0, "Trace decay of the advantage estimate.", ge=0.0, le=1.0, probe=0.5)
    normalize_advantage: bool = setting(False, "Standardise advantages in every update.")
    rms_alpha: float = setting(0.99, "RMSprop's decay of squared gradients.", ge=0.0, lt=1.0, static=True, probe=0.5)
    rms_eps: float = setting(1e-5, "RMSprop's epsilon.", gt=0.0, static=True, probe=0.1)


def a2c_loss(
    log_prob: Tensor, advantage: Tensor, entropy: Tensor, value_error: Tensor, cfg: A2CConfig
) -> tuple[Tensor, Tensor]:
    """The loss of a rollout `[N]` and its policy part."""
    policy = policy_gradient_loss(log_prob, advantage)
    return policy + cfg.vf_coef * value_error - cfg.ent_coef * entropy.mean(), policy


class A2C(OnPolicyAlgorithm):
    """One gradient step on each rollout."""

    cfg: A2CConfig

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.optimizer = FlatRMSprop(self.parameters, eps=self.cfg.rms_eps, alpha=self.cfg.rms_alpha)

    def update(self, batch: Rollout) -> Metrics:
        data = self.prepare(batch)
        params, value = self.network(data.obs)
        entropy = self.distribution.entropy(params)
        value_error = value_loss(value, data.target)
        advantage = standardize(data.advantage) if self.cfg.normalize_advantage else data.advantage
        log_prob = self.distribution.log_prob(params, data.action)
        loss, policy = a2c_loss(log_prob, advantage, entropy, value_error, self.cfg)
        norm = self.descend(loss)
        return {
            "policy_loss": float(policy.detach()),
            "value_loss": float(value_error.detach()),
            "entropy": float(entropy.detach().mean()),
            "grad_norm": norm,
            "explained_variance": explained_variance(data.value.cpu().numpy(), data.target.cpu().numpy()),
            "n_updates": float(self.n_updates),
        }


SPEC = AlgorithmSpec(
    name="a2c",
    family="on_policy",
    summary="Advantage actor-critic",
    config=A2CConfig,
    loop=A2CLoopConfig,
    model=ModelConfig,
    build=A2C,
    capabilities=Capabilities(observations=("vector",), actions=("discrete", "continuous")),
)
