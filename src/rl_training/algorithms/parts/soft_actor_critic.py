"""What SAC, REDQ and TQC share: a stochastic actor, a learned or fixed entropy coefficient, and the order of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pydantic import NonNegativeFloat, field_validator
from torch import nn

from rl_training.algorithms.base import Context, setting
from rl_training.algorithms.off_policy import Minibatch, OffPolicyAlgorithm, OffPolicyConfig
from rl_training.algorithms.parts.actors import SoftActor
from rl_training.algorithms.parts.critics import Critics, Reduction
from rl_training.algorithms.parts.networks import build_networks
from rl_training.models.learner import Learner
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.types import Act, Array, Metrics

# A goal gives what critics are to regress on, from the slow critics, the minibatch, the next actions and what their
# log-densities cost.
Goal = Callable[["SoftActorCritic", Minibatch, Array, Array], Array]
# A regression is one step of the critics towards that.
Regression = Callable[["SoftActorCritic", Minibatch, Array], Metrics]


class SoftConfig(OffPolicyConfig):
    """Hyperparameters of the soft actor-critics."""

    ent_coef: NonNegativeFloat | str = setting(
        "auto",
        "Weight of the entropy: a number, `auto` (learned), or `auto_0.1` (learned, from 0.1 on).",
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

    @field_validator("ent_coef", mode="before")
    @classmethod
    def _a_number_or_auto(cls, value: Any) -> Any:
        start = initial_ent_coef(value)
        return value if str(value).startswith("auto") else start


def initial_ent_coef(value: Any) -> float:
    """The number that `ent_coef` starts from."""
    learned = isinstance(value, str) and (value == "auto" or value.startswith("auto_"))
    try:
        number = 1.0 if value == "auto" else float(value.removeprefix("auto_") if learned else value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0.0 or (learned and number == 0.0):
        raise ValueError(f"{value!r} is neither a number of at least 0, nor 'auto', nor 'auto_' and a number above 0")
    return number


class LogScalar(nn.Module):
    """One positive number that is learned by its logarithm."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor([math.log(value)]))

    @property
    def value(self) -> float:
        return math.exp(float(self.log.detach()))


def plain_regression(agent: SoftActorCritic, mini: Minibatch, target: Array) -> Metrics:
    """One step of the critics towards their targets, and nothing else."""
    loss, mean = agent.critics.fit(mini.obs, mini.action, target, agent.cfg.learning_rate)
    return {"critic_loss": loss, "q_mean": mean}


class SoftActorCritic(OffPolicyAlgorithm):
    """Critics regress on what `goal` says; the actor climbs their `reduction`, minus what its certainty costs."""

    cfg: SoftConfig
    policy = "actor"

    def __init__(
        self,
        context: Context,
        *,
        goal: Goal,
        reduction: Reduction,
        policy_delay: Callable[[Any], int] = lambda cfg: 1,
        n_quantiles: int = 1,
        regress: Regression | None = None,
        actor_rate: Callable[[Any], float] = lambda cfg: float(cfg.learning_rate),
    ) -> None:
        super().__init__(context)
        size = self.info.action_size
        networks = build_networks(context, MLPSACModel, actor_outputs=2 * size, n_quantiles=n_quantiles)
        self.actor, self.critics = SoftActor(networks, self.observer), Critics(networks, self.observer)
        self.goal, self._reduction, self._policy_delay = goal, reduction, policy_delay
        self._regress, self._actor_rate = regress or plain_regression, actor_rate
        self.learners = {"actor": self.actor.learner, "critic": self.critics.learner}
        self.followers = {"critic": self.critics.follower}
        self._learned: LogScalar | None = None
        if isinstance(self.cfg.ent_coef, str):
            self._learned = LogScalar(initial_ent_coef(self.cfg.ent_coef)).to(context.device)
            self.learners["ent_coef"] = Learner(self._learned)
        wanted = self.cfg.target_entropy
        self._target_entropy = float(-size) if wanted is None else wanted

    @property
    def engine(self) -> str:
        return "mlp" if self.actor.fast else "autograd"

    def current(self, name: str) -> float:
        if name == "ent_coef" and self._learned is not None:
            return self._learned.value
        return super().current(name)

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        return Act(self.actor.decide(self.observer.scaled(obs), self.policy_rng if explore else None), carry)

    def learn(self, mini: Minibatch) -> Metrics:
        cfg, size = self.cfg, (len(mini), self.info.action_size)
        ent_coef = self.current("ent_coef")
        noise = self.batch_rng.standard_normal(size, dtype=np.float32)
        next_action, next_log_prob = self.actor.sample(mini.next_obs, noise)
        target = self.goal(self, mini, next_action, ent_coef * next_log_prob)
        metrics = self._regress(self, mini, target)
        if self.n_updates % self._policy_delay(cfg) == 0:
            noise = self.batch_rng.standard_normal(size, dtype=np.float32)
            metrics |= self._improve(mini, noise, ent_coef)
        self.critics.follower.follow(cfg.tau)
        return metrics

    def _improve(self, mini: Minibatch, noise: Array, ent_coef: float) -> Metrics:
        rate = self._actor_rate(self.cfg)
        loss, log_prob = self.actor.climb(mini.obs, noise, self.critics, self._reduction, ent_coef, rate)
        if self._learned is not None:
            # The gradient of -log(ent_coef) (log pi + target), which raises it while the entropy is too low.
            learner = self.learners["ent_coef"]
            learner.parameters.grad.fill_(-(log_prob + self._target_entropy))
            learner.descend(self.cfg.learning_rate)
        return {"actor_loss": loss, "entropy": -log_prob}
