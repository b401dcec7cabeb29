"""Deep Q-learning in several tasks at once, as user code: every task has its own encoder and head around one trunk.

A task that has reached its `target_return` in training leaves collection; its memory is still learned from, so that it
is not forgotten. Try `rl-training train multi_task_dqn:SPEC "tasks=[CartPole-v1, Acrobot-v1]"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import AlgorithmSpec, Context, ModelConfig, Policy, PolicyContext
from rl_training.algorithms.multi_task import MultiTaskAlgorithm, named
from rl_training.algorithms.off_policy import MinibatchConfig, OffPolicyLoopConfig
from rl_training.algorithms.parts.observer import Observer, under
from rl_training.algorithms.parts.policies import allowed
from rl_training.algorithms.settings import setting
from rl_training.data.memory import Memory
from rl_training.models.flat import Follower, Learner
from rl_training.ops.exploration import uniform_choices
from rl_training.types import Act, Array, Capabilities, Carry, Metrics, SpaceInfo, Step, mean_metrics


class MultiTaskDQNConfig(MinibatchConfig):
    """minimise the mean over tasks of (Q(s, a) - (r + gamma max Q'(s', .)))^2"""

    learning_rate: float = setting(1e-3, "Step size of the optimiser.", ge=0.0, report=True)
    batch_size: int = setting(32, "Transitions of each task in a minibatch.", ge=1, probe=5)
    gamma: float = setting(0.97, "Discount factor.", ge=0.0, le=1.0, probe=0.5)
    epsilon: float = setting(0.1, "Share of random actions in training.", ge=0.0, le=1.0, report=True, probe=0.9)
    tau: float = setting(0.02, "Share of the online weights in a target network's update.", ge=0.0, le=1.0, probe=0.5)


class SharedQNetwork(nn.Module):
    """Q-values `[B, A]` of a task: its encoder, the trunk of all tasks, its head."""

    def __init__(self, tasks: Mapping[str, SpaceInfo], width: int) -> None:
        super().__init__()
        inputs = {task: int(np.prod(info.input_shape)) for task, info in tasks.items()}
        self.encoders = nn.ModuleDict({f"of_{task}": nn.Linear(size, width) for task, size in inputs.items()})
        self.trunk = nn.Linear(width, width)
        self.heads = nn.ModuleDict({f"of_{task}": nn.Linear(width, info.action_size) for task, info in tasks.items()})

    def forward(self, task: str, obs: Tensor) -> Tensor:
        encoded = self.encoders[f"of_{task}"](obs.flatten(1)).relu()
        values: Tensor = self.heads[f"of_{task}"](self.trunk(encoded).relu())
        return values


class MultiTaskQPolicy(Policy):
    """Epsilon-greedy, in the task that the policy is a view for."""

    acting_settings = ("epsilon",)

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        cfg, self.width = context.config, context.model.hidden_sizes[0]
        assert isinstance(cfg, MinibatchConfig)
        self.observers = {
            task: Observer(info, context.device, normalize=cfg.normalize_obs, clip=cfg.obs_clip)
            for task, info in context.tasks.items()
        }
        self.network = SharedQNetwork(context.tasks, self.width).to(context.device)

    def values_of(self, network: nn.Module, task: str, obs: Array) -> Tensor:
        """What a network says of stored observations of a task."""
        observer = self.observers[task]
        values: Tensor = network(task, observer.tensors(observer.scaled(obs)))
        return values

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        mask = self.observers[self.task].mask(obs)
        with torch.inference_mode():
            values = self.values_of(self.network, self.task, obs).cpu().numpy()
        action: Array = allowed(values, mask).argmax(axis=-1)
        if explore:
            other = uniform_choices(rng, len(obs), self.info.action_size, mask)
            action = np.where(rng.random(len(obs)) < self.values["epsilon"], other, action)
        return Act(action, carry)

    def policy_state(self) -> dict[str, Tensor]:
        state = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for task, observer in self.observers.items():
            state |= {f"{task}.{name}": tensor for name, tensor in observer.state_dict().items()}
        return state

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(under(state, "network."))
        for task, observer in self.observers.items():
            observer.load_state_dict(under(state, f"{task}."))


class MultiTaskDQN(MultiTaskAlgorithm):
    """Q-learning with as many transitions of every task in a minibatch."""

    cfg: MultiTaskDQNConfig
    policy: MultiTaskQPolicy

    def __init__(self, context: Context) -> None:
        super().__init__(context, MultiTaskQPolicy(context))
        self.learner = Learner(self.policy.network)
        self.target = Follower(self.learner)
        self.solved: list[str] = []

    def active_tasks(self) -> Sequence[str]:
        return [task for task in self.tasks if task not in self.solved]

    def hear(self, returns: Mapping[str, Sequence[float]]) -> Metrics:
        for task, target in self.target_returns.items():
            if task not in self.solved and returns[task] and np.mean(returns[task]) >= target:
                self.solved.append(task)
        return {"solved_tasks": float(len(self.solved))}

    def observe(self, task: str, steps: Sequence[Step]) -> None:
        self.policy.observers[task].observe(steps)

    def learn_from(self, memories: Mapping[str, Memory], updates: int) -> Metrics:
        return mean_metrics(self.update(memories) for _ in range(updates))

    def update(self, memories: Mapping[str, Memory]) -> Metrics:
        losses = {task: self._loss(task, memory) for task, memory in memories.items()}
        self.learner.differentiate(torch.stack(list(losses.values())).mean())
        self.learner.descend(self.cfg.learning_rate)
        self.target.follow(self.cfg.tau)
        self.n_updates += 1
        metrics: Metrics = {}
        for task, loss in losses.items():
            metrics |= named(task, {"loss": float(loss.detach())})
        return metrics

    def _loss(self, task: str, memory: Memory) -> Tensor:
        cfg, policy = self.cfg, self.policy
        tensor, mask = policy.observers[task].tensor, policy.observers[task].mask
        batch = memory.transitions(cfg.batch_size, self.batch_rng, gamma=cfg.gamma)
        with torch.no_grad():
            follows = policy.values_of(self.target.module, task, batch.next_obs).cpu().numpy()
        best = allowed(follows, mask(batch.next_obs)).max(axis=-1)
        goal = tensor(batch.reward + np.float32(cfg.gamma) * best * ~batch.terminated)
        values = policy.values_of(self.learner.module, task, batch.obs)
        chosen = values.gather(-1, tensor(batch.action)[:, None])[:, 0]
        return (chosen - goal).square().mean()

    def training_state(self) -> dict[str, Any]:
        optimizer = self.learner.optimizer.state_dict()
        return {
            "optimizer": optimizer,
            "target": self.target.state_dict(),
            "solved": list(self.solved),
            "n_updates": self.n_updates,
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.target.load_state_dict(state["target"])
        self.solved, self.n_updates = list(state["solved"]), state["n_updates"]


SPEC = AlgorithmSpec(
    name="multi_task_dqn",
    family="multi_task",
    summary="Deep Q-learning in several tasks",
    config=MultiTaskDQNConfig,
    loop=OffPolicyLoopConfig,
    model=ModelConfig,
    policy=MultiTaskQPolicy,
    build=MultiTaskDQN,
    capabilities=Capabilities(observations=("vector",), actions=("discrete",), multi_task=True),
)
