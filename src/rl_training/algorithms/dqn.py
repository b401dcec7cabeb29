"""Deep Q-learning (Mnih et al. 2015), with double targets, dueling networks, n-step returns and prioritised replay."""

from __future__ import annotations

import numpy as np

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext, model_setting
from rl_training.algorithms.hindsight import HindsightLoopConfig
from rl_training.algorithms.layers import LayerSizes
from rl_training.algorithms.off_policy import Minibatch, OffPolicyAlgorithm, OffPolicyConfig, OffPolicyModelConfig
from rl_training.algorithms.parts.discrete_q import DISCRETE_Q, discrete_policy
from rl_training.algorithms.parts.policies import EpsilonGreedyPolicy
from rl_training.algorithms.settings import setting
from rl_training.data.memory import Memory
from rl_training.types import Array, Capabilities, Metrics


class DQNLoopConfig(HindsightLoopConfig):
    """Fewer updates than steps, as in the paper."""

    train_every: int = setting(4, "Steps between two phases of learning.", aliases=["train_freq"], ge=1, probe=7)
    updates_per_step: float = setting(
        0.25, "Gradient updates per step of experience, whatever num_envs is.", gt=0.0, static=True, probe=0.75
    )


class DQNModelConfig(OffPolicyModelConfig):
    """A network that returns the value of every action."""

    model: str = model_setting(probe="rl_training.testing:LinearQNetwork")
    hidden_sizes: LayerSizes = setting((64, 64), "Widths of the hidden layers.", probe=(8,))
    dueling: bool = setting(False, "Estimate the state's value and the actions' advantages separately.")


class DQNConfig(OffPolicyConfig):
    """minimise Huber(Q(s, a) - (r + gamma Q'(s', argmax Q(s', .))))"""

    learning_rate: float = setting(1e-4, "Step size of the optimiser.", ge=0.0, report=True)
    batch_size: int = setting(32, "Transitions in a minibatch.", ge=1, probe=5)
    tau: float = setting(1.0, "Share of the online weights in a target network's update.", ge=0.0, le=1.0, probe=0.5)
    target_update_interval: int = setting(2_500, "Updates between two updates of the target network.", ge=1, probe=1)
    epsilon: float = setting(
        0.05,
        "Share of random actions in training.",
        ge=0.0,
        le=1.0,
        default_schedule={"type": "linear", "start": 1.0, "end": 0.05, "fraction": 0.1},
        report=True,
        probe=0.9,
    )
    double_q: bool = setting(
        True,
        "The online network chooses the next action, the target network evaluates it.",
        live_when={"learning_rate": 0.5},  # with a small one, both networks choose the same actions for too long
    )
    prioritized: bool = setting(False, "Draw transitions by their last TD error instead of uniformly.")
    per_alpha: float = setting(
        0.6, "Exponent of the priorities; 0 is uniform.", ge=0.0, le=1.0, live_when={"prioritized": True}, probe=0.1
    )
    per_beta: float = setting(
        0.4,
        "Exponent of the importance weights; best scheduled up to 1.",
        ge=0.0,
        le=1.0,
        live_when={"prioritized": True},
        probe=1.0,
    )
    max_grad_norm: float = setting(10.0, "Gradients are scaled down to this norm.", gt=0.0, probe=1e-3)


def dqn_policy(context: PolicyContext) -> EpsilonGreedyPolicy:
    """Build only the policy."""
    model = context.model
    assert isinstance(model, DQNModelConfig)
    return discrete_policy(context, dueling=model.dueling)


class DQN(OffPolicyAlgorithm):
    """Q-values by regression on bootstrapped targets; the policy is epsilon-greedy."""

    cfg: DQNConfig

    def __init__(self, context: Context) -> None:
        policy = dqn_policy(context)
        q = DISCRETE_Q[policy.engine](policy)
        super().__init__(context, policy, {"network": q.learner}, {"network": q.follower})
        self.q = q
        self.td_errors: Array = np.zeros(0, np.float32)

    @property
    def prioritized(self) -> bool:
        return self.cfg.prioritized

    def learn_part(self, memory: Memory, rows: int) -> Metrics:
        cfg = self.cfg
        batch = memory.transitions(rows, self.batch_rng, n_step=cfg.n_step, gamma=cfg.gamma, beta=cfg.per_beta)
        metrics = self.update(batch)
        if cfg.prioritized:
            assert batch.index is not None
            memory.note(batch.index, errors=self.td_errors, alpha=cfg.per_alpha)
        return metrics

    def learn(self, mini: Minibatch) -> Metrics:
        cfg, q = self.cfg, self.q
        target = q.bootstrap(mini, double_q=cfg.double_q)
        weight = np.ones(len(mini), np.float32) if mini.weight is None else mini.weight
        outcome = q.differentiate(mini.obs, mini.action, target, weight)
        self.td_errors = outcome.td_error
        norm = q.learner.parameters.clip_grad_norm(cfg.max_grad_norm)
        q.learner.descend(cfg.learning_rate)
        if self.n_updates % cfg.target_update_interval == 0:
            q.follower.follow(cfg.tau)
        return {"loss": outcome.loss, "q_mean": outcome.value, "grad_norm": norm}


SPEC = AlgorithmSpec(
    name="dqn",
    family="off_policy",
    summary="Deep Q-learning: double, dueling, n-step, prioritised",
    config=DQNConfig,
    loop=DQNLoopConfig,
    model=DQNModelConfig,
    policy=dqn_policy,
    build=DQN,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("discrete",)),
)
