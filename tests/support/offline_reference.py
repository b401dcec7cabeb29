"""The offline algorithms once more, in plain torch, from their papers; the form is that of `off_policy_reference`.

A reference draws from a copy of the agent's stream, in the order that is part of what is tested.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from off_policy_reference import (
    ActorCriticReference,
    DeterministicReference,
    SoftReference,
    adam,
    bootstrapped,
    flat,
    follow,
    squashed_sample,
    step_down,
    tensor,
)
from rl_training.data.batches import Transitions

Loss = Callable[[Any, Tensor, Tensor], Tensor]


# What AWAC reports: users' plots depend on these names.
AWAC_METRICS = {
    "critic_loss",
    "actor_loss",
    "target_q_mean",
    "advantage_mean",
    "advantage_weight_mean",
    "behavior_logprob_mean",
    "effective_sample_size",
    "weight_clip_fraction",
}


def squashed_density(params: Tensor, action: Tensor) -> Tensor:
    """The log-density of tanh(x), x Gaussian, by the change of variables as it stands in books."""
    mean, log_std = params.double().chunk(2, dim=-1)
    action = action.double()
    gaussian = torch.distributions.Normal(mean, log_std.clamp(-20.0, 2.0).exp()).log_prob(action.atanh())
    return (gaussian - (1.0 - action**2).log()).sum(dim=-1).float()


def squared_error(actor: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
    """For each row, averaged over the dimensions of the action."""
    return ((actor(obs).tanh() - action) ** 2).mean(dim=-1)


def gaussian_cost(actor: Any, obs: Tensor, action: Tensor) -> Tensor:
    """-log N(a; tanh(network(s)), std), the deviation being the same everywhere."""
    gaussian = torch.distributions.Normal(actor.network(obs).tanh(), actor.log_std.exp())
    return -gaussian.log_prob(action).sum(dim=-1)


def choice_cost(network: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network(obs), action, reduction="none")


def factored_cost(network: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
    """Independent choices of 3 and of 2."""
    first, second = network(obs).split([3, 2], dim=-1)
    return nn.functional.cross_entropy(first, action[:, 0], reduction="none") + nn.functional.cross_entropy(
        second, action[:, 1], reduction="none"
    )


class ImitationReference:
    """Behaviour cloning."""

    def __init__(self, agent: Any, cost: Loss) -> None:
        self.cost = cost
        self.actor = copy.deepcopy(agent.learners["actor"].module)
        self.actor_adam = adam(self.actor, agent.cfg.learning_rate)

    def update(self, step: Transitions) -> dict[str, float]:
        loss = self.cost(self.actor, tensor(step.obs), tensor(step.action)).mean()
        step_down(self.actor_adam, loss)
        return {"loss": loss.item()}

    def weights(self) -> dict[str, Tensor]:
        return {"actor": flat(self.actor)}


class AWACReference(ActorCriticReference):
    """Nair et al. 2020: a critic's target without entropy, and likelihood weighted by the advantage."""

    def drawn(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions of the policy, squashed or clipped."""
        if not hasattr(self.actor, "log_std"):
            return squashed_sample(self.actor(obs), noise)[0]
        own: Tensor = self.actor(obs).tanh() + self.actor.log_std.exp() * noise
        return own.clamp(-1.0, 1.0)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        if not hasattr(self.actor, "log_std"):
            return squashed_density(self.actor(obs), action)
        return -gaussian_cost(self.actor, obs, action)

    def update(self, step: Transitions) -> dict[str, float]:
        cfg, obs, action = self.cfg, tensor(step.obs), tensor(step.action)
        with torch.no_grad():
            next_obs = tensor(step.next_obs)
            next_action = self.drawn(next_obs, self.noise(step.action))
            target = bootstrapped(step, self.slow_critic(next_obs, next_action).squeeze(-1).amin(dim=0))
            own = self.drawn(obs, self.noise(step.action))
            advantage = self.least(obs, action) - self.least(obs, own)
            weight = self.weight(advantage)
        log_prob = self.log_prob(obs, action)
        actor_loss = -(weight * log_prob).mean()
        step_down(self.actor_adam, actor_loss)
        critic_loss = self.fit(step, target)
        follow(self.slow_critic, self.critic, cfg.tau)
        return {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss.item(),
            "target_q_mean": target.mean().item(),
            "advantage_mean": advantage.mean().item(),
            "advantage_weight_mean": weight.mean().item(),
            "behavior_logprob_mean": log_prob.mean().item(),
            "effective_sample_size": (weight.sum() ** 2 / (weight**2).sum()).item(),
        }

    def least(self, obs: Tensor, action: Tensor) -> Tensor:
        values: Tensor = self.critic(obs, action).squeeze(-1)
        return values.amin(dim=0)

    def weight(self, advantage: Tensor) -> Tensor:
        cfg = self.cfg
        if cfg.weighting == "softmax":
            powers = (advantage / cfg.awac_lambda).exp()
            return len(powers) * powers / powers.sum()
        return (advantage / cfg.awac_lambda).exp().clamp(max=cfg.max_weight)


class IQLReference(ActorCriticReference):
    """Kostrikov et al. 2022, in the order of its authors' code: V, the policy with the new V, Q with the new V."""

    def __init__(self, agent: Any, cost: Loss) -> None:
        super().__init__(agent)
        self.cost = cost
        self.value = copy.deepcopy(agent.learners["value"].module)
        self.value_adam = adam(self.value, self.cfg.learning_rate)
        self.actor_adam = adam(self.actor, self.cfg.actor_learning_rate)

    def update(self, step: Transitions) -> dict[str, float]:
        cfg, obs, action = self.cfg, tensor(step.obs), tensor(step.action)
        with torch.no_grad():
            judged = self.slow_critic(obs, action).squeeze(-1).amin(dim=0)
        error = judged - self.value(obs).squeeze(-1)
        value_loss = torch.where(error > 0, cfg.expectile * error**2, (1 - cfg.expectile) * error**2).mean()
        step_down(self.value_adam, value_loss)
        with torch.no_grad():
            advantage = judged - self.value(obs).squeeze(-1)
            weight = (cfg.beta * advantage).exp().clamp(max=cfg.max_weight)
            target = bootstrapped(step, self.value(tensor(step.next_obs)).squeeze(-1))
        actor_loss = (weight * self.cost(self.actor, obs, action)).mean()
        step_down(self.actor_adam, actor_loss)
        critic_loss = self.fit(step, target)
        follow(self.slow_critic, self.critic, cfg.tau)
        return {
            "value_loss": value_loss.item(),
            "actor_loss": actor_loss.item(),
            "critic_loss": critic_loss,
            "advantage_mean": advantage.mean().item(),
            "advantage_weight_mean": weight.mean().item(),
        }

    def weights(self) -> dict[str, Tensor]:
        return super().weights() | {"value": flat(self.value)}


class CQLReference(SoftReference):
    """Kumar et al. 2020, CQL(H): SAC whose critics are lower where the data is not."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent, _cql_target, lambda values: values.squeeze(-1).amin(dim=0))
        self.actor_adam = adam(self.actor, self.cfg.actor_learning_rate)
        self.log_factor = nn.Parameter(torch.zeros(()))
        self.factor_adam = torch.optim.Adam([self.log_factor], lr=self.cfg.learning_rate, foreach=False)

    def fit(self, step: Transitions, target: Tensor) -> float:
        """The halved squared error, and half of cql_alpha times the gap, since the paper's code halves neither."""
        cfg, obs, action = self.cfg, tensor(step.obs), tensor(step.action)
        weight = cfg.cql_alpha * self.log_factor.exp().item()
        drawn = self.drawn(step)
        values = self.critic(obs, action).squeeze(-1)
        errors = sum((0.5 * (value - target) ** 2).mean() for value in values)
        assert isinstance(errors, Tensor)
        ratios = torch.stack([self.critic(obs, own).squeeze(-1) - density for own, density in drawn], dim=-1)
        integral = ratios.double().logsumexp(dim=-1) - math.log(len(drawn))
        gap = (integral - values).mean(dim=1)
        step_down(self.critic_adam, errors + 0.5 * weight * gap.sum().float())
        self.gap = gap.mean().item()
        if cfg.cql_target_gap is not None:
            step_down(self.factor_adam, -self.log_factor.exp() * cfg.cql_alpha * (self.gap - cfg.cql_target_gap))
        return errors.item()

    def drawn(self, step: Transitions) -> list[tuple[Tensor, Tensor]]:
        """Actions and log-densities, one after the other; each as an importance sample of the same integral."""
        rows, size = step.action.shape
        shape = (rows, self.cfg.cql_samples, size)
        uniform = tensor(self.rng.uniform(-1.0, 1.0, shape).astype(np.float32))
        found = [(own, torch.full((rows,), math.log(0.5**size))) for own in uniform.unbind(dim=1)]
        with torch.no_grad():
            for rows_of in (step.obs, step.next_obs):
                noise = tensor(self.rng.standard_normal(shape, dtype=np.float32))
                found += [squashed_sample(self.actor(tensor(rows_of)), one) for one in noise.unbind(dim=1)]
        return found


def _cql_target(reference: SoftReference, step: Transitions, action: Tensor, entropy_cost: Tensor) -> Tensor:
    least = reference.slow_critic(tensor(step.next_obs), action).squeeze(-1).amin(dim=0)
    return bootstrapped(step, least - entropy_cost if reference.cfg.backup_entropy else least)


class TD3BCReference(DeterministicReference):
    """Fujimoto and Gu 2021: TD3 whose actor stays near the data."""

    def actor_loss(self, step: Transitions) -> Tensor:
        obs = tensor(step.obs)
        action = self.actor(obs).tanh()
        value = self.critic(obs, action)[0]
        scale = self.cfg.alpha / value.abs().mean().detach()
        return -scale * value.mean() + nn.functional.mse_loss(action, tensor(step.action))


class DiscreteCQLReference:
    """Double Q-learning with the Huber loss, and the log-sum-exp of all values above that of the data's choice."""

    def __init__(self, agent: Any) -> None:
        self.cfg = agent.cfg
        self.network = copy.deepcopy(agent.learners["network"].module)
        self.slow = copy.deepcopy(self.network)
        self.adam = adam(self.network, self.cfg.learning_rate)

    def update(self, step: Transitions) -> dict[str, float]:
        cfg, next_obs, choice = self.cfg, tensor(step.next_obs), tensor(step.action)[:, None]
        with torch.no_grad():
            best = self.network(next_obs).argmax(dim=1, keepdim=True)
            target = bootstrapped(step, self.slow(next_obs).gather(1, best)[:, 0])
        values = self.network(tensor(step.obs))
        chosen = values.gather(1, choice)[:, 0]
        gap = (values.exp().sum(dim=1).log() - chosen).mean()
        loss = nn.functional.smooth_l1_loss(chosen, target) + 0.5 * cfg.cql_alpha * gap
        step_down(self.adam, loss)
        follow(self.slow, self.network, cfg.tau)
        return {"loss": loss.item(), "conservative_gap": gap.item(), "q_mean": chosen.mean().item()}

    def weights(self) -> dict[str, Tensor]:
        return {"network": flat(self.network), "slow network": flat(self.slow)}
