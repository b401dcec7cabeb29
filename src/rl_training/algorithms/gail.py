"""Generative adversarial imitation learning (Ho and Ermon 2016) on PPO.

Absorbing states are those of Kostrikov et al. (2019), the gradient penalty that of Gulrajani et al. (2017).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from rl_training.algorithms.base import AlgorithmSpec, Context, setting
from rl_training.algorithms.offline import TransitionsConfig
from rl_training.algorithms.on_policy import EVERY_SPACE, ActorCriticModelConfig, OnPolicyLoopConfig
from rl_training.algorithms.parts.discriminators import Judge
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.data.datasets.demonstrations import Occupancy, of_rollout
from rl_training.data.rollout import Rollout
from rl_training.models.discriminator import Discriminator
from rl_training.models.flat import FlatAdam
from rl_training.types import Array, Metrics

RewardForm = Literal["gail", "log_d", "airl", "fairl"]
_LARGEST_EXPONENT = 20.0


class GAILLoopConfig(TransitionsConfig, OnPolicyLoopConfig):
    """The on-policy loop, with demonstrations; the environment's rewards are not learned from."""

    demonstrations: int | None = setting(
        None, "How many episodes of the dataset to learn from, the first ones; all if null.", ge=1, probe=2
    )
    subsample: int = setting(1, "Every how many steps of a demonstration one is learned from.", ge=1, probe=3)


class GAILModelConfig(ActorCriticModelConfig):
    """The networks of policy and value, and the discriminator."""

    disc_hidden_sizes: tuple[PositiveInt, ...] = setting(
        (64, 64), "Widths of the discriminator's hidden layers.", probe=(8,)
    )


class GAILConfig(PPOConfig):
    """PPO on r(D(s, a)), where D maximises E_expert[log D] + E_policy[log(1 - D)]"""

    reward_form: RewardForm = setting(
        "gail",
        "Of D: `gail` -log(1 - D), `log_d` log D, `airl` log D - log(1 - D), `fairl` -l e^l of that l.",
        probe="airl",
    )
    absorbing: bool = setting(
        True, "After a termination the discriminator's reward of having ended goes on for ever; nothing otherwise."
    )
    disc_learning_rate: float = setting(1e-3, "Step size of the discriminator's Adam.", ge=0.0, report=True)
    disc_updates: int = setting(8, "Steps of the discriminator between two updates of the policy.", ge=1)
    disc_batch_size: int = setting(128, "Demonstrated transitions in such a step, and as many of the policy's.", ge=1)
    gradient_penalty_coef: float = setting(
        1.0, "Weight of (|dl/dx| - 1)^2 between demonstrated and own transitions.", ge=0.0
    )
    bc_updates: int = setting(
        0, "Steps by which the policy repeats the demonstrations (maximum likelihood) before it first acts.", ge=0
    )


# Of logits l = log D - log(1 - D).
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
    """What a reward that never ends is worth, one step ahead: sum_k gamma^k r for k = 1, 2, ..."""
    return gamma * reward / (1.0 - gamma)


class GAIL(PPO):
    """PPO whose rewards come from a discriminator, which learns to tell its steps from demonstrated ones."""

    cfg: GAILConfig

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        info, model = context.info, context.model
        assert isinstance(model, GAILModelConfig)
        self.judge = Judge(Discriminator(info, model.disc_hidden_sizes, model.activation), info, context.device)
        self._demonstrations: Occupancy | None = None
        self._reward_clip: float | None = None

    def demonstrate(self, demonstrations: Occupancy, *, reward_clip: float | None = None) -> None:
        """Say what is to be imitated, in observations and actions as the policy has them."""
        self._demonstrations, self._reward_clip = self._known(demonstrations), reward_clip
        self.judge.observer.update(demonstrations.obs)

    def _known(self, side: Occupancy) -> Occupancy:
        """All that may be known of somebody's steps: with absorbing states, that episodes ended."""
        return side if self.cfg.absorbing else replace(side, over=0.0)

    @property
    def demonstrations(self) -> Occupancy:
        assert self._demonstrations is not None, "demonstrate() comes first"
        return self._demonstrations

    def imitate(self) -> list[float]:
        """Bring the policy near the demonstrations before it first acts, as far as `bc_updates` says.

        Gives the mean log-likelihood of what was demonstrated in the minibatch of each step, before that step.
        """
        if self.cfg.bc_updates == 0:
            return []
        given = self.demonstrations
        self.observer.update(given.obs)
        obs = self.observer.scaled(given.obs)
        self.network.train()
        # PPO's own would count these steps for the value too, which they do not move: its first ones would be too long.
        optimizer, seen = FlatAdam(self.parameters, eps=self.cfg.adam_eps), []
        for _ in range(self.cfg.bc_updates):
            index = self.batch_rng.integers(len(given), size=self.cfg.batch_size)
            seen.append(self._likelihood_gradient(obs[index], given.action[index]))
            self.parameters.clip_grad_norm(self.cfg.max_grad_norm)
            optimizer.step(self.cfg.learning_rate)
        return seen

    def _likelihood_gradient(self, rows: Array, action: Array) -> float:
        """Leave the gradient of -E[log pi(a | s)] in the flat buffer; gives E[log pi(a | s)]."""
        if self.mlp is None:
            params, _ = self.network_outputs(rows)
            mean = self.distribution.log_prob(params, self.observer.tensor(action)).mean()
            self.differentiate(-mean)
            return mean.item()
        log_prob, _, _ = self.mlp.evaluate(self.observer.arrays(rows), action, self.observer.mask(rows))
        nothing = np.zeros(len(rows), np.float32)
        self.mlp.backward(nothing - 1.0 / len(rows), 0.0, nothing)
        return float(log_prob.mean())

    def update(self, batch: Rollout) -> Metrics:
        cfg, own = self.cfg, self._known(of_rollout(batch))
        self.judge.observer.update(own.obs)
        seen = [
            self.judge.learn(
                self.demonstrations,
                own,
                self.batch_rng,
                batch_size=cfg.disc_batch_size,
                penalty_coef=cfg.gradient_penalty_coef,
                learning_rate=cfg.disc_learning_rate,
            )
            for _ in range(cfg.disc_updates)
        ]
        judged = {name: float(np.mean([metrics[name] for metrics in seen])) for name in seen[0]}
        return judged | self._replace_rewards(batch) | super().update(batch)

    def _replace_rewards(self, rollout: Rollout) -> Metrics:
        """Put the discriminator's rewards in place of the environment's."""
        steps = (column.reshape(-1, *column.shape[2:]) for column in (rollout.obs, rollout.action))
        logit, logit_after_end = self.judge.logits(*steps)
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
        return super().training_state() | {"judge": self.judge.state_dict()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        super().load_training_state(state)
        self.judge.load_state_dict(state["judge"])


SPEC = AlgorithmSpec(
    name="gail",
    family="imitation",
    summary="Generative adversarial imitation learning on PPO",
    config=GAILConfig,
    loop=GAILLoopConfig,
    model=GAILModelConfig,
    build=GAIL,
    capabilities=EVERY_SPACE,
)
