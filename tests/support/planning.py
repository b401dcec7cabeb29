"""Learners of the planning family, made-up memories for them, and networks that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conformance import DISCRETE, agent
from off_policy_reference import PARTS
from rl_training.algorithms.base import ModelConfig
from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.parts.unroll_batch import UnrollBatch
from rl_training.data.batches import Windows
from rl_training.data.memory import ReplayMemory
from rl_training.data.replay import Replay
from rl_training.data.samplers import Sampler
from rl_training.ops.observations import pack
from rl_training.testing import LinearMuZero
from rl_training.types import Act, Array, SpaceInfo, Step

ALGORITHMS = ("muzero", "gumbel_muzero", "efficientzero")
# EfficientZero with nothing that MuZero does not have.
PLAIN = {"value_prefix": False, "consistency_coef": 0.0, "augment": False}
SMALL: dict[str, Any] = {
    "batch_size": 12,
    "unroll_steps": 3,
    "n_step": 2,
    "num_simulations": 8,
    "hidden_sizes": [12],
    "latent_size": 8,
    "value_bins": 11,
    "value_limit": 50.0,
    "reward_bins": 7,
    "reward_limit": 10.0,
    "sampled_actions": 5,
    "interior_actions": 3,
    "learning_rate": 1e-3,
    "target_update_interval": 2,
}


def learner_of(algo: str, info: SpaceInfo = DISCRETE, *, noise: float = 0.4, **settings: Any) -> MuZero:
    """An algorithm without a loop; noise on the weights makes values and rewards of networks that have not learned."""
    made = agent(algo, info, **(SMALL | settings))
    assert isinstance(made, MuZero)
    disturb(made.model.learner.weights.data, 1, noise)
    disturb(made.model.follower.weights.data, 2, noise)
    return made


def disturb(weights: Tensor, seed: int, scale: float = 0.4) -> None:
    noise = np.random.default_rng(seed).standard_normal(weights.numel()).astype(np.float32)
    weights.add_(scale * torch.from_numpy(noise))


def observations(info: SpaceInfo, rows: int, rng: np.random.Generator, mask: Array | None = None) -> Array:
    """Random numbers, with this mask for all rows or a random one for each, where there is one."""
    if not info.packed:
        return rng.standard_normal((rows, *info.obs_shape)).astype(np.float32)
    numbers = rng.standard_normal((rows, 3)).astype(np.float32)
    masks = rng.random((rows, info.mask_size)) < 0.5
    masks[np.arange(rows), rng.integers(0, info.mask_size, rows)] = True
    masks = masks if mask is None else np.repeat(mask[None], rows, axis=0)
    return np.stack([pack(*pair, PARTS, info.mask_size) for pair in zip(numbers, masks, strict=True)])


class Events:
    """Made-up steps of some environments for a learner's memory: random numbers in the right shapes."""

    def __init__(self, learner: MuZero, num_envs: int = 2, seed: int = 0) -> None:
        self.info, self.kinds = learner.info, learner.policy.records(learner.info)
        self.num_envs, self.rng = num_envs, np.random.default_rng(seed)
        self.obs = observations(self.info, num_envs, self.rng)

    def step(self, letters: str) -> Step:
        """One letter for each environment: go, terminated, truncated (o for out of time)."""
        info, rng, rows = self.info, self.rng, self.num_envs
        terminated, truncated = (np.array([letter == kind for letter in letters]) for kind in "to")
        after = observations(info, rows, rng)
        if info.continuous:
            action = rng.uniform(-1.0, 1.0, (rows, info.action_size)).astype(np.float32)
        else:
            action = rng.integers(0, info.action_size, rows)
        reward = (2.0 * rng.standard_normal(rows)).astype(np.float32)
        records = {
            "policy": rng.dirichlet(np.ones(self.kinds["policy"].shape[0]), rows).astype(np.float32),
            "search_value": rng.standard_normal(rows).astype(np.float32),
        }
        if info.continuous:
            records["actions"] = rng.uniform(-0.95, 0.95, (rows, *self.kinds["actions"].shape)).astype(np.float32)
        step = Step(self.obs, action, reward, after, terminated, truncated, np.ones(rows, np.bool_), records)
        over = (terminated | truncated).reshape(rows, *[1] * (after.ndim - 1))
        self.obs = np.where(over, observations(info, rows, rng), after)
        return step


def memory_of(
    learner: MuZero,
    steps: int = 40,
    *,
    num_envs: int = 2,
    seed: int = 0,
    kind: type[ReplayMemory] = ReplayMemory,
    sampler: Callable[[Replay], Sampler] | None = None,
) -> ReplayMemory:
    """A full memory of made-up steps of episodes that end in both ways."""
    replay = Replay(learner.info, num_envs, steps * num_envs, learner.policy.records(learner.info))
    memory = kind(replay, None if sampler is None else sampler(replay))
    events = Events(learner, num_envs, seed)
    for _ in range(steps):
        memory.add(events.step("".join(events.rng.choice(list("ggggto"), num_envs))))
    return memory


def history(learner: MuZero, letters: str) -> ReplayMemory:
    """A memory of one environment; each letter is a step, and c cuts the episode after it."""
    replay = Replay(learner.info, 1, 50, learner.policy.records(learner.info))
    memory, events = ReplayMemory(replay), Events(learner, 1)
    for letter in letters:
        memory.add(events.step(letter))
        if letter == "c":
            memory.cut(np.ones(1, np.bool_))
    return memory


def windows_from(memory: ReplayMemory, learner: MuZero, starts: list[int]) -> Windows:
    """The windows of an update that start at given slots."""
    length = learner.cfg.unroll_steps + learner.cfg.n_step
    return memory.replay.gather_windows(np.array(starts), length, across_episodes=False)


def batch_of(memory: ReplayMemory, learner: MuZero, starts: list[int]) -> UnrollBatch:
    """What an update learns from these windows."""
    windows = windows_from(memory, learner, starts)
    return learner.unroll_batch(windows, learner.value_targets(windows, memory.ages(windows.index[0])))


class Weighted(ReplayMemory):
    """A memory whose windows have weights that depend on the draw alone."""

    def windows(self, count: int, rng: np.random.Generator, **asked: Any) -> Windows:
        found = super().windows(count, rng, **asked)
        return replace(found, weight=rng.uniform(0.2, 1.0, count).astype(np.float32))


class Remembering(ReplayMemory):
    """A memory that keeps copies of what was drawn and noted."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.drawn: list[Windows] = []
        self.notes: list[tuple[Array, dict[str, Any]]] = []

    def windows(self, count: int, rng: np.random.Generator, **asked: Any) -> Windows:
        found = super().windows(count, rng, **asked)
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "first", "real", "past", "index")
        copies = {name: getattr(found, name).copy() for name in names}
        records = {name: column.copy() for name, column in found.records.items()}
        self.drawn.append(replace(found, **copies, records=records))
        return found

    def note(self, index: Array, **noted: Any) -> None:
        self.notes.append((index.copy(), noted))
        super().note(index, **noted)


def acted(learner: MuZero, obs: Array, *, explore: bool = True, seed: int = 0, moves: int = 0, **values: float) -> Act:
    """What the policy decides, with other hyperparameters if they are given."""
    learner.set_hyperparameters(**values)
    carry = np.full(len(obs), moves, np.int64)
    return learner.policy.act(obs, carry, explore=explore, rng=np.random.default_rng(seed))


def same_root(learner: MuZero, rows: int, mask: Array | None = None) -> Array:
    """One observation many times."""
    return np.repeat(observations(learner.info, 1, np.random.default_rng(5), mask), rows, axis=0)


def entropy_of(actions: Array, count: int) -> float:
    """The entropy of the empirical distribution of choices."""
    shares = np.bincount(actions, minlength=count) / len(actions)
    return float(-(shares * np.log(np.maximum(shares, 1e-30))).sum())


# Networks that do not fit


class NoMuZero(nn.Linear):
    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__(3, 3)


class WrongValue(LinearMuZero):
    def predict(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        params, value = super().predict(latent)
        return params, value[:, 1:]


class WrongPolicy(LinearMuZero):
    def predict(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        params, value = super().predict(latent)
        return params[:, 1:], value


class WrongReward(LinearMuZero):
    def dynamics(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        after, reward = super().dynamics(latent, action)
        return after, reward[:, :1]


class WrongLatent(LinearMuZero):
    def represent(self, obs: Any) -> Tensor:
        return super().represent(obs)[:, :3]


class WrongNextLatent(LinearMuZero):
    def dynamics(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        after, reward = super().dynamics(latent, action)
        return torch.cat([after, after], dim=1), reward


class UnusualReward(LinearMuZero):
    """Its last layer of rewards is more than one layer."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__(info, config)
        self.reward = nn.Sequential(nn.Linear(4, 5))


class PixelMuZero(LinearMuZero):
    """For images of any size."""

    def represent(self, obs: Any) -> Tensor:
        return super().represent(obs.float() / 255.0)


# Two forms of one update


def assert_forms_agree(algo: str, info: SpaceInfo, *, updates: int = 4, **settings: Any) -> None:
    """The engine and autograd learn the same from the same windows: losses, gradients, weights, to 1e-5."""
    learners = [learner_of(algo, info, engine=engine, **settings) for engine in ("auto", "autograd")]
    assert [learner.engine for learner in learners] == ["mlp", "autograd"]
    memories = [memory_of(learner, kind=Weighted) for learner in learners]
    for _ in range(updates):
        ours, theirs = (learner.update(memory) for learner, memory in zip(learners, memories, strict=True))
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
        for name, mine in learners[0].learners.items():
            other = learners[1].learners[name]
            gradients = mine.parameters.grad, other.parameters.grad
            assert (gradients[0] - gradients[1]).norm() <= 1e-5 * gradients[1].norm(), name
            torch.testing.assert_close(mine.parameters.data, other.parameters.data, rtol=1e-5, atol=1e-5)
    assert learners[0].n_updates == updates
    slow, fast = learners[0].model.follower.weights.data, learners[0].model.learner.weights.data
    assert torch.equal(slow, fast), "the target network is copied every second update"
