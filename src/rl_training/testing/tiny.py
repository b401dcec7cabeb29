"""The smallest environment, networks and datasets that exercise every kind of space."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import LoopConfig, ModelConfig, NetworkConfig
from rl_training.experiment.settings import RunConfig
from rl_training.models.muzero import MuZeroNetwork
from rl_training.models.rssm import WorldSize
from rl_training.models.world_model import DreamerNetwork
from rl_training.ops.two_hot import Support
from rl_training.runtime.envs.make import EnvMaker
from rl_training.types import Array, SpaceInfo

if TYPE_CHECKING:
    from rl_training.algorithms.scalezero_settings import ScaleZeroModelConfig


class TinyEnv(gym.Env[Any, Any]):
    """A noisy walk on a line towards 0, which terminates at its ends and is truncated after 7 steps.

    It supports every kind of actions and observations; with `masked`, some actions are forbidden at random.
    """

    ACTIONS: ClassVar[dict[str, gym.Space[Any]]] = {
        "discrete": gym.spaces.Discrete(3, start=1),
        "multi_discrete": gym.spaces.MultiDiscrete([3, 2]),
        "multi_binary": gym.spaces.MultiBinary(2),
        "continuous": gym.spaces.Box(-1.0, 2.0, (2,), np.float32),
    }
    OBSERVATIONS: ClassVar[dict[str, gym.Space[Any]]] = {
        "vector": gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "image": gym.spaces.Box(0, 255, (36, 36, 1), np.uint8),
        "dict": gym.spaces.Dict(
            {
                "numbers": gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
                "image": gym.spaces.Box(0, 255, (2, 36, 36), np.uint8),
            }
        ),
    }

    def __init__(self, actions: str = "discrete", observations: str = "vector", masked: bool = False) -> None:
        self.action_space = self.ACTIONS[actions]
        self.observation_space = self.OBSERVATIONS[observations]
        self._actions, self._observations, self._masked = actions, observations, masked
        self._position, self._time = 0.0, 0
        self._allowed = np.ones(0, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._position, self._time = float(self.np_random.normal()), 0
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push = self._push(action)
        self._position += 0.5 * push + 0.2 * float(self.np_random.normal())
        self._time += 1
        reward = -abs(self._position) - 0.1 * push**2
        return self._obs(), reward, abs(self._position) > 2.0, self._time >= 7, self._info()

    def _push(self, action: Any) -> float:
        if self._masked and self._actions != "continuous":
            choices = np.ravel(action) - (1 if self._actions == "discrete" else 0)
            starts = np.concatenate([[0], np.cumsum(self._counts())[:-1]])
            assert self._allowed[starts + choices].all(), f"the forbidden action {action} was taken"
        if self._actions == "discrete":
            return float(action) - 2.0
        return float(action[0]) - float(action[1])

    def _counts(self) -> list[int]:
        return {"discrete": [3], "multi_discrete": [3, 2], "multi_binary": [2, 2]}[self._actions]

    def _info(self) -> dict[str, Any]:
        if not self._masked or self._actions == "continuous":
            return {}
        counts = self._counts()
        self._allowed = self.np_random.random(sum(counts)) < 0.5
        # At least one choice of each factor is allowed.
        for count, start in zip(counts, np.cumsum([0, *counts[:-1]]), strict=True):
            self._allowed[start + int(self.np_random.integers(count))] = True
        return {"action_mask": self._allowed.astype(np.int8)}

    def _obs(self) -> Any:
        numbers = np.array([self._position, self._position**2, self._time / 7.0], np.float32)
        if self._observations == "vector":
            return numbers
        column = int(np.clip(18 + 8 * self._position, 0, 35))
        if self._observations == "image":
            image = np.zeros((36, 36, 1), np.uint8)
            image[:, column] = 255
            return image
        image = np.zeros((2, 36, 36), np.uint8)
        image[:, :, column] = 255
        return {"numbers": numbers, "image": image}


class TinyGoalEnv(TinyEnv):
    """The same walk towards a goal anywhere on the line, which is reached or missed; it ends at the goal, too."""

    def __init__(self, actions: str = "discrete") -> None:
        super().__init__(actions)
        number = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        shown = {"observation": self.observation_space, "achieved_goal": number, "desired_goal": number}
        self.observation_space = gym.spaces.Dict(shown)
        self._goal = np.zeros(1, np.float32)

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """The reward for one goal, or for many in rows."""
        reached = self.compute_terminated(achieved_goal, desired_goal, info)
        rewards: Array = reached.astype(np.float32) - np.float32(1.0)
        return rewards

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """Whether an episode ends at one goal, or at many in rows."""
        return np.asarray(np.abs(achieved_goal - desired_goal)[..., 0] < 0.3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        self._goal = self.np_random.normal(size=1).astype(np.float32)
        return self._shown(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, _ = super().step(action)
        shown = self._shown(obs)
        reached = bool(self.compute_terminated(shown["achieved_goal"], self._goal, {}))
        return shown, float(reached) - 1.0, terminated or reached, truncated, {"is_success": reached}

    def _shown(self, obs: Array) -> dict[str, Array]:
        return {"observation": obs, "achieved_goal": obs[:1].copy(), "desired_goal": self._goal.copy()}


class LinearActorCritic(nn.Module):
    """The smallest custom network that `model: module:Name` accepts."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__()
        params = info.action_size * (2 if info.continuous else 1)
        self.layer = nn.Linear(math.prod(info.input_shape), params + 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(obs.flatten(1))
        return out[:, :-1], out[:, -1]


class LinearSeparateActorCritic(nn.Module):
    """The same with separate layers, for algorithms that train the value apart from the policy."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__()
        inputs = math.prod(info.input_shape)
        self.policy = nn.Linear(inputs, info.action_size * (2 if info.continuous else 1))
        self.value = nn.Linear(inputs, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        flat = obs.flatten(1)
        return self.policy(flat), self.value(flat).squeeze(-1)


class LinearPhasicActorCritic(LinearSeparateActorCritic):
    """The same for PPG: `auxiliary` also returns an auxiliary value, computed from the policy's output."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__(info, config)
        self.extra = nn.Linear(self.policy.out_features, 1)

    def auxiliary(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        params, value = self(obs)
        return params, value, self.extra(params).squeeze(-1)


class LinearRecurrentActorCritic(nn.Module):
    """The smallest custom network for recurrent PPO: its state is a running mean of the observations."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__()
        self.state_size = math.prod(info.input_shape)
        params = info.action_size * (2 if info.continuous else 1)
        self.layer = nn.Linear(self.state_size, params + 1)

    def forward(self, obs: Tensor, sizes: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        means = []
        for rows in torch.split(obs.flatten(1), sizes.tolist()):
            state = torch.cat([0.5 * (state[: len(rows)] + rows), state[len(rows) :]])
            means.append(state[: len(rows)])
        out = self.layer(torch.cat(means))
        return out[:, :-1], out[:, -1], state


class LinearQNetwork(nn.Module):
    """The smallest custom network for DQN."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(info.input_shape), info.action_size)

    def forward(self, obs: Tensor) -> Tensor:
        values: Tensor = self.layer(obs.flatten(1))
        return values


class LinearMuZero(MuZeroNetwork):
    """The smallest custom network for MuZero and similar algorithms: every part is one layer."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__(info, (4,), Support(2.0, 5), Support(3.0, 7))
        self.first = nn.Linear(math.prod(info.input_shape), 4)
        self.next = nn.Linear(4 + info.action_size, 4)
        self.reward = nn.Linear(4, 5)
        self.heads = nn.Linear(4, self.policy_size + 7)

    def represent(self, obs: Any) -> Tensor:
        latent: Tensor = self.first(obs.flatten(1)).sigmoid()
        return latent

    def dynamics(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        after = self.next(torch.cat([latent, self.action_columns(action)], dim=1)).sigmoid()
        return after, self.reward(after)

    def predict(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        out = self.heads(latent)
        return out[:, : self.policy_size], out[:, self.policy_size :]


class LinearEncoder(nn.Module):
    """The smallest custom encoder for ScaleZero: one layer."""

    def __init__(self, info: SpaceInfo, config: ScaleZeroModelConfig) -> None:
        super().__init__()
        self.latent = nn.Linear(math.prod(info.input_shape), config.width)

    def forward(self, obs: Any) -> Tensor:
        latent: Tensor = self.latent(obs.flatten(1))
        return latent


class SmallDreamer(DreamerNetwork):
    """Custom networks for Dreamer: smaller ones than any named size."""

    def __init__(self, info: SpaceInfo, config: NetworkConfig) -> None:
        super().__init__(info, WorldSize(deter=16, hidden=8, classes=4, units=8, depth=2, stoch=4, blocks=2))


class LinearCritics(nn.Module):
    """Critics of one layer: `[critics, B, quantiles]`."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__()
        inputs = math.prod(info.input_shape) + info.action_size
        self.quantiles = getattr(config, "n_quantiles", 1)
        self.layer = nn.Linear(inputs, 2 * self.quantiles)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        out: Tensor = self.layer(torch.cat([obs.flatten(1), action], dim=-1))
        return out.reshape(len(out), 2, self.quantiles).transpose(0, 1)


class LinearSoftActorCritic(nn.Module):
    """The smallest custom networks for SAC and similar algorithms: an actor that returns `[B, 2A]`, and critics."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(info.input_shape), 2 * info.action_size))
        self.critic = LinearCritics(info, config)


class LinearDeterministicActorCritic(nn.Module):
    """The smallest custom networks for TD3 and similar algorithms: an actor that returns `[B, A]`, and critics."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(info.input_shape), info.action_size))
        self.critic = LinearCritics(info, config)


class LinearImplicitModel(LinearDeterministicActorCritic):
    """The smallest custom networks for IQL: those of TD3, and the value of a state `[B, 1]`."""

    def __init__(self, info: SpaceInfo, config: ModelConfig) -> None:
        super().__init__(info, config)
        self.value = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(info.input_shape), 1))


class LinearPolicy(LinearQNetwork):
    """The smallest custom network for behaviour cloning: it returns actions before tanh, or logits."""


def tiny_dataset(info: SpaceInfo, *, episodes: int = 30, seed: int = 0) -> dict[str, Array]:
    """Random transitions of `TinyEnv`, in a layout whose `dones` do not say why an episode ended."""
    env = _tiny_env(info)
    rng = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    for episode in range(episodes):
        obs, facts = env.reset(seed=1000 * seed + episode)
        done = False
        while not done:
            action = _random_action(info, facts, rng)
            next_obs, reward, terminated, truncated, facts = env.step(action)
            done = terminated or truncated
            rows.append((obs, action, reward, next_obs, done))
            obs = next_obs
    env.close()
    names = ("observations", "actions", "rewards", "next_observations", "dones")
    return {name: np.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def another_tiny_dataset(info: SpaceInfo) -> dict[str, Array]:
    """The same with another seed."""
    return tiny_dataset(info, seed=1)


def _tiny_env(info: SpaceInfo) -> gym.Env[Any, Any]:
    """The `TinyEnv` with these spaces."""
    kinds = {"actions": info.action_kind, "observations": info.obs_kind, "masked": info.mask_size > 0}
    plain = 3 if info.obs_kind == "image" else 1
    stack = info.input_shape[0] if info.obs_kind != "dict" and len(info.input_shape) > plain else 1
    maker = EnvMaker(RunConfig(env_id="rl_training.testing:TinyEnv", env_kwargs=kinds), LoopConfig(frame_stack=stack))
    maker.masked = info.mask_size > 0
    return maker.single()


def _random_action(info: SpaceInfo, facts: dict[str, Any], rng: np.random.Generator) -> Any:
    """An allowed action in the environment's units; continuous actions stay within [-1, 1] too."""
    if info.continuous:
        return rng.uniform(-0.9, 0.9, info.action_size).astype(np.float32)
    allowed = np.asarray(facts.get("action_mask", np.ones(info.action_size)))
    factors = np.split(allowed, np.cumsum(info.action_counts)[:-1])
    choices = [rng.choice(np.flatnonzero(factor)) for factor in factors] + np.asarray(info.action_starts)
    return np.int64(choices[0]) if info.action_kind == "discrete" else choices.astype(np.int64)
