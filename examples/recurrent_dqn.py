"""Deep recurrent Q-learning (Hausknecht and Stone 2015), as user code: a recurrent off-policy algorithm.

The policy carries the state of a GRU and records it. Updates learn from windows of steps, each from the state stored
with its first step, and write new ones back. Try `rl-training train recurrent_dqn:SPEC env_id=CartPole-v1`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import AlgorithmSpec, Context, ModelConfig, PolicyContext
from rl_training.algorithms.dqn import DQNLoopConfig
from rl_training.algorithms.off_policy import MinibatchConfig, NetworkPolicy, ReplayAlgorithm
from rl_training.algorithms.parts.policies import allowed
from rl_training.algorithms.settings import setting
from rl_training.data.memory import Memory
from rl_training.models.flat import Follower, Learner
from rl_training.ops.exploration import uniform_choices
from rl_training.types import Act, Array, ArrayKind, Capabilities, Carry, Metrics, Records, SpaceInfo


class RecurrentDQNConfig(MinibatchConfig):
    """minimise (Q(h, a) - (r + gamma max Q'(h', .)))^2 over windows of steps, h being a state of the GRU"""

    gamma: float = setting(0.97, "Discount factor.", ge=0.0, le=1.0, probe=0.5)
    epsilon: float = setting(0.1, "Share of random actions in training.", ge=0.0, le=1.0, report=True, probe=0.9)
    window: int = setting(8, "Consecutive steps in a window, through which gradients flow.", ge=1, probe=2)
    tau: float = setting(0.02, "Share of the online weights in a target network's update.", ge=0.0, le=1.0, probe=0.5)


class RecurrentQNetwork(nn.Module):
    """Q-values `[B, A]` from an observation and a state, and the state after it."""

    def __init__(self, info: SpaceInfo, width: int) -> None:
        super().__init__()
        self.core, self.head = nn.GRUCell(int(np.prod(info.input_shape)), width), nn.Linear(width, info.action_size)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.core(obs.flatten(1), state)
        return self.head(state), state


class RecurrentQPolicy(NetworkPolicy):
    """Epsilon-greedy. The carry is the state of the GRU, and every step records the state that it started from."""

    name, acting_settings = "network", ("epsilon",)

    def __init__(self, context: PolicyContext) -> None:
        self.width = context.model.hidden_sizes[0]
        super().__init__(context, RecurrentQNetwork(context.info, self.width).to(context.device), "autograd")

    def records(self, info: SpaceInfo) -> Records:
        return {"state": ArrayKind((self.width,), "float32")}

    def initial_carry(self, count: int) -> Carry:
        return np.zeros((count, self.width), np.float32)

    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        return carry * ~mask[:, None]

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        observer, mask = self.observer, self.observer.mask(obs)
        with torch.inference_mode():
            values, after = self.network(observer.tensors(observer.scaled(obs)), observer.tensor(carry))
        action: Array = allowed(values.cpu().numpy(), mask).argmax(axis=-1)
        if explore:
            other = uniform_choices(rng, len(obs), self.info.action_size, mask)
            action = np.where(rng.random(len(obs)) < self.values["epsilon"], other, action)
        return Act(action, after.cpu().numpy(), {"state": carry})


class RecurrentDQN(ReplayAlgorithm):
    """Q-learning on windows. Rows past the end of an episode do not count."""

    cfg: RecurrentDQNConfig

    def __init__(self, context: Context) -> None:
        policy = RecurrentQPolicy(context)
        super().__init__(context, policy, {"network": Learner(policy.network, policy.weights)})
        self.learner, self.target = self.learners["network"], Follower(self.learners["network"])
        self.followers["network"] = self.target

    def learn_from(self, memory: Memory, updates: int) -> Metrics:
        return {name: value for _ in range(updates) for name, value in self.update(memory).items()}

    def update(self, memory: Memory) -> Metrics:
        cfg, tensor = self.cfg, self.observer.tensor
        batch = memory.windows(cfg.batch_size, self.batch_rng, length=cfg.window, across_episodes=False)
        obs, next_obs = (self.observer.tensors(self.observer.scaled(rows)) for rows in (batch.obs, batch.next_obs))
        state, states, errors = tensor(batch.records["state"][0]), [], []
        for t, action in enumerate(tensor(batch.action)):
            states.append(state.detach())
            values, state = self.learner.module(obs[t], state)
            follows = self.target.module(next_obs[t], state.detach())[0].cpu().numpy()
            best = allowed(follows, self.observer.mask(batch.next_obs[t])).max(axis=-1)
            goal = tensor(batch.reward[t] + np.float32(cfg.gamma) * best * ~batch.terminated[t])
            errors.append(values.gather(-1, action[:, None])[:, 0] - goal)
        loss = torch.stack(errors)[tensor(batch.real)].square().mean()
        self.learner.differentiate(loss)
        self.learner.descend(cfg.learning_rate)
        self.target.follow(cfg.tau)
        memory.note(batch.index, columns={"state": torch.stack(states).cpu().numpy()})
        self.n_updates += 1
        return {"loss": float(loss.detach())}


SPEC = AlgorithmSpec(
    name="recurrent_dqn",
    family="off_policy",
    summary="Deep recurrent Q-learning",
    config=RecurrentDQNConfig,
    loop=DQNLoopConfig,
    model=ModelConfig,
    policy=RecurrentQPolicy,
    build=RecurrentDQN,
    capabilities=Capabilities(observations=("vector",), actions=("discrete",), recurrent=True),
)
