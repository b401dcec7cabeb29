"""Single-file versions of the offline algorithms: plain torch, an optimiser for each part, nothing packed.

Twin critics are two networks that are called one after the other, target networks are updated parameter by parameter,
and every loss is read back for a log, in the style of CORL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import log
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution
from torch.nn import functional

GAMMA, TAU = 0.99, 0.005
POLICY_DELAY, TARGET_NOISE, NOISE_CLIP = 2, 0.2, 0.5  # of TD3+BC
BEHAVIOUR_ALPHA = 2.5  # of TD3+BC: the weight of Q against the actions of the data
AWAC_LAMBDA, EXPECTILE, BETA, MAX_WEIGHT = 1 / 3, 0.7, 3.0, 100.0
SAMPLES, CQL_WEIGHT = 10, 5.0  # of CQL: actions from each of three sources

Losses = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """The sizes that networks are built from."""

    obs: int
    action: int
    hidden: Sequence[int]


@dataclass(frozen=True)
class Batch:
    """Transitions `[B]`."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    terminated: Tensor


class Memory:
    """A dataset as tensors, from which rows are picked by their numbers."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        names = ("observations", "actions", "rewards", "next_observations", "terminals")
        self._columns = [torch.as_tensor(arrays[name], dtype=torch.float32) for name in names]

    def sample(self, count: int) -> Batch:
        rows = np.random.randint(0, len(self._columns[0]), size=count)
        return Batch(*(column[rows] for column in self._columns))


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Critics(nn.Module):
    """Two networks; each returns `[B]`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.first, self.second = (mlp(sizes.obs + sizes.action, sizes.hidden, 1) for _ in range(2))

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return ask(self.first, obs, action), ask(self.second, obs, action)

    def least(self, obs: Tensor, action: Tensor) -> Tensor:
        value: Tensor = torch.min(*self(obs, action))
        return value


def ask(network: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
    value: Tensor = network(torch.cat([obs, action], dim=-1)).squeeze(-1)
    return value


class DeterministicActor(nn.Module):
    """tanh of the network's output."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.network = mlp(sizes.obs, sizes.hidden, sizes.action)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.network(obs))


class GaussianActor(nn.Module):
    """A normal distribution around a mean within [-1, 1], with the same deviations everywhere."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.network = mlp(sizes.obs, sizes.hidden, sizes.action)
        self.log_std = nn.Parameter(torch.zeros(sizes.action))

    def forward(self, obs: Tensor) -> Normal:
        return Normal(torch.tanh(self.network(obs)), self.log_std.clamp(-5.0, 2.0).exp())


class SquashedActor(nn.Module):
    """tanh of a normal distribution whose means and deviations the network returns."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.network = mlp(sizes.obs, sizes.hidden, 2 * sizes.action)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """A sample and its log-density."""
        mean, log_std = self.network(obs).chunk(2, dim=-1)
        normal = Normal(mean, log_std.clamp(-20.0, 2.0).exp())
        squashed = TransformedDistribution(normal, TanhTransform(cache_size=1))
        action = squashed.rsample()
        return action, squashed.log_prob(action).sum(-1)  # type: ignore[no-untyped-call]


def adam(parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=learning_rate)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def follow(target: nn.Module, source: nn.Module) -> None:
    for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
        slow.data.lerp_(fast.data, TAU)


def bellman_loss(values: Iterable[Tensor], batch: Batch, next_value: Tensor) -> Tensor:
    """Both critics against the same target."""
    target = batch.reward + GAMMA * (1.0 - batch.terminated) * next_value
    first, second = (functional.mse_loss(value, target) for value in values)
    return first + second


class BC:
    """Regression on the actions of the data."""

    def __init__(self, sizes: Sizes, learning_rate: float) -> None:
        self.actor = DeterministicActor(sizes)
        self._optimizer = adam(self.actor.parameters(), learning_rate)

    def update(self, batch: Batch) -> Losses:
        loss = functional.mse_loss(self.actor(batch.obs), batch.action)
        return {"actor_loss": descend(self._optimizer, loss)}


class TD3BC:
    """TD3 whose actor stays near the actions of the data."""

    def __init__(self, sizes: Sizes, learning_rate: float) -> None:
        self.actor, self.critics = DeterministicActor(sizes), Critics(sizes)
        self.actor_target, self.critics_target = deepcopy(self.actor), deepcopy(self.critics)
        self._actor_optimizer = adam(self.actor.parameters(), learning_rate)
        self._critic_optimizer = adam(self.critics.parameters(), learning_rate)
        self._updates = 0

    def update(self, batch: Batch) -> Losses:
        self._updates += 1
        with torch.no_grad():
            noise = (torch.randn_like(batch.action) * TARGET_NOISE).clamp(-NOISE_CLIP, NOISE_CLIP)
            next_action = (self.actor_target(batch.next_obs) + noise).clamp(-1.0, 1.0)
            next_value = self.critics_target.least(batch.next_obs, next_action)
        loss = bellman_loss(self.critics(batch.obs, batch.action), batch, next_value)
        losses = {"critic_loss": descend(self._critic_optimizer, loss)}
        if self._updates % POLICY_DELAY == 0:
            losses["actor_loss"] = self._improve_actor(batch)
            follow(self.actor_target, self.actor)
            follow(self.critics_target, self.critics)
        return losses

    def _improve_actor(self, batch: Batch) -> float:
        action = self.actor(batch.obs)
        value = ask(self.critics.first, batch.obs, action)
        scale = BEHAVIOUR_ALPHA / value.abs().mean().detach()
        return descend(self._actor_optimizer, functional.mse_loss(action, batch.action) - scale * value.mean())


class AWAC:
    """Advantage-weighted regression: the critics' advantages over the policy's own actions weight the cloning."""

    def __init__(self, sizes: Sizes, learning_rate: float) -> None:
        self.actor, self.critics = GaussianActor(sizes), Critics(sizes)
        self.critics_target = deepcopy(self.critics)
        self._actor_optimizer = adam(self.actor.parameters(), learning_rate)
        self._critic_optimizer = adam(self.critics.parameters(), learning_rate)

    def update(self, batch: Batch) -> Losses:
        with torch.no_grad():
            next_action = self.actor(batch.next_obs).sample().clamp(-1.0, 1.0)
            next_value = self.critics_target.least(batch.next_obs, next_action)
        loss = bellman_loss(self.critics(batch.obs, batch.action), batch, next_value)
        critic_loss = descend(self._critic_optimizer, loss)
        actor_loss = descend(self._actor_optimizer, self._actor_loss(batch))
        follow(self.critics_target, self.critics)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss}

    def _actor_loss(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            own = self.actor(batch.obs).sample().clamp(-1.0, 1.0)
            advantage = self.critics.least(batch.obs, batch.action) - self.critics.least(batch.obs, own)
            weight = (advantage / AWAC_LAMBDA).exp().clamp(max=MAX_WEIGHT)
        log_prob: Tensor = self.actor(batch.obs).log_prob(batch.action).sum(-1)
        return -(weight * log_prob).mean()


class IQL:
    """A value by expectile regression, critics that bootstrap from it, and advantage-weighted cloning."""

    def __init__(self, sizes: Sizes, learning_rate: float) -> None:
        self.actor, self.critics = GaussianActor(sizes), Critics(sizes)
        self.value = mlp(sizes.obs, sizes.hidden, 1)
        self.critics_target = deepcopy(self.critics)
        self._actor_optimizer = adam(self.actor.parameters(), learning_rate)
        self._critic_optimizer = adam(self.critics.parameters(), learning_rate)
        self._value_optimizer = adam(self.value.parameters(), learning_rate)

    def update(self, batch: Batch) -> Losses:
        with torch.no_grad():
            next_value = self.value(batch.next_obs).squeeze(-1)
            goal = self.critics_target.least(batch.obs, batch.action)
        advantage = goal - self.value(batch.obs).squeeze(-1)
        leaning = (EXPECTILE - (advantage < 0.0).float()).abs()
        value_loss = descend(self._value_optimizer, (leaning * advantage**2).mean())
        loss = bellman_loss(self.critics(batch.obs, batch.action), batch, next_value)
        critic_loss = descend(self._critic_optimizer, loss)
        follow(self.critics_target, self.critics)
        weight = (BETA * advantage.detach()).exp().clamp(max=MAX_WEIGHT)
        log_prob = self.actor(batch.obs).log_prob(batch.action).sum(-1)
        actor_loss = descend(self._actor_optimizer, -(weight * log_prob).mean())
        return {"value_loss": value_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}


class CQL:
    """SAC whose critics are penalised for high values of actions not in the data: CQL(H), importance sampling."""

    def __init__(self, sizes: Sizes, learning_rate: float) -> None:
        self.actor, self.critics = SquashedActor(sizes), Critics(sizes)
        self.critics_target = deepcopy(self.critics)
        self.log_ent_coef = nn.Parameter(torch.zeros(()))
        self._actor_optimizer = adam(self.actor.parameters(), learning_rate)
        self._critic_optimizer = adam(self.critics.parameters(), learning_rate)
        self._entropy_optimizer = adam([self.log_ent_coef], learning_rate)

    def update(self, batch: Batch) -> Losses:
        losses = self._improve_actor(batch)
        with torch.no_grad():
            next_action, _ = self.actor(batch.next_obs)
            next_value = self.critics_target.least(batch.next_obs, next_action)
        values = self.critics(batch.obs, batch.action)
        loss = bellman_loss(values, batch, next_value) + CQL_WEIGHT * self.conservative_loss(values, batch)
        losses["critic_loss"] = descend(self._critic_optimizer, loss)
        follow(self.critics_target, self.critics)
        return losses

    def _improve_actor(self, batch: Batch) -> Losses:
        action, log_prob = self.actor(batch.obs)
        target_entropy = -batch.action.shape[-1]
        entropy_loss = -(self.log_ent_coef * (log_prob + target_entropy).detach()).mean()
        entropy_loss_value = descend(self._entropy_optimizer, entropy_loss)
        actor_loss = (self.log_ent_coef.exp().detach() * log_prob - self.critics.least(batch.obs, action)).mean()
        return {"entropy_loss": entropy_loss_value, "actor_loss": descend(self._actor_optimizer, actor_loss)}

    def conservative_loss(self, values: Iterable[Tensor], batch: Batch) -> Tensor:
        """logsumexp Q(s, .) - Q(s, a) of both critics, with actions of three sources weighted by their densities."""
        obs, size = repeated(batch.obs), batch.action.shape[-1]
        uniform = torch.empty(len(obs), size).uniform_(-1.0, 1.0)
        with torch.no_grad():
            policy, next_policy = self.actor(obs), self.actor(repeated(batch.next_obs))
        sources = [(uniform, torch.full((len(obs),), -size * log(2.0))), policy, next_policy]
        weighed = [[value - log_prob for value in self.critics(obs, action)] for action, log_prob in sources]
        loss = torch.zeros(())
        for of_data, of_sources in zip(values, zip(*weighed, strict=True), strict=True):
            samples = torch.cat([value.reshape(-1, SAMPLES) for value in of_sources], dim=1)
            loss = loss + (samples.logsumexp(dim=1) - of_data).mean()
        return loss


def repeated(obs: Tensor) -> Tensor:
    """Every row SAMPLES times, one after the other."""
    return obs.unsqueeze(1).expand(-1, SAMPLES, -1).reshape(-1, obs.shape[-1])


class Learner(Protocol):
    """The interface of the algorithms above."""

    def update(self, batch: Batch) -> Losses: ...


LEARNERS: dict[str, Callable[[Sizes, float], Learner]] = {
    "bc": BC,
    "td3_bc": TD3BC,
    "awac": AWAC,
    "iql": IQL,
    "cql": CQL,
}
