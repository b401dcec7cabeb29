"""REDQ (Chen et al. 2021, algorithm 1) as one writes it in a single file with plain torch: a peer of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from plain_offline import Batch, Sizes, SquashedActor, adam, ask, descend, mlp
from torch import Tensor, nn
from torch.nn import functional


class Memory:
    """The transitions so far, in arrays."""

    def __init__(self, size: int, obs: int, action: int) -> None:
        self._columns = Batch(
            obs=torch.zeros(size, obs),
            action=torch.zeros(size, action),
            reward=torch.zeros(size),
            next_obs=torch.zeros(size, obs),
            terminated=torch.zeros(size),
        )
        self._size, self._count = size, 0

    def add(self, **row: Any) -> None:
        for name, value in row.items():
            getattr(self._columns, name)[self._count % self._size] = torch.as_tensor(value, dtype=torch.float32)
        self._count += 1

    def sample(self, rng: np.random.Generator, rows: int) -> Batch:
        picked = torch.from_numpy(rng.integers(min(self._count, self._size), size=rows))
        return Batch(**{name: column[picked] for name, column in vars(self._columns).items()})


class REDQ:
    """Soft actor-critic with an ensemble; a target is the least value of a few critics, drawn for each update."""

    def __init__(
        self,
        make: Callable[[], gym.Env[Any, Any]],
        seed: int,
        hidden_sizes: Sequence[int],
        n_critics: int,
        learning_rate: float,
        **settings: Any,
    ) -> None:
        torch.manual_seed(seed)
        self._rng, self._settings, self._env, self._seed = np.random.default_rng(seed), settings, make(), seed
        space = self._env.action_space
        assert isinstance(space, gym.spaces.Box)
        self._middle, self._half = (space.high + space.low) / 2.0, (space.high - space.low) / 2.0
        assert self._env.observation_space.shape is not None
        sizes = Sizes(self._env.observation_space.shape[0], space.shape[0], list(hidden_sizes))
        self.actor = SquashedActor(sizes)
        self.critics = nn.ModuleList(mlp(sizes.obs + sizes.action, sizes.hidden, 1) for _ in range(n_critics))
        self.targets = deepcopy(self.critics)
        self.log_ent_coef = nn.Parameter(torch.zeros(()))
        self._target_entropy = -float(sizes.action)
        self._memory = Memory(settings["buffer_size"], sizes.obs, sizes.action)
        self._actor_optimizer = adam(self.actor.parameters(), learning_rate)
        self._critic_optimizer = adam(self.critics.parameters(), learning_rate)
        self._entropy_optimizer = adam([self.log_ent_coef], learning_rate)
        self._updates = 0

    def learn(self, total: int, after: Callable[[int], None]) -> None:
        """Act, remember, and make the updates of each step; `after` is called with the number of steps."""
        settings = self._settings
        obs, _ = self._env.reset(seed=self._seed)
        for step in range(1, total + 1):
            action = self._explore(obs) if step > settings["learning_starts"] else self._anything()
            next_obs, reward, terminated, truncated, _ = self._env.step(self._middle + self._half * action)
            self._memory.add(obs=obs, action=action, reward=reward, next_obs=next_obs, terminated=terminated)
            obs = self._env.reset()[0] if terminated or truncated else next_obs
            if step > settings["learning_starts"]:
                for _ in range(settings["updates_per_step"]):
                    self.update(self._memory.sample(self._rng, settings["batch_size"]))
            after(step)

    def _anything(self) -> NDArray[np.float32]:
        return self._rng.uniform(-1.0, 1.0, self._half.shape).astype(np.float32)

    def _explore(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            action, _ = self.actor(torch.as_tensor(obs, dtype=torch.float32)[None])
        found: NDArray[np.float32] = action[0].numpy()
        return found

    def predict(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """The actions of the mean, in the environment's units."""
        with torch.no_grad():
            mean, _ = self.actor.network(torch.as_tensor(obs, dtype=torch.float32)).chunk(2, dim=-1)
        found: NDArray[np.float32] = self._middle + self._half * torch.tanh(mean).numpy()
        return found

    def update(self, batch: Batch) -> None:
        """All critics; every `policy_delay`-th time, the actor and the entropy coefficient too."""
        settings = self._settings
        self._updates += 1
        target = self._target(batch)
        errors = [functional.mse_loss(ask(critic, batch.obs, batch.action), target) for critic in self.critics]
        descend(self._critic_optimizer, torch.stack(errors).sum())
        for slow, fast in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
            slow.data.lerp_(fast.data, settings["tau"])
        if self._updates % settings["policy_delay"] == 0:
            self._improve_actor(batch)

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        settings = self._settings
        action, log_prob = self.actor(batch.next_obs)
        chosen = self._rng.choice(len(self.targets), settings["subset_size"], replace=False)
        values = torch.stack([ask(self.targets[int(member)], batch.next_obs, action) for member in chosen])
        value = values.min(dim=0).values - self.log_ent_coef.exp() * log_prob
        target: Tensor = batch.reward + settings["gamma"] * (1.0 - batch.terminated) * value
        return target

    def _improve_actor(self, batch: Batch) -> None:
        action, log_prob = self.actor(batch.obs)
        value = torch.stack([ask(critic, batch.obs, action) for critic in self.critics]).mean(dim=0)
        ent_coef = self.log_ent_coef.exp().detach()
        descend(self._actor_optimizer, (ent_coef * log_prob - value).mean())
        gap = (log_prob + self._target_entropy).detach()
        descend(self._entropy_optimizer, -(self.log_ent_coef * gap).mean())
