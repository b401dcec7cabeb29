"""Environments whose values are known on paper, and the real loop around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from made_up_data import EXPERIENCE
from rl_training.algorithms.base import Algorithm, Context
from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from rl_training.data.rollout import Rollout
from rl_training.experiment.config import load_config
from rl_training.experiment.fields import settings_of
from rl_training.experiment.registry import REGISTRY, load_spec
from rl_training.models.rssm import WorldState
from rl_training.ops.latents import one_hot
from rl_training.ops.two_hot import expected
from rl_training.runtime.envs.make import describe_spaces
from rl_training.runtime.rng import make_streams
from rl_training.runtime.train import Run, build
from rl_training.runtime.train import run as run_training
from rl_training.types import Act, Carry, SpaceInfo, Step

MODES = (AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
ENGINES = ("auto", "autograd")
ON_POLICY = [name for name, entry in REGISTRY.items() if entry.family in ("on_policy", "actor_learner")]
OFF_POLICY = [name for name, entry in REGISTRY.items() if entry.family == "off_policy"]
OFFLINE = [name for name, entry in REGISTRY.items() if entry.family == "offline"]
PLANNING = [name for name, entry in REGISTRY.items() if entry.family == "planning"]
MULTI_TASK = [name for name, entry in REGISTRY.items() if entry.family == "multi_task"]
DREAMING = [name for name, entry in REGISTRY.items() if entry.family == "world_model"]
# Who imitates learns from no rewards: `test_imitation` has worlds for it.
REWARDED = [name for name, entry in REGISTRY.items() if entry.family != "imitation"]
# Those that discount have values; who only repeats what was done has none. EfficientZero's are those of MuZero. Values
# of dreams are as good as the model: `test_dreamer_worlds` has looser bounds for them.
VALUED = [
    name for name in REWARDED if "gamma" in settings_of(load_spec(name)) and name not in ("efficientzero", *DREAMING)
]
# What an update of PPO reports, and those that build on it.
PPO_METRICS = {
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
    "explained_variance",
    "minibatch_updates",
    "n_updates",
}
# What keeps a run small; an algorithm takes those that it knows.
SMALL = {
    "env_id": "conformance",
    "num_envs": 2,
    "eval_episodes": 1,
    "hidden_sizes": [8],
    "rnn_hidden_size": 8,
    "n_steps": 8,
    "n_epochs": 10,
    "buffer_size": 1000,
    "learning_starts": 4,
    "train_every": 8,
    "updates_per_step": 0.5,
    "n_critics": 2,
    "policy_delay": 2,
    "dataset": "made_up_data:EXPERIENCE",
    "bc_baseline_updates": 0,
    "reward_scale": 1.0,
    "num_simulations": 4,
    "unroll_steps": 2,
    "latent_size": 8,
    "size": "xxs",
    "batch_length": 4,
    "imagination_horizon": 3,
    "warmup_updates": 10,
}


def boxed(size: int, bound: float = 1000.0) -> gym.spaces.Box:
    return gym.spaces.Box(-bound, bound, (size,), np.float32)


DISCRETE = describe_spaces(boxed(3), gym.spaces.Discrete(4), "discrete")
FACTORED = describe_spaces(boxed(3), gym.spaces.MultiDiscrete([3, 2]), "several")
CONTINUOUS = describe_spaces(boxed(3), gym.spaces.Box(-1.0, 1.0, (2,), np.float32), "continuous")
SEVERAL = describe_spaces(boxed(3), gym.spaces.MultiDiscrete([2, 4]), "several")


class StateMachine(gym.Env[np.ndarray, int]):
    """States are numbers, shown as one-hot vectors; subclasses say how an episode starts and how it goes on."""

    states = 1

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (self.states,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.state = 0

    def show(self) -> np.ndarray:
        return np.eye(self.states, dtype=np.float32)[self.state]

    def first(self) -> int:
        return 0

    def move(self, action: int) -> tuple[int, float, bool, bool]:
        """The next state, the reward, and whether the episode was terminated or truncated."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = self.first()
        return self.show(), {}

    def step(self, action: int) -> Any:
        self.state, reward, terminated, truncated = self.move(int(action))
        return self.show(), reward, terminated, truncated, {}


class OneState(StateMachine):
    """A reward of 1 for ever: worth 1 / (1 - gamma), however often a time limit interrupts it."""

    def move(self, action: int) -> tuple[int, float, bool, bool]:
        return 0, 1.0, False, False


class CountedSteps(StateMachine):
    """A reward of 1 for each of five steps, after which the episode is over: each state knows how many are left."""

    length = 5
    states = length + 1

    def move(self, action: int) -> tuple[int, float, bool, bool]:
        return self.state + 1, 1.0, self.state + 1 == self.length, False


class TwoSteps(StateMachine):
    """From A to B for nothing, from B to the end for 1: worth gamma and 1."""

    states = 3

    def move(self, action: int) -> tuple[int, float, bool, bool]:
        return self.state + 1, float(self.state == 1), self.state == 1, False


class CutShort(StateMachine):
    """Episodes from A are truncated when they show B, and the next one starts at C.

    B is worth 1 and C is worth 5, as the episodes that start there show, so A is worth gamma * 1. A bootstrap from the
    reset observation would make it gamma * 5, and one from the observation before the action gamma * V(A), that is 0.
    """

    states = 4
    starts = (0, 2, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.episode = -1

    def first(self) -> int:
        self.episode += 1
        return self.starts[self.episode % len(self.starts)]

    def move(self, action: int) -> tuple[int, float, bool, bool]:
        if self.state == 0:
            return 1, 0.0, False, True
        return 3, 1.0 if self.state == 1 else 5.0, True, False


class Bandit(StateMachine):
    """One choice among four arms, of which the third pays best."""

    pays = (0.0, 0.5, 1.0, 0.25)

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Discrete(len(self.pays))

    def move(self, action: int) -> tuple[int, float, bool, bool]:
        return 0, self.pays[action], True, False


class AnyNumber(gym.ActionWrapper[np.ndarray, np.ndarray, int]):
    """A machine that takes one number from [-1, 1] and goes on as if it were its first action."""

    def __init__(self, env: gym.Env[np.ndarray, int]) -> None:
        super().__init__(env)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action(self, action: np.ndarray) -> int:
        return 0


class ContinuousBandit(gym.Env[np.ndarray, np.ndarray]):
    """One number to choose from [-2, 6]; 4 pays best, and a random one about -1.3. It notes what it was sent."""

    def __init__(self) -> None:
        self.observation_space = boxed(1)
        self.action_space = gym.spaces.Box(-2.0, 6.0, (1,), np.float32)
        self.received: list[float] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        self.received.append(float(action[0]))
        return np.ones(1, np.float32), -(((float(action[0]) - 4.0) / 4.0) ** 2), True, False, {}


class Walk(gym.Env[np.ndarray, int]):
    """Episodes of different lengths that end in turn by termination and truncation; nothing in it is random.

    It shows (its own number, the episode, the step, the latest action), so that no two transitions are alike and every
    one of them can be told from a pair that a reset made.
    """

    def __init__(self, number: int = 0) -> None:
        self.observation_space = boxed(4)
        self.action_space = gym.spaces.Discrete(3)
        self.number, self.episode, self.time, self.latest = number, -1, 0, 0
        self.steps_taken = 0

    def show(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.time, self.latest], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.time, self.latest = self.episode + 1, 0, 0
        return self.show(), {}

    def step(self, action: int) -> Any:
        self.steps_taken += 1
        self.time, self.latest = self.time + 1, int(action)
        over = self.time == 1 + (self.episode + self.number) % 4
        by_itself = self.episode % 2 == 0
        reward = 10.0 * self.episode + self.time + 0.1 * self.latest
        return self.show(), reward, over and by_itself, over and not by_itself, {}


def walking_action(obs: np.ndarray) -> np.ndarray:
    """A policy for `Walk` that depends on all that it shows."""
    return (obs.sum(axis=-1) % 3).astype(np.int64)


def in_mode(make: Callable[..., gym.Env[Any, Any]], mode: AutoresetMode, *, numbered: bool = False) -> Any:
    """A factory of vector environments with this autoreset mode; `numbered` ones are told which they are."""

    def make_vector(num_envs: int) -> SyncVectorEnv:
        makers = [partial(make, number) if numbered else make for number in range(num_envs)]
        return SyncVectorEnv(makers, autoreset_mode=mode)

    return make_vector


def limited(make: Callable[[], gym.Env[Any, Any]], steps: int) -> Callable[[], gym.Env[Any, Any]]:
    return lambda: gym.wrappers.TimeLimit(make(), steps)


def playable(algo: str, make: Callable[[], gym.Env[Any, Any]]) -> Callable[[], gym.Env[Any, Any]]:
    """A machine of two actions in a form that the algorithm can work with."""
    return make if "discrete" in REGISTRY[algo].capabilities.actions else lambda: AnyNumber(make())


def known_settings(algo: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that the algorithm has."""
    known = settings_of(load_spec(algo))
    return {name: value for name, value in settings.items() if name in known}


def built(algo: str, env_factory: Callable[..., Any] | None, **settings: Any) -> Run:
    """A run in memory that writes nothing to disk, ready to go; what learns from a dataset has one of this world."""
    EXPERIENCE.world, EXPERIENCE.time_limit = env_factory, settings.get("time_limit")
    config = {"algo": algo} | known_settings(algo, SMALL) | settings
    run = build(load_config(config), env_factory=env_factory)
    run.start()
    return run


def trained(algo: str, env_factory: Callable[..., Any] | None, **settings: Any) -> Run:
    """A run that has gone through the real loop to its end."""
    run = built(algo, env_factory, **settings)
    try:
        run_training(run)
    finally:
        run.close()
    return run


def values(run: Run, obs: Any, *, in_a_row: bool = False) -> np.ndarray:
    """What the critic says about observations `[B, ...]`, or about the best known actions for them.

    To a recurrent policy they are either the observations of one episode, `in_a_row`, or each the first of an episode.
    """
    learner: Any = run.algorithm
    obs = np.asarray(obs, np.float32)
    if run.config.spec.family == "world_model":
        return dreamt_values(learner, obs, in_a_row=in_a_row)
    if run.config.spec.capabilities.recurrent is True and in_a_row:
        carry, found = learner.policy.initial_carry(1), []
        for row in obs:
            act = chosen(learner, row[None], carry)
            carry = act.carry
            found.append(act.records["value"])
        return np.concatenate(found)
    if run.config.spec.family in ("on_policy", "actor_learner"):
        return chosen(learner, obs).records["value"]
    if run.config.spec.family == "planning":
        return learner.policy.planner.values(learner.observer.scaled(obs))
    if run.config.spec.family == "multi_task":
        return read_values(learner, obs, in_a_row=in_a_row)
    seen = torch.from_numpy(learner.observer.scaled(obs))
    with torch.no_grad():
        if learner.policy.name == "network":  # which gives the value of every choice
            return learner.learners["network"].module(seen).max(dim=1).values.numpy()
        action = chosen(learner, obs, explore=False).action
        judged = learner.learners["critic"].module(seen, torch.from_numpy(action))
    return judged.mean(dim=(0, 2)).numpy()


def dreamt_values(learner: Any, obs: np.ndarray, *, in_a_row: bool) -> np.ndarray:
    """What the value of a world model's states says, in the likeliest states."""
    policy, carry, found = learner.policy, None, []
    for rows in obs[:, None] if in_a_row else [obs]:
        act = chosen(learner, rows, carry, explore=False)
        carry = act.carry
        latent = one_hot(torch.from_numpy(act.records["stoch"]), policy.size.classes)
        state = WorldState(torch.from_numpy(act.records["deter"]), latent)
        with torch.no_grad():
            found.append(policy.network.value.mean(policy.network.value(state.features)).numpy())
    return np.concatenate(found)


def read_values(learner: Any, obs: np.ndarray, *, in_a_row: bool) -> np.ndarray:
    """What a transformer says of states, before it searches there, at the start of episodes or along one."""
    policy, rows = learner.policy, obs if in_a_row else obs[:, None]
    network, task = policy.network, policy.task
    with torch.no_grad():
        latents = network.encode(
            task, torch.from_numpy(policy.observers[task].scaled(rows.reshape(-1, *obs.shape[1:])))
        )
        latents = latents.view(1 if in_a_row else len(obs), -1, latents.shape[-1])
        actions = torch.zeros(len(latents), latents.shape[1] - 1, dtype=torch.int64)
        features = network.read(latents, actions, stage=network.stage).features[:, 0::2]
        said = network.heads_of(task).predict(features).value
    return expected(said, network.shape.value_support).flatten().numpy()


def chosen(
    learner: Algorithm,
    obs: np.ndarray,
    carry: Carry = None,
    *,
    explore: bool = True,
    rng: np.random.Generator | None = None,
) -> Act:
    """What the policy of an algorithm decides; without a carry, episodes begin."""
    policy = learner.policy
    carry = policy.initial_carry(len(obs)) if carry is None else carry
    return policy.act(obs, carry, explore=explore, rng=np.random.default_rng(0) if rng is None else rng)


def agent(algo: str, info: SpaceInfo, *, num_envs: int = 2, seed: int = 0, **settings: Any) -> Any:
    """An algorithm without a loop."""
    config = load_config({"algo": algo, "env_id": "none", "hidden_sizes": [8], **settings})
    context = Context(
        info=info,
        config=config.algorithm,
        model=config.model,
        num_envs=num_envs,
        device=torch.device("cpu"),
        streams=make_streams(seed),
        engine=config.run.engine,
    )
    made: Algorithm = config.spec.build(context)
    return made


def algorithm(algo: str, info: SpaceInfo, **settings: Any) -> OnPolicyAlgorithm:
    """An on-policy algorithm without a loop."""
    made = agent(algo, info, **settings)
    assert isinstance(made, OnPolicyAlgorithm)
    made.memories(rollout_rows=1000)
    return made


def played(learner: OnPolicyAlgorithm, info: SpaceInfo, *, n_steps: int, num_envs: int, seed: int = 0) -> Rollout:
    """A rollout of the learner's own actions among random observations, rewards and episode ends."""
    rng, policy_rng = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    rollout = Rollout(n_steps, num_envs, info, learner.policy.records(info))
    real = np.ones(num_envs, np.bool_)
    obs = rng.standard_normal((num_envs, *info.obs_shape)).astype(np.float32)
    for _ in range(n_steps):
        act = chosen(learner, obs, rng=policy_rng)
        next_obs = rng.standard_normal(obs.shape).astype(np.float32)
        terminated = rng.random(num_envs) < 0.2
        truncated = ~terminated & (rng.random(num_envs) < 0.2)
        reward = rng.standard_normal(num_envs).astype(np.float32)
        rollout.add(Step(obs, act.action, reward, next_obs, terminated, truncated, real, act.records))
        fresh = rng.standard_normal(obs.shape).astype(np.float32)
        obs = np.where((terminated | truncated)[:, None], fresh, next_obs)
    return rollout


def full_reference(learner: OnPolicyAlgorithm, rollout: Rollout) -> dict[str, torch.Tensor]:
    """Observations, actions, old log-probabilities, values, advantages and targets `[N]`, by plain loops and torch."""
    cfg = learner.cfg
    steps, envs = rollout.reward.shape
    with torch.no_grad():
        params, value = learner.network(torch.from_numpy(rollout.obs.reshape(steps * envs, -1)))
        actions = torch.from_numpy(rollout.action.reshape(steps * envs, *rollout.action.shape[2:]))
        log_prob = learner.distribution.log_prob(params, actions)
        value = value.reshape(steps, envs)
        _, bootstrap = learner.network(torch.from_numpy(rollout.bootstrap_obs()))
        next_value = rollout.next_values(value.numpy(), bootstrap.numpy())
    advantage = torch.zeros(steps, envs)
    for b in range(envs):
        trace = 0.0
        for t in reversed(range(steps)):
            if rollout.done[t, b]:
                trace = 0.0
            successor = 0.0 if rollout.terminated[t, b] else float(next_value[t, b])
            error = float(rollout.reward[t, b]) + cfg.gamma * successor - float(value[t, b])
            trace = error + cfg.gamma * cfg.gae_lambda * trace
            advantage[t, b] = trace
    flat = {"value": value.reshape(-1), "advantage": advantage.reshape(-1), "log_prob": log_prob, "action": actions}
    return flat | {"target": flat["value"] + flat["advantage"], "obs": torch.from_numpy(rollout.obs.reshape(-1, 3))}
