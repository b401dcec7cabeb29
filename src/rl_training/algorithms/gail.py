"""Generative adversarial imitation learning (Ho and Ermon 2016) on PPO.

Absorbing states are those of Kostrikov et al. (2019), the gradient penalty that of Gulrajani et al. (2017).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveInt
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, dense_weights
from rl_training.algorithms.offline import TransitionsConfig
from rl_training.algorithms.on_policy import (
    EVERY_SPACE,
    ActorCriticModelConfig,
    ActorCriticPolicy,
    OnPolicyLoopConfig,
)
from rl_training.algorithms.parts.discriminators import TrainedDiscriminator
from rl_training.algorithms.parts.objectives import Batch, Heads, Objective, Slopes
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.algorithms.settings import setting
from rl_training.data.datasets.demonstrations import Occupancy, of_rollout
from rl_training.data.rollout import Rollout
from rl_training.models.discriminator import Discriminator
from rl_training.models.flat import FlatAdam
from rl_training.types import Array, Metrics, SpaceInfo

_LOG = logging.getLogger("rl_training")

RewardForm = Literal["gail", "log_d", "airl", "fairl"]
_LARGEST_EXPONENT = 20.0


class GAILLoopConfig(TransitionsConfig, OnPolicyLoopConfig):
    """The on-policy loop, with demonstrations; the environment's rewards are not used for learning."""

    demonstrations: int | None = setting(
        None, "Use only this many episodes of the dataset, the first ones; all if null.", ge=1, probe=2
    )
    subsample: int = setting(1, "Use one of every this many steps of a demonstration.", ge=1, probe=3)


class GAILModelConfig(ActorCriticModelConfig):
    """The networks of policy and value, and the discriminator."""

    disc_hidden_sizes: tuple[PositiveInt, ...] = setting(
        (64, 64), "Widths of the discriminator's hidden layers.", probe=(8,)
    )

    sizes: ClassVar[tuple[str, ...]] = ("hidden_sizes", "disc_hidden_sizes")

    def least_weights(self, info: SpaceInfo) -> int:
        return super().least_weights(info) + dense_weights(self.disc_hidden_sizes)


class GAILConfig(PPOConfig):
    """PPO on r(D(s, a)), where D maximises E_expert[log D] + E_policy[log(1 - D)]"""

    reward_form: RewardForm = setting(
        "gail",
        "Of D: `gail` -log(1 - D), `log_d` log D, `airl` log D - log(1 - D), `fairl` -l e^l of that l.",
        probe="airl",
    )
    absorbing: bool = setting(
        True, "A terminated episode earns the discriminator's reward of an absorbing state for ever; nothing if false."
    )
    disc_learning_rate: float = setting(1e-3, "Step size of the discriminator's Adam.", ge=0.0, report=True)
    disc_updates: int = setting(8, "Steps of the discriminator between two updates of the policy.", ge=1)
    disc_batch_size: int = setting(128, "Demonstrated transitions in such a step, and as many of the policy's.", ge=1)
    gradient_penalty_coef: float = setting(
        1.0, "Weight of (|dl/dx| - 1)^2 between the policy's and demonstrated transitions.", ge=0.0
    )
    bc_updates: int = setting(0, "Steps of behaviour cloning (maximum likelihood) before the policy first acts.", ge=0)


# Rewards as functions of the logits l = log D - log(1 - D).
_REWARDS: Mapping[RewardForm, Callable[[Array], Array]] = {
    "gail": lambda logit: np.logaddexp(0.0, logit),  # -log(1 - D), never negative
    "log_d": lambda logit: -np.logaddexp(0.0, -logit),  # never positive
    "airl": lambda logit: logit,  # (Fu et al. 2018)
    "fairl": lambda logit: -logit * np.exp(np.minimum(logit, _LARGEST_EXPONENT)),  # (Ghasemipour et al. 2020)
}


def imitation_reward(logit: Array, form: RewardForm) -> Array:
    """The rewards of steps with these logits of D, in one of the four forms."""
    return _REWARDS[form](logit)


def absorbed_value(reward: float, gamma: float) -> float:
    """The discounted return of an absorbing state, one step ahead: sum_k gamma^k r for k = 1, 2, ..."""
    return gamma * reward / (1.0 - gamma)


def likelihood_objective(heads: Heads[Tensor], batch: Batch[Tensor], cfg: GAILConfig) -> tuple[Tensor, list[Tensor]]:
    """The loss of behaviour cloning, -E[log pi(a | s)], and E[log pi(a | s)] for the metrics."""
    mean = heads.log_prob.mean()
    return -mean, [mean]


def likelihood_gradient(heads: Heads[Array], batch: Batch[Array], cfg: GAILConfig) -> tuple[Slopes, tuple[float, ...]]:
    """`likelihood_objective` in closed form."""
    nothing = np.zeros(len(batch), np.float32)
    return Slopes(nothing - 1.0 / len(batch), 0.0, nothing), (float(heads.log_prob.mean()),)


LIKELIHOOD = Objective(likelihood_objective, likelihood_gradient)


def _pairs(obs: Array, action: Array) -> Batch[Array]:
    """A batch of observations and actions only; a likelihood does not use the other columns."""
    nothing = np.zeros(len(obs), np.float32)
    return Batch(obs, action, nothing, nothing, nothing, nothing)


class GAIL(PPO):
    """PPO whose rewards come from a discriminator, which is trained to tell its steps from demonstrated ones."""

    cfg: GAILConfig

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        info, model = context.info, context.model
        assert isinstance(model, GAILModelConfig)
        network = Discriminator(info, model.disc_hidden_sizes, model.activation, image_encoder=model.image_encoder)
        self.discriminator = TrainedDiscriminator(network, info, context.device)
        self._demonstrations: Occupancy | None = None
        self._origin = ""
        self._reward_clip: float | None = None

    def demonstrate(self, demonstrations: Occupancy, *, origin: str = "", reward_clip: float | None = None) -> None:
        """Set the demonstrations, in the policy's observations and actions; `origin` describes them in the log."""
        self._demonstrations, self._origin, self._reward_clip = self._ends_hidden(demonstrations), origin, reward_clip
        self.discriminator.observer.update(demonstrations.obs)

    def _ends_hidden(self, occupancy: Occupancy) -> Occupancy:
        """Hide the ends of episodes from the discriminator, unless `absorbing` is set."""
        return occupancy if self.cfg.absorbing else replace(occupancy, over=0.0)

    @property
    def demonstrations(self) -> Occupancy:
        assert self._demonstrations is not None, "demonstrate() comes first"
        return self._demonstrations

    def begin(self) -> None:
        """Log what is imitated, and warm-start the policy by behaviour cloning (`bc_updates`)."""
        ends = "an end counts as a state that lasts for ever"
        if not self.cfg.absorbing:
            ends = "no reward follows an end, so rewards above 0 favour long episodes, and those below 0 short ones"
        _LOG.info(
            "imitates %d steps of %s; %s (absorbing=%s)",
            len(self.demonstrations),
            self._origin,
            ends,
            self.cfg.absorbing,
        )
        seen = self.imitate()
        if seen:
            _LOG.info(
                "behaviour cloning before the policy acts: mean log-likelihood %.3f at the first of %d steps, %.3f at "
                "the last (bc_updates)",
                seen[0],
                len(seen),
                seen[-1],
            )

    def imitate(self) -> list[float]:
        """`bc_updates` steps of behaviour cloning; returns the mean log-likelihood of each minibatch before it."""
        if self.cfg.bc_updates == 0:
            return []
        given = self.demonstrations
        self.observer.update(given.obs)
        obs = self.observer.scaled(given.obs)
        self.network.train()
        # A separate Adam: PPO's would count these steps for the value too and make its first PPO steps too long.
        optimizer, seen = FlatAdam(self.parameters, eps=self.cfg.adam_eps), []
        for _ in range(self.cfg.bc_updates):
            index = self.batch_rng.integers(len(given), size=self.cfg.batch_size)
            pairs = _pairs(obs[index], self.policy.to_network(given.action[index]))
            (log_likelihood,) = self.form.gradient(LIKELIHOOD, pairs, self.cfg)
            seen.append(log_likelihood)
            self.parameters.clip_grad_norm(self.cfg.max_grad_norm)
            optimizer.step(self.cfg.learning_rate)
        return seen

    def update(self, batch: Rollout) -> Metrics:
        cfg, own = self.cfg, self._ends_hidden(of_rollout(batch))
        self.discriminator.observer.update(own.obs)
        seen = [
            self.discriminator.learn(
                self.demonstrations,
                own,
                self.batch_rng,
                batch_size=cfg.disc_batch_size,
                penalty_coef=cfg.gradient_penalty_coef,
                learning_rate=cfg.disc_learning_rate,
            )
            for _ in range(cfg.disc_updates)
        ]
        means = {name: float(np.mean([metrics[name] for metrics in seen])) for name in seen[0]}
        return means | self._replace_rewards(batch) | super().update(batch)

    def _replace_rewards(self, rollout: Rollout) -> Metrics:
        """Replace the environment's rewards by the discriminator's."""
        steps = (column.reshape(-1, *column.shape[2:]) for column in (rollout.obs, rollout.action))
        logit, logit_after_end = self.discriminator.logits(*steps)
        rollout.reward[...] = self._reward(logit).reshape(rollout.reward.shape)
        metrics = {"imitation_reward_mean": float(rollout.reward[rollout.real].mean())}
        if self.cfg.absorbing:
            metrics["absorbing_reward"] = float(self._reward(logit_after_end))
            rollout.reward[rollout.terminated] += absorbed_value(metrics["absorbing_reward"], self.cfg.gamma)
        return metrics

    def _reward(self, logit: Array) -> Array:
        reward, most = imitation_reward(logit, self.cfg.reward_form), self._reward_clip
        return reward if most is None else np.clip(reward, -most, most)

    def training_state(self) -> dict[str, Any]:
        return super().training_state() | {"discriminator": self.discriminator.state_dict()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        super().load_training_state(state)
        self.discriminator.load_state_dict(state["discriminator"])


SPEC = AlgorithmSpec(
    name="gail",
    family="imitation",
    summary="Generative adversarial imitation learning on PPO",
    config=GAILConfig,
    loop=GAILLoopConfig,
    model=GAILModelConfig,
    policy=ActorCriticPolicy,
    build=GAIL,
    capabilities=EVERY_SPACE,
)
