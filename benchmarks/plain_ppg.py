"""Phasic policy gradient (Cobbe et al. 2021, algorithm 1) in plain torch, for discrete actions: a benchmark's peer.

Policy and value are separate networks with an optimiser each, and the policy has an auxiliary value head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from plain_offline import descend
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def torso(inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    sizes = [inputs, *hidden]
    layers = [layer(before, width, sqrt(2.0)) for before, width in pairwise(sizes)]
    return nn.Sequential(*(module for linear in layers for module in (linear, nn.Tanh())))


class Policy(nn.Module):
    """Logits, and the values of the auxiliary head."""

    def __init__(self, inputs: int, hidden: Sequence[int], actions: int) -> None:
        super().__init__()
        self.torso = torso(inputs, hidden)
        self.logits, self.auxiliary = layer(hidden[-1], actions, 0.01), layer(hidden[-1], 1, 1.0)

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        features = self.torso(obs)
        return Categorical(logits=self.logits(features)), self.auxiliary(features).squeeze(-1)


@dataclass
class Rollout:
    """Columns `[T, B]`, later flattened to rows."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor


class PPG:
    """Policy phases of PPO on every rollout; after some of them, an auxiliary phase on all of their observations."""

    def __init__(
        self, make: Callable[[], gym.Env[Any, Any]], seed: int, num_envs: int, hidden_sizes: Sequence[int], **rest: Any
    ) -> None:
        torch.manual_seed(seed)
        self._settings = rest
        self._envs = [make() for _ in range(num_envs)]
        self._obs = torch.stack([tensor(env.reset(seed=seed + k)[0]) for k, env in enumerate(self._envs)])
        space = self._envs[0].action_space
        assert isinstance(space, gym.spaces.Discrete)
        inputs = self._obs.shape[-1]
        self.policy = Policy(inputs, hidden_sizes, int(space.n))
        self.value = nn.Sequential(torso(inputs, hidden_sizes), layer(hidden_sizes[-1], 1, 1.0), nn.Flatten(0))
        self._optimizers = [self._adam(network, rest["learning_rate"]) for network in (self.policy, self.value)]
        both = nn.ModuleList([self.policy, self.value])
        self._auxiliary_optimizer = self._adam(both, rest["aux_learning_rate"])
        self._kept: list[Rollout] = []

    def _adam(self, network: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(network.parameters(), lr=learning_rate, eps=self._settings["adam_eps"])

    def learn(self, total: int, after: Callable[[int], None]) -> None:
        settings, steps = self._settings, 0
        while steps < total:
            rollout = self._collect()
            steps += len(rollout.obs)
            self.policy_phase(rollout)
            self._kept.append(rollout)
            if len(self._kept) == settings["aux_interval"]:
                self.auxiliary_phase(*(torch.cat([getattr(r, name) for r in self._kept]) for name in ("obs", "target")))
                self._kept.clear()
            after(steps)

    def predict(self, obs: NDArray[Any]) -> NDArray[np.int64]:
        """The likeliest actions."""
        with torch.no_grad():
            found: NDArray[np.int64] = self.policy(tensor(obs))[0].logits.argmax(dim=-1).numpy()
        return found

    @torch.no_grad()
    def _collect(self) -> Rollout:
        settings, rows = self._settings, []
        for _ in range(settings["n_steps"]):
            obs, value = self._obs, self.value(self._obs)
            choice, _ = self.policy(obs)
            action = choice.sample()
            reward, over = self._step(action)
            rows.append((obs, action, choice.log_prob(action), value, reward, over))
        obs, action, log_prob, value, reward, over = (torch.stack(column) for column in zip(*rows, strict=True))
        advantage = torch.zeros_like(value)
        trace, next_value = torch.zeros(len(self._envs)), self.value(self._obs)
        for t in reversed(range(len(rows))):
            going = 1.0 - over[t]
            error = reward[t] + settings["gamma"] * going * next_value - value[t]
            trace = error + settings["gamma"] * settings["gae_lambda"] * going * trace
            advantage[t], next_value = trace, value[t]
        columns = (obs, action, log_prob, advantage, advantage + value)
        return Rollout(*(column.flatten(0, 1) for column in columns))

    def _step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards, and which episodes are over; a truncated one has the value of its last state in its last reward."""
        reward, over = torch.zeros(len(self._envs)), torch.zeros(len(self._envs))
        next_obs = torch.zeros_like(self._obs)
        for k, env in enumerate(self._envs):
            raw, earned, terminated, truncated, _ = env.step(int(action[k]))
            reward[k] = float(earned)
            if truncated and not terminated:
                reward[k] += self._settings["gamma"] * self.value(tensor(raw)[None])[0]
            if terminated or truncated:
                over[k], raw = 1.0, env.reset()[0]
            next_obs[k] = tensor(raw)
        self._obs = next_obs
        return reward, over

    def policy_phase(self, rollout: Rollout) -> None:
        settings = self._settings
        policy_optimizer, value_optimizer = self._optimizers
        for picked in minibatches(len(rollout.obs), settings["n_epochs"], settings["batch_size"]):
            part = Rollout(*(column[picked] for column in vars(rollout).values()))
            descend(policy_optimizer, self.policy_loss(part))
            descend(value_optimizer, half_square(self.value(part.obs), part.target))

    def policy_loss(self, part: Rollout) -> Tensor:
        choice, _ = self.policy(part.obs)
        advantage = (part.advantage - part.advantage.mean()) / (part.advantage.std() + 1e-8)
        ratio, width = (choice.log_prob(part.action) - part.log_prob).exp(), self._settings["clip_coef"]
        gain = torch.min(ratio * advantage, ratio.clamp(1.0 - width, 1.0 + width) * advantage).mean()
        loss: Tensor = -gain - self._settings["ent_coef"] * choice.entropy().mean()
        return loss

    def auxiliary_phase(self, obs: Tensor, target: Tensor) -> None:
        settings = self._settings
        with torch.no_grad():
            old = self.policy(obs)[0].logits
        for picked in minibatches(len(obs), settings["n_aux_epochs"], settings["aux_batch_size"]):
            descend(self._auxiliary_optimizer, self.auxiliary_loss(obs[picked], target[picked], old[picked]))

    def auxiliary_loss(self, obs: Tensor, target: Tensor, old: Tensor) -> Tensor:
        """The auxiliary head's error, the distance from the old policy, and the value network's error."""
        choice, auxiliary = self.policy(obs)
        distance = kl_divergence(Categorical(logits=old), choice).mean()
        kept: Tensor = half_square(auxiliary, target) + self._settings["beta_clone"] * distance
        return kept + half_square(self.value(obs), target)


def half_square(value: Tensor, target: Tensor) -> Tensor:
    return 0.5 * functional.mse_loss(value, target)


def minibatches(rows: int, epochs: int, size: int) -> Iterator[Tensor]:
    for _ in range(epochs):
        order = torch.randperm(rows)
        yield from (order[start : start + size] for start in range(0, rows, size))


def tensor(values: NDArray[Any]) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)
