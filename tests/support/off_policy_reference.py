"""The off-policy algorithms once more, in plain torch: copies of an agent's networks, torch's own Adam, written out.

Nothing of the package's mathematics is used here. A reference draws from a copy of the agent's stream, in the order
that is part of what is tested: noise of the next actions, then whatever the target needs, then noise of the actions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.data.batches import Transitions
from rl_training.ops.observations import pack
from rl_training.types import ObsPart, SpaceInfo

PARTS = (ObsPart("", (3,), "float32"),)
MASKED = SpaceInfo((16,), "uint8", "discrete", (), 4, (4,), (0,), parts=PARTS, mask_size=4)

Goal = Callable[["SoftReference", Transitions, Tensor, Tensor], Tensor]


def transitions(
    info: SpaceInfo, rows: int, seed: int = 0, *, weighted: bool = False, gamma: float = 0.9
) -> Transitions:
    """Made-up transitions: some terminated, some truncated, chains of one to three steps, some choices forbidden."""
    rng = np.random.default_rng(seed)

    def observations() -> np.ndarray:
        numbers = rng.standard_normal((rows, 3)).astype(np.float32)
        if not info.packed:
            return numbers
        masks = rng.random((rows, info.mask_size)) < 0.5
        masks[np.arange(rows), rng.integers(0, info.mask_size, rows)] = True
        return np.stack([pack(*pair, info.parts, info.mask_size) for pair in zip(numbers, masks, strict=True)])

    shape = (rows, info.action_size)
    if info.continuous:
        action = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
    elif info.action_kind == "discrete":
        action = rng.integers(0, shape[1], rows)
    else:
        action = rng.integers(0, info.action_counts, (rows, len(info.action_counts)))
    end = rng.random(rows)
    discount = (gamma ** rng.integers(1, 4, rows)).astype(np.float32)
    weight = rng.uniform(0.2, 1.0, rows).astype(np.float32) if weighted else None
    reward = (2.0 * rng.standard_normal(rows)).astype(np.float32)
    flags = end < 0.25, (end > 0.5) & (end < 0.75)
    return Transitions(observations(), action, reward, observations(), *flags, discount, weight)


def rows_of(batch: Transitions, part: Any) -> Transitions:
    """Some rows of a batch."""
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "discount")
    weight = None if batch.weight is None else batch.weight[part]
    return Transitions(*(getattr(batch, name)[part] for name in names), weight)


def acted(learner: Any, obs: np.ndarray, *, explore: bool, seed: int = 0) -> np.ndarray:
    """The actions of a learner's policy; the same seed draws the same noise."""
    action: np.ndarray = learner.policy.act(obs, None, explore=explore, rng=np.random.default_rng(seed)).action
    return action


def flat(module: nn.Module) -> Tensor:
    """All weights of a network, one after the other."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def weights_of(agent: Any) -> dict[str, Tensor]:
    """A copy of all that an agent has learned, and of what follows it."""
    learners = {name: learner.parameters.data.clone() for name, learner in agent.learners.items()}
    return learners | {f"slow {name}": follower.weights.data.clone() for name, follower in agent.followers.items()}


def adam(module: nn.Module, learning_rate: float) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=learning_rate, foreach=False)


def follow(slow: nn.Module, fast: nn.Module, tau: float) -> None:
    with torch.no_grad():
        for own, other in zip(slow.parameters(), fast.parameters(), strict=True):
            own.copy_((1.0 - tau) * own + tau * other)


def step_down(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))


def bootstrapped(step: Transitions, next_value: Tensor) -> Tensor:
    """reward + discount * next value, the latter only where the episode did not terminate."""
    alive = ~tensor(step.terminated)
    shape = (-1,) + (1,) * (next_value.ndim - 1)
    reward, discount = tensor(step.reward).reshape(shape), tensor(step.discount).reshape(shape)
    return reward + torch.where(alive.reshape(shape), discount * next_value, 0.0)


class ActorCriticReference:
    """An actor, critics and the slow copies of both; the actor's copy is of no use to the soft ones."""

    def __init__(self, agent: Any) -> None:
        self.cfg, self.rng = agent.cfg, copy.deepcopy(agent.batch_rng)
        self.actor, self.critic = (copy.deepcopy(agent.learners[name].module) for name in ("actor", "critic"))
        self.slow_actor, self.slow_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_adam, self.critic_adam = (adam(net, self.cfg.learning_rate) for net in (self.actor, self.critic))

    def noise(self, action: Any) -> Tensor:
        return tensor(self.rng.standard_normal(np.shape(action), dtype=np.float32))

    def fit(self, step: Transitions, target: Tensor) -> float:
        """Half the squared error, averaged over the batch and summed over the critics."""
        values = self.critic(tensor(step.obs), tensor(step.action)).squeeze(-1)
        loss = sum((0.5 * (value - target) ** 2).mean() for value in values)
        assert isinstance(loss, Tensor)
        step_down(self.critic_adam, loss)
        return loss.item()

    def weights(self) -> dict[str, Tensor]:
        return {"actor": flat(self.actor), "critic": flat(self.critic), "slow critic": flat(self.slow_critic)}


class DeterministicReference(ActorCriticReference):
    """DDPG; with noise on the target actions and updates that do not improve the actor, TD3."""

    def update(
        self, step: Transitions, *, improve: bool = True, noise_std: float = 0.0, clip: float = 0.0
    ) -> dict[str, float]:
        with torch.no_grad():
            next_obs = tensor(step.next_obs)
            action = self.slow_actor(next_obs).tanh()
            if noise_std:
                action = (action + (noise_std * self.noise(action)).clamp(-clip, clip)).clamp(-1.0, 1.0)
            target = bootstrapped(step, self.slow_critic(next_obs, action).squeeze(-1).amin(dim=0))
        metrics = {"critic_loss": self.fit(step, target)}
        if improve:
            loss = self.actor_loss(step)
            step_down(self.actor_adam, loss)
            follow(self.slow_actor, self.actor, self.cfg.tau)
            follow(self.slow_critic, self.critic, self.cfg.tau)
            metrics["actor_loss"] = loss.item()
        return metrics

    def actor_loss(self, step: Transitions) -> Tensor:
        obs = tensor(step.obs)
        value: Tensor = self.critic(obs, self.actor(obs).tanh())[0]
        return -value.mean()

    def weights(self) -> dict[str, Tensor]:
        return super().weights() | {"slow actor": flat(self.slow_actor)}


def squashed_sample(params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions and log-densities by the change of variables as it stands in books, in double precision."""
    mean, log_std = params.double().chunk(2, dim=-1)
    std = log_std.clamp(-20.0, 2.0).exp()
    raw = mean + std * noise.double()
    gaussian = torch.distributions.Normal(mean, std).log_prob(raw)
    return raw.tanh().float(), (gaussian - (1.0 - raw.tanh() ** 2).log()).sum(dim=-1).float()


class SoftReference(ActorCriticReference):
    """SAC, REDQ and TQC, which differ in what critics regress on, how they are fitted and what the actor climbs."""

    def __init__(self, agent: Any, goal: Goal, climbed: Callable[[Tensor], Tensor]) -> None:
        super().__init__(agent)
        self.goal, self.climbed = goal, climbed
        start = agent.current("ent_coef")
        self.log_ent_coef = nn.Parameter(torch.tensor(math.log(start) if start else -math.inf))
        self.learned = isinstance(self.cfg.ent_coef, str)
        self.ent_coef_adam = torch.optim.Adam([self.log_ent_coef], lr=self.cfg.learning_rate, foreach=False)
        size = agent.info.action_size
        self.target_entropy = -size if self.cfg.target_entropy is None else self.cfg.target_entropy

    def update(self, step: Transitions, *, improve: bool = True) -> dict[str, float]:
        ent_coef = self.log_ent_coef.exp().item()
        with torch.no_grad():
            next_action, log_prob = squashed_sample(self.actor(tensor(step.next_obs)), self.noise(step.action))
            target = self.goal(self, step, next_action, ent_coef * log_prob)
        metrics = {"critic_loss": self.fit(step, target)}
        if improve:
            obs = tensor(step.obs)
            action, log_prob = squashed_sample(self.actor(obs), self.noise(step.action))
            loss = (ent_coef * log_prob - self.climbed(self.critic(obs, action))).mean()
            step_down(self.actor_adam, loss)
            metrics |= {"actor_loss": loss.item(), "entropy": -log_prob.mean().item()}
            if self.learned:
                step_down(self.ent_coef_adam, -(self.log_ent_coef * (log_prob.detach() + self.target_entropy)).mean())
        follow(self.slow_critic, self.critic, self.cfg.tau)
        return metrics


def assert_same_weights(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def assert_learns_like(learner: Any, reference: Any, info: SpaceInfo, *, updates: int = 5) -> None:
    """The same minibatches move both alike: what is reported, and where the weights end, none of which stay put."""
    before = weights_of(learner)
    for seed in range(updates):
        batch = transitions(info, 16, seed)
        expected, metrics = reference.update(batch), learner.update(batch)
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=2e-3, abs=1e-4)
    after = weights_of(learner)
    for name, weights in before.items():
        assert (after[name] - weights).abs().max() > 1e-3, name
    assert_same_weights(after, reference.weights())
