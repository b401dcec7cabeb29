"""What DDPG and TD3 share: a deterministic actor, noise for exploring, and the order of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rl_training.algorithms.base import Context, model_setting, setting
from rl_training.algorithms.off_policy import Minibatch, OffPolicyAlgorithm, OffPolicyConfig
from rl_training.algorithms.parts.actors import Anchor, DeterministicActor, noisy
from rl_training.algorithms.parts.critics import Critics
from rl_training.algorithms.parts.networks import EnsembleModelConfig, build_networks
from rl_training.models.mlp_ddpg import MLPDDPGModel
from rl_training.ops.value import td_target
from rl_training.types import Act, Array, Metrics


class DeterministicModelConfig(EnsembleModelConfig):
    """A deterministic actor and its critics."""

    model: str = model_setting(probe="rl_training.testing:LinearDeterministicActorCritic")


class DeterministicConfig(OffPolicyConfig):
    """Hyperparameters of the deterministic actor-critics."""

    learning_rate: float = setting(1e-3, "Step size of the optimisers.", ge=0.0, report=True)
    noise_std: float = setting(
        0.1, "Deviation of the noise on actions, which lie in [-1, 1].", ge=0.0, report=True, probe=0.5
    )


class DeterministicActorCritic(OffPolicyAlgorithm):
    """Critics regress on the least of the slow critics' values of the slow actor's action; the actor climbs the first.

    `smooth` changes the slow actor's actions before they are judged; actor and slow copies move once in `policy_delay`
    updates; `anchor` says which actions the actor stays near to, if any.
    """

    cfg: DeterministicConfig
    policy = "actor"

    def __init__(
        self,
        context: Context,
        *,
        smooth: Callable[[DeterministicActorCritic, Array], Array] = lambda agent, action: action,
        policy_delay: Callable[[Any], int] = lambda cfg: 1,
        anchor: Callable[[DeterministicActorCritic, Minibatch], Anchor | None] = lambda agent, mini: None,
    ) -> None:
        super().__init__(context)
        networks = build_networks(context, MLPDDPGModel, actor_outputs=self.info.action_size)
        self.actor, self.critics = DeterministicActor(networks, self.observer), Critics(networks, self.observer)
        self._smooth, self._policy_delay, self._anchor = smooth, policy_delay, anchor
        self.learners = {"actor": self.actor.learner, "critic": self.critics.learner}
        self.followers = {"actor": self.actor.follower, "critic": self.critics.follower}

    @property
    def engine(self) -> str:
        return "mlp" if self.actor.fast else "autograd"

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        action = np.tanh(self.actor.raw(self.observer.scaled(obs)))
        if explore and self.cfg.noise_std > 0.0:
            action = noisy(action, self.cfg.noise_std, self.policy_rng)
        return Act(action, carry)

    def learn(self, mini: Minibatch) -> Metrics:
        cfg = self.cfg
        next_action = self._smooth(self, self.actor.target(mini.next_obs))
        least = self.critics.target(mini.next_obs, next_action)[..., 0].min(axis=0)
        target = td_target(mini.reward, mini.discount, mini.terminated, least)
        critic_loss, q_mean = self.critics.fit(mini.obs, mini.action, target, cfg.learning_rate)
        metrics = {"critic_loss": critic_loss, "q_mean": q_mean}
        if self.n_updates % self._policy_delay(cfg) == 0:
            metrics["actor_loss"] = self.actor.climb(
                mini.obs, self.critics, cfg.learning_rate, self._anchor(self, mini)
            )
            for follower in self.followers.values():
                follower.follow(cfg.tau)
        return metrics
