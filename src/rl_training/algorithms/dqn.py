"""Deep Q-learning (Mnih et al. 2015), with double targets, dueling networks, n-step returns and prioritised replay."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.algorithms.base import AlgorithmSpec, Context, model_setting, setting
from rl_training.algorithms.off_policy import (
    Minibatch,
    OffPolicyAlgorithm,
    OffPolicyConfig,
    OffPolicyLoopConfig,
    OffPolicyModelConfig,
    Sampler,
)
from rl_training.algorithms.parts.discrete_q import ChoiceValues
from rl_training.data.replay import Replay
from rl_training.data.samplers import PrioritizedSampler
from rl_training.types import Act, Array, Capabilities, Metrics


class DQNLoopConfig(OffPolicyLoopConfig):
    """Fewer updates than steps, as in the paper."""

    learning_starts: int = setting(1_000, "Steps of random actions before learning starts.", ge=0, probe=9)
    train_every: int = setting(4, "Steps between two phases of learning.", aliases=["train_freq"], ge=1, probe=7)
    updates_per_step: float = setting(
        0.25, "Gradient updates per step of experience, whatever num_envs is.", gt=0.0, static=True, probe=0.75
    )


class DQNModelConfig(OffPolicyModelConfig):
    """A network that gives the value of every choice."""

    model: str = model_setting(probe="rl_training.testing:LinearQNetwork")
    dueling: bool = setting(False, "Estimate the state's value and the choices' advantages apart.")


class DQNConfig(OffPolicyConfig):
    """minimise Huber(Q(s, a) - (r + gamma Q'(s', argmax Q(s', .))))"""

    learning_rate: float = setting(1e-4, "Step size of the optimiser.", ge=0.0, report=True)
    batch_size: int = setting(32, "Transitions in a minibatch.", ge=1, probe=5)
    tau: float = setting(1.0, "Share of the new weights when the target network follows.", ge=0.0, le=1.0, probe=0.5)
    target_update_interval: int = setting(2_500, "Updates between two moves of the target network.", ge=1, probe=1)
    epsilon: float = setting(0.1, "Share of random actions in training.", ge=0.0, le=1.0, report=True, probe=0.9)
    double_q: bool = setting(
        True,
        "The online network chooses the action that the target network judges.",
        live_when={"learning_rate": 0.5},  # a slow one lets the two networks choose alike for too long
    )
    prioritized: bool = setting(False, "Draw transitions by their last error instead of evenly.")
    per_alpha: float = setting(
        0.6, "How much errors decide what is drawn.", ge=0.0, le=1.0, live_when={"prioritized": True}, probe=0.1
    )
    per_beta: float = setting(
        0.4,
        "How much weights make up for uneven drawing; best scheduled up to 1.",
        ge=0.0,
        le=1.0,
        live_when={"prioritized": True},
        probe=1.0,
    )
    max_grad_norm: float = setting(10.0, "Gradients are scaled down to this norm.", gt=0.0, probe=1e-3)


class DQN(OffPolicyAlgorithm):
    """Q-values by regression on bootstrapped targets; acts greedily but for a share of random actions."""

    cfg: DQNConfig
    policy = "network"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        model = context.model
        assert isinstance(model, DQNModelConfig)
        self.values = ChoiceValues(context, self.observer, dueling=model.dueling)
        self.learners = {"network": self.values.learner}
        self.followers = {"network": self.values.follower}
        self.td_errors: Array = np.zeros(0, np.float32)
        if self.cfg.prioritized:  # what one minibatch taught decides what the next one is
            self.drawn_together = 1

    def make_sampler(self, replay: Replay) -> Sampler:
        return PrioritizedSampler(replay) if self.cfg.prioritized else super().make_sampler(replay)

    def draw(self, sampler: Sampler, count: int) -> tuple[Array, Array | None]:
        return sampler.draw(self.batch_rng, count, self.cfg.per_beta)

    def judge_draw(self, sampler: Sampler, index: Array) -> None:
        sampler.update(index, self.td_errors, self.cfg.per_alpha)

    @property
    def engine(self) -> str:
        return "mlp" if self.values.fast else "autograd"

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        rows = self.observer.scaled(obs)
        return Act(self.values.decide(rows, self.cfg.epsilon, self.policy_rng if explore else None), carry)

    def learn(self, mini: Minibatch) -> Metrics:
        cfg, values = self.cfg, self.values
        target = values.bootstrap(mini, double_q=cfg.double_q)
        weight = np.ones(len(mini), np.float32) if mini.weight is None else mini.weight
        outcome = values.differentiate(mini.obs, mini.action, target, weight)
        self.td_errors = outcome.td_error
        norm = values.learner.parameters.clip_grad_norm(cfg.max_grad_norm)
        values.learner.descend(cfg.learning_rate)
        if self.n_updates % cfg.target_update_interval == 0:
            values.follower.follow(cfg.tau)
        return {"loss": outcome.loss, "q_mean": outcome.value, "grad_norm": norm}


SPEC = AlgorithmSpec(
    name="dqn",
    family="off_policy",
    summary="Deep Q-learning: double, dueling, n-step, prioritised",
    config=DQNConfig,
    loop=DQNLoopConfig,
    model=DQNModelConfig,
    build=DQN,
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("discrete",)),
)
