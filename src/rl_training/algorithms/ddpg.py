"""Deep deterministic policy gradient (Lillicrap et al. 2016); also the base of TD3 and TD3+BC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext, model_setting
from rl_training.algorithms.hindsight import HindsightLoopConfig
from rl_training.algorithms.off_policy import Minibatch, OffPolicyAlgorithm, OffPolicyConfig
from rl_training.algorithms.parts.autograd import FIRST, DeterministicLoss
from rl_training.algorithms.parts.engine import FORMS
from rl_training.algorithms.parts.networks import EnsembleModelConfig, Networks, build_networks
from rl_training.algorithms.parts.policies import NoisyPolicy
from rl_training.algorithms.settings import setting
from rl_training.models.mlp_ddpg import MLPDDPGModel
from rl_training.ops.value import td_target
from rl_training.types import Array, Capabilities, Metrics


class DeterministicModelConfig(EnsembleModelConfig):
    """A deterministic actor and its critics."""

    model: str = model_setting(probe="rl_training.testing:LinearDeterministicActorCritic")


class DDPGModelConfig(DeterministicModelConfig):
    """A deterministic actor and one critic."""

    n_critics: int = setting(1, "Number of critics; targets use their least value.", ge=1, probe=2)


class DDPGConfig(OffPolicyConfig):
    """Critic: r + gamma Q'(s', pi'(s')). Actor: maximise Q(s, pi(s))."""

    learning_rate: float = setting(1e-3, "Step size of the optimisers.", ge=0.0, report=True)
    noise_std: float = setting(
        0.1, "Deviation of the noise on actions, which are in [-1, 1].", ge=0.0, report=True, probe=0.5
    )


class ActorLoss:
    """-Q(s, pi(s)), averaged over the batch (eq. 6), and its gradient in closed form."""

    def loss(self, value: Tensor, action: Tensor, data: Tensor) -> Tensor:
        return -value.mean()

    def gradient(self, value: Array, d_value: Array, action: Array, data: Array) -> tuple[float, Array]:
        return -float(value.mean()), -d_value


_ACTOR_LOSS = ActorLoss()


@dataclass(frozen=True)
class Variant:
    """The differences between the deterministic actor-critics; the defaults are DDPG.

    `smooth` changes the target actor's actions before critics evaluate them; actor and target networks are updated once
    in `policy_delay` updates; `actor_loss` returns the actor's loss for the current config.
    """

    smooth: Callable[[DDPG, Array], Array] = lambda agent, action: action
    policy_delay: Callable[[Any], int] = lambda cfg: 1
    actor_loss: Callable[[Any], DeterministicLoss] = lambda cfg: _ACTOR_LOSS


class DDPG(OffPolicyAlgorithm):
    """Critics regress on the least of the target critics' values of the target actor's action.

    The actor maximises the value of the first critic.
    """

    cfg: DDPGConfig

    def __init__(self, context: Context, variant: Variant) -> None:
        networks = _networks(context)
        policy, forms = NoisyPolicy(context, networks.actor, networks.engine), FORMS[networks.engine]
        actor, critics = forms.actor(policy, with_target=True), forms.critics(networks, policy.observer)
        assert actor.follower is not None
        learners = {"actor": actor.learner, "critic": critics.learner}
        super().__init__(context, policy, learners, {"actor": actor.follower, "critic": critics.follower})
        self.actor, self.critics, self.improvement = actor, critics, forms.improvement(actor, critics)
        self._variant = variant

    def learn(self, mini: Minibatch) -> Metrics:
        cfg, variant = self.cfg, self._variant
        next_action = variant.smooth(self, np.tanh(self.actor.target_outputs(mini.next_obs)))
        least = self.critics.target(mini.next_obs, next_action)[..., 0].min(axis=0)
        target = td_target(mini.reward, mini.discount, mini.terminated, least)
        critic_loss, q_mean = self.critics.fit(mini.obs, mini.action, target, cfg.learning_rate)
        metrics = {"critic_loss": critic_loss, "q_mean": q_mean}
        if self.n_updates % variant.policy_delay(cfg) == 0:
            loss = variant.actor_loss(cfg)
            metrics["actor_loss"] = self.improvement.deterministic(mini.obs, mini.action, FIRST, loss)
            self.actor.learner.descend(cfg.learning_rate)
            for follower in self.followers.values():
                follower.follow(cfg.tau)
        return metrics


def _networks(context: PolicyContext) -> Networks:
    return build_networks(context, MLPDDPGModel, actor_outputs=context.info.action_size)


def deterministic_policy(context: PolicyContext) -> NoisyPolicy:
    """Build only the policy."""
    networks = _networks(context)
    return NoisyPolicy(context, networks.actor, networks.engine)


SPEC = AlgorithmSpec(
    name="ddpg",
    family="off_policy",
    summary="Deep deterministic policy gradient",
    config=DDPGConfig,
    loop=HindsightLoopConfig,
    model=DDPGModelConfig,
    policy=deterministic_policy,
    build=partial(DDPG, variant=Variant()),
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",)),
)
