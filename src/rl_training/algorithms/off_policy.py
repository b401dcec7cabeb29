"""What the algorithms of the off-policy loop share: settings, minibatches, random actions, state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt
from torch import Tensor

from rl_training.algorithms.base import Algorithm, AlgorithmConfig, CollectingLoopConfig, Context, ModelConfig, setting
from rl_training.algorithms.parts.observer import Observer, under
from rl_training.data.replay import Replay
from rl_training.data.samplers import PrioritizedSampler, UniformSampler
from rl_training.models.learner import Follower, Learner
from rl_training.types import Array, Metrics, Step

Sampler = UniformSampler | PrioritizedSampler


class OffPolicyLoopConfig(CollectingLoopConfig):
    """Some steps of experience into the replay, then the updates that are due for them."""

    buffer_size: int = setting(1_000_000, "Transitions that the replay holds.", ge=1, probe=4)
    learning_starts: int = setting(100, "Steps of random actions before learning starts.", ge=0, probe=9)
    train_every: int = setting(1, "Steps between two phases of learning.", aliases=["train_freq"], ge=1, probe=7)
    updates_per_step: float = setting(
        1.0, "Gradient updates per step of experience, whatever num_envs is.", gt=0.0, static=True, probe=0.75
    )


class OffPolicyModelConfig(ModelConfig):
    """Networks of the off-policy algorithms are wider, with another activation."""

    hidden_sizes: tuple[PositiveInt, ...] = setting((256, 256), "Widths of the hidden layers.", probe=(8,))
    activation: Literal["tanh", "relu", "silu", "elu"] = setting("relu", "Activation of hidden layers.", probe="tanh")


class MinibatchConfig(AlgorithmConfig):
    """Hyperparameters of everything that learns from minibatches of a memory."""

    learning_rate: float = setting(3e-4, "Step size of the optimisers.", ge=0.0, report=True)
    batch_size: int = setting(256, "Transitions in a minibatch.", ge=1, probe=5)
    normalize_obs: bool | Literal["auto"] = setting(
        False, "Scale observations by mean and deviation; `auto`: where they are numbers, not images.", probe=True
    )
    obs_clip: float = setting(
        10.0, "Scaled observations stay within this.", gt=0.0, static=True, live_when={"normalize_obs": True}, probe=0.1
    )


class OffPolicyConfig(MinibatchConfig):
    """Hyperparameters of every algorithm that learns values off its policy."""

    gamma: float = setting(0.99, "Discount factor.", ge=0.0, le=1.0, probe=0.5)
    tau: float = setting(0.005, "Share of the new weights when the target networks follow.", ge=0.0, le=1.0, probe=0.5)
    n_step: int = setting(1, "Rewards that a target sums up before it bootstraps.", ge=1, probe=3)


@dataclass(frozen=True)
class Minibatch:
    """Transitions `[B]`, their observations scaled; `weight` is what a prioritised draw makes up for."""

    obs: Array
    action: Array
    reward: Array
    next_obs: Array
    terminated: Array
    discount: Array
    weight: Array | None

    def __len__(self) -> int:
        return len(self.reward)


class OffPolicyAlgorithm(Algorithm):
    """Learns from minibatches of a replay. Subclasses say how; `policy` names the learner that acts."""

    cfg: MinibatchConfig
    policy: str
    learners: dict[str, Learner]
    followers: dict[str, Follower]
    drawn_together = 32  # minibatches at most

    def __init__(self, context: Context) -> None:
        super().__init__(context.config)
        cfg = self.cfg
        self.info = context.info
        self.observer = Observer(context.info, context.device, normalize=cfg.normalize_obs, clip=cfg.obs_clip)
        self.policy_rng = context.streams["policy"]
        self.batch_rng = context.streams["batch"]
        self.n_updates = 0

    @abstractmethod
    def learn(self, mini: Minibatch) -> Metrics:
        """One gradient update."""

    def make_sampler(self, replay: Replay) -> Sampler:
        """What decides which transitions are learned from."""
        return UniformSampler(replay)

    def draw(self, sampler: Sampler, count: int) -> tuple[Array, Array | None]:
        """Slots of transitions to learn from, and their weights if they are not drawn evenly."""
        return sampler.draw(self.batch_rng, count, 0.0)

    def gather(self, replay: Replay, index: Array) -> Step:
        """The transitions of some slots, as its targets want them."""
        cfg = self.cfg
        assert isinstance(cfg, OffPolicyConfig)
        return replay.gather(index, n_step=cfg.n_step, gamma=cfg.gamma)

    def judge_draw(self, sampler: Sampler, index: Array) -> None:
        """Tell the sampler what came of the slots that were just learned from."""

    def observe(self, steps: Sequence[Step]) -> None:
        """Take note of what was just gathered."""
        if self.observer.normalizer is not None:
            self.observer.update(np.concatenate([step.obs[step.real] for step in steps]))

    def random_actions(self, obs: Array) -> Array:
        """Actions before anything is learned: uniform, over what is allowed."""
        if self.info.continuous:
            return self.policy_rng.uniform(-1.0, 1.0, (len(obs), self.info.action_size)).astype(np.float32)
        return random_choices(self.policy_rng, len(obs), self.info.action_size, self.observer.mask(obs))

    def update(self, batch: Step) -> Metrics:
        """One update for each `batch_size` transitions, in order; gives the mean of their metrics."""
        if self.engine == "autograd":  # acting has put a user's network into the other mode
            for learner in self.learners.values():
                learner.module.train()
        seen: dict[str, list[float]] = {}
        for mini in self._minibatches(batch):
            self.n_updates += 1
            for name, value in self.learn(mini).items():
                seen.setdefault(name, []).append(value)
        return {name: sum(values) / len(values) for name, values in seen.items()}

    def _minibatches(self, batch: Step) -> Iterator[Minibatch]:
        obs, next_obs = self.observer.scaled(batch.obs), self.observer.scaled(batch.next_obs)
        weight = batch.extras.get("weight")
        for start in range(0, len(batch.reward), self.cfg.batch_size):
            part = slice(start, start + self.cfg.batch_size)
            yield Minibatch(
                obs[part],
                batch.action[part],
                batch.reward[part],
                next_obs[part],
                batch.terminated[part],
                batch.extras["discount"][part],
                None if weight is None else weight[part],
            )

    def policy_state(self) -> dict[str, Tensor]:
        module = self.learners[self.policy].module
        return {f"{self.policy}.{name}": tensor for name, tensor in module.state_dict().items()} | (
            self.observer.state_dict()
        )

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        self.learners[self.policy].module.load_state_dict(under(state, f"{self.policy}."))
        self.observer.load_state_dict(state)

    def training_state(self) -> dict[str, Any]:
        learners = {name: learner.state_dict() for name, learner in self.learners.items()}
        del learners[self.policy]["module"]
        followers = {name: follower.state_dict() for name, follower in self.followers.items()}
        return {"learners": learners, "followers": followers, "n_updates": self.n_updates}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        acting = {"module": self.learners[self.policy].module.state_dict()}
        for name, learner in self.learners.items():
            if name in state["learners"]:  # one that a change of the config has brought begins anew
                learner.load_state_dict(acting | state["learners"][name])
        for name, follower in self.followers.items():
            follower.load_state_dict(state["followers"][name])
        self.n_updates = state["n_updates"]


def random_choices(rng: np.random.Generator, rows: int, count: int, mask: Array | None) -> Array:
    """A choice for each row, all allowed ones being equally likely."""
    if mask is None:
        return rng.integers(0, count, rows)
    chosen: Array = np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=-1)
    return chosen


def flat_rows(inputs: Array) -> Array:
    """Observations as the MLP engine takes them, `[B, in]`."""
    return np.ascontiguousarray(inputs, np.float32).reshape(len(inputs), -1)
